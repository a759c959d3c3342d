"""Segments: a partition's sealed batches in one object, and a footer to find and check them. Pure functions over bytes.

docs/segments.md describes version 1 for readers without korvet:

1. the batches, each as a Fetch serves it: base offset and leader epoch written in, one after the other without a gap
2. the footer: facts, and four tables of fixed-width rows. A footer of any size is parsed at once, and searched in place
3. the trailer, which checks the footer

A reader needs the footer once. After that each read is one range of whole blocks. The footer has a checksum of each
block, and the manifest has the footer's. So nothing but the bytes that were sealed leaves this module.

Source: KIP-405's segment with its offset, time, transaction and leader-epoch indexes
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar
from uuid import UUID

from crc32c import crc32c

from korvet.errors import KorvetError
from korvet.wire.batch import HEADER, HEADER_BYTES, LENGTH_FROM, MAGIC, Batch

VERSION: Final = 1
BLOCK_BYTES: Final = 1 << 20
"""The bytes of one checksum, and so of the least that a read takes from the store."""
INDEX_BYTES: Final = 64 << 10
"""The bytes of batches between two entries of the index, at least."""
MOST_FOOTER_BYTES: Final = 2 << 20
"""Enough for the index of a segment of 5 GiB, or for 60,000 aborted transactions in a smaller one."""

_SMALL_BYTES: Final = 4096
_MAGIC: Final = b"KVSG"
_TRAILER: Final = struct.Struct(">iIi4s")
_FACTS: Final = struct.Struct(">16siqqqqqqII4i")
_INDEX_ENTRY: Final = struct.Struct(">qqq")
_ABORTED: Final = struct.Struct(">qqqq")
_EPOCH: Final = struct.Struct(">iq")
_CHECKSUM: Final = struct.Struct(">I")

Bytes = bytes | memoryview
T = TypeVar("T")


class DamagedSegment(KorvetError):
    """The bytes of an object are not those of the segment that was written."""


class FooterTooLarge(KorvetError):
    """A segment has too many index entries, epochs or aborted transactions for one footer: end it earlier."""


class IndexEntry(NamedTuple):
    """An entry of the sparse index: a batch at a byte position.

    ``offset`` is the one after the batch before, from which on a reader's next batch is this one. ``max_timestamp`` is
    the greatest of the segment's batches before it, -1 if there is none.
    """

    offset: int
    position: int
    max_timestamp: int


class Aborted(NamedTuple):
    """An aborted transaction that overlaps a segment. Its marker, at ``last_offset``, may lie in a later one.

    ``stable`` is the last stable offset after the marker, as in Kafka's AbortedTxn.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    stable: int


class Epoch(NamedTuple):
    """A leader epoch of batches, and the first offset that it has in a segment."""

    epoch: int
    first_offset: int


class Table(Generic[T]):
    """Rows of a footer, unpacked when they are read."""

    __slots__ = ("_data", "_layout", "_make")

    def __init__(self, data: Bytes, layout: struct.Struct, make: Callable[[tuple[int, ...]], T]) -> None:
        self._data, self._layout, self._make = memoryview(data), layout, make

    def __len__(self) -> int:
        return len(self._data) // self._layout.size

    def __getitem__(self, at: int) -> T:
        return self._make(self._layout.unpack_from(self._data, at * self._layout.size))

    def __iter__(self) -> Iterator[T]:
        return map(self._make, self._layout.iter_unpack(self._data))

    def rows(self, at: int) -> Iterator[tuple[int, ...]]:
        """The rows from one on, as they lie there."""
        return self._layout.iter_unpack(self._data[at * self._layout.size :])


class Selected(NamedTuple):
    """Batches of a segment, and the position of the first one. ``next_offset`` is the one after the last batch."""

    batches: memoryview
    position: int
    first_bytes: int
    """The size of the first batch."""
    next_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Footer:
    """The facts about a segment's batches. Offsets from ``first_offset`` up to but without ``next_offset``; times in
    milliseconds."""

    topic_id: UUID
    partition: int
    first_offset: int
    next_offset: int
    size_bytes: int
    """The bytes of the batches, which end where the footer begins."""
    batches: int
    max_timestamp: int
    max_producer_id: int
    """The largest producer id of all batches up to here, of earlier segments too; -1 if there is none."""
    chain_before: int
    """``chain`` of the segment before this one; 0 if there is none."""
    chain: int
    """The CRC-32C of the bytes of all batches of this and the earlier segments, whatever segments they are in."""
    index: Table[IndexEntry]
    aborted: Table[Aborted]
    """By their last offsets."""
    epochs: Table[Epoch]
    checksums: Table[int]
    """The CRC-32C of each block of the batches; the last block may be shorter."""
    footer_bytes: int
    """The bytes after the batches."""
    crc: int
    """The CRC-32C of the footer, for the manifest."""

    def span(self, offset: int, most_bytes: int) -> tuple[int, int]:
        """The byte range in which to look for the batches from an offset on.

        The range holds the whole first batch, and up to ``most_bytes`` of batches from it on. `selected` finds them.
        """
        after = bisect_right(self.index, offset, key=lambda entry: entry.offset)
        start = self.index[after - 1].position if after else 0
        least = self.index[after].position if after < len(self.index) else self.size_bytes
        return start, min(self.size_bytes, max(least, start + INDEX_BYTES + most_bytes))

    def selected(self, data: Bytes, start: int, offset: int, most_bytes: int) -> memoryview:
        """The batches of `select`; empty if there is none."""
        found = self.select(data, start, offset, most_bytes)
        return memoryview(data)[:0] if found is None else found.batches

    def select(self, data: Bytes, start: int, offset: int, most_bytes: int) -> Selected | None:
        """The batches from an offset on, in bytes that begin at the ``start`` of a `span`: up to ``most_bytes``, and
        always the first one if it is whole.

        None if there is none: a segment may have no batches for its last offsets. The index shows where the batches
        end, so no more of them than two of its entries have are looked at.

        :raises DamagedSegment: there is something else than a batch.
        """
        view, begin, end, next_offset = memoryview(data), 0, 0, 0
        for batch, whole in batches(view):
            end += len(whole)
            next_offset = batch.base_offset + batch.last_offset_delta + 1
            if next_offset > offset:
                break
            begin = end
        if begin == end:
            return None
        first_bytes, limit = end - begin, min(len(view), begin + most_bytes)
        entry = self.index[bisect_right(self.index, start + limit, key=lambda one: one.position) - 1]
        if entry.position - start > end:
            end, next_offset = entry.position - start, entry.offset
        for batch, whole in batches(view[end:limit]):
            end += len(whole)
            next_offset = batch.base_offset + batch.last_offset_delta + 1
        return Selected(view[begin:end], start + begin, first_bytes, next_offset)

    def position_of_time(self, timestamp: int) -> int | None:
        """The position from which on to look for the first batch with a timestamp not earlier; None if none has."""
        if self.max_timestamp < timestamp:
            return None
        at = bisect_left(self.index, timestamp, key=lambda entry: entry.max_timestamp)
        return self.index[at - 1].position if at else 0

    def aborted_within(self, first_offset: int, next_offset: int) -> list[Aborted]:
        """The aborted transactions that overlap a range of offsets.

        Source: TransactionIndex.collectAbortedTxns
        """
        found: list[Aborted] = []
        # While one long transaction is open, thousands of others may follow that begin after the range.
        for row in self.aborted.rows(bisect_left(self.aborted, first_offset, key=lambda one: one.last_offset)):
            if row[1] < next_offset:
                found.append(Aborted._make(row))
            if row[3] >= next_offset:
                break
        return found


class Writer:
    """Builds a segment from a partition's batches in their order.

    :param chain: as `Footer.chain`, of the segment before.
    :param max_producer_id: as `Footer` has it, of the segment before.
    """

    def __init__(
        self, topic_id: UUID, partition: int, first_offset: int, *, chain: int = 0, max_producer_id: int = -1
    ) -> None:
        self._topic_id, self._partition = topic_id, partition
        self._first_offset = self._next_offset = first_offset
        self._chain_before = self._chain = chain
        self._max_producer_id = max_producer_id
        self._max_timestamp = -1
        self._parts: list[Bytes | bytearray] = []
        self._size_bytes = self._batches = 0
        self._index: list[IndexEntry] = []
        self._epochs: list[Epoch] = []
        self._checksums: list[int] = []
        self._checksum = 0
        self._left_in_block = BLOCK_BYTES

    @property
    def size_bytes(self) -> int:
        """The bytes of the batches so far."""
        return self._size_bytes

    @property
    def next_offset(self) -> int:
        """The offset after the last batch."""
        return self._next_offset

    def footer_bytes(self, aborted: int) -> int:
        """The bytes after the batches so far, with a number of aborted transactions."""
        blocks = -(-self._size_bytes // BLOCK_BYTES)
        return _footer_bytes((len(self._index), aborted, len(self._epochs), blocks))

    def add(self, parts: Sequence[Bytes], max_timestamp: int) -> None:
        """Add a batch as a Fetch serves it, with the offset and the leader epoch of its place in the log.

        :param parts: the batch; the first part holds at least base offset, length and epoch.
        :param max_timestamp: the greatest timestamp, or for a batch without any the time of its append.
        :raises ValueError: this is no whole batch, or it does not come after the batch before it.
        """
        batch = _header(parts)
        if batch.magic != MAGIC or batch.size_bytes != sum(map(len, parts)):
            raise ValueError(f"no whole batch at offset {self._next_offset}")
        if batch.base_offset < self._next_offset or batch.last_offset_delta < 0:
            raise ValueError(f"a batch of {batch.base_offset} after {self._next_offset}")
        if not self._index or self.size_bytes - self._index[-1].position >= INDEX_BYTES:
            self._index.append(IndexEntry(self._next_offset, self.size_bytes, self._max_timestamp))
        if not self._epochs or self._epochs[-1].epoch != batch.leader_epoch:
            self._epochs.append(Epoch(batch.leader_epoch, batch.base_offset))
        self._write(parts)
        self._batches += 1
        self._next_offset = batch.base_offset + batch.last_offset_delta + 1
        self._max_timestamp = max(self._max_timestamp, max_timestamp)
        self._max_producer_id = max(self._max_producer_id, batch.producer_id)

    def join(self, footer: Footer, parts: Sequence[Bytes]) -> None:
        """Add all batches of the next segment, to merge it with what is here. Its blocks are checked by `Footer.chain`.

        :raises ValueError: it is not the next segment.
        :raises DamagedSegment: the parts are not its batches. Then the writer is of no use any more.
        """
        before = footer.topic_id, footer.partition, footer.first_offset, footer.chain_before
        if before != (self._topic_id, self._partition, self._next_offset, self._chain):
            raise ValueError(f"the segment of {footer.first_offset} is not the next one at {self._next_offset}")
        if sum(map(len, parts)) != footer.size_bytes:
            raise DamagedSegment(f"the batches of the segment of {footer.first_offset} are not whole")
        self._index += [
            IndexEntry(one.offset, self.size_bytes + one.position, max(self._max_timestamp, one.max_timestamp))
            for one in footer.index
        ]
        goes_on = bool(self._epochs) and self._epochs[-1].epoch == footer.epochs[0].epoch
        self._epochs += list(footer.epochs)[1 if goes_on else 0 :]
        self._write(parts)
        if self._chain != footer.chain:
            raise DamagedSegment(f"the batches of the segment of {footer.first_offset} were changed")
        self._batches += footer.batches
        self._next_offset = footer.next_offset
        self._max_timestamp = max(self._max_timestamp, footer.max_timestamp)
        self._max_producer_id = max(self._max_producer_id, footer.max_producer_id)

    def _write(self, parts: Iterable[Bytes]) -> None:
        for part in parts:
            self._keep(part)
            self._size_bytes += len(part)
            self._chain = crc32c(part, self._chain)
            left = memoryview(part)
            while len(left) >= self._left_in_block:
                self._checksums.append(crc32c(left[: self._left_in_block], self._checksum))
                left, self._checksum, self._left_in_block = left[self._left_in_block :], 0, BLOCK_BYTES
            self._checksum = crc32c(left, self._checksum)
            self._left_in_block -= len(left)

    def _keep(self, part: Bytes) -> None:
        """Keep a large part as it is, and copy small ones into one: a buffer of its own is dearer than few bytes."""
        if len(part) >= _SMALL_BYTES:
            self._parts.append(part)
        elif self._parts and isinstance(last := self._parts[-1], bytearray):
            last += part
        else:
            self._parts.append(bytearray(part))

    def finish(self, aborted: Iterable[Aborted], next_offset: int | None = None) -> tuple[list[Bytes], Footer]:
        """The object's parts and its footer. Nothing can be added afterwards.

        :param aborted: transactions; those that do not overlap the segment are left out, and doubles.
        :param next_offset: the end of the segment if offsets after the last batch belong to it.
        :raises FooterTooLarge: readers would refuse the footer.
        """
        if not self._batches:
            raise ValueError("a segment without batches")
        end = self._next_offset if next_offset is None else next_offset
        if end < self._next_offset:
            raise ValueError(f"an end of {end} before {self._next_offset}")
        overlapping = {one for one in aborted if one.first_offset < end and one.last_offset >= self._first_offset}
        if (size := self.footer_bytes(len(overlapping))) > MOST_FOOTER_BYTES:
            raise FooterTooLarge(f"a footer of {size} bytes; at most {MOST_FOOTER_BYTES}")
        has_rest = self._left_in_block < BLOCK_BYTES
        checksums = [*self._checksums, self._checksum] if has_rest else self._checksums
        facts = _FACTS.pack(
            self._topic_id.bytes, self._partition, self._first_offset, end, self._size_bytes, self._batches,
            self._max_timestamp, self._max_producer_id, self._chain_before, self._chain,
            len(self._index), len(overlapping), len(self._epochs), len(checksums),
        )  # fmt: skip
        rows = [_INDEX_ENTRY.pack(*one) for one in self._index]
        rows += [_ABORTED.pack(*one) for one in sorted(overlapping, key=lambda one: one.last_offset)]
        rows += [_EPOCH.pack(*one) for one in self._epochs]
        rows += [_CHECKSUM.pack(one) for one in checksums]
        text = b"".join((facts, *rows))
        ending = text + _TRAILER.pack(len(text), crc32c(text), VERSION, _MAGIC)
        return [*(memoryview(part) for part in self._parts), ending], read_footer(ending)


def read_footer(end: Bytes, *, crc: int | None = None) -> Footer:
    """The footer in the last bytes of an object.

    :param crc: the footer's checksum that the manifest has.
    :raises DamagedSegment: these are not the last bytes of a segment, or of another one, or of a later version.
    """
    size = footer_bytes(end)
    if size > len(end):
        raise DamagedSegment(f"a footer of {size} bytes in an end of {len(end)}")
    text = memoryview(end)[len(end) - size : -_TRAILER.size]
    found = crc32c(text)
    if found != _TRAILER.unpack(end[-_TRAILER.size :])[1]:
        raise DamagedSegment("the footer was changed")
    if crc is not None and crc != found:
        raise DamagedSegment("the footer is another segment's")
    *facts, index, aborted, epochs, checksums = _FACTS.unpack_from(text)
    counts = index, aborted, epochs, checksums
    if min(counts) < 0 or _footer_bytes(counts) != size or checksums != -(-facts[4] // BLOCK_BYTES):
        raise DamagedSegment("the footer's tables do not fit its facts")
    at, tables = _FACTS.size, []
    for count, layout in zip(counts, _LAYOUTS, strict=True):
        tables.append(text[at : at + count * layout.size])
        at += count * layout.size
    return Footer(
        topic_id=UUID(bytes=facts[0]),
        **dict(zip(_FACT_NAMES, facts[1:], strict=True)),
        index=Table(tables[0], _INDEX_ENTRY, IndexEntry._make),
        aborted=Table(tables[1], _ABORTED, Aborted._make),
        epochs=Table(tables[2], _EPOCH, Epoch._make),
        checksums=Table(tables[3], _CHECKSUM, lambda row: row[0]),
        footer_bytes=size,
        crc=found,
    )


def footer_bytes(end: Bytes) -> int:
    """The bytes of footer and trailer together, by an object's last bytes: for readers without the manifest.

    :raises DamagedSegment: the object does not end as a segment, or is of a later version.
    """
    if len(end) < _TRAILER.size:
        raise DamagedSegment(f"an object that ends with {len(end)} bytes is no segment")
    length, _, version, magic = _TRAILER.unpack(end[-_TRAILER.size :])
    if magic != _MAGIC:
        raise DamagedSegment("the object does not end as a segment")
    if version != VERSION:
        raise DamagedSegment(f"a segment of version {version}; this korvet reads version {VERSION}")
    if not _FACTS.size <= length <= MOST_FOOTER_BYTES - _TRAILER.size:
        raise DamagedSegment(f"a footer of {length} bytes")
    size: int = length + _TRAILER.size
    return size


def check_block(footer: Footer, number: int, data: Bytes) -> None:
    """Check a whole block.

    :raises DamagedSegment: it is shorter or longer, or was changed.
    """
    start = number * BLOCK_BYTES
    end = min(footer.size_bytes, start + BLOCK_BYTES)
    if len(data) != end - start or crc32c(data) != footer.checksums[number]:
        raise DamagedSegment(f"the bytes {start} to {end} were changed or cut off")


def batches(data: Bytes) -> Iterator[tuple[Batch, memoryview]]:
    """The whole batches at the beginning of checked bytes, each with its header.

    :raises DamagedSegment: there is something else than a batch.
    """
    view, at = memoryview(data), 0
    while at + HEADER_BYTES <= len(view):
        batch = Batch._make(HEADER.unpack_from(view, at))
        if batch.magic != MAGIC or batch.length < HEADER_BYTES - LENGTH_FROM:
            raise DamagedSegment(f"no batch at byte {at} of a range")
        if at + batch.size_bytes > len(view):
            return
        yield batch, view[at : at + batch.size_bytes]
        at += batch.size_bytes


_LAYOUTS: Final = (_INDEX_ENTRY, _ABORTED, _EPOCH, _CHECKSUM)
_FACT_NAMES: Final = (
    "partition", "first_offset", "next_offset", "size_bytes", "batches", "max_timestamp", "max_producer_id",
    "chain_before", "chain",
)  # fmt: skip


def _footer_bytes(counts: Sequence[int]) -> int:
    rows = sum(count * layout.size for count, layout in zip(counts, _LAYOUTS, strict=True))
    return _FACTS.size + rows + _TRAILER.size


def _header(parts: Sequence[Bytes]) -> Batch:
    """The header at the beginning of parts; of zeroes if they are too short."""
    begin = b""
    for part in parts:
        begin += part[: HEADER_BYTES - len(begin)]
        if len(begin) == HEADER_BYTES:
            break
    return Batch._make(HEADER.unpack(begin.ljust(HEADER_BYTES, b"\0")))
