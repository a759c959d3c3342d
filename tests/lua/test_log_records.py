"""Logs of records: appends record by record, and all functions that read such a log."""

from __future__ import annotations

import json
from typing import Any

import pytest
import redis

from korvet.wire.json_fields import MOST_MEMBERS
from korvet.wire.record_entries import MOST_HEADERS, arguments, split
from tests.lua.log import GONE, RUN_ID, TOPIC_ID, Appended, Entry, listening
from tests.lua.records import NONE, Records, plain
from tests.lua.transaction import VERIFY
from tests.support.times import MIDNIGHT_MS
from tests.wire.whole import Whole, built

OUT_OF_ORDER, FENCED, INVALID_TXN_STATE = 45, 47, 48


@pytest.fixture
def log(server: redis.Redis) -> Records:
    return Records(server)


def test_each_record_is_an_entry_with_the_index_of_a_batch(log: Records) -> None:
    with listening(log.server, log.log) as message:
        added = [Whole(b"k", b"v", timestamp=5), Whole(None, None, (("h", None), ("h", b"x")), 9), Whole(timestamp=7)]
        assert log.add(*added) == Appended(0, 0, 0, 0)
        assert message() == b"0 3"
    sizes = [len(built(record)[1]) for record in added]
    assert log.entries() == [
        Entry(offset + 1, 1, size, record.timestamp, running, sum(sizes[: offset + 1]), offset + 1, 0, 0, None)
        for offset, (size, record, running) in enumerate(zip(sizes, added, (5, 9, 9), strict=True))
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


def test_records_without_timestamps_count_from_their_append(log: Records, set_clock: Any) -> None:
    set_clock(3)
    log.add(Whole(timestamp=-1), Whole(timestamp=2), Whole(timestamp=5000), Whole(timestamp=-1))
    assert [one.running_max_timestamp for one in log.entries()] == [3000, 3000, 5000, 5000]
    assert [one.max_timestamp for one in log.entries()] == [-1, 2, 5000, -1]


def test_record_keeps_every_field_of_a_front_end(log: Records) -> None:
    value = json.dumps({str(number): number for number in range(MOST_MEMBERS)}).encode()
    batch, data = built(Whole(b"k", value, (("h", b"x"),) * MOST_HEADERS))
    told = plain(arguments(batch, split(batch, data, is_json=True)))
    reply = log.call(
        "korvet_log_append_records", TOPIC_ID, RUN_ID, 1, len(data), MIDNIGHT_MS, 0, *NONE, "", "", "", "", "", *told,
        keys=log.transactional,
    )  # fmt: skip
    assert reply == b"0 0 0 0"
    (record,) = log.records()
    assert (record.value, len(record.headers)) == (value, MOST_HEADERS)


def test_producers_of_records_are_judged_like_those_of_batches(log: Records) -> None:
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
    assert sequences == [[b"7", b"%d" % (offset // 6), b"%d" % (offset % 6)] for offset in range(9)]
    log.topic_id = "b" * 32
    assert log.add(Whole()).code == GONE
    log.topic_id = TOPIC_ID
    log.run_id = "2" * 40
    assert log.add(Whole()).leader_epoch > 0


def test_records_open_and_end_transactions(log: Records) -> None:
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


def test_functions_take_records_for_batches_of_one(log: Records) -> None:
    log.add(*[Whole(timestamp=1000 + offset) for offset in range(250)])
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
def test_malformed_records_write_nothing(log: Records, args: tuple[Any, ...]) -> None:
    before = log.dump()
    with pytest.raises(redis.ResponseError, match="record"):
        log.call(
            "korvet_log_append_records", TOPIC_ID, RUN_ID, 1, 70, 1, 0, *NONE, "", "", "", "", "", *args,
            keys=log.transactional,
        )  # fmt: skip
    assert log.dump() == before
