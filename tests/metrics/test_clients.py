"""The metrics of clients are kept while they push, within a bound, and told as Prometheus reads them."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from korvet.metrics.clients import Clients
from korvet.metrics.exposition import render
from korvet.metrics.samples import Samples

OPENMETRICS = "application/openmetrics-text"


class Clock:
    """Seconds that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def push(id: str, *series: tuple[str, dict[str, str], float], **more: Any) -> dict[str, Any]:
    """A push as a worker writes it."""
    client = {"client_instance_id": id, "client_id": f"c-{id}", "client_software_name": "s"}
    told = [[name, list(labels.items()), value] for name, labels, value in series]
    return {"namespace": "n", "interval_ms": 100, "client": client, "series": told, "dropped": {}, **more}


def figures(clients: Clients) -> dict[tuple[str, ...], float]:
    samples = Samples()
    clients.add_to(samples)
    return {
        (name, *labels): value
        for name, values in samples.values.items()
        for labels, value in values.items()
        if isinstance(value, int | float)
    }


def values(clients: Clients) -> dict[str, list[float]]:
    return {name: [value for _, value in series] for name, series in clients.pushed().items()}


def test_newest_push_of_a_client_counts_whichever_worker_took_it() -> None:
    clients = Clients(100)
    clients.take(push("a", ("m", {}, 1), ("gone", {}, 1)))
    clients.take(push("b", ("m", {}, 5)))
    clients.take(push("a", ("m", {}, 2)))
    assert {name: sorted(found) for name, found in values(clients).items()} == {"m": [2, 5]}
    assert figures(clients)["korvet_client_metrics_series", "n"] == 2


def test_client_that_pushes_no_more_vanishes() -> None:
    clock = Clock()
    clients = Clients(3, clock)
    clients.take(push("a", ("m", {}, 1)))
    clients.take(push("b", ("m", {}, 2), interval_ms=100_000))
    clock.now = 61
    assert values(clients) == {}
    assert figures(clients) == {("korvet_client_metrics_dropped_total", "n", "clients"): 1}
    clients.take(push("b", ("m", {}, 2), interval_ms=100_000))
    clock.now = 61 + 299
    assert values(clients) == {"m": [2]}
    clock.now = 61 + 301
    assert values(clients) == {}


def test_clients_beyond_the_bound_are_left_out_and_counted() -> None:
    clients = Clients(5)
    clients.take(push("a", ("m", {}, 1), ("n", {"l": "x" * 200}, 1)))
    clients.take(push("b", ("m", {}, 2), dropped={"kind": 3}))
    assert values(clients) == {"m": [1], "n": [1]}
    told = figures(clients)
    assert told["korvet_client_metrics_dropped_total", "n", "clients"] == 1
    assert told["korvet_client_metrics_dropped_total", "n", "kind"] == 3
    clients.take(push("a", ("m", {}, 1)))
    clients.take(push("b", ("m", {}, 2)))
    assert values(clients) == {"m": [1, 2]}


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
def test_hostile_text_of_clients_is_escaped(accept: str) -> None:
    hostile = 'a"} 1\nkorvet_workers 9\n\\'
    clients = Clients(100)
    clients.take(push(hostile, ("kafka_client_m", {"topic": hostile, "client_id": "another"}, 1)))
    samples = Samples()
    clients.add_to(samples)
    text = render(samples, clients.pushed(), accept)[0].decode()
    parse = openmetrics.text_string_to_metric_families if accept else text_string_to_metric_families
    found = {one.name: one for family in parse(text) for one in family.samples}
    assert found.keys() == {"korvet_client_info", "korvet_client_metrics_series", "kafka_client_m"}
    assert found["kafka_client_m"].labels == {
        "namespace": "n", "client_id": f"c-{hostile}", "client_instance_id": hostile, "topic": hostile
    }  # fmt: skip
