"""Records of Redis users, added by a function or by an inlet."""

from __future__ import annotations

import re
from typing import Any

import pytest
import redis

from tests.lua.log import GONE, TOPIC_ID, listening
from tests.lua.records import RULES, Records
from tests.support.redis import Server
from tests.support.times import MIDNIGHT_MS
from tests.wire.whole import Whole


@pytest.fixture
def log(server: redis.Redis) -> Records:
    return Records(server)


def test_redis_user_appends_a_record(log: Records, set_clock: Any) -> None:
    set_clock(MIDNIGHT_MS / 1000)
    log.configure()
    with listening(log.server, log.log) as message:
        assert log.call("korvet_record_append", "key", "k", "value", "v", "header.h", "1", "header.h", "") == 0
        # The function sees another server than before, because the tests made up the former run id.
        assert re.fullmatch(rb"\d{3,} 1", message())
    assert log.call("korvet_record_append", "header.only", "x") == 1
    assert log.records() == [
        Whole(b"k", b"v", (("h", b"1"), ("h", b"")), MIDNIGHT_MS), Whole(None, None, (("only", b"x"),), MIDNIGHT_MS),
    ]  # fmt: skip


@pytest.mark.parametrize("length", [0, 1, 63, 64, 8191, 8192, 100_000])
def test_records_from_redis_have_the_right_sizes(log: Records, length: int) -> None:
    log.configure("1000000 1 0 0")
    log.call("korvet_record_append", "key", "k" * length, "header." + "h" * length, "v" * length)
    log.call("korvet_record_append", "value", "v" * length, *["header.h", "x"] * min(length, 1000))
    assert len(log.records()) == 2
    assert [fields[b"r"] for fields in log.stored()] == [b"8 -1 -1 -1"] * 2


@pytest.mark.parametrize(
    ("rules", "args", "why"),
    [
        (RULES, (), "pairs"), (RULES, ("key",), "pairs"), (RULES, ("key", "a", "key", "b"), "key is given twice"),
        (RULES, ("name", "x"), "unknown field name"), (RULES, ("i", "x"), "unknown field i"),
        (RULES, ("value.a", "x"), "unknown field value.a"),
        (RULES, ("value", "x" * 1000), r"takes 107\d bytes, and max.message.bytes is 1000"),
        ("100000 0 0 0", ("header.a", "") * 1001, "at most 1000 headers"),
        ("1000 0 1 0", ("value", "x"), "compacted"), ("1000 0 0 1", ("key", "x"), "korvet.value.schema"),
        ("", ("key", "x"), "not a partition of a topic with korvet.storage=record"),
    ],
)  # fmt: skip
def test_refused_record_from_redis_names_the_reason(log: Records, rules: str, args: tuple[str, ...], why: str) -> None:
    log.configure(rules)
    before = log.dump()
    with pytest.raises(redis.ResponseError, match=why):
        log.call("korvet_record_append", *args)
    assert log.dump() == before


def test_append_from_redis_to_a_missing_partition_is_refused(log: Records) -> None:
    log.configure()
    log.delete()
    with pytest.raises(redis.ResponseError, match="not a partition"):
        log.call("korvet_record_append", "key", "x")


@pytest.mark.parametrize("command", ["xadd", "hset", "spublish", "time", "hget", "info"])
def test_user_without_one_of_the_rights_of_an_append_writes_nothing(
    log: Records, redis_server: Server, command: str
) -> None:
    log.configure()
    rights = ["+fcall", "+info", "+time", "+hmget", "+hget", "+hset", "+xadd", "+spublish", f"-{command}"]
    user = "without-a-right"
    log.server.acl_setuser(user, enabled=True, passwords=["+secret"], keys=["*"], channels=["*"], commands=rights)
    try:
        with redis_server.client(username=user, password="secret") as client:
            before = log.dump()
            with pytest.raises(redis.RedisError):
                client.fcall("korvet_record_append", 3, *log.keys, "key", "x")
            assert log.dump() == before
            log.server.acl_setuser(user, commands=[f"+{command}"])
            assert client.fcall("korvet_record_append", 3, *log.keys, "key", "x") == 0
    finally:
        log.server.acl_deluser(user)


def test_rules_of_an_inlet_are_set_and_removed(log: Records) -> None:
    assert log.configure(topic_id="b" * 32) == GONE
    assert log.server.exists(log.inlet) == 0
    assert log.configure() == log.configure("7 1 1 1") == 0
    assert log.meta_fields()["records"] == "7 1 1 1"
    assert log.server.exists(*log.inlets) == 5
    with pytest.raises(redis.ResponseError, match="rules are not `max_message_bytes is_log_append_time"):
        log.configure("7 1 1")
    log.server.xadd(log.inlet, {"value": "waits"})
    assert log.configure("") == log.configure("") == 0
    assert log.drain() == [0, 0, 0, 0]
    with pytest.raises(redis.ResponseError, match="not a partition"):
        log.call("korvet_record_append", "key", "x")
    assert log.configure() == 0
    assert log.drain() == [0, 1, 0, 0]


# ---------------------------------------------------------------------- the inlet


def test_each_call_moves_a_hundred_entries_from_an_inlet_to_the_log(log: Records) -> None:
    log.configure()
    assert log.drain() == [0, 0, 0, 0]
    for number in range(205):
        log.server.xadd(log.inlet, {"key": f"{number}", "header.h": "x"}, id=f"{number + 1}-{2**63 + number}")
    with listening(log.server, log.log) as message:
        assert log.drain() == [0, 100, 0, 1]
        assert message() == b"0 100"
    assert [log.drain(), log.drain(), log.drain()] == [[0, 100, 0, 1], [0, 5, 0, 0], [0, 0, 0, 0]]
    assert [record.key for record in log.records()] == [b"%d" % number for number in range(205)]
    assert log.server.xlen(log.inlet) == 0
    assert log.server.exists(log.inlet) == 1


def test_call_moves_fewer_large_entries(log: Records) -> None:
    log.configure("1000000 0 0 0")
    for _ in range(25):
        log.server.xadd(log.inlet, {"value": "v" * 120_000})
    assert log.drain() == [0, 15, 0, 1]
    assert log.drain() == [0, 10, 0, 0]
    for _ in range(2):
        log.server.xadd(log.inlet, {"value": "v" * 1_100_000})
    assert [log.drain() for _ in range(3)] == [[0, 0, 1, 1], [0, 0, 1, 1], [0, 0, 0, 0]]


def test_inlet_keeps_a_refused_entry_with_the_reason(log: Records) -> None:
    log.configure()
    log.server.xadd(log.inlet, {"value": "first"}, id="1-1")
    log.server.xadd(log.inlet, {"name": "x", "value": "y"}, id="2-1")
    log.server.xadd(log.inlet, {"value": "v" * 1000}, id="3-1")
    log.server.xadd(log.inlet, {f"field{number}": "" for number in range(5000)}, id="4-1")
    log.server.xadd(log.inlet, {"value": "last"}, id="5-1")
    assert log.drain() == [0, 2, 3, 0]
    assert [record.value for record in log.records()] == [b"first", b"last"]
    unknown, large, many = log.refused()
    assert unknown.pop(b"reason").startswith(b"unknown field name")
    assert unknown == {b"id": b"2-1", b"name": b"x", b"value": b"y"}
    assert (large[b"id"], large[b"value"]) == (b"3-1", b"v" * 1000)
    assert many[b"reason"].endswith(b"only the first of it is kept")
    assert len(many) == 1002
    log.configure("1000 0 0 1")
    log.server.xadd(log.inlet, {"value": "unseen"})
    assert log.drain() == [0, 0, 1, 0]
    assert b"korvet.value.schema" in log.refused()[-1][b"reason"]
    for number in range(2500):
        log.server.xadd(log.inlet, {"value": str(number)})
    while log.drain()[3]:
        pass
    assert len(log.refused()) < 1300


def test_drain_that_fails_moves_nothing(log: Records) -> None:
    log.configure()
    log.server.xadd(log.inlet, {"nothing": "x"})
    log.server.xadd(log.inlet, {"value": "x"})
    log.topic_id = "b" * 32
    assert log.drain() == [GONE, 0, 0, 0]
    log.topic_id = TOPIC_ID
    log.server.delete(f"{log.inlet}:refused")
    log.server.set(f"{log.inlet}:refused", "")
    before = log.dump()
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        log.drain()
    assert log.dump() == before
    log.server.delete(f"{log.inlet}:refused", log.log)
    log.server.set(log.log, "")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        log.drain()
    assert log.server.exists(f"{log.inlet}:refused") == 0


def test_deleted_partition_takes_its_inlet_along(log: Records) -> None:
    log.configure()
    log.server.xadd(log.inlet, {"nothing": "x"})
    log.drain()
    log.server.xadd(log.inlet, {"value": "x"})
    reply: list[int] = log.call("korvet_log_delete", TOPIC_ID, keys=log.transactional)
    assert reply == [0, 0]
    assert log.server.keys() == []


def test_inlet_keeps_only_the_first_bytes_of_refused_entries(log: Records) -> None:
    log.configure()
    log.server.xadd(log.inlet, {"name": "v" * 1_000_000, "value": "w"})
    log.server.xadd(log.inlet, {f"f{number}": "x" * 1000 for number in range(100)})
    assert log.drain()[2] == 2
    for kept in log.refused():
        assert kept.pop(b"reason").endswith(b"only the first of it is kept")
        del kept[b"id"]
        assert sum(len(name) + len(text) for name, text in kept.items()) == 16384
