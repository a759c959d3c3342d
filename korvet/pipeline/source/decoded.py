"""The records of batches as a Fetch serves them, column by column. No I/O.

What librdkafka would hand out, this does too. Batches that it may understand in another way are refused, so that its
own reader decides (`korvet.pipeline.source.fetch`).
"""

from __future__ import annotations

from typing import Final

from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME

from korvet.pipeline.source.rows import Columns, Header
from korvet.wire.batch import CODEC_MASK, CONTROL, HEADER_BYTES, LOG_APPEND_TIME, Batch
from korvet.wire.records import UndecodableRecords, decompressed, java_long, read_varint

_LONGS: Final = range(-(1 << 63), 1 << 63)


def decode(batch: Batch, data: bytes | memoryview, start: int, end: int, into: Columns, *, headers: bool) -> int:
    """Add the records of a batch from ``start`` up to but without ``end``. Returns their bytes without compression.

    Control batches have none for readers.

    :raises UndecodableRecords: the records contradict the header. Then nothing was added.
    """
    if batch.attributes & CONTROL:
        return 0
    plain = decompressed(batch.attributes & CODEC_MASK, bytes(data[HEADER_BYTES:]))
    found = Columns()
    try:
        at = _records(plain, batch, start, end, found, headers)
    except (IndexError, ValueError) as error:
        raise UndecodableRecords(f"records cannot be decoded: {error!r}") from error
    if at != len(plain):
        raise UndecodableRecords(f"{len(plain) - at} bytes after the records")
    count = len(found.offsets)
    if batch.attributes & LOG_APPEND_TIME:
        found.stamps[:] = [batch.max_timestamp] * count
        found.kinds.extend([TIMESTAMP_LOG_APPEND_TIME] * count)
    else:
        found.kinds.extend([TIMESTAMP_CREATE_TIME] * count)
        if count and not (min(found.stamps) in _LONGS and max(found.stamps) in _LONGS):
            found.stamps[:] = map(java_long, found.stamps)
    into.extend(found)
    return at


def _records(plain: bytes, batch: Batch, start: int, end: int, found: Columns, with_headers: bool) -> int:
    """Add the records, and return the position of their end. In this hot path names are bound once."""
    base, base_ms, last, at = batch.base_offset, batch.base_timestamp, -1, 0
    least, most, size = start - base, min(end - base - 1, batch.last_offset_delta), len(plain)
    keys, values, offsets = found.keys.append, found.values.append, found.offsets.append
    stamps, headers = found.stamps.append, found.headers.append
    for _ in range(batch.records):
        length, at = read_varint(plain, at)
        stop = at + length
        delta_ms, at = read_varint(plain, at + 1)
        delta, at = read_varint(plain, at)
        if not last < delta <= batch.last_offset_delta or stop > size:
            raise ValueError(f"a record of {length} bytes with offset delta {delta} after {last}")
        last = delta
        if least <= delta <= most:
            length, at = read_varint(plain, at)
            key, at = (None, at) if length < 0 else (plain[at : at + length], at + length)
            length, at = read_varint(plain, at)
            value, at = (None, at) if length < 0 else (plain[at : at + length], at + length)
            if at >= stop:
                raise ValueError("a record ends before its key, its value or the number of its headers")
            keys(key)
            values(value)
            offsets(base + delta)
            stamps(base_ms + delta_ms)
            headers(_headers(plain, at, stop) if with_headers and plain[at] else None)
        at = stop
    return at


def _headers(plain: bytes, at: int, stop: int) -> list[Header]:
    count, at = read_varint(plain, at)
    found: list[Header] = []
    for _ in range(count):
        length, at = read_varint(plain, at)
        name, at = plain[at : at + length], at + length
        length, at = read_varint(plain, at)
        value, at = (None, at) if length < 0 else (plain[at : at + length], at + length)
        if at > stop:
            break
        # The client ends a name at a zero byte.
        found.append((name.partition(b"\0")[0].decode(errors="replace"), value))
    if at != stop or len(found) != count:
        raise ValueError(f"{count} headers do not fill the record")
    return found
