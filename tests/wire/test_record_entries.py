"""Records as fields of stream entries, and batches made from these: no byte changes."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from korvet.wire.batch import HEADER_BYTES, LOG_APPEND_TIME, Batch, placed_in_log
from korvet.wire.json_fields import MOST_MEMBERS, flattened, joined
from korvet.wire.record_entries import (
    MOST_HEADERS,
    MOST_RECORDS,
    StoredRecord,
    TooManyRecords,
    arguments,
    batches,
    split,
    stored_record,
)
from korvet.wire.records import UndecodableRecords
from tests.wire.whole import JSON_TEXTS, VALUES, WHOLES, Whole, built, read


def entries(batch: Batch, data: bytes, *, is_json: bool = False) -> list[tuple[int, int, list[bytes]]]:
    """The size, timestamp and fields of each entry that a batch becomes."""
    told, found, at = arguments(batch, split(batch, data, is_json=is_json)), [], 0
    while at < len(told):
        count, size, timestamp = (int(number) for number in told[at : at + 3])
        fields = [bytes(field) for field in told[at + 3 : at + 3 + count]]
        found.append((size, timestamp, fields))
        at += 3 + count
    return found


def stored(batch: Batch, data: bytes, offset: int = 0, *, is_json: bool = False) -> list[StoredRecord]:
    return [
        stored_record(offset + index, timestamp, 0, fields)
        for index, (_, timestamp, fields) in enumerate(entries(batch, data, is_json=is_json))
    ]


def consumed(records: Sequence[StoredRecord]) -> bytes:
    """The batches as a consumer gets them."""
    at = 0
    parts: list[bytes | memoryview] = []
    for count, data in batches(records):
        parts += placed_in_log(data, records[at].offset, 0)
        at += count
    assert at == len(records)
    return b"".join(parts)


@settings(deadline=None, max_examples=150)
@given(st.lists(WHOLES, min_size=1, max_size=6), st.integers(0, 4), st.booleans())
def test_records_come_back_as_they_were(records: list[Whole], codec: int, is_json: bool) -> None:
    batch, data = built(*records, codec=codec, producer=(7, 1, 2**31 - 2), attributes=0x10)
    found = read(consumed(stored(batch, data, 5, is_json=is_json)))
    assert [one.record for one in found] == records
    assert [one[0:1] + one[2:] for one in found] == [
        (5 + index, 0x10, 7, 1, (2**31 - 2 + index) % 2**31) for index in range(len(records))
    ]


@settings(deadline=None, max_examples=50)
@given(st.lists(WHOLES, min_size=1, max_size=4))
def test_batch_comes_back_byte_for_byte_with_sizes_of_single_records(records: list[Whole]) -> None:
    batch, data = built(*records)
    ((count, again),) = batches(stored(batch, data))
    assert (count, again) == (len(records), data)
    for record, (size, timestamp, _) in zip(records, entries(batch, data), strict=True):
        assert (size, timestamp) == (len(built(record)[1]), record.timestamp)


@settings(deadline=None, max_examples=200)
@given(VALUES | JSON_TEXTS)
def test_json_becomes_fields_only_if_they_give_back_the_same_bytes(value: bytes | None) -> None:
    members = flattened(value or b"")
    if members is not None:
        assert joined(members.layout, [*members.fields, b"header.x", b""]) == (value, len(members.fields))


@pytest.mark.parametrize(
    "value",
    [b"", b"[1]", b" {}", b'{"a":1}x', b'{"a":1.50}', b'{"a":1,"a":1}', b'{"a": 1,"b":2}', b'{"a":NaN}',
     b'{"a":"\xff"}', b'{"a":"\\ud800"}', b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
     json.dumps({str(number): 0 for number in range(MOST_MEMBERS + 1)}).encode()],
)  # fmt: skip
def test_unusual_json_stays_as_it_is(value: bytes) -> None:
    assert flattened(value) is None


def test_fields_are_plain_for_redis_clients() -> None:
    value = '{"city": "Köln", "size": {"km": 405.02}, "key": null}'.encode()
    batch, data = built(Whole(b"k", value, (("trace", b"1"), ("trace", None))), Whole(b"", None), Whole(None, b""))
    first, second, third = (fields for _, _, fields in entries(batch, data, is_json=True))
    assert first == [
        b"r", b"0 -1 -1 -1 n1 j2sjj", b"key", b"k", b"value.city", "Köln".encode(), b"value.size", b'{"km": 405.02}',
        b"value.key", b"null", b"header.trace", b"1", b"header.trace", b"",
    ]  # fmt: skip
    assert second == [b"r", b"0 -1 -1 -1", b"key", b""]
    assert third == [b"r", b"0 -1 -1 -1", b"value", b""]


def test_only_consecutive_records_share_a_batch() -> None:
    batch, data = built(*[Whole()] * 2, producer=(7, 0, 0))
    first, second = stored(batch, data)
    plain = stored(*built(Whole()))[0]
    for left, right in (
        (first, second._replace(offset=2)), (first, second._replace(sequence=2)), (first, plain._replace(offset=1)),
        (first, second._replace(producer_epoch=1)), (first, second._replace(attributes=0x10)),
        (first, second._replace(leader_epoch=1)), (plain, plain._replace(offset=2**31)),
        (plain._replace(attributes=LOG_APPEND_TIME), plain._replace(attributes=LOG_APPEND_TIME, offset=1, timestamp=0)),
    ):  # fmt: skip
        assert [count for count, _ in batches([left, right])] == [1, 1]
    # Compaction leaves a gap between records, as it does in a batch.
    for left, right in ((plain, plain._replace(offset=9)), (first, second._replace(offset=9, sequence=9))):
        ((count, data),) = batches([left, right])
        assert (count, [one.offset for one in read(data)]) == (2, [0, 9])


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_garbage_is_undecodable(data: st.DataObject) -> None:
    batch, whole = built(*data.draw(st.lists(WHOLES, min_size=1, max_size=3)))
    broken = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 3))):
        broken[data.draw(st.integers(HEADER_BYTES, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(HEADER_BYTES, len(whole)))
    try:
        found = entries(batch, bytes(broken[:cut]), is_json=True)
    except UndecodableRecords:
        return
    assert len(found) == batch.records
    assert_sizes(found)


def assert_sizes(found: Sequence[tuple[int, int, list[bytes]]]) -> None:
    """Check that each entry is as large as a batch with its record alone, which readers may get."""
    for size, timestamp, fields in found:
        ((_, alone),) = batches([stored_record(0, timestamp, 0, fields)])
        assert len(alone) == size


@pytest.mark.parametrize(
    ("inner", "fields"),
    [
        # Kafka takes zeros at the end of a number, and any negative number for a null.
        (
            b"\x80\0\x80\x80\0\x82\0k\x82\x80\0v\x82\x80\0\x82\0h\x82\0x",
            [b"key", b"k", b"value", b"v", b"header.h", b"x"],
        ),
        (b"\0\0\xc7\1\xc7\1\2\2h\xc7\1", [b"header.h", b""]),
    ],
)
def test_numbers_of_unusual_length_come_back_in_the_usual_one(inner: bytes, fields: list[bytes]) -> None:
    inner = b"\0" + inner
    batch, data = built(Whole())
    found = entries(batch, data[:HEADER_BYTES] + bytes([2 * len(inner)]) + inner)
    assert found[0][2][2:] == fields
    assert_sizes(found)


def test_batch_beyond_a_bound_is_refused() -> None:
    batch, data = built(Whole())
    with pytest.raises(TooManyRecords, match="10001 records"):
        split(batch._replace(records=MOST_RECORDS + 1), data, is_json=False)
    with pytest.raises(TooManyRecords, match="1001 headers"):
        split(*built(Whole(headers=(("h", b""),) * (MOST_HEADERS + 1))), is_json=False)
    with pytest.raises(TooManyRecords, match="too many records, headers"):
        split(*built(*[Whole(headers=(("h", b""),) * MOST_HEADERS)] * 80), is_json=False)
    split(*built(*[Whole(b"k", b"v", (("h", b""),))] * MOST_RECORDS), is_json=False)
