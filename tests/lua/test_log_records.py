"""Logs of records: appends record by record, what Redis users add by a function or by an inlet, and all that reads."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest
import redis

from korvet.wire.json_fields import MOST_MEMBERS
from korvet.wire.record_entries import MOST_HEADERS, arguments, batches, split, stored_record
from tests.lua.log import GONE, RUN_ID, TOPIC_ID, Appended, Entry, Log, listening
from tests.lua.transaction import VERIFY
from tests.support.redis import Server
from tests.wire.whole import TIME, Whole, built, read

OUT_OF_ORDER, FENCED, INVALID_TXN_STATE = 45, 47, 48
RULES = "1000 0 0 0"
NONE = (-1, -1, -1)


class Records(Log):
    """A partition of records, with the keys of its transactions and its inlet."""

    def __init__(self, server: redis.Redis) -> None:
        super().__init__(server)
        unit = self.log.removesuffix("log")
        self.transactional = (*self.keys, *(unit + name for name in ("open", "aborted", "transactions")))
        self.inlet = unit + "in"
        self.inlets = (*self.keys, self.inlet, f"{self.inlet}:refused")
        self.call("korvet_log_create", TOPIC_ID, RUN_ID, keys=self.transactional)

    def add(
        self,
        *records: Whole,
        producer: tuple[int, int, int] = NONE,
        is_next: bool = False,
        ordinal: int | str | None = None,
    ) -> Appended:
        """Append a batch record by record; of a transaction with its ordinal, or '' where that is not known."""
        batch, data = built(*records, producer=producer, attributes=0 if ordinal is None else 0x10)
        kind = "" if ordinal is None else "transactional"
        reply: bytes = self.call(
            "korvet_log_append_records", self.topic_id, self.run_id, len(records), len(data), batch.max_timestamp,
            batch.crc, *producer, kind, 1 if is_next else "", "" if ordinal is None else ordinal, "id", "",
            *_plain(arguments(batch, split(batch, data, is_json=False))), keys=self.transactional,
        )  # fmt: skip
        return Appended(*map(int, reply.split()))

    def mark(self, producer_id: int, epoch: int, ordinal: int, decision: str) -> Appended:
        args = (TOPIC_ID, RUN_ID, producer_id, epoch, ordinal, decision, 78, TIME, 0, b"marker")
        reply: bytes = self.call("korvet_log_mark", *args, keys=self.transactional)
        return Appended(*map(int, reply.split()))

    def configure(self, rules: str = RULES, topic_id: str = TOPIC_ID) -> int:
        (code,) = self.call("korvet_record_configure", topic_id, rules, keys=self.inlets)
        return int(code)

    def drain(self) -> list[int]:
        reply: list[int] = self.call("korvet_record_drain", self.topic_id, self.run_id, keys=self.inlets)
        return reply

    def records(self) -> list[Whole]:
        """What consumers get of the entries that are records; their sizes are right."""
        found = []
        # A dict would lose what comes again.
        entries: Any = self.server.eval("return redis.call('XRANGE', KEYS[1], '-', '+')", 1, self.log)
        for name, fields in entries:
            index = fields[1].split()
            if fields[2] == b"r":
                ((_, data),) = batches([stored_record(int(name[:-2]) - 1, int(index[2]), 0, fields[2:])])
                assert len(data) == int(index[1])
                found += [one.record for one in read(data)]
        return found

    def stored(self) -> list[dict[bytes, bytes]]:
        """The fields of each entry; of those that come again the last."""
        entries: Any = self.server.xrange(self.log)
        return [fields for _, fields in entries]

    def refused(self) -> list[dict[bytes, bytes]]:
        entries: Any = self.server.xrange(f"{self.inlet}:refused")
        return [fields for _, fields in entries]


def _plain(args: Sequence[Any]) -> list[Any]:
    return [bytes(one) if isinstance(one, memoryview) else one for one in args]


@pytest.fixture
def log(server: redis.Redis) -> Records:
    return Records(server)


def test_each_record_is_an_entry_with_an_index_as_of_a_batch(log: Records) -> None:
    with listening(log.server, log.log) as message:
        added = [Whole(b"k", b"v", timestamp=5), Whole(None, None, (("h", None), ("h", b"x")), 9), Whole(timestamp=7)]
        assert log.add(*added) == Appended(0, 0, 0, 0)
        assert message() == b"0 3"
    sizes = [len(built(record)[1]) for record in added]
    assert log.entries() == [
        Entry(place + 1, 1, size, record.timestamp, running, sum(sizes[: place + 1]), place + 1, 0, 0, None)
        for place, (size, record, running) in enumerate(zip(sizes, added, (5, 9, 9), strict=True))
    ]
    fields = log.stored()[0]
    assert {name: fields[name] for name in fields if name != b"i"} == {
        b"r": b"0 -1 -1 -1",
        b"key": b"k",
        b"value": b"v",
    }
    assert log.meta_fields()["totals"] == f"9 {sum(sizes)} 3"
    assert log.append(4).base_offset == 3
    assert log.add(Whole(b"k")).base_offset == 7
    assert log.entries()[-1].running_batches == 5
    assert log.records() == [*added, Whole(b"k")]


def test_undated_records_count_from_their_append(log: Records, set_clock: Any) -> None:
    set_clock(3)
    log.add(Whole(timestamp=-1), Whole(timestamp=2), Whole(timestamp=5000), Whole(timestamp=-1))
    assert [one.running_max_timestamp for one in log.entries()] == [3000, 3000, 5000, 5000]
    assert [one.max_timestamp for one in log.entries()] == [-1, 2, 5000, -1]


def test_a_record_may_have_all_that_a_front_end_lays_out(log: Records) -> None:
    value = json.dumps({str(number): number for number in range(MOST_MEMBERS)}).encode()
    batch, data = built(Whole(b"k", value, (("h", b"x"),) * MOST_HEADERS))
    told = _plain(arguments(batch, split(batch, data, is_json=True)))
    reply = log.call(
        "korvet_log_append_records", TOPIC_ID, RUN_ID, 1, len(data), TIME, 0, *NONE, "", "", "", "", "", *told,
        keys=log.transactional,
    )  # fmt: skip
    assert reply == b"0 0 0 0"
    (record,) = log.records()
    assert (record.value, len(record.headers)) == (value, MOST_HEADERS)


def test_producers_are_judged_as_those_of_batches(log: Records) -> None:
    three = [Whole()] * 3
    assert log.add(*three, producer=(7, 0, 0)).base_offset == 0
    assert log.add(*three, producer=(7, 0, 3)).base_offset == 3
    assert log.add(*three, producer=(7, 0, 0)) == Appended(0, 0, 0, 0)
    before = log.dump()
    assert log.add(*three, producer=(7, 0, 9)).code == OUT_OF_ORDER
    assert log.add(Whole(), producer=(8, 0, 0), is_next=True).code == OUT_OF_ORDER
    assert log.add(*three, producer=(7, 1, 4)).code == OUT_OF_ORDER
    assert log.dump() == before
    assert log.add(*three, producer=(7, 1, 0)).base_offset == 6
    assert log.add(*three, producer=(7, 0, 6)).code == FENCED
    sequences = [fields[b"r"].split()[1:] for fields in log.stored()]
    assert sequences == [[b"7", b"%d" % (place // 6), b"%d" % (place % 6)] for place in range(9)]
    log.topic_id = "b" * 32
    assert log.add(Whole()).code == GONE
    log.topic_id = TOPIC_ID
    log.run_id = "2" * 40
    assert log.add(Whole()).leader_epoch > 0


def test_transactions_open_and_end(log: Records) -> None:
    assert log.add(Whole(), producer=(7, 0, 0), ordinal="").code == VERIFY
    assert log.add(Whole(), Whole(), producer=(7, 0, 0), ordinal=50) == Appended(0, 0, 0, 0)
    assert log.add(Whole(), producer=(7, 0, 2), ordinal="").base_offset == 2
    assert log.add(Whole(), producer=(7, 0, 3)).code == INVALID_TXN_STATE
    assert log.meta_fields()["first_open"] == "0"
    assert log.mark(7, 0, 50, "abort").base_offset == 3
    assert log.add(Whole(), producer=(7, 0, 3), ordinal=50).code == INVALID_TXN_STATE
    assert "first_open" not in log.meta_fields()
    assert log.server.zrange(log.transactional[4], 0, -1) == [b"", b"0 3 7 4"]
    assert [len(fields) for fields in log.stored()] == [3, 3, 3, 2]


def test_what_reads_and_trims_a_log_takes_records_for_batches_of_one(log: Records) -> None:
    log.add(*[Whole(timestamp=1000 + place) for place in range(250)])
    assert log.at_time(1100).next_offset == 101
    assert log.at_time(-3).next_offset == 250
    log.call("korvet_log_attach", TOPIC_ID, "g", 40, "keep")
    (group,) = log.server.xinfo_groups(log.log)
    assert (group["lag"], group["entries-read"]) == (210, 40)
    assert log.trim(205) == [0, 205, 1]
    while log.trim(205)[2]:
        pass
    assert [one.next_offset for one in log.entries()] == list(range(206, 251))
    described: Any = log.server.fcall_ro("korvet_log_describe", 2, log.log, log.meta)
    assert described[described.index(b"batches") + 1] == 45
    assert described[described.index(b"bytes") + 1] == sum(one.size for one in log.entries())


@pytest.mark.parametrize(
    "args",
    [
        (), ("2", 70, 1, "r"), ("3", 70, 1, "r", "", "key"), ("2", "x", 1, "r", ""), ("2", 70, "x", "r", ""),
        ("2", 70, 1, "key", ""), ("2", 70, 1, "r", "", "2"), ("x", 70, 1, "r", ""), ("0", 70, 1),
        ("4", 70, 1, "r", "", "key"),
    ],
)  # fmt: skip
def test_arguments_that_are_no_records_write_nothing(log: Records, args: tuple[Any, ...]) -> None:
    before = log.dump()
    with pytest.raises(redis.ResponseError, match="record"):
        log.call(
            "korvet_log_append_records", TOPIC_ID, RUN_ID, 1, 70, 1, 0, *NONE, "", "", "", "", "", *args,
            keys=log.transactional,
        )  # fmt: skip
    assert log.dump() == before


# ---------------------------------------------------------------------- from Redis


def test_a_record_is_appended_from_redis(log: Records, set_clock: Any) -> None:
    set_clock(TIME / 1000)
    log.configure()
    with listening(log.server, log.log) as message:
        assert log.call("korvet_record_append", "key", "k", "value", "v", "header.h", "1", "header.h", "") == 0
        # It is not known to be the server of before, whose name the tests made up.
        assert re.fullmatch(rb"\d{3,} 1", message())
    assert log.call("korvet_record_append", "header.only", "x") == 1
    assert log.records() == [
        Whole(b"k", b"v", (("h", b"1"), ("h", b"")), TIME), Whole(None, None, (("only", b"x"),), TIME),
    ]  # fmt: skip


@pytest.mark.parametrize("length", [0, 1, 63, 64, 8191, 8192, 100_000])
def test_sizes_of_records_from_redis_are_right(log: Records, length: int) -> None:
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
def test_what_is_not_taken_from_redis_says_why(log: Records, rules: str, args: tuple[str, ...], why: str) -> None:
    log.configure(rules)
    before = log.dump()
    with pytest.raises(redis.ResponseError, match=why):
        log.call("korvet_record_append", *args)
    assert log.dump() == before


def test_there_is_nothing_to_append_to_where_the_partition_is_gone(log: Records) -> None:
    log.configure()
    log.delete()
    with pytest.raises(redis.ResponseError, match="not a partition"):
        log.call("korvet_record_append", "key", "x")


@pytest.mark.parametrize("command", ["xadd", "hset", "spublish", "time", "hget", "info"])
def test_a_user_who_may_not_write_everything_writes_nothing(log: Records, redis_server: Server, command: str) -> None:
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


def test_rules_come_and_go(log: Records) -> None:
    assert log.configure(topic_id="b" * 32) == GONE
    assert log.server.exists(log.inlet) == 0
    assert log.configure() == log.configure("7 1 1 1") == 0
    assert log.meta_fields()["records"] == "7 1 1 1"
    assert log.server.exists(*log.inlets) == 5
    with pytest.raises(redis.ResponseError, match="rules are none"):
        log.configure("7 1 1")
    log.server.xadd(log.inlet, {"value": "waits"})
    assert log.configure("") == log.configure("") == 0
    assert log.drain() == [0, 0, 0, 0]
    with pytest.raises(redis.ResponseError, match="not a partition"):
        log.call("korvet_record_append", "key", "x")
    assert log.configure() == 0
    assert log.drain() == [0, 1, 0, 0]


# ---------------------------------------------------------------------- the inlet


def test_an_inlet_is_moved_into_the_log_a_hundred_at_a_time(log: Records) -> None:
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


def test_large_entries_are_fewer_in_a_call(log: Records) -> None:
    log.configure("1000000 0 0 0")
    for _ in range(25):
        log.server.xadd(log.inlet, {"value": "v" * 120_000})
    assert log.drain() == [0, 15, 0, 1]
    assert log.drain() == [0, 10, 0, 0]
    for _ in range(2):
        log.server.xadd(log.inlet, {"value": "v" * 1_100_000})
    assert [log.drain() for _ in range(3)] == [[0, 0, 1, 1], [0, 0, 1, 1], [0, 0, 0, 0]]


def test_what_is_not_taken_goes_to_the_refused_with_the_reason(log: Records) -> None:
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
    assert many[b"reason"].endswith(b"only its first fields are kept")
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


def test_nothing_is_moved_where_it_cannot_be(log: Records) -> None:
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


def test_a_deleted_partition_takes_its_inlet_along(log: Records) -> None:
    log.configure()
    log.server.xadd(log.inlet, {"nothing": "x"})
    log.drain()
    log.server.xadd(log.inlet, {"value": "x"})
    reply: list[int] = log.call("korvet_log_delete", TOPIC_ID, keys=log.transactional)
    assert reply == [0, 0]
    assert log.server.keys() == []
