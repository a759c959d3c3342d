"""Record batches of magic 2: their header is read and judged, their records are not decoded.

What a producer sends for a partition must be exactly one batch. The checks and their order are those of Kafka 4.1, in
two steps, because Kafka judges them at different times: `read_batch` is what a request must have at all
(ByteBufferLogInputStream.nextBatchSize and ProduceRequest.validateRecords), `refusal` is what the log demands of it
(UnifiedLog.analyzeAndValidateRecords, then LogValidator.validateBatch).

Layout (https://kafka.apache.org/documentation/#recordbatch): base offset int64, length int32 (of what follows it),
partition leader epoch int32, magic int8, CRC-32C uint32 of all that follows it, attributes int16, last offset delta
int32, base timestamp int64, max timestamp int64, producer id int64, producer epoch int16, base sequence int32, number
of records int32, records.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from crc32c import crc32c
from kio.schema.errors import ErrorCode

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = HEADER.size
LENGTH_FROM = 12  # the length field counts the bytes behind it
CRC_FROM = 21  # the checksum covers all bytes behind it

MAGIC = 2
CODEC_MASK = 0x07
GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40
"""Set by compaction: the base timestamp is the time from which tombstones and markers may go (KIP-534)."""

ZSTD_SINCE_PRODUCE = 7  # KIP-110
_SMALLEST_LENGTH = 14  # LegacyRecord.RECORD_OVERHEAD_V0, the only lower bound Kafka knows before it knows the magic
_LENGTH = struct.Struct(">i")
_MAGIC_AT = 16
_OUTER = struct.Struct(">qii")  # what is written anew on the way out: base offset, length, partition leader epoch
_OUTER_BYTES = _OUTER.size

INVALID_PRODUCER_EPOCH = int(ErrorCode.invalid_producer_epoch)
INVALID_RECORD = int(ErrorCode.invalid_record)
CORRUPT_MESSAGE = int(ErrorCode.corrupt_message)
MESSAGE_TOO_LARGE = int(ErrorCode.message_too_large)
UNSUPPORTED_COMPRESSION_TYPE = int(ErrorCode.unsupported_compression_type)
UNKNOWN_SERVER_ERROR = int(ErrorCode.unknown_server_error)


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
        """Of the whole batch."""
        return self.length + LENGTH_FROM

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)


class Refusal(NamedTuple):
    """Why a batch is not taken: a Kafka error code, and the message that Kafka sends with it if it sends one.

    ``fails_request``: Kafka stumbles over it before it looks at partitions, so that all of them get this error.
    ``tells_log_start``: the log itself judged it, so that the answer carries its start offset.
    ``record_errors``: the records that are to blame, by their place in the batch, and why.
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
    """The header of the one batch in ``data``, as far as a Produce request of this version may carry it.

    Bytes behind the batch that do not make up another one are ignored, as Kafka ignores them: take
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
    if produce_version < ZSTD_SINCE_PRODUCE:
        codec = batch.attributes & CODEC_MASK
        if codec >= ZSTD:
            return _ZSTD_TOO_EARLY if codec == ZSTD else _UNKNOWN_CODEC_EARLY
    return batch


def _judge_short(data: bytes | memoryview | None) -> Refusal:
    """What is wrong with bytes that do not begin with a whole batch of magic 2."""
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
    """Bytes of the batch that ``data`` begins with; None when there are too few to tell."""
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
    """Why the log does not take this batch, or None when it does. ``data`` is the batch and nothing behind it.

    Records are not looked at, so a header that lies about them is believed as long as its checksum is right.
    """
    if batch.base_offset != 0:
        return _INVALID
    if len(data) > max_message_bytes:
        return _TOO_LARGE
    if crc32c(memoryview(data)[CRC_FROM:]) != batch.crc:
        return _CORRUPT
    if batch.attributes & CODEC_MASK > ZSTD:
        return _UNKNOWN_CODEC
    # A record takes 7 bytes at least where it is not compressed, so a count without any bytes is a lie.
    if batch.records <= 0 or batch.last_offset_delta != batch.records - 1 or len(data) == HEADER_BYTES:
        return _INVALID
    if batch.attributes & CONTROL or (batch.producer_id >= 0 and batch.base_sequence < 0):
        return _INVALID
    # Kafka takes an epoch of -1 and keeps it; there is no producer that sends it.
    return _INVALID_EPOCH if batch.producer_id >= 0 > batch.producer_epoch else None


def stamped(batch: Batch, data: bytes | memoryview, attributes: int, max_timestamp: int) -> tuple[Batch, bytes]:
    """The batch with other attributes and another largest timestamp, and a checksum that fits."""
    changed = batch._replace(attributes=attributes, max_timestamp=max_timestamp)
    whole = bytearray(data)
    HEADER.pack_into(whole, 0, *changed)
    changed = changed._replace(crc=crc32c(memoryview(whole)[CRC_FROM:]))
    HEADER.pack_into(whole, 0, *changed)
    return changed, bytes(whole)


def placed_in_log(data: bytes | memoryview, base_offset: int, leader_epoch: int) -> tuple[bytes, memoryview]:
    """A stored batch as consumers see it, in two parts; the checksum covers neither of the changed fields."""
    return _OUTER.pack(base_offset, len(data) - LENGTH_FROM, leader_epoch), memoryview(data)[_OUTER_BYTES:]
