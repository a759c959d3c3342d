"""Figures of several processes become one, and text."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from korvet.metrics.buckets import REQUEST_BOUNDS_S
from korvet.metrics.exposition import render
from korvet.metrics.families import FAMILIES, Joined, Kind
from korvet.metrics.requests import Requests
from korvet.metrics.samples import Samples

HISTOGRAM = "korvet_request_duration_seconds"


def of(name: str, value: float | list[float], *labels: str) -> Samples:
    samples = Samples()
    samples.set(name, value, *labels)
    return samples


def test_counters_are_added_and_common_things_are_not() -> None:
    samples = of("korvet_requests_total", 2, "Fetch", "4")
    samples.add(of("korvet_requests_total", 3, "Fetch", "4"))
    samples.add(of("korvet_requests_total", 1, "Fetch", "5"))
    samples.add(of("korvet_redis_used_bytes", 100, "here"))
    samples.add(of("korvet_redis_used_bytes", 90, "here"))
    assert samples.values["korvet_requests_total"] == {("Fetch", "4"): 5, ("Fetch", "5"): 1}
    assert samples.values["korvet_redis_used_bytes"] == {("here",): 100}


def test_of_an_ended_process_only_counters_stay() -> None:
    ended = of("korvet_requests_total", 2, "Fetch", "4")
    ended.set("korvet_queued_request_bytes", 7)
    ended.set(HISTOGRAM, [1.0] * (len(REQUEST_BOUNDS_S) + 2), "Fetch")
    samples = Samples()
    samples.add(ended, only_added=True)
    samples.add(of(HISTOGRAM, [2.0] * (len(REQUEST_BOUNDS_S) + 2), "Fetch"))
    assert samples.values["korvet_requests_total"] == {("Fetch", "4"): 2}
    assert "korvet_queued_request_bytes" not in samples.values
    assert samples.values[HISTOGRAM] == {("Fetch",): [3.0] * (len(REQUEST_BOUNDS_S) + 2)}


def test_json_carries_figures_and_leaves_out_unknown_ones() -> None:
    samples = of("korvet_requests_total", 2, "Fetch", "4")
    samples.set(HISTOGRAM, [0.5] * (len(REQUEST_BOUNDS_S) + 2), "Fetch")
    assert Samples.from_json(samples.to_json()).values == samples.values
    assert Samples.from_json('{"korvet_of_tomorrow": [[["a"], 1]]}').values == {}
    with pytest.raises(ValueError):
        Samples.from_json("nonsense")


def test_names_that_clients_chose_are_escaped() -> None:
    hostile = 'a"} 1\nkorvet_workers 9\n\\'
    text, _ = render(of("korvet_client_events_total", 1, hostile), {}, "")
    (family,) = text_string_to_metric_families(text.decode())
    (sample,) = family.samples
    assert (sample.name, sample.labels, sample.value) == ("korvet_client_events_total", {"event": hostile}, 1)


def test_a_histogram_counts_each_request_once() -> None:
    requests = Requests()
    figures = requests.of("fetch", 4)
    for seconds in (0.0001, REQUEST_BOUNDS_S[0], 0.3, 1000.0):
        figures.answered(seconds, 10, 20)
    text, _ = render(of(HISTOGRAM, [*figures.buckets, figures.seconds], "Fetch"), {}, "")
    (family,) = text_string_to_metric_families(text.decode())
    found = {(one.name, one.labels.get("le")): one.value for one in family.samples}
    assert found[f"{HISTOGRAM}_bucket", "0.0005"] == 2
    assert found[f"{HISTOGRAM}_bucket", "0.25"] == 2
    assert found[f"{HISTOGRAM}_bucket", "0.5"] == 3
    assert found[f"{HISTOGRAM}_bucket", "+Inf"] == found[f"{HISTOGRAM}_count", None] == 4
    assert found[f"{HISTOGRAM}_sum", None] == pytest.approx(1000.3006)


def test_errors_of_all_versions_are_counted_together() -> None:
    requests = Requests()
    requests.of("delete_topics", 6).failed([3, 7])
    requests.of("delete_topics", 1).failed([3])
    assert requests.errors() == {"delete_topics": {3: 2, 7: 1}}


def test_many_equal_errors_of_one_answer_are_counted_at_once() -> None:
    looked_at = 0

    class Code(int):
        def __int__(self) -> int:
            nonlocal looked_at
            looked_at += 1
            return 5

    requests = Requests()
    requests.of("metadata", 12).failed([Code(5)] * 1000)
    assert (requests.errors(), looked_at) == ({"metadata": {5: 1000}}, 1)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_names_follow_prometheus(family: object) -> None:
    from korvet.metrics.families import Family

    assert isinstance(family, Family)
    assert family.name.startswith(("korvet_", "process_"))
    assert family.name.endswith("_total") == (family.kind is Kind.COUNTER)
    assert not family.name.endswith(("_count", "_sum", "_bucket", "_ms"))
    assert bool(family.bounds_s) == (family.kind is Kind.HISTOGRAM)
    assert family.text.endswith(".")
    assert family.joined is Joined.SUM or family.kind in (Kind.COUNTER, Kind.GAUGE)
