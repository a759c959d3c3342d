"""The check of a batch before its append: of its header, its times and, in a compacted topic, its keys.

Source: LogValidator
"""

from __future__ import annotations

from typing import Final

from korvet.codes import INVALID_RECORD, INVALID_TIMESTAMP
from korvet.store.log.state.limits import TopicLimits
from korvet.store.log.state.partition import Partition
from korvet.wire.batch import CODEC_MASK, LOG_APPEND_TIME, Batch, Refusal, refusal
from korvet.wire.compacted import keyless
from korvet.wire.records import NO_TIMESTAMP, TooLong, UndecodableRecords, dated

MOST_ERRORS: Final = 100
"""The most records of a batch named in an answer; clients report the others as part of the same batch."""
_LONG_BYTES: Final = 2048
_MOST_QUICK_RECORDS: Final = 100
_MOST_QUICK_BYTES: Final = 8 << 10
_MOST_QUICK_PLAIN_BYTES: Final = 64 << 10
_UNTIMELY: Final = Refusal(
    INVALID_TIMESTAMP, "One or more records have been rejected due to invalid timestamp", tells_log_start=True
)
_NO_KEY_MESSAGE: Final = "Compacted topic cannot accept message without key in topic partition"


def is_short(batch: Batch) -> bool:
    """True if a batch is short and uncompressed, so that the loop itself can open it."""
    return not batch.attributes & CODEC_MASK and batch.size_bytes < _LONG_BYTES


Dated = tuple[Batch, bytes | memoryview, int]


def date(batch: Batch, data: bytes | memoryview, most_bytes: int | None = None) -> Dated | Refusal | None:
    """As `dated`, or the refusal of a batch whose records contradict its header.

    None if its records exceed ``most_bytes``.
    """
    try:
        return dated(batch, data, most_bytes)
    except TooLong:
        return None
    except UndecodableRecords as error:
        return Refusal(error.code, str(error), tells_log_start=True)


def date_at_once(batch: Batch, data: bytes | memoryview) -> Dated | Refusal | None:
    """As `date`; None if it would take longer than 20 µs on the loop, or 0.2 ms for a compressed batch."""
    is_long = batch.attributes & CODEC_MASK and batch.size_bytes > _MOST_QUICK_BYTES
    if is_long or batch.records > _MOST_QUICK_RECORDS:
        return None
    return date(batch, data, _MOST_QUICK_PLAIN_BYTES)


def judge(
    limits: TopicLimits, batch: Batch, data: bytes | memoryview, now_ms: int, oldest: int | None = None
) -> Refusal | None:
    """The reason why the log refuses a batch, or None (LogValidator.validateTimestamp).

    :param oldest: the least timestamp of its records; without it the header's base timestamp.
    """
    refused = refusal(batch, data, limits.max_message_bytes)
    if refused is not None:
        return refused
    oldest = batch.base_timestamp if oldest is None else oldest
    newest, says_append_time = batch.max_timestamp, batch.attributes & LOG_APPEND_TIME
    if limits.is_log_append_time or (says_append_time and newest == NO_TIMESTAMP):
        # Producers may not claim the log's time.
        return _UNTIMELY if says_append_time else None
    is_late = newest != NO_TIMESTAMP and newest - now_ms > limits.max_ahead_ms
    return _UNTIMELY if is_late or (oldest != NO_TIMESTAMP and now_ms - oldest > limits.max_behind_ms) else None


def judge_keys(partition: Partition, batch: Batch, data: bytes | memoryview) -> Refusal | None:
    """The reason why a compacted topic refuses a batch: a record without a key (LogValidator.validateKey). Or None."""
    indexes, count = [], 0
    try:
        for count, index in enumerate(keyless(batch, data), 1):
            if count <= MOST_ERRORS:
                indexes.append(index)
    except UndecodableRecords as error:
        return Refusal(error.code, str(error), tells_log_start=True)
    if not indexes:
        return None
    why = f"{_NO_KEY_MESSAGE} {partition.topic.name}-{partition.index}"
    shown = ", ".join(f"RecordError(batchIndex={index}, message='{why}')" for index in indexes[:3])
    return Refusal(
        INVALID_RECORD,
        f"One or more records have been rejected due to {count} record errors in total, "
        f"and only showing the first three errors at most: [{shown}]",
        tells_log_start=True,
        record_errors=tuple((index, why) for index in indexes),
    )
