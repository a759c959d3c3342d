"""The functions of compaction: the lease, and the changes after which a run gives up."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.lua.log import GONE, TOPIC_ID, Log

NOW_S = 1_700_000_000
LEASE_MS = 30_000


def keys(log: Log) -> tuple[str, ...]:
    return (*log.keys, f"{log.log}:spare")


def begin(log: Log, token: str, *is_kept: int) -> list[object]:
    reply: list[object] = log.call("korvet_log_compaction_begin", TOPIC_ID, token, LEASE_MS, *is_kept, keys=keys(log))
    return reply


def head(log: Log, token: str, copied: int, **changed: str | int) -> tuple[str | int, ...]:
    seen = {"topic_id": TOPIC_ID, "run_id": log.run_id, "epoch": 0, "start": 0, **changed}
    return (*seen.values(), token, copied)


def copy(
    log: Log, token: str, copied: int, cursor: int, until: int, *, dropped: str = "", **changed: str | int
) -> object:
    """Copy entries; the dropped ones are inline batches of five bytes."""
    gone = len(dropped.split())
    args = (*head(log, token, copied, **changed), cursor, until, 5 * gone, gone, dropped)
    return log.call("korvet_log_compaction_copy", *args, keys=keys(log))


def swap(log: Log, token: str, copied: int, cursor: int) -> object:
    return log.call("korvet_log_compaction_swap", *head(log, token, copied), cursor, 0, cursor, keys=keys(log))


def finish(log: Log, token: str) -> object:
    return log.call("korvet_log_compaction_end", TOPIC_ID, token, keys=keys(log))


def test_lease_belongs_to_one_token_until_it_ends(log: Log, set_clock: Callable[[float], None]) -> None:
    assert begin(log, "one") == [0, b"ready"]
    set_clock(NOW_S + 29.999)
    assert begin(log, "two") == [0, b"busy"]
    assert begin(log, "one") == [0, b"ready"]
    set_clock(NOW_S + 59.998)
    assert begin(log, "two") == [0, b"busy"]
    set_clock(NOW_S + 59.999)
    assert begin(log, "two") == [0, b"ready"]
    assert finish(log, "one") == [0, 0]
    assert begin(log, "one") == [0, b"busy"]
    assert finish(log, "two") == [0, 0]
    assert begin(log, "one") == [0, b"ready"]


def test_run_cannot_keep_a_lost_lease(log: Log, set_clock: Callable[[float], None]) -> None:
    """Another run may have compacted the log meanwhile. The older run's plan would count its bytes twice."""
    assert begin(log, "one") == [0, b"ready"]
    assert begin(log, "one", 1) == [0, b"ready"]
    set_clock(NOW_S + 30)
    assert begin(log, "one", 1) == [0, b"ready"]
    set_clock(NOW_S + 60)
    assert begin(log, "two") == [0, b"ready"]
    set_clock(NOW_S + 90)
    assert begin(log, "one", 1) == [0, b"busy"]
    assert finish(log, "two") == [0, 0]
    assert begin(log, "one", 1) == [0, b"busy"]
    assert begin(log, "one") == [0, b"ready"]


def test_run_goes_through_and_leaves_the_totals(log: Log) -> None:
    for _ in range(5):
        log.append(2)
    log.place(1)
    totals = log.meta_fields()["totals"]
    begin(log, "one")
    assert copy(log, "one", 0, 0, 8, dropped="2 6") == [0, b"ready", 2]
    log.append(1)
    assert swap(log, "one", 2, 8) == [0, b"done", 5, b""]
    assert finish(log, "one") == [0, 0]
    entries = log.entries()
    assert [entry.next_offset for entry in entries] == [4, 8, 10, 11, 12]
    running = [(entry.running_bytes, entry.running_batches) for entry in entries]
    assert running == [(15, 3), (20, 4), (25, 5), (37, 6), (42, 7)]
    assert totals == "1000 37 6"
    assert log.meta_fields()["totals"] == "1000 42 7"
    assert set(log.dump()) == {*log.keys, f"{log.log}:11"}


@pytest.mark.parametrize(
    "changed", [{"run_id": "2" * 40}, {"epoch": 1}, {"start": 1}, {"copied": 1}, {"token": "two"}], ids=str
)
def test_run_leaves_a_changed_partition_alone(log: Log, changed: dict[str, str | int]) -> None:
    log.append()
    log.append()
    begin(log, "one")
    before = log.dump()
    seen = dict(changed)
    token, copied = str(seen.pop("token", "one")), int(seen.pop("copied", 0))
    assert copy(log, token, copied, 0, 1, dropped="", **seen) == [0, b"lost", 0]
    assert log.dump() == before


def test_missing_entries_or_batches_end_a_run(log: Log) -> None:
    log.append()
    log.append()
    begin(log, "one")
    before = log.dump()
    assert copy(log, "one", 0, 0, 3) == [0, b"lost", 0]
    args = (*head(log, "one", 0), 0, 1, 0, 0, "", 1, "9 1000 77", "")
    assert log.call("korvet_log_compaction_copy", *args, keys=keys(log)) == [0, b"lost", 0]
    assert copy(log, "one", 0, 0, 1, topic_id="b" * 32) == [GONE, b"", 0]
    assert log.dump() == before
