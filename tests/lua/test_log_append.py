"""korvet_log_append: offsets, placed batches, refusals that write nothing, and leader epochs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from tests.lua.log import GONE, RESEND, Appended, Log, listening
from tests.support.ported import kafka

EPOCHS_SINCE_S = 1_577_836_800


@kafka("UnifiedLogTest.testAppendInfoFirstOffset")
def test_log_gives_dense_offsets_and_an_entry_has_the_offset_past_it(log: Log) -> None:
    assert [log.append(records) for records in (3, 1, 5)] == [(0, 0, 0, 0), (0, 3, 0, 0), (0, 4, 0, 0)]
    assert [entry.next_offset for entry in log.entries()] == [3, 4, 9]
    assert log.meta_fields()["end"] == "9"


def test_entry_carries_its_index_and_the_running_values(log: Log) -> None:
    log.append(3, timestamp=500, batch=b"12345")
    log.append(2, timestamp=300, batch=b"1234567")
    assert log.entries() == [
        (3, 3, 5, 500, 500, 5, 1, 0, 4_000_000_000, b"12345"),
        (5, 2, 7, 300, 500, 12, 2, 0, 4_000_000_000, b"1234567"),
    ]
    assert log.meta_fields()["totals"] == "500 12 2"


def test_reader_gets_a_range_of_the_stream_from_an_offset(log: Log) -> None:
    for _ in range(4):
        log.append(10)
    client: Any = log.server
    assert client.xrange(log.log, min="21-0", count=1)[0][0] == b"30-0"


def test_entry_keeps_numbers_of_sixteen_digits_exact(log: Log) -> None:
    end, total = 9_000_000_000_000_000, 8_999_999_999_999_000
    log.server.hset(log.meta, mapping={"end": end, "totals": f"-1 {total} 7"})
    log.server.xadd(log.log, {"i": "1 1 1 1 1 1 0 1"}, id=f"{end}-0")
    assert log.append(7, batch=b"x" * 111).base_offset == end
    assert log.meta_fields()["end"] == str(end + 7)
    assert log.meta_fields()["totals"] == f"1000 {total + 111} 8"
    assert log.entries()[-1].next_offset == end + 7


def test_batch_without_a_producer_changes_no_producer(log: Log) -> None:
    before = log.server.hgetall(log.producers)
    log.append()
    assert log.server.hgetall(log.producers) == before


def test_append_publishes_the_epoch_and_the_end(log: Log) -> None:
    with listening(log.server, log.log) as next_message:
        log.append(6)
        assert next_message() == b"0 6"


def test_placed_batch_gets_a_key_that_does_not_expire(log: Log) -> None:
    log.append(2)
    assert log.place(3, batch=b"x" * 100) == (0, 2, 0, 0)
    assert log.entries()[1] == (5, 3, 100, 1000, 1000, 105, 2, 0, 4_000_000_000, None)
    assert log.server.get(f"{log.log}:5") == b"x" * 100
    assert log.server.ttl(f"{log.log}:5") == -1
    assert log.server.keys(f"{log.log}:new:*") == []


def test_append_asks_again_for_a_placed_batch_without_its_key(log: Log) -> None:
    log.append(2)
    before = log.dump()
    assert log.place(3, is_sent=False) == (RESEND, -1, 0, 0)
    assert log.place(3, is_sent=False, producer=(1, 0, 0)) == (RESEND, -1, 0, 0)
    assert log.dump() == before


def test_placed_batch_of_another_size_raises_an_error_and_writes_nothing(log: Log) -> None:
    temporary = log.temporary()
    log.server.set(temporary, b"123")
    before = log.dump()
    with pytest.raises(redis.ResponseError, match="3 bytes and not 4"):
        log.call("korvet_log_append", log.topic_id, log.run_id, 1, 4, 0, 0, -1, -1, -1, "", keys=(*log.keys, temporary))
    assert log.dump() == before


def test_append_to_a_missing_partition_returns_gone(server: redis.Redis) -> None:
    log = Log(server)
    assert log.append() == (GONE, -1, -1, -1)
    assert log.place() == (GONE, -1, -1, -1)
    assert log.dump() == {}


def test_append_for_another_topic_id_drops_its_temporary_key(log: Log) -> None:
    before = log.dump()
    log.topic_id = "b" * 32
    assert log.append() == (GONE, -1, -1, -1)
    assert log.place() == (GONE, -1, -1, -1)
    assert log.dump() == before


@pytest.mark.parametrize("broken", ["log", "meta", "producers"])
def test_key_of_the_wrong_type_is_found_before_the_first_write(log: Log, broken: str) -> None:
    log.append()
    key = getattr(log, broken)
    log.server.delete(key)
    log.server.set(key, "text")
    for append in (log.append, log.place):
        before = {name: value for name, value in log.dump().items() if ":new:" not in name}
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            append(producer=(1, 0, 0))
        assert {name: value for name, value in log.dump().items() if ":new:" not in name} == before


def test_new_server_begins_an_epoch_of_seconds_since_2020(log: Log, set_clock: Callable[[float], None]) -> None:
    log.append(2)
    set_clock(EPOCHS_SINCE_S + 777.9)
    log.run_id = "2" * 40
    assert log.append(3) == (0, 2, 0, 777)
    assert log.append(1) == (0, 5, 0, 777)
    meta = log.meta_fields()
    assert (meta["epoch"], meta["epochs"], meta["run_id"]) == ("777", "0:0,777:2", "2" * 40)
    assert [entry.leader_epoch for entry in log.entries()] == [0, 777, 777]


def test_new_replication_id_begins_an_epoch_under_the_same_run_id(log: Log, set_clock: Callable[[float], None]) -> None:
    """A server that was demoted and promoted again may have lost its own writes, and later ones of others."""
    log.append(2)
    log.server.hset(log.meta, "replid", "2" * 40)
    set_clock(EPOCHS_SINCE_S + 777)
    assert log.append(3) == (0, 2, 0, 777)
    assert log.append(1) == (0, 5, 0, 777)
    assert log.meta_fields()["replid"] == log.server.info("replication")["master_replid"]
    log.server.hset(log.meta, "replid", "2" * 40)
    assert log.take_over() == [0, 778]


def test_epoch_rises_while_the_clock_stands_still(log: Log, set_clock: Callable[[float], None]) -> None:
    set_clock(EPOCHS_SINCE_S + 777)
    epochs = []
    for server in "234":
        log.run_id = server * 40
        epochs.append(log.append().leader_epoch)
    assert epochs == [777, 778, 779]
    assert log.meta_fields()["epochs"] == "777:0,778:1,779:2"


def test_log_forgets_epochs_without_batches(log: Log, set_clock: Callable[[float], None]) -> None:
    set_clock(EPOCHS_SINCE_S + 777)
    log.append(4)
    for server in "23":
        log.run_id = server * 40
        log.take_over()
    assert log.meta_fields()["epochs"] == "0:0,778:4"


def test_take_over_begins_an_epoch_once_and_wakes_waiting_readers(log: Log, set_clock: Callable[[float], None]) -> None:
    log.append(4)
    assert log.take_over() == [0, 0]
    set_clock(EPOCHS_SINCE_S + 777)
    log.run_id = "2" * 40
    with listening(log.server, log.log) as next_message:
        assert log.take_over() == [0, 777]
        assert next_message() == b"777 4"
    assert log.take_over() == [0, 777]
    assert log.append() == (0, 4, 0, 777)
    log.topic_id = "b" * 32
    assert log.take_over() == [GONE, -1]


def test_refused_append_begins_no_epoch(log: Log) -> None:
    log.append(producer=(1, 5, 0))
    before = log.dump()
    log.run_id = "2" * 40
    assert log.append(producer=(1, 4, 1)).code == 47
    assert log.place(is_sent=False).code == RESEND
    assert log.dump() == before


def test_full_server_refuses_appends_but_trims_and_deletes(log: Log) -> None:
    log.append(2)
    log.append(2)
    log.server.config_set("maxmemory", 1)
    with pytest.raises(redis.exceptions.OutOfMemoryError):
        log.append()
    assert log.meta_fields()["end"] == "4"
    assert log.at_time(0) == (0, 2, 0)
    assert log.trim(2) == [0, 2, 0]
    assert log.take_over() == [0, 0]
    assert log.delete() == [0, 0]
    log.server.config_set("maxmemory", 0)
    assert log.dump() == {}


def test_repeated_create_makes_all_keys_once(server: redis.Redis) -> None:
    log = Log(server)
    assert log.create() == 0
    log.append(3)
    before = log.dump()
    assert log.create() == 0
    assert log.dump() == before
    assert sorted(before) == sorted(log.keys)
    assert Appended(0, 3, 0, 0) == log.append()


def test_new_partition_has_an_empty_stream_without_groups(log: Log) -> None:
    stream = log.server.xinfo_stream(log.log)
    assert (stream["length"], stream["groups"], stream["entries-added"]) == (0, 0, 0)


def test_create_over_the_keys_of_another_topic_returns_gone(log: Log) -> None:
    before = log.dump()
    log.topic_id = "b" * 32
    assert log.create() == GONE
    assert log.dump() == before
