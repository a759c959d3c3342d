"""The metrics of clients are kept while they push, within a bound, and told as Prometheus reads them."""

from __future__ import annotations

import random
from typing import Any

import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

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
    clients.update(push("a", ("m", {}, 1), ("gone", {}, 1)))
    clients.update(push("b", ("m", {}, 5)))
    clients.update(push("a", ("m", {}, 2)))
    assert {name: sorted(found) for name, found in values(clients).items()} == {"m": [2, 5]}
    assert figures(clients)["korvet_client_metrics_series", "n"] == 2


def test_series_of_one_principal_are_not_replaced_by_another() -> None:
    """Attack: a push with the instance id of another user's client."""
    clock = Clock()
    clients = Clients(100, clock)
    for principal, value in (("alice", 1), ("mallory", 666), ("alice", 2), ("mallory", 666)):
        told = push("a", ("m", {}, value))
        told["client"]["principal"] = principal
        clients.update(told)
    assert values(clients) == {"m": [2]}
    assert figures(clients)["korvet_client_metrics_dropped_total", "n", "principal"] == 2
    clock.now = 61
    clients.update(told)
    assert values(clients) == {"m": [666]}


def test_client_whose_next_push_has_no_room_learns_it_from_the_one_before() -> None:
    clients = Clients(8)
    clients.update(push("a", ("m", {}, 1)))
    clients.update(push("b", ("m", {}, 5)))
    clients.update(push("a", *[(f"m{number}", {}, 2) for number in range(8)]))
    assert {name: sorted(found) for name, found in values(clients).items()} == {"m": [1, 5]}
    assert figures(clients)["korvet_client_metrics_dropped_total", "n", "clients"] == 8


def test_client_that_pushes_no_more_vanishes() -> None:
    clock = Clock()
    clients = Clients(3, clock)
    clients.update(push("a", ("m", {}, 1)))
    clients.update(push("b", ("m", {}, 2), interval_ms=100_000))
    clock.now = 61
    assert values(clients) == {}
    assert figures(clients) == {("korvet_client_metrics_dropped_total", "n", "clients"): 1}
    clients.update(push("b", ("m", {}, 2), interval_ms=100_000))
    clock.now = 61 + 299
    assert values(clients) == {"m": [2]}
    clock.now = 61 + 301
    assert values(clients) == {}


def test_clients_beyond_the_bound_are_left_out_and_counted() -> None:
    clients = Clients(5)
    clients.update(push("a", ("m", {}, 1), ("n", {"l": "x" * 200}, 1)))
    clients.update(push("b", ("m", {}, 2), dropped={"kind": 3}))
    assert values(clients) == {"m": [1], "n": [1]}
    told = figures(clients)
    assert told["korvet_client_metrics_dropped_total", "n", "clients"] == 1
    assert told["korvet_client_metrics_dropped_total", "n", "kind"] == 3
    clients.update(push("a", ("m", {}, 1)))
    clients.update(push("b", ("m", {}, 2)))
    assert values(clients) == {"m": [1, 2]}


def pushed_by(source: tuple[str, str, str], id: str, series: int = 1) -> dict[str, Any]:
    """A push of so many series by a namespace, a principal and an address."""
    namespace, principal, address = source
    told = push(id, *[(f"m{at}", {}, 1) for at in range(series)], namespace=namespace)
    told["client"] |= {"principal": principal, "client_source_address": address}
    return told


def kept(clients: Clients) -> list[str]:
    samples = Samples()
    clients.add_to(samples)
    return sorted(labels[1] for labels in samples.values.get("korvet_client_info", {}))


MALLORY = ("n", "User:mallory", "10.0.0.1")


@pytest.mark.parametrize(
    "other", [("n", "User:alice", "10.0.0.1"), ("n", "User:mallory", "10.0.0.2"), ("m", "User:mallory", "10.0.0.1")]
)
def test_client_with_very_many_ids_takes_the_part_of_no_other(other: tuple[str, str, str]) -> None:
    """Attack: a client id for each push."""
    clients = Clients(8)
    with capture_logs() as lines:
        for number in range(100):
            clients.update(pushed_by(MALLORY, f"m{number}"))
        assert kept(clients) == ["m0", "m1", "m2", "m3"]
        clients.update(pushed_by(other, "a0"))
        assert kept(clients) == ["a0", "m1", "m2", "m3"]
        clients.update(pushed_by(MALLORY, "m0"))
        clients.update(pushed_by(other, "a1"))
        clients.update(pushed_by(other, "a2"))
        assert kept(clients) == ["a0", "a1", "m2", "m3"], "both have as much"
    dropped = {labels[1]: value for labels, value in figures(clients).items() if labels[0].endswith("dropped_total")}
    assert sum(dropped.values()) == 96 + 1 + 1 + 1 + 1
    assert [(line["principal"], line["client"]) for line in lines] == [MALLORY[1:]], "one line a minute"


def test_users_and_addresses_of_a_namespace_share_its_part() -> None:
    """Attack: a tenant with very many users, of which each has little."""
    clients = Clients(8)
    for number in range(50):
        clients.update(pushed_by(("n", f"User:{number}", f"10.0.0.{number}"), f"m{number}"))
    for number in range(3):
        clients.update(pushed_by(("other", "User:alice", "10.0.1.1"), f"a{number}"))
    assert kept(clients) == ["a0", "a1", "m2", "m3"]


def test_push_that_gets_no_room_costs_nobody_any() -> None:
    clients = Clients(12)
    for number in range(4):
        clients.update(pushed_by(MALLORY, f"m{number}"))
    clients.update(pushed_by(("n", "User:alice", "10.0.0.2"), "a", series=3))
    before = kept(clients)
    clients.update(pushed_by(("n", "User:bob", "10.0.0.3"), "b", series=6))
    assert kept(clients) == before == ["a", "m0", "m1", "m2", "m3"]
    clients.update(pushed_by(("n", "User:bob", "10.0.0.3"), "b", series=1))
    assert kept(clients) == ["a", "b", "m0", "m2", "m3"]


def test_cost_of_all_is_known_after_any_pushes() -> None:
    numbers, clock = random.Random(7), Clock()
    clients = Clients(60, clock)
    for _ in range(3000):
        namespace, user, address = (f"{name}{numbers.randrange(4)}" for name in "nua")
        source = (namespace, user, address)
        clients.update(pushed_by(source, str(numbers.randrange(30)), numbers.randrange(1, 9)))
        clock.now += numbers.choice((0, 0, 5))
        assert clients._shares.cost == sum(client.cost for client in clients._clients.values()) <= 60
    clock.now += 1000
    assert kept(clients) == [] and clients._shares.cost == 0 and not clients._shares._all.parts


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
def test_hostile_text_of_clients_is_escaped(accept: str) -> None:
    hostile = 'a"} 1\nkorvet_workers 9\n\\'
    clients = Clients(100)
    clients.update(push(hostile, ("kafka_client_m", {"topic": hostile, "client_id": "another"}, 1)))
    samples = Samples()
    clients.add_to(samples)
    text = render(samples, clients.pushed(), accept)[0].decode()
    parse = openmetrics.text_string_to_metric_families if accept else text_string_to_metric_families
    found = {one.name: one for family in parse(text) for one in family.samples}
    assert found.keys() == {"korvet_client_info", "korvet_client_metrics_series", "kafka_client_m"}
    assert found["kafka_client_m"].labels == {
        "namespace": "n", "client_id": f"c-{hostile}", "client_instance_id": hostile, "topic": hostile
    }  # fmt: skip
