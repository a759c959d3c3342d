"""Segments: what is written is read again, and whatever else the bytes say is noticed."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from korvet.tier.segment import (
    BLOCK_BYTES,
    INDEX_BYTES,
    MOST_FOOTER_BYTES,
    Aborted,
    DamagedSegment,
    Footer,
    FooterTooLarge,
    IndexEntry,
    Writer,
    batches,
    check_block,
    footer_bytes,
    read_footer,
)
from korvet.wire.batch import HEADER
from tests.tier.segments import TOPIC_ID, batch, written

LARGEST = (1 << 63) - 1


class Made(NamedTuple):
    base: int
    next: int
    position: int
    timestamp: int
    data: bytes


@st.composite
def logs(draw: st.DrawFn) -> list[Made]:
    """Batches of all sizes, with gaps between their offsets."""
    shapes = st.tuples(
        st.integers(0, 3), st.integers(1, 5), st.sampled_from([0, 7, 30_000, INDEX_BYTES, 300_000, BLOCK_BYTES + 5]),
        st.integers(-1, 50), st.integers(0, 2),
    )  # fmt: skip
    made: list[Made] = []
    position = 0
    offset = draw(st.sampled_from([0, 1000, LARGEST - 1000]))
    for gap, records, size, timestamp, epoch in draw(st.lists(shapes, min_size=1, max_size=20)):
        data = batch(offset + gap, records, size, epoch=epoch, timestamp=timestamp, producer=timestamp)
        made.append(Made(offset + gap, offset + gap + records, position, timestamp, data))
        offset, position = offset + gap + records, position + len(data)
    return made


def of(made: Sequence[Made], after: Footer | None = None, first: int | None = None) -> tuple[bytes, Footer]:
    return written([one.data for one in made], made[0].base if first is None else first, after=after)


@given(logs(), st.data())
@settings(max_examples=60)
def test_reader_finds_the_batches_from_any_offset_on_in_their_span(made: list[Made], data: st.DataObject) -> None:
    whole, footer = of(made)
    offset = data.draw(st.integers(made[0].base, made[-1].next))
    most = data.draw(st.sampled_from([0, 1, 50_000, 2_000_000, 1 << 40]))
    start, end = footer.span(offset, most)
    wanted = [one for one in made if one.next > offset]
    sizes = accumulate(len(one.data) for one in wanted)
    fitting = [one.data for at, (one, size) in enumerate(zip(wanted, sizes, strict=True)) if not at or size <= most]
    assert footer.selected(whole[start:end], start, offset, most) == b"".join(fitting)
    before = wanted[0].position if wanted else footer.size_bytes
    first_end = before + len(wanted[0].data) if wanted else before
    assert end <= max(
        start + INDEX_BYTES + most, first_end + max((len(one.data) for one in made), default=0) + INDEX_BYTES
    )


def test_span_holds_all_that_a_reader_wants_from_between_two_entries_of_the_index() -> None:
    made = [batch(at, size=1000) for at in range(1000)]
    whole, footer = written(made)
    assert len(footer.index) > 10
    most = 400_000
    for offset in (0, 30, 60, 61, 62, 63, 500):
        start, end = footer.span(offset, most)
        found = footer.selected(whole[start:end], start, offset, most)
        assert found == b"".join(made[offset : offset + most // len(made[0])])


@given(logs(), st.integers(-2, 51))
@settings(max_examples=60)
def test_no_batch_before_the_position_of_a_time_has_that_time(made: list[Made], timestamp: int) -> None:
    whole, footer = of(made)
    first = next((one.position for one in made if one.timestamp >= timestamp), None)
    position = footer.position_of_time(timestamp)
    assert (position is None) == (first is None)
    if first is not None and position is not None:
        assert position <= first <= position + INDEX_BYTES
        assert next(batches(whole[position : footer.size_bytes]))[0].base_offset <= LARGEST


@given(logs())
@settings(max_examples=40)
def test_footer_holds_the_facts_of_its_batches(made: list[Made]) -> None:
    whole, footer = of(made)
    assert [bytes(data) for _, data in batches(whole[: footer.size_bytes])] == [one.data for one in made]
    assert (footer.topic_id, footer.partition) == (TOPIC_ID, 3)
    assert (footer.first_offset, footer.next_offset) == (made[0].base, made[-1].next)
    assert footer.batches == len(made)
    assert footer.max_timestamp == footer.max_producer_id == max(-1, *(one.timestamp for one in made), -1)
    epochs = [HEADER.unpack_from(one.data)[2] for one in made]
    changes = [0, *(at for at, (one, two) in enumerate(pairwise(epochs), 1) if one != two)]
    assert list(footer.epochs) == [(epochs[at], made[at].base) for at in changes]
    assert all(two.position - one.position >= INDEX_BYTES for one, two in pairwise(footer.index))
    assert len(footer.checksums) == -(-footer.size_bytes // BLOCK_BYTES)
    assert footer.chain == crc32c(whole[: footer.size_bytes])
    assert footer_bytes(whole) == footer.footer_bytes == len(whole) - footer.size_bytes
    for number in range(len(footer.checksums)):
        check_block(footer, number, whole[: footer.size_bytes][number * BLOCK_BYTES : (number + 1) * BLOCK_BYTES])


@given(logs(), st.data())
@settings(max_examples=30)
def test_merged_segments_are_the_segment_of_all_their_batches(made: list[Made], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(made)))
    if cut in (0, len(made)):
        return
    one, first = of(made[:cut])
    two, second = of(made[cut:], first, made[cut - 1].next)
    merged = Writer(TOPIC_ID, 3, first.first_offset)
    merged.join(first, [one[: first.size_bytes]])
    merged.join(second, [two[: second.size_bytes]])
    parts, footer = merged.finish([])
    whole, same = of(made)
    assert b"".join(parts)[: footer.size_bytes] == whole[: same.size_bytes]
    for field in ("next_offset", "batches", "max_timestamp", "max_producer_id", "chain_before", "chain"):
        assert getattr(footer, field) == getattr(same, field), field
    assert list(footer.epochs) == list(same.epochs)
    assert list(footer.checksums) == list(same.checksums)
    assert [one.max_timestamp for one in footer.index] == [
        max([-1, *(two.timestamp for two in made if two.position < one.position)]) for one in footer.index
    ]
    for offset in {one.base for one in made} | {one.next for one in made}:
        start, end = footer.span(offset, 0)
        assert footer.selected(whole[start:end], start, offset, 0) == b"".join(
            [one.data for one in made if one.next > offset][:1]
        )


def test_segment_is_not_merged_with_one_that_does_not_follow_it_or_was_changed() -> None:
    one, first = written([batch(0), batch(1)])
    other, rival = written([batch(0), batch(1, timestamp=9)])
    two, second = written([batch(2)], 2, after=first)
    for footer in (second, rival):
        writer = Writer(TOPIC_ID, 3, 1)
        with pytest.raises(ValueError, match="is not the next one"):
            writer.join(footer, [two])
    writer = Writer(TOPIC_ID, 3, 0)
    writer.join(rival, [other[: rival.size_bytes]])
    with pytest.raises(ValueError, match="is not the next one"):
        writer.join(second, [two[: second.size_bytes]])
    for wrong in (one[: first.size_bytes - 1], b"x" + one[1 : first.size_bytes]):
        with pytest.raises(DamagedSegment):
            Writer(TOPIC_ID, 3, 0).join(first, [wrong])


def test_every_flipped_bit_and_every_truncation_is_noticed() -> None:
    whole, footer = written([batch(0, 2, 40), batch(2, epoch=1)], aborted=[Aborted(7, 0, 2, 1)])
    tables = [list(footer.index), list(footer.aborted), list(footer.epochs), list(footer.checksums)]
    assert all(tables)

    def read(data: bytes) -> None:
        found = read_footer(data[footer.size_bytes :], crc=footer.crc)
        check_block(found, 0, data[: found.size_bytes])

    read(whole)
    for bit in range(8 * len(whole)):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DamagedSegment):
            read(bytes(changed))
    for size in range(len(whole)):
        with pytest.raises(DamagedSegment):
            read(whole[:size])
        with pytest.raises(DamagedSegment):
            # As a reader without the manifest finds the footer, at the end.
            cut = read_footer(whole[:size])
            check_block(cut, 0, whole[: min(size, cut.size_bytes)])


def test_blocks_that_are_swapped_or_missing_are_noticed() -> None:
    whole, footer = written([batch(at, size=BLOCK_BYTES - 61) for at in range(3)])
    first, second = whole[:BLOCK_BYTES], whole[BLOCK_BYTES : 2 * BLOCK_BYTES]
    check_block(footer, 0, first)
    for number, data in ((0, second), (1, first), (1, b""), (2, whole[2 * BLOCK_BYTES :])):
        with pytest.raises(DamagedSegment, match=f"the bytes {number * BLOCK_BYTES} to"):
            check_block(footer, number, data)


def test_footer_of_another_segment_or_version_is_refused() -> None:
    whole, _ = written([batch(0)])
    _, other = written([batch(0, timestamp=1)])
    with pytest.raises(DamagedSegment, match="another segment's"):
        read_footer(whole, crc=other.crc)
    with pytest.raises(DamagedSegment, match="version 2; this korvet reads version 1"):
        read_footer(whole[:-8] + (2).to_bytes(4, "big") + whole[-4:])


def test_largest_footer_is_written_and_read_and_a_larger_one_is_refused() -> None:
    """Many tiny aborted transactions need more bytes than their batches."""
    writer = Writer(TOPIC_ID, 3, 0)
    writer.add([batch(0)], 0)
    fits = (MOST_FOOTER_BYTES - writer.footer_bytes(0)) // 32
    aborted = [Aborted(LARGEST - at, 0, at, LARGEST) for at in range(fits + 1)]
    with pytest.raises(FooterTooLarge):
        writer.finish(aborted)
    parts, footer = writer.finish(aborted[:fits])
    assert MOST_FOOTER_BYTES - 32 < footer.footer_bytes == writer.footer_bytes(fits) <= MOST_FOOTER_BYTES
    assert len(read_footer(parts[-1]).aborted) == fits


def test_footer_claiming_more_bytes_than_readers_take_is_refused() -> None:
    whole, _ = written([batch(0)])
    for length in (-1, 0, MOST_FOOTER_BYTES, (1 << 31) - 1):
        with pytest.raises(DamagedSegment, match=f"a footer of {length} bytes"):
            footer_bytes(whole[:-16] + length.to_bytes(4, "big", signed=True) + whole[-12:])


def test_segment_of_five_gib_has_room_for_its_index() -> None:
    entries, checksums = (5 << 30) // INDEX_BYTES, (5 << 30) // BLOCK_BYTES
    assert Writer(TOPIC_ID, 3, 0).footer_bytes(0) + 24 * entries + 4 * checksums + 12 <= MOST_FOOTER_BYTES


def test_aborted_transactions_of_a_range_are_those_that_overlap_it() -> None:
    spans = [(0, 5, 2), (3, 8, 2), (2, 12, 9), (9, 15, 16), (16, 18, 19)]
    aborted = [Aborted(at, *span) for at, span in enumerate(spans)]
    _, footer = written([batch(at) for at in range(14)], aborted=[*reversed(aborted), aborted[0]])
    # The last one begins after the segment.
    assert list(footer.aborted) == aborted[:4]
    for first in range(14):
        for end in range(first + 1, 15):
            wanted = [one for one in aborted[:4] if one.first_offset < end and one.last_offset >= first]
            assert footer.aborted_within(first, end) == wanted


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param([], id="nothing"),
        pytest.param([batch(5)[:60]], id="cut off"),
        pytest.param([batch(5), b"x"], id="too long"),
        pytest.param([batch(5), batch(6)], id="two"),
        pytest.param([batch(4)], id="offset below the next"),
        pytest.param([batch(5, 0)], id="without offsets"),
        pytest.param([bytes(61)], id="zeroes"),
    ],
)
def test_writer_refuses_what_is_no_batch_after_the_last_one(parts: list[bytes]) -> None:
    writer = Writer(TOPIC_ID, 3, 0)
    writer.add([batch(0, 5)], 0)
    with pytest.raises(ValueError, match="batch"):
        writer.add(parts, 0)
    assert writer.finish([])[1].next_offset == 5


def test_segment_may_end_after_its_last_batch_but_not_before_and_not_be_empty() -> None:
    writer = Writer(TOPIC_ID, 3, 0)
    with pytest.raises(ValueError, match="without batches"):
        writer.finish([])
    writer.add([batch(2, 3)], 0)
    with pytest.raises(ValueError, match="an end of 4"):
        writer.finish([], 4)
    parts, footer = writer.finish([], 9)
    assert footer.next_offset == 9
    assert list(footer.index) == [IndexEntry(0, 0, -1)]
    start, end = footer.span(7, 1000)
    assert bytes(footer.selected(b"".join(parts)[start:end], start, 7, 1000)) == b""


def test_bytes_that_are_no_batch_are_not_taken_for_one() -> None:
    with pytest.raises(DamagedSegment, match="no batch at byte 61"):
        list(batches(batch(0) + bytes(70)))


def test_reader_made_from_the_page_alone_reads_a_segment() -> None:
    """As docs/segments.md describes format 1, with nothing of korvet's."""
    first, before = written([batch(3, epoch=1)], 3)
    whole, footer = written(
        [batch(5, 2, INDEX_BYTES, epoch=1, timestamp=70, producer=8), batch(7, 3, BLOCK_BYTES, epoch=4, timestamp=60)],
        4, aborted=[Aborted(8, 5, 9, 6)], after=before,
    )  # fmt: skip
    length, checksum, version, magic = struct.unpack(">iIi4s", whole[-16:])
    text = whole[-16 - length : -16]
    assert (crc32c(text), version, magic) == (checksum, 1, b"KVSG")
    facts = struct.unpack_from(">16siqqqqqqIIiiii", text)
    size = facts[4]
    chains = crc32c(first[:61]), crc32c(first[:61] + whole[:size])
    assert facts == (TOPIC_ID.bytes, 3, 4, 10, len(whole) - length - 16, 2, 70, 8, *chains, 2, 1, 2, 2)
    tables = text[92:]
    index, aborted, epochs, blocks = tables[:48], tables[48:80], tables[80:104], tables[104:]
    assert list(struct.iter_unpack(">qqq", index)) == [(4, 0, -1), (7, INDEX_BYTES + 61, 70)]
    assert list(struct.iter_unpack(">qqqq", aborted)) == [(8, 5, 9, 6)]
    assert list(struct.iter_unpack(">iq", epochs)) == [(1, 5), (4, 7)]
    assert struct.unpack(">II", blocks) == (crc32c(whole[:BLOCK_BYTES]), crc32c(whole[BLOCK_BYTES:size]))
    assert footer.footer_bytes == length + 16
