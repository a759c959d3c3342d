"""korvet_log_offset_for_time: bisection, the linear search after trimmed batches, and the greatest timestamp."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.lua.log import GONE, Log

MAX_TIMESTAMP = -3


def _fill(log: Log, timestamps: list[int], records: int = 2) -> None:
    for timestamp in timestamps:
        log.append(records, timestamp=timestamp)


def _first(log: Log, timestamp: int) -> int:
    """The right answer, found by a look at every entry."""
    start = int(log.meta_fields()["start"])
    entries = [entry for entry in log.entries() if entry.next_offset > start]
    if timestamp == MAX_TIMESTAMP:
        timestamp = max((entry.max_timestamp for entry in entries), default=0)
    return next((entry.next_offset for entry in entries if entry.max_timestamp >= timestamp), -1)


def test_empty_log_has_no_batch_of_any_time(log: Log) -> None:
    assert log.at_time(0) == (0, -1, 0)
    assert log.at_time(MAX_TIMESTAMP) == (0, -1, 0)


def test_first_batch_that_is_not_earlier_is_found(log: Log) -> None:
    _fill(log, [100, 300, 200, 300, 400])
    assert [log.at_time(timestamp).next_offset for timestamp in (0, 100, 101, 300, 301, 400, 401)] == [
        2, 2, 4, 4, 10, 10, -1,
    ]  # fmt: skip


def test_search_for_the_greatest_finds_the_first_batch_that_has_it(log: Log) -> None:
    _fill(log, [100, 500, 200, 500, 400])
    assert log.at_time(MAX_TIMESTAMP) == (0, 4, 0)


def test_search_finds_placed_batches_like_inline_ones(log: Log) -> None:
    log.append(timestamp=100)
    log.place(5, timestamp=200)
    log.append(timestamp=300)
    assert log.at_time(150) == (0, 6, 0)


def test_batch_in_which_the_log_starts_counts(log: Log) -> None:
    _fill(log, [100, 200, 300], records=10)
    log.trim(15)
    assert log.at_time(0) == (0, 20, 15)


def test_search_in_a_deleted_topic_returns_gone(log: Log) -> None:
    log.append()
    log.topic_id = "b" * 32
    assert log.at_time(0) == (GONE, -1, -1)


def test_search_goes_on_after_the_running_maximum_of_a_trimmed_batch(log: Log) -> None:
    _fill(log, [10_000, *range(1, 251)], records=1)
    log.trim(1)
    assert log.at_time(240) == (0, 241, 1)
    assert log.at_time(251) == (0, -1, 1)
    assert log.at_time(MAX_TIMESTAMP) == (0, 251, 1)


@pytest.mark.parametrize("batches", [99, 100, 101, 200])
def test_search_for_the_greatest_ends_in_a_log_of_any_length(log: Log, batches: int) -> None:
    _fill(log, [10_000, *range(batches, 0, -1)], records=1)
    log.trim(1)
    assert log.at_time(MAX_TIMESTAMP) == (0, 2, 1)
    assert log.at_time(batches + 1) == (0, -1, 1)


def test_search_for_the_greatest_begins_again_if_a_trim_removes_it(log: Log) -> None:
    _fill(log, [10_000, 500, *range(1, 201)], records=1)
    log.trim(1)
    first = log.call("korvet_log_offset_for_time", log.topic_id, MAX_TIMESTAMP, -1, keys=(log.log, log.meta))
    assert first[1:3] == [b"more", b"101 2 500"]
    log.trim(2)
    second = log.call("korvet_log_offset_for_time", log.topic_id, MAX_TIMESTAMP, first[2], keys=(log.log, log.meta))
    third = log.call("korvet_log_offset_for_time", log.topic_id, MAX_TIMESTAMP, second[2], keys=(log.log, log.meta))
    assert third[1:3] == [b"more", b"-1"]
    assert log.at_time(MAX_TIMESTAMP) == (0, 202, 2)


def test_error_names_a_foreign_entry(log: Log) -> None:
    log.append(timestamp=100)
    log.server.xadd(log.log, {"foreign": "entry"}, id="2-0")
    log.server.hset(log.meta, mapping={"end": 2, "totals": "200 5 2"})
    with pytest.raises(Exception, match="entry 2-0 is not one of korvet's"):
        log.at_time(150)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    timestamps=st.lists(st.integers(-2, 50), min_size=1, max_size=40),
    trimmed=st.integers(0, 80),
    asked=st.lists(st.integers(0, 52), min_size=1, max_size=5),
)
def test_search_finds_what_a_look_at_every_entry_finds(
    log: Log, timestamps: list[int], trimmed: int, asked: list[int]
) -> None:
    log.server.flushall()
    log.create()
    _fill(log, timestamps)
    log.trim(min(trimmed, 2 * len(timestamps)))
    for timestamp in (*asked, MAX_TIMESTAMP):
        assert log.at_time(timestamp).next_offset == _first(log, timestamp)
