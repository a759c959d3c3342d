"""Record batches of magic 2: their headers, and the checks of these. This module decodes no records.

A producer sends exactly one batch for a partition. The checks and their order are those of Kafka 4.1, in two steps,
because Kafka makes them at different times. `read_batch` makes the checks of a request
(ByteBufferLogInputStream.nextBatchSize and ProduceRequest.validateRecords). `refusal` makes those of the log
(UnifiedLog.analyzeAndValidateRecords, then LogValidator.validateBatch).

Layout (https://kafka.apache.org/documentation/#recordbatch): base offset int64, length int32 (of the bytes after it),
partition leader epoch int32, magic int8, CRC-32C uint32 of all bytes after it, attributes int16, last offset delta
int32, base timestamp int64, max timestamp int64, producer id int64, producer epoch int16, base sequence int32, number
of records int32, records.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from crc32c import crc32c

from korvet.codes import (
    CORRUPT_MESSAGE,
    INVALID_PRODUCER_EPOCH,
    INVALID_RECORD,
    MESSAGE_TOO_LARGE,
    UNKNOWN_SERVER_ERROR,
    UNSUPPORTED_COMPRESSION_TYPE,
)

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = HEADER.size
LENGTH_FROM = 12  # the length field counts the bytes after it
CRC_FROM = 21  # the checksum covers all bytes after it

MAGIC = 2
CODEC_MASK = 0x07
GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40
"""Compaction sets it: the base timestamp is then the time from which tombstones and markers may go (KIP-534)."""

_ATTRIBUTES = CODEC_MASK | LOG_APPEND_TIME | TRANSACTIONAL | CONTROL | DELETE_HORIZON
"""The known attributes. As in Kafka, rewriting a header drops all others."""

PRODUCE_ZSTD_SINCE = 7  # KIP-110
_SMALLEST_LENGTH = 14  # LegacyRecord.RECORD_OVERHEAD_V0, the only lower bound Kafka knows before it knows the magic
_LENGTH = struct.Struct(">i")
_MAGIC_AT = 16
_OUTER = struct.Struct(">qii")  # the fields that consumers get from korvet: base offset, length, leader epoch
_OUTER_BYTES = _OUTER.size


class Batch(NamedTuple):
    """The header of a batch; offsets and timestamps as the producer wrote them, timestamps in milliseconds."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records: int

    @property
    def size_bytes(self) -> int:
        """The size of the whole batch."""
        return self.length + LENGTH_FROM

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)


class Refusal(NamedTuple):
    """The refusal of a batch: Kafka's error code, and the message that Kafka sends with it, if any.

    ``fails_request``: Kafka finds the error before it looks at partitions, so all of them get it.
    ``tells_log_start``: the log itself refused the batch, so the answer has the log's start offset.
    ``record_errors``: the refused records by their index in the batch, each with a reason.
    """

    code: int
    message: str | None = None
    fails_request: bool = False
    tells_log_start: bool = False
    record_errors: tuple[tuple[int, str], ...] = ()


_NO_BATCH = Refusal(INVALID_RECORD)
_NOT_ALONE = Refusal(INVALID_RECORD)
_OLD_MAGIC = Refusal(INVALID_RECORD)
_ZSTD_TOO_EARLY = Refusal(UNSUPPORTED_COMPRESSION_TYPE)
_BAD_TRAILER = Refusal(CORRUPT_MESSAGE)
_TOO_LARGE = Refusal(MESSAGE_TOO_LARGE)
_CORRUPT = Refusal(CORRUPT_MESSAGE)
_INVALID = Refusal(INVALID_RECORD, tells_log_start=True)
_INVALID_EPOCH = Refusal(INVALID_PRODUCER_EPOCH, tells_log_start=True)
_UNKNOWN_CODEC = Refusal(UNKNOWN_SERVER_ERROR, tells_log_start=True)
_UNKNOWN_CODEC_EARLY = Refusal(UNKNOWN_SERVER_ERROR)


def read_batch(data: bytes | memoryview | None, produce_version: int) -> Batch | Refusal:
    """The header of the one batch in ``data``, or the refusal for a Produce request of this version.

    Like Kafka, this ignores trailing bytes that are too few for another batch; the batch itself is
    ``data[: batch.size_bytes]``.
    """
    have = 0 if data is None else len(data)
    if data is None or have < HEADER_BYTES:
        return _judge_short(data)
    batch = Batch._make(HEADER.unpack_from(data))
    size = batch.length + LENGTH_FROM
    if batch.magic != MAGIC or batch.length < HEADER_BYTES - LENGTH_FROM or size > have:
        return _judge_short(data)
    if size != have and (refusal := _judge_trailer(memoryview(data)[size:])) is not None:
        return refusal
    if produce_version < PRODUCE_ZSTD_SINCE:
        codec = batch.attributes & CODEC_MASK
        if codec >= ZSTD:
            return _ZSTD_TOO_EARLY if codec == ZSTD else _UNKNOWN_CODEC_EARLY
    return batch


def _judge_short(data: bytes | memoryview | None) -> Refusal:
    """The refusal of bytes that do not begin with a whole batch of magic 2."""
    if data is None:
        return _NO_BATCH
    size = _next_size(data)
    if isinstance(size, Refusal):
        return size
    if size is None or size > len(data):
        return _NO_BATCH
    return _OLD_MAGIC if data[_MAGIC_AT] != MAGIC else _CORRUPT


def _judge_trailer(trailer: memoryview) -> Refusal | None:
    size = _next_size(trailer)
    if isinstance(size, Refusal):
        return _BAD_TRAILER
    return None if size is None or size > len(trailer) else _NOT_ALONE


def _next_size(data: bytes | memoryview) -> int | Refusal | None:
    """The size in bytes of the batch at the start of ``data``; None if ``data`` is too short to hold it."""
    if len(data) < LENGTH_FROM:
        return None
    length: int = _LENGTH.unpack_from(data, 8)[0]
    if length < _SMALLEST_LENGTH:
        message = f"Record size {length} is less than the minimum record overhead ({_SMALLEST_LENGTH})"
        return Refusal(CORRUPT_MESSAGE, message, fails_request=True)
    if len(data) <= _MAGIC_AT:
        return None
    if data[_MAGIC_AT] > MAGIC:
        magic = data[_MAGIC_AT] - 256 if data[_MAGIC_AT] > 127 else data[_MAGIC_AT]
        return Refusal(CORRUPT_MESSAGE, f"Invalid magic found in record: {magic}", fails_request=True)
    return length + LENGTH_FROM


def refusal(batch: Batch, data: bytes | memoryview, max_message_bytes: int) -> Refusal | None:
    """The log's refusal of a batch, or None. ``data`` is exactly the batch.

    The records themselves are not checked (see `korvet.wire.records.dated`).
    """
    if batch.base_offset != 0:
        return _INVALID
    if len(data) > max_message_bytes:
        return _TOO_LARGE
    if crc32c(memoryview(data)[CRC_FROM:]) != batch.crc:
        return _CORRUPT
    if batch.attributes & CODEC_MASK > ZSTD:
        return _UNKNOWN_CODEC
    # An uncompressed record takes at least 7 bytes, so a count without any bytes is wrong.
    if batch.records <= 0 or batch.last_offset_delta != batch.records - 1 or len(data) == HEADER_BYTES:
        return _INVALID
    if batch.attributes & CONTROL or (batch.producer_id >= 0 and batch.base_sequence < 0):
        return _INVALID
    # Kafka takes an epoch of -1 and keeps it; no known producer sends one.
    return _INVALID_EPOCH if batch.producer_id >= 0 > batch.producer_epoch else None


def stamped(batch: Batch, data: bytes | memoryview, attributes: int, max_timestamp: int) -> tuple[Batch, bytes]:
    """The batch with other attributes and another largest timestamp (ms), and its new checksum."""
    changed = batch._replace(attributes=attributes & _ATTRIBUTES, max_timestamp=max_timestamp)
    whole = bytearray(data)
    HEADER.pack_into(whole, 0, *changed)
    changed = changed._replace(crc=crc32c(memoryview(whole)[CRC_FROM:]))
    HEADER.pack_into(whole, 0, *changed)
    return changed, bytes(whole)


def sealed(batch: Batch, body: bytes) -> tuple[Batch, bytes]:
    """The header with the length and checksum of its records, and the whole batch as bytes."""
    batch = batch._replace(length=HEADER_BYTES - LENGTH_FROM + len(body))
    whole = bytearray(HEADER.pack(*batch) + body)
    batch = batch._replace(crc=crc32c(memoryview(whole)[CRC_FROM:]))
    HEADER.pack_into(whole, 0, *batch)
    return batch, bytes(whole)


def new_batch(
    body: bytes,
    base_timestamp: int,
    max_timestamp: int,
    *,
    records: int = 1,
    last_offset_delta: int | None = None,
    attributes: int = 0,
    producer: tuple[int, int, int] = (-1, -1, -1),
) -> tuple[Batch, bytes]:
    """A batch at offset 0, as header and bytes.

    :param body: its records, compressed as the attributes say.
    :param last_offset_delta: by default that of records without gaps.
    :param producer: id, epoch and base sequence; by default one without idempotence.
    """
    delta = records - 1 if last_offset_delta is None else last_offset_delta
    header = Batch(0, 0, -1, MAGIC, 0, attributes, delta, base_timestamp, max_timestamp, *producer, records)
    return sealed(header, body)


def placed_in_log(data: bytes | memoryview, base_offset: int, leader_epoch: int) -> tuple[bytes, memoryview]:
    """A stored batch as consumers get it, in two parts. The checksum covers none of the changed fields."""
    return _OUTER.pack(base_offset, len(data) - LENGTH_FROM, leader_epoch), memoryview(data)[_OUTER_BYTES:]


def headers_in(buffers: Iterable[bytes | memoryview]) -> Iterator[Batch]:
    """The headers of batches that follow each other in buffers, whose borders may be anywhere.

    A batch that says it is shorter than its header ends them: none can follow it.
    """
    head, skipped = bytearray(), 0
    for buffer in buffers:
        at = min(skipped, len(buffer))
        skipped -= at
        while at < len(buffer):
            piece = buffer[at : at + HEADER_BYTES - len(head)]
            head += piece
            at += len(piece)
            if len(head) == HEADER_BYTES:
                batch = Batch._make(HEADER.unpack(head))
                if batch.size_bytes < HEADER_BYTES:
                    return
                yield batch
                head.clear()
                step = min(batch.size_bytes - HEADER_BYTES, len(buffer) - at)
                skipped = batch.size_bytes - HEADER_BYTES - step
                at += step
