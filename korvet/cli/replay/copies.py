"""What a replay sends of sealed batches. No I/O.

A batch is sent as it lies there. Only the records of these are written anew: a batch of which the range has a part, one
with gaps, as compaction leaves them, and one whose records have the time of their append, which no producer may send.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from korvet.cli.kafka.records import Record, Stored, Undecodable, Unsent, read_records, write_batch
from korvet.errors import KorvetError
from korvet.tier.reading import Committed
from korvet.tier.segment import batches
from korvet.wire.batch import CODEC_MASK, CONTROL, DELETE_HORIZON, LOG_APPEND_TIME, Batch


class Copy(NamedTuple):
    """A batch to send, the number of its records, and the offset after it in the source."""

    data: bytes | memoryview
    records: int
    next_offset: int


def copies(data: memoryview, committed: Committed, start: int, end: int) -> Iterator[Copy]:
    """The batches of committed records from ``start`` up to but without ``end``; no control batches.

    :raises KorvetError: the records of a batch have to be written anew, and cannot be read.
    """
    for batch, whole in batches(data):
        if batch.base_offset >= end:
            return
        next_offset = batch.base_offset + batch.last_offset_delta + 1
        if next_offset <= start or batch.attributes & CONTROL or not committed.has(batch):
            continue
        is_inside = start <= batch.base_offset and next_offset <= end
        has_gaps = batch.records != batch.last_offset_delta + 1
        if is_inside and not has_gaps and not batch.attributes & (LOG_APPEND_TIME | DELETE_HORIZON):
            yield Copy(whole, batch.records, next_offset)
        elif records := [_unsent(one) for one in _records(batch, whole) if start <= one.offset < end]:
            anew = write_batch(records, batch.attributes & CODEC_MASK)
            yield Copy(anew, len(records), min(next_offset, end))


def portions(those: Iterable[Copy], most_records: float, most_bytes: int) -> Iterator[Sequence[Copy]]:
    """Copies by transactions: of at most so many records and bytes, or of one batch with more."""
    some: list[Copy] = []
    records = size_bytes = 0
    for one in those:
        records, size_bytes = records + one.records, size_bytes + len(one.data)
        if some and (records > most_records or size_bytes > most_bytes):
            yield some
            some, records, size_bytes = [], one.records, len(one.data)
        some.append(one)
    if some:
        yield some


def _records(batch: Batch, whole: memoryview) -> Iterator[Record]:
    for one in read_records(Stored(batch, bytes(whole))):
        if isinstance(one, Undecodable):
            raise KorvetError(
                f"the records from offset {one.offset} to {one.last_offset} cannot be read: {one.reason}; they can "
                "only be copied as a whole batch, so choose offsets that do not cut it"
            )
        yield one


def _unsent(record: Record) -> Unsent:
    return Unsent(record.key, record.value, record.headers, record.timestamp)
