"""A batch's records: their decompression, and their timestamps.

A record (varints are zig-zag): length varint, attributes int8, timestamp delta varint, offset delta varint, then key,
value and headers, which are skipped. A compressed batch holds its records as gzip, as zstd, as an LZ4 frame, or as
Snappy. Snappy is raw, or in the chunks of xerial's snappy-java, which Java clients write. Each is read as Kafka reads
it: gzip may have several members and zstd several frames, but LZ4 has one frame, and anything after it is ignored.

Source: DefaultRecord, DefaultRecordBatch.RecordIterator, org.apache.kafka.common.compress, Lz4BlockInputStream,
GZIPInputStream, SnappyInputStream
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Final

import cramjam

from korvet.codes import INVALID_RECORD, UNKNOWN_SERVER_ERROR
from korvet.errors import KorvetError
from korvet.wire.batch import (
    CODEC_MASK,
    DELETE_HORIZON,
    GZIP,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    LZ4,
    SNAPPY,
    ZSTD,
    Batch,
    stamped,
)

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16
_SIZE = struct.Struct(">I")
_GZIP_WINDOW = 31  # the largest one, with gzip's header and trailer
_GZIP_MAGIC = b"\x1f\x8b\x08"
_GZIP_OUTER_BYTES = 18  # of a member's header and trailer, at least
_GZIP_PIECE_BYTES = 16 << 10
"""The bytes copied at the end of each gzip member; a batch may hold thousands of members."""
_LZ4_SIZE = struct.Struct("<I")
_LZ4_FLAGS_AT, _LZ4_BLOCKS_FROM = 4, 7
_LZ4_CONTENT_CHECKSUM, _LZ4_CONTENT_SIZE, _LZ4_BLOCK_CHECKSUMS, _LZ4_INDEPENDENT = 0x04, 0x08, 0x10, 0x20
_LZ4_PLAIN = 1 << 31
MOST_BYTES = 64 << 20
"""The bound on a batch's decompressed records: a few kilobytes can hold gigabytes."""
_GUESSED_RATIO = 16
_NO_ROOM = "failed to write whole buffer"
"""A decompressor's error if its output does not fit the buffer. Any other error means a wrong input."""
_Into = Callable[[bytes, bytearray], int]


NO_TIMESTAMP: Final = -1
_LEAST_RECORD_BYTES: Final = 6
_LONGS: Final = 1 << 64


class UndecodableRecords(KorvetError):
    """A batch does not hold the records that its header promises. ``code`` is Kafka's."""

    code = INVALID_RECORD


class DamagedStream(UndecodableRecords):
    """Records cannot be decompressed. Kafka has no code of its own for this."""

    code = UNKNOWN_SERVER_ERROR


class TooLong(UndecodableRecords):
    """Decompressed data exceeds a bound."""

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
    for offset_delta, timestamp_delta in _deltas(batch, data):
        found = java_long(batch.base_timestamp + timestamp_delta)
        if offset_delta >= from_delta and found >= timestamp:
            return offset_delta, found
    return None


def _deltas(batch: Batch, data: bytes) -> Iterator[tuple[int, int]]:
    """The offset delta and timestamp delta of each record."""
    records = decompressed(batch.attributes & CODEC_MASK, data[HEADER_BYTES:])
    at = 0
    try:
        for _ in range(batch.records):
            length, at = read_varint(records, at)
            if length < 0:
                raise ValueError(f"a record of {length} bytes")
            timestamp_delta, inside = read_varint(records, at + 1)
            offset_delta, _ = read_varint(records, inside)
            yield offset_delta, timestamp_delta
            at += length
    except (IndexError, ValueError) as error:
        raise UndecodableRecords(f"records cannot be decoded: {error!r}") from error


def dated(
    batch: Batch, data: bytes | memoryview, most_bytes: int | None = None
) -> tuple[Batch, bytes | memoryview, int]:
    """The batch with the greatest timestamp of its records in its header, and their least timestamp (ms).

    As in Kafka records without a timestamp do not count; without any other both times are `NO_TIMESTAMP`. A batch of
    more than `MOST_BYTES` when decompressed keeps its header's time.

    :param most_bytes: a lower bound on them.
    :raises TooLong: if they are more than ``most_bytes``.
    :raises UndecodableRecords: if the batch does not hold as many records as its header says, or not these alone.
    """
    plain: bytes | memoryview = memoryview(data)[HEADER_BYTES:]
    codec = batch.attributes & CODEC_MASK
    try:
        if codec:
            plain = decompressed(codec, bytes(plain), most_bytes)
        if codec == LZ4 and not data[HEADER_BYTES + _LZ4_FLAGS_AT] & _LZ4_INDEPENDENT:
            raise DamagedStream("the LZ4 frame has blocks that depend on each other, which Java clients cannot read")
    except TooLong:
        if most_bytes is not None:
            raise
        oldest, newest = batch.base_timestamp, max(batch.base_timestamp, batch.max_timestamp)
    else:
        oldest, newest = _times(batch, plain)
        if batch.attributes & LOG_APPEND_TIME:
            oldest = newest = batch.max_timestamp
    if newest != batch.max_timestamp:
        batch, data = stamped(batch, data, batch.attributes, newest)
    return batch, data, oldest


def _times(batch: Batch, plain: bytes | memoryview) -> tuple[int, int]:
    """The least and the greatest timestamp of records. This loop is as short as it can be: clients wait for it."""
    base, oldest, newest = batch.base_timestamp, _LONGS, NO_TIMESTAMP
    # Kafka checks offsets only in compressed batches, which are bytes by now.
    unpacked = plain if isinstance(plain, bytes) else None
    at, last = 0, -1
    try:
        for index in range(batch.records):
            length = plain[at]
            if length < 0x80:
                at += 1
            elif plain[at + 1] < 0x80:
                length += (plain[at + 1] - 1) << 7
                at += 2
            else:
                length, at = read_varint(plain, at)
                length <<= 1
            if length < 2 * _LEAST_RECORD_BYTES or length & 1:
                raise ValueError("a record is too short")
            length >>= 1
            delta = plain[at + 1]
            if delta != last or delta >= 0x80:
                # Most records have the time of the record before them.
                timestamp = java_long(base + read_varint(plain, at + 1)[0])
                last = delta
                newest = max(newest, timestamp)
                if timestamp != NO_TIMESTAMP:
                    oldest = min(oldest, timestamp)
            if unpacked is not None and (
                index >= _FEW or delta >= 0x80 or not unpacked.startswith(_OFFSETS[index], at + 2)
            ):
                _check_offset(unpacked, at + 1, index)
            at += length
        if at != len(plain):
            raise ValueError(f"{len(plain)} bytes, and the records take {at}")
    except (IndexError, ValueError) as error:
        raise UndecodableRecords(f"records cannot be decoded: {error!r}") from error
    return NO_TIMESTAMP if oldest == _LONGS else oldest, newest


def _check_offset(plain: bytes, at: int, index: int) -> None:
    """:raises ValueError: the record with its timestamp at ``at`` has another offset."""
    if read_varint(plain, read_varint(plain, at)[1])[0] != index:
        raise ValueError(f"record {index} has another offset")


def java_long(value: int) -> int:
    """The int64 to which Java's arithmetic wraps a value."""
    return (value + _LONGS // 2) % _LONGS - _LONGS // 2


def read_varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """A zig-zag integer, and the position of its end. As in Java, a tenth byte gives the 64th bit alone.

    :raises ValueError, IndexError: if the bytes are not a varint.
    Source: ByteUtils.readVarlong
    """
    value = 0
    for shift in range(0, 63, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
    if data[at] >= 0x80:
        raise ValueError("unterminated varint")
    value |= (data[at] & 1) << 63
    return (value >> 1) ^ -(value & 1), at + 1


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


_FEW: Final = 1024
_OFFSETS: Final = [varint(offset) for offset in range(_FEW)]


def decompressed(codec: int, data: bytes, most_bytes: int | None = None) -> bytes:
    """The records of a batch, decompressed by the codec of its attributes.

    :param most_bytes: the bound on them; by default `MOST_BYTES`.
    :raises TooLong: the records exceed ``most_bytes``.
    :raises DamagedStream: the records cannot be decompressed.
    """
    most_bytes = MOST_BYTES if most_bytes is None else most_bytes
    try:
        if codec == GZIP:
            return _gunzipped(data, most_bytes)
        if codec == SNAPPY:
            return _unsnapped(data, most_bytes)
        if codec == LZ4:
            return _bounded(cramjam.lz4.decompress_into, _first_lz4_frame(data), most_bytes)
        if codec == ZSTD:
            return _bounded(cramjam.zstd.decompress_into, data, most_bytes)
    except (EOFError, IndexError, struct.error, zlib.error, cramjam.DecompressionError) as error:
        raise DamagedStream(f"records cannot be decompressed: {error!r}") from error
    return data


def _gunzipped(data: bytes, most_bytes: int) -> bytes:
    view, at, parts, room_bytes = memoryview(data), 0, [], most_bytes
    member = zlib.decompressobj(_GZIP_WINDOW)
    while at < len(data):
        piece = view[at : at + _GZIP_PIECE_BYTES]
        parts.append(member.decompress(piece, room_bytes + 1))
        room_bytes -= len(parts[-1])
        if room_bytes < 0:
            raise TooLong(most_bytes)
        at += len(piece) - len(member.unused_data)
        if member.eof:
            if data[at : at + 3] != _GZIP_MAGIC or len(data) - at <= _GZIP_OUTER_BYTES:
                return b"".join(parts)
            member = zlib.decompressobj(_GZIP_WINDOW)
    raise EOFError("the gzip stream ends early")


def _first_lz4_frame(data: bytes) -> bytes:
    """The data up to the end of its first frame."""
    flags = data[_LZ4_FLAGS_AT]
    at = _LZ4_BLOCKS_FROM + (8 if flags & _LZ4_CONTENT_SIZE else 0)
    checksum_bytes = 4 if flags & _LZ4_BLOCK_CHECKSUMS else 0
    while size := _LZ4_SIZE.unpack_from(data, at)[0]:
        at += _LZ4_SIZE.size + (size & ~_LZ4_PLAIN) + checksum_bytes
    return data[: at + _LZ4_SIZE.size + (4 if flags & _LZ4_CONTENT_CHECKSUM else 0)]


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
    """The chunks. Joined streams repeat the header; a truncated size ends the last one."""
    at = _XERIAL_HEADER_BYTES
    if len(data) < at:
        raise EOFError("the Snappy stream ends early")
    while at + _SIZE.size <= len(data):
        if data.startswith(_XERIAL_MAGIC[:4], at):
            at += _XERIAL_HEADER_BYTES
            continue
        (size,) = _SIZE.unpack_from(data, at)
        at += _SIZE.size
        if at + size > len(data):
            raise EOFError("the Snappy stream ends early")
        yield data[at : at + size]
        at += size
