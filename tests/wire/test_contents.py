"""The times in records' headers."""

from __future__ import annotations

import pytest

from korvet.wire.batch import HEADER, HEADER_BYTES, sealed
from korvet.wire.contents import contents, times_in
from korvet.wire.records import varint
from tests.wire.whole import COMPRESS, Whole, built

NAME, ALL = b"not-before", range(100)


def named(*values: bytes | None) -> Whole:
    return Whole(headers=(("not", b"7"), *((NAME.decode(), value) for value in values), ("not-before-", b"8")))


def at(base_offset: int, data: bytes) -> bytes:
    """A batch at another offset."""
    return HEADER.pack(base_offset, *HEADER.unpack_from(data)[1:]) + data[HEADER_BYTES:]


@pytest.mark.parametrize("codec", COMPRESS)
def test_last_header_of_the_name_counts_if_it_is_a_time(codec: int) -> None:
    records = [
        named(), named(b"1700000000000"), named(b"1", b"2"), named(b"1", None), named(b"soon"), named(b"-5"),
        named(b""), named(b"9" * 15), named(b"9" * 16), named(b"\xd9\xa1"), named(b" 3"), Whole(value=b"\x14" + NAME),
    ]  # fmt: skip
    _, data = built(*records, codec=codec)
    found = {11: 1_700_000_000_000, 12: 2, 17: 999_999_999_999_999}
    assert times_in([at(10, data)], NAME, ALL) == found
    assert times_in([data[:7], data[7:70], data[70:]], NAME, ALL) == {
        offset - 10: time for offset, time in found.items()
    }
    assert times_in([at(10, data)], NAME, {12}) == {12: 2}
    assert times_in([data], b"absent", ALL) == {}


@pytest.mark.parametrize("codec", COMPRESS)
def test_damaged_batch_has_no_times_and_hides_none_of_the_others(codec: int) -> None:
    _, data = built(named(b"5"), codec=codec)
    damaged = at(1, data[:HEADER_BYTES] + b"\xff" * 4 + data[HEADER_BYTES + 4 :])
    assert times_in([data, damaged, at(2, data)], NAME, ALL) == {0: 5, 2: 5}
    # Its header promises more records than there are.
    batch, _ = built(named(b"5"), named(b"6"), codec=codec)
    longer = HEADER.pack(*batch._replace(length=len(data) - 12)) + data[HEADER_BYTES:]
    assert times_in([longer, at(2, data)], NAME, ALL)[2] == 5


@pytest.mark.parametrize("length", [-(2**31), -12, 0, 48, 2**31 - 1])
def test_batch_of_another_length_than_its_bytes_ends_the_walk(length: int) -> None:
    batch, data = built(named(b"5"))
    odd = HEADER.pack(1, *batch._replace(length=length)[1:]) + data[HEADER_BYTES:]
    assert times_in([data, odd], NAME, ALL) == {0: 5} | ({1: 5} if length > len(data) else {})


def test_records_of_a_batch_with_gaps_are_found_by_their_own_offsets() -> None:
    batch, data = built(named(b"5"), named(b"6"))
    gaps = HEADER.pack(*batch._replace(last_offset_delta=9)) + data[HEADER_BYTES:]
    for found in (data, gaps):
        assert times_in([found], NAME, {1}) == {1: 6}
        assert [offset for offset, _ in contents(found, range(1, 5))] == [1]


@pytest.mark.parametrize(
    "body",
    [
        varint(1) + b"k" + varint(-1) + varint(3),
        varint(1) + b"k" + varint(-1) + varint(-1),
        varint(1) + b"k" + varint(-1) + varint(0) + b"more",
        varint(1) + b"k" + varint(9) + b"v" + varint(0),
        varint(1) + b"k" + varint(-1) + varint(1) + varint(-1) + varint(0),
        varint(1) + b"k" + varint(-1) + varint(1) + varint(1) + b"h" + varint(7),
    ],
)
def test_record_whose_parts_do_not_fill_it_has_no_content(body: bytes) -> None:
    batch, data = built(Whole(), named(b"5"))
    start = HEADER_BYTES + 1 + data[HEADER_BYTES] // 2
    wrong = b"\0\0\0" + body
    _, damaged = sealed(batch, varint(len(wrong)) + wrong + data[start:])
    assert [offset for offset, _ in contents(damaged, ALL)] == [1]
    assert times_in([damaged], NAME, ALL) == {1: 5}
