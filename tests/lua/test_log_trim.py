"""korvet_log_trim and korvet_log_delete."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from tests.lua.log import GONE, Log, listening

OFFSET_OUT_OF_RANGE = 1
FENCED_LEADER_EPOCH = 74


def _fill(log: Log, batches: int) -> None:
    """Batches of ten records, every third one placed."""
    for number in range(batches):
        (log.append if number % 3 else log.place)(10)


def _placed(log: Log) -> list[int]:
    keys: Any = log.server.keys(f"{log.log}:*")
    return sorted(int(key.rpartition(b":")[2]) for key in keys)


def test_trim_moves_the_start_and_removes_whole_batches_below_it(log: Log) -> None:
    _fill(log, 6)
    assert _placed(log) == [10, 40]
    assert log.trim(25) == [0, 25, 0]
    assert [entry.next_offset for entry in log.entries()] == [30, 40, 50, 60]
    assert _placed(log) == [40]
    assert log.trim(40) == [0, 40, 0]
    assert _placed(log) == []
    assert log.append().log_start == 40


def test_trim_to_minus_one_empties_the_log_and_reuses_no_offset(log: Log) -> None:
    _fill(log, 3)
    assert log.trim(-1) == [0, 30, 0]
    assert (log.entries(), _placed(log)) == ([], [])
    assert log.append(5) == (0, 30, 30, 0)
    assert log.meta_fields()["totals"].split()[2] == "4"


@pytest.mark.parametrize("offset", [31, 10**15, -2])
def test_offset_beyond_the_end_is_out_of_range(log: Log, offset: int) -> None:
    _fill(log, 3)
    before = log.dump()
    assert log.trim(offset) == [OFFSET_OUT_OF_RANGE, 0, 0]
    assert log.dump() == before


def test_trim_to_an_offset_of_another_history_is_refused(log: Log) -> None:
    _fill(log, 3)
    assert log.trim(10, epoch=0) == [0, 10, 0]
    log.run_id = "another"
    _, epoch = log.take_over()
    before = log.dump()
    assert log.trim(20, epoch=0) == [FENCED_LEADER_EPOCH, 10, 0]
    assert log.dump() == before
    assert log.trim(20, epoch=epoch) == [0, 20, 0]


def test_offset_below_the_start_changes_nothing(log: Log) -> None:
    _fill(log, 3)
    log.trim(20)
    before = log.dump()
    assert log.trim(5) == [0, 20, 0]
    assert log.trim(20) == [0, 20, 0]
    assert log.dump() == before


def test_long_trim_takes_several_calls_of_a_hundred_batches(log: Log) -> None:
    _fill(log, 250)
    assert [log.trim(2400), log.trim(2400), log.trim(2400)] == [[0, 2400, 1], [0, 2400, 1], [0, 2400, 0]]
    assert len(log.entries()) == 10
    assert _placed(log) == [2410, 2440, 2470, 2500]


def test_trim_to_a_lower_offset_finishes_an_earlier_trim(log: Log) -> None:
    _fill(log, 150)
    assert log.trim(1500) == [0, 1500, 1]
    assert log.trim(0) == [0, 1500, 0]
    assert log.entries() == []


def test_trim_forgets_epochs_below_the_start(log: Log, set_clock: Callable[[float], None]) -> None:
    for server, seconds in (("1", 0), ("2", 10), ("3", 20)):
        set_clock(1_577_836_800 + seconds)
        log.run_id = server * 40
        log.append(10)
    assert log.meta_fields()["epochs"] == "0:0,10:10,20:20"
    log.trim(9)
    assert log.meta_fields()["epochs"] == "0:9,10:10,20:20"
    log.trim(10)
    assert log.meta_fields()["epochs"] == "10:10,20:20"
    log.trim(15)
    assert log.meta_fields()["epochs"] == "10:15,20:20"
    log.trim(30)
    assert log.meta_fields()["epochs"] == "20:30"


def test_producers_outlive_their_records(log: Log) -> None:
    log.append(3, producer=(7, 0, 0))
    log.trim(-1)
    assert log.append(3, producer=(7, 0, 0)) == (0, 0, 3, 0)
    assert log.append(3, producer=(7, 0, 3)) == (0, 3, 3, 0)


def test_stream_of_the_wrong_type_is_found_before_the_first_write(log: Log) -> None:
    log.append()
    log.server.delete(log.log)
    log.server.set(log.log, "text")
    before = log.dump()
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        log.trim(1)
    assert log.dump() == before


@pytest.mark.parametrize("name", ["log", "meta", "producers"])
def test_key_of_the_wrong_type_keeps_no_partition_from_being_deleted(log: Log, name: str) -> None:
    log.append()
    log.server.delete(getattr(log, name))
    log.server.set(getattr(log, name), "text")
    log.server.set(f"{log.log}:spare", "text")
    assert log.delete() == [0, 0]
    assert log.server.exists(*log.keys, f"{log.log}:spare") == 0


def test_trim_of_another_topic_returns_gone(log: Log) -> None:
    _fill(log, 3)
    before = log.dump()
    log.topic_id = "b" * 32
    assert log.trim(10) == [GONE, -1, 0]
    assert log.dump() == before


def test_repeated_delete_leaves_no_key(log: Log) -> None:
    _fill(log, 6)
    log.append(producer=(7, 0, 0))
    assert log.delete() == [0, 0]
    assert log.dump() == {}
    assert log.delete() == [0, 0]


def test_long_delete_ends_the_partition_with_its_first_call(log: Log) -> None:
    _fill(log, 250)
    assert log.delete() == [0, 1]
    assert log.append().code == GONE
    assert log.trim(10)[0] == GONE
    assert log.at_time(0).code == GONE
    assert log.take_over()[0] == GONE
    assert log.create() == GONE
    assert [log.delete(), log.delete()] == [[0, 1], [0, 0]]
    assert log.dump() == {}
    assert log.create() == 0


def test_delete_of_another_topic_leaves_this_one_alone(log: Log) -> None:
    _fill(log, 3)
    before = log.dump()
    log.topic_id = "b" * 32
    assert log.delete() == [0, 0]
    assert log.dump() == before


def test_delete_spares_another_topic_that_is_being_deleted(log: Log) -> None:
    _fill(log, 150)
    log.delete()
    before = log.dump()
    log.topic_id = "b" * 32
    assert log.delete() == [0, 0]
    assert log.dump() == before


@pytest.mark.parametrize("batches", [3, 150])
def test_delete_wakes_waiting_readers(log: Log, batches: int) -> None:
    _fill(log, batches)
    with listening(log.server, log.log) as next_message:
        while log.delete() == [0, 1]:
            pass
        assert next_message() == b"-1 -1"


def test_trim_forgets_very_many_aborted_transactions_in_many_calls(log: Log) -> None:
    """The test has three thousand transactions; one call removes a thousand."""
    _fill(log, 1)
    keys = (*log.keys, *(f"{log.log.removesuffix(':log')}:{name}" for name in ("open", "aborted", "transactions")))
    aborted = keys[4]
    log.server.zadd(aborted, {"": -1} | {f"{last} {last} 1 0": last / 1000 for last in range(3000)})
    trims = [log.call("korvet_log_trim", log.topic_id, 10, keys=keys) for _ in range(4)]
    assert [more for _, _, more in trims] == [1, 1, 1, 0]
    assert log.server.zrange(aborted, 0, -1) == [b""]


def test_each_call_trims_or_deletes_about_a_mebibyte_of_records(log: Log) -> None:
    for _ in range(6):
        log.append(1, batch=b"x" * 600_000)
    assert log.trim(-1) == [0, 6, 1]
    assert len(log.entries()) == 3
    assert log.delete() == [0, 1]
    assert log.delete() == [0, 0]
