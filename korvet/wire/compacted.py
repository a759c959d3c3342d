"""Compacted batches: compaction takes a batch apart, and rebuilds it with fewer records.

A kept record keeps its offset, time, key, value and headers, byte for byte. The batch keeps its first and last offset,
its producer and its codec. Its count, size, greatest timestamp and checksum are those of the kept records.

Source: MemoryRecords.filterTo, MemoryRecordsBuilder
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from korvet.wire.batch import CODEC_MASK, DELETE_HORIZON, HEADER_BYTES, LOG_APPEND_TIME, Batch, sealed
from korvet.wire.compress import compressed
from korvet.wire.records import UndecodableRecords, decompressed, java_long, read_varint, varint

MOST_RECORDS = 500_000
"""The bound on a batch's records: an opened record takes some 300 bytes, and a few kilobytes may hold millions."""
_UNDECODABLE = (IndexError, ValueError)


class Record(NamedTuple):
    """A record of a batch, from ``start`` to ``end`` in the decompressed records. ``rest`` is the index after its
    timestamp."""

    offset_delta: int
    timestamp_delta: int
    key: bytes | None
    has_value: bool
    attributes: int
    start: int
    rest: int
    end: int


def opened(batch: Batch, data: bytes) -> tuple[bytes, list[Record]]:
    """The decompressed records of a stored batch, and a `Record` for each.

    :raises UndecodableRecords: the records contradict the header, or are too many.
    """
    _check_count(batch)
    try:
        plain = decompressed(batch.attributes & CODEC_MASK, data[HEADER_BYTES:])
        records, at, last = [], 0, -1
        for _ in range(batch.records):
            record = _record(plain, at)
            if not last < record.offset_delta <= batch.last_offset_delta:
                raise ValueError(f"offset delta {record.offset_delta} after {last}")
            records.append(record)
            at, last = record.end, record.offset_delta
        if at != len(plain):
            raise ValueError(f"{len(plain) - at} bytes after the records")
    except _UNDECODABLE as error:
        raise UndecodableRecords(f"records cannot be decoded: {error!r}") from error
    return plain, records


def _check_count(batch: Batch) -> None:
    if batch.records > MOST_RECORDS:
        raise UndecodableRecords(f"a batch of {batch.records} records; compaction takes at most {MOST_RECORDS}")


def _record(plain: bytes, start: int) -> Record:
    length, at = read_varint(plain, start)
    end = at + length
    attributes = plain[at]
    timestamp_delta, rest = read_varint(plain, at + 1)
    offset_delta, at = read_varint(plain, rest)
    key_length, at = read_varint(plain, at)
    key = None
    if key_length >= 0:
        key = plain[at : at + key_length]
        at += key_length
    value_length, at = read_varint(plain, at)
    if at + max(0, value_length) > end or end > len(plain):
        raise ValueError(f"a record of {length} bytes holds a longer key or value")
    return Record(offset_delta, timestamp_delta, key, value_length >= 0, attributes, start, rest, end)


def keyless(batch: Batch, data: bytes | memoryview) -> Iterator[int]:
    """The indexes of a batch's records without keys. It holds no more memory than the decompressed batch.

    :raises UndecodableRecords: during the iteration, as for `opened`.
    """
    _check_count(batch)
    try:
        plain = decompressed(batch.attributes & CODEC_MASK, bytes(data[HEADER_BYTES:]))
        at = 0
        for index in range(batch.records):
            record = _record(plain, at)
            if record.offset_delta != index:
                raise ValueError(f"record {index} has offset delta {record.offset_delta}")
            at = record.end
            if record.key is None:
                yield index
        if at != len(plain):
            raise ValueError(f"{len(plain) - at} bytes after the records")
    except _UNDECODABLE as error:
        raise UndecodableRecords(f"records cannot be decoded: {error!r}") from error


def delete_horizon_ms(batch: Batch) -> int | None:
    """The time from which a batch's tombstones, or a marker, may go; None before compaction has set it."""
    return batch.base_timestamp if batch.attributes & DELETE_HORIZON else None


def rebuilt(batch: Batch, plain: bytes, kept: Sequence[Record], horizon_ms: int | None) -> tuple[Batch, bytes]:
    """The batch with some of its records, at least one.

    :param horizon_ms: the batch's new delete horizon; None keeps the present one. A horizon that stays keeps the
        records' bytes as they are.
    """
    attributes, base = batch.attributes, batch.base_timestamp
    if horizon_ms is not None and horizon_ms != delete_horizon_ms(batch):
        shift = base - horizon_ms
        parts = [_moved(plain, record, java_long(record.timestamp_delta + shift)) for record in kept]
        attributes, base = attributes | DELETE_HORIZON, horizon_ms
    else:
        parts = [plain[record.start : record.end] for record in kept]
    newest = batch.max_timestamp
    if not attributes & LOG_APPEND_TIME:
        newest = max(java_long(batch.base_timestamp + record.timestamp_delta) for record in kept)
    body = compressed(attributes & CODEC_MASK, b"".join(parts))
    changed = batch._replace(attributes=attributes, base_timestamp=base, max_timestamp=newest, records=len(kept))
    return sealed(changed, body)


def _moved(plain: bytes, record: Record, timestamp_delta: int) -> bytes:
    body = bytes((record.attributes,)) + varint(timestamp_delta) + plain[record.rest : record.end]
    return varint(len(body)) + body
