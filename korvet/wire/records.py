"""A batch's records: their decompression, and their timestamps, which answer lookups of offsets by time.

A record (varints are zig-zag): length varint, attributes int8, timestamp delta varint, offset delta varint, then key,
value and headers, which are skipped. A compressed batch holds its records as gzip, as zstd, as an LZ4 frame, or as
Snappy. Snappy is raw, or in the chunks of xerial's snappy-java, which Java clients write.

Source: DefaultRecord, org.apache.kafka.common.compress
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator

import cramjam

from korvet.errors import KorvetError
from korvet.wire.batch import CODEC_MASK, DELETE_HORIZON, GZIP, HEADER_BYTES, LOG_APPEND_TIME, LZ4, SNAPPY, ZSTD, Batch

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16
_SIZE = struct.Struct(">I")
_GZIP_WINDOW = 31  # the largest one, with gzip's header and trailer
MOST_BYTES = 64 << 20
"""The bound on a batch's decompressed records, for a few kilobytes can hold gigabytes."""
_GUESSED_RATIO = 16
_NO_ROOM = "failed to write whole buffer"
"""A decompressor's error if its output does not fit the buffer. Any other error means a wrong input."""
_Into = Callable[[bytes, bytearray], int]


class UndecodableRecords(KorvetError):
    """A batch does not hold the records that its header promises."""


class TooLong(ValueError):
    """Data is more than a bound when decompressed."""

    def __init__(self, most_bytes: int) -> None:
        super().__init__(f"more than {most_bytes} bytes")


def first_at_or_after(batch: Batch, data: bytes, timestamp: int, from_delta: int = 0) -> tuple[int, int] | None:
    """The offset delta and the timestamp (ms) of the first record that is not older than ``timestamp``.

    None if there is none. ``data`` is the whole batch; records below ``from_delta`` do not count.

    :raises UndecodableRecords: if the records cannot be decoded.
    """
    # Compaction leaves gaps, and may replace the base timestamp by the delete horizon.
    is_whole = batch.records == batch.last_offset_delta + 1 and not batch.attributes & DELETE_HORIZON
    if batch.attributes & LOG_APPEND_TIME:
        if batch.max_timestamp < timestamp:
            return None
        deltas = [from_delta] if is_whole else [delta for delta, _ in _deltas(batch, data) if delta >= from_delta]
        return (deltas[0], batch.max_timestamp) if deltas else None
    if is_whole and from_delta == 0 and batch.base_timestamp >= timestamp:
        # The base timestamp is that of the first record.
        return 0, batch.base_timestamp
    for offset_delta, timestamp_delta in _deltas(batch, data):
        if offset_delta >= from_delta and batch.base_timestamp + timestamp_delta >= timestamp:
            return offset_delta, batch.base_timestamp + timestamp_delta
    return None


def _deltas(batch: Batch, data: bytes) -> Iterator[tuple[int, int]]:
    """The offset delta and timestamp delta of each record."""
    try:
        records = decompressed(batch.attributes & CODEC_MASK, data[HEADER_BYTES:])
        at = 0
        for _ in range(batch.records):
            length, at = read_varint(records, at)
            if length < 0:
                raise ValueError(f"a record of {length} bytes")
            timestamp_delta, inside = read_varint(records, at + 1)
            offset_delta, _ = read_varint(records, inside)
            yield offset_delta, timestamp_delta
            at += length
    except (IndexError, ValueError, struct.error, zlib.error, cramjam.DecompressionError) as error:
        raise UndecodableRecords(f"records cannot be decoded: {error!r}") from error


def read_varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """A zig-zag integer, and the position of its end.

    :raises ValueError, IndexError: if the bytes are not a varint.
    """
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
    raise ValueError("unterminated varint")


def varint(value: int) -> bytes:
    """An int64 as `read_varint` reads it."""
    value = (value << 1) ^ (value >> 63)
    if value < 0x80:
        return value.to_bytes(1, "big")
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def decompressed(codec: int, data: bytes, most_bytes: int | None = None) -> bytes:
    """The records of a batch, decompressed by the codec of its attributes.

    :param most_bytes: the bound on them; without one `MOST_BYTES`.
    :raises TooLong: if they are more than ``most_bytes``.
    :raises ValueError, zlib.error, struct.error, cramjam.DecompressionError: if the data is damaged.
    """
    most_bytes = MOST_BYTES if most_bytes is None else most_bytes
    if codec == GZIP:
        return _gunzipped(data, most_bytes)
    if codec == SNAPPY:
        return _unsnapped(data, most_bytes)
    if codec == LZ4:
        return _bounded(cramjam.lz4.decompress_into, data, most_bytes)
    if codec == ZSTD:
        return _bounded(cramjam.zstd.decompress_into, data, most_bytes)
    return data


def _gunzipped(data: bytes, most_bytes: int) -> bytes:
    gzip = zlib.decompressobj(_GZIP_WINDOW)
    plain = gzip.decompress(data, most_bytes)
    if gzip.unconsumed_tail and gzip.decompress(gzip.unconsumed_tail, 1):
        raise TooLong(most_bytes)
    return plain


def _bounded(decompress_into: _Into, data: bytes, most_bytes: int) -> bytes:
    room_bytes = min(most_bytes, _GUESSED_RATIO * len(data) + 65536)
    while True:
        try:
            return _filled(decompress_into, data, room_bytes)
        except cramjam.DecompressionError as error:
            if _NO_ROOM not in str(error):
                raise
            if room_bytes == most_bytes:
                raise TooLong(most_bytes) from None
        room_bytes = min(most_bytes, _GUESSED_RATIO * room_bytes)


def _filled(decompress_into: _Into, data: bytes, room_bytes: int) -> bytes:
    room = bytearray(room_bytes)
    size = decompress_into(data, room)
    return bytes(memoryview(room)[:size])


def _unsnapped(data: bytes, most_bytes: int) -> bytes:
    chunks = list(_snappy_chunks(data)) if data.startswith(_XERIAL_MAGIC) else [data]
    if sum(map(cramjam.snappy.decompress_raw_len, chunks)) > most_bytes:
        raise TooLong(most_bytes)
    return b"".join(bytes(cramjam.snappy.decompress_raw(chunk)) for chunk in chunks)


def _snappy_chunks(data: bytes) -> Iterator[bytes]:
    at = _XERIAL_HEADER_BYTES
    while at < len(data):
        (size,) = _SIZE.unpack_from(data, at)
        at += _SIZE.size
        yield data[at : at + size]
        at += size
