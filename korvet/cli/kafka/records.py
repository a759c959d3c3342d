"""Records in batches of magic 2, as a client reads and writes them. Undecodable ones are items of their own.

A record has these fields: length varint, attributes int8, timestamp delta varint, offset delta varint, key, value,
number of headers. Each header follows as a name and a value. A text follows its length, and -1 is null. Varints are
zig-zag.

Source: DefaultRecordBatch, DefaultRecord
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from korvet.wire.batch import (
    CODEC_MASK,
    CONTROL,
    CRC_FROM,
    GZIP,
    HEADER,
    HEADER_BYTES,
    LENGTH_FROM,
    LOG_APPEND_TIME,
    LZ4,
    MAGIC,
    SNAPPY,
    ZSTD,
    Batch,
    new_batch,
)
from korvet.wire.compress import compressed
from korvet.wire.records import UndecodableRecords, decompressed, java_long, read_varint, varint

Headers = Sequence[tuple[bytes, bytes | None]]
CODECS: Final = {"none": 0, "gzip": GZIP, "snappy": SNAPPY, "lz4": LZ4, "zstd": ZSTD}

_MAGIC_AT: Final = 16
_OUTER: Final = struct.Struct(">qi")
_NULL: Final = varint(-1)


class Record(NamedTuple):
    """A record of a log; the timestamp is in ms since 1970."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class Undecodable(NamedTuple):
    """Stored records that cannot be read, from an offset to another one, and the reason."""

    offset: int
    last_offset: int
    reason: str


class Unsent(NamedTuple):
    """A record to send."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp: int

    @property
    def size_bytes(self) -> int:
        """About its bytes in a batch that is not compressed."""
        headers = sum(len(name) + len(value or b"") + 10 for name, value in self.headers)
        return len(self.key or b"") + len(self.value or b"") + headers + 30


class Stored(NamedTuple):
    """A batch of a log, with its bytes."""

    batch: Batch
    data: bytes

    @property
    def last_offset(self) -> int:
        return self.batch.base_offset + max(self.batch.last_offset_delta, 0)

    @property
    def is_control(self) -> bool:
        """True for a control batch: it holds a transaction's end and no producer's records."""
        return bool(self.batch.attributes & CONTROL)


def read_batches(data: bytes) -> Iterator[Stored | Undecodable]:
    """The whole batches of a Fetch answer; brokers may cut off the last one, which is then left out."""
    at = 0
    while at + HEADER_BYTES <= len(data):
        base_offset, length = _OUTER.unpack_from(data, at)
        end = at + LENGTH_FROM + length
        if length < HEADER_BYTES - LENGTH_FROM and data[at + _MAGIC_AT] == MAGIC:
            yield Undecodable(base_offset, base_offset, f"a batch of {length} bytes")
            return
        if end > len(data):
            return
        if data[at + _MAGIC_AT] != MAGIC:
            yield Undecodable(base_offset, base_offset, f"its message format is {data[at + _MAGIC_AT]}, and not 2")
        else:
            yield _checked(Stored(Batch._make(HEADER.unpack_from(data, at)), data[at:end]))
        at = end


def _checked(stored: Stored) -> Stored | Undecodable:
    if crc32c(memoryview(stored.data)[CRC_FROM:]) != stored.batch.crc:
        return Undecodable(stored.batch.base_offset, stored.last_offset, "the checksum of its batch is wrong")
    return stored


def read_records(stored: Stored) -> Iterator[Record | Undecodable]:
    """The records of a batch, up to the first undecodable one, which stands for the rest."""
    batch = stored.batch
    offset = batch.base_offset
    try:
        plain = decompressed(batch.attributes & CODEC_MASK, stored.data[HEADER_BYTES:])
        at = 0
        for _ in range(batch.records):
            record, at = _record(batch, plain, at)
            yield record
            offset = record.offset + 1
    except IndexError:
        yield Undecodable(offset, max(offset, stored.last_offset), "its batch ends within a record")
    except (ValueError, UndecodableRecords) as error:
        yield Undecodable(offset, max(offset, stored.last_offset), str(error))


def _record(batch: Batch, plain: bytes, at: int) -> tuple[Record, int]:
    """The record that starts here, and the start of the next one.

    :raises ValueError, IndexError:
    """
    length, at = read_varint(plain, at)
    end = at + length
    if length < 0 or end > len(plain):
        raise ValueError(f"a record of {length} bytes, and {len(plain) - at} are left")
    timestamp_delta, at = read_varint(plain, at + 1)
    offset_delta, at = read_varint(plain, at)
    key, at = _text(plain, at, end)
    value, at = _text(plain, at, end)
    count, at = read_varint(plain, at)
    headers = []
    for _ in range(count):
        name, at = _text(plain, at, end)
        content, at = _text(plain, at, end)
        headers.append((name or b"", content))
    is_append_time = batch.attributes & LOG_APPEND_TIME
    timestamp = batch.max_timestamp if is_append_time else java_long(batch.base_timestamp + timestamp_delta)
    return Record(batch.base_offset + offset_delta, timestamp, key, value, headers), end


def _text(plain: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    length, at = read_varint(plain, at)
    if length < 0:
        return None, at
    if at + length > end:
        raise ValueError(f"a text of {length} bytes, and {end - at} are left")
    return plain[at : at + length], at + length


def write_batch(records: Sequence[Unsent], codec: int) -> bytes:
    """One batch of records, as a producer without idempotence sends it."""
    base_timestamp = records[0].timestamp
    body = compressed(codec, b"".join(_written(record, at, base_timestamp) for at, record in enumerate(records)))
    last_timestamp = max(record.timestamp for record in records)
    return new_batch(body, base_timestamp, last_timestamp, records=len(records), attributes=codec)[1]


def _written(record: Unsent, at: int, base_timestamp: int) -> bytes:
    headers = b"".join(_with_length(name) + _with_length(value) for name, value in record.headers)
    inner = b"".join(
        (
            b"\0",
            varint(record.timestamp - base_timestamp),
            varint(at),
            _with_length(record.key),
            _with_length(record.value),
            varint(len(record.headers)),
            headers,
        )
    )
    return varint(len(inner)) + inner


def _with_length(text: bytes | None) -> bytes:
    return _NULL if text is None else varint(len(text)) + text


def partition_of(key: bytes, partitions: int) -> int:
    """The partition that Java's producer would choose for a key (Utils.murmur2)."""
    return (_murmur2(key) & 0x7FFFFFFF) % partitions


def _murmur2(data: bytes) -> int:
    mixer, mask = 0x5BD1E995, 0xFFFFFFFF
    hashed = 0x9747B28C ^ len(data)
    whole = len(data) & ~3
    for (word,) in struct.iter_unpack("<I", data[:whole]):
        mixed = word * mixer & mask
        mixed = (mixed ^ mixed >> 24) * mixer & mask
        hashed = (hashed * mixer & mask) ^ mixed
    if whole < len(data):
        hashed = (hashed ^ int.from_bytes(data[whole:], "little")) * mixer & mask
    hashed = (hashed ^ hashed >> 13) * mixer & mask
    return hashed ^ hashed >> 15
