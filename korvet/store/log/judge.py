"""Judging a batch before it is appended: by its header, its times and, in a compacted topic, its keys.

Source: LogValidator
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from korvet.codes import INVALID_RECORD, INVALID_TIMESTAMP
from korvet.store.log.limits import Limits
from korvet.store.log.partition import Partition
from korvet.wire.batch import CODEC_MASK, Batch, Refusal, refusal
from korvet.wire.compacted import keyless
from korvet.wire.record_entries import SplitRecord
from korvet.wire.records import UndecodableRecords

MOST_ERRORS: Final = 100
"""Records of a batch that an answer names; clients say of the others that they were in a batch with these."""
_LONG_BYTES: Final = 2048
_NO_TIMESTAMP: Final = -1
_UNTIMELY: Final = Refusal(
    INVALID_TIMESTAMP,
    "One or more records have been rejected due to invalid timestamp",
    tells_log_start=True,
)
_NO_KEY_MESSAGE: Final = "Compacted topic cannot accept message without key in topic partition"


def is_short(batch: Batch) -> bool:
    """Whether a batch can be opened on the loop, because it is short and not compressed."""
    return not batch.attributes & CODEC_MASK and batch.size_bytes < _LONG_BYTES


def judge(
    limits: Limits, batch: Batch, data: bytes | memoryview, now_ms: int, split: Sequence[SplitRecord] | None = None
) -> Refusal | None:
    """The reason why the log refuses a batch, or None.

    Times are the header's if the batch was not ``split`` (LogValidator.validateTimestamp). Records are not listed.
    """
    refused = refusal(batch, data, limits.max_message_bytes)
    if refused is not None or limits.is_log_append_time:
        return refused
    oldest, newest = batch.base_timestamp, batch.max_timestamp
    if split:
        times = [record.timestamp for record in split]
        oldest, newest = min(times), max(times)
    is_late = newest != _NO_TIMESTAMP and newest - now_ms > limits.max_ahead_ms
    if is_late or (oldest != _NO_TIMESTAMP and now_ms - oldest > limits.max_behind_ms):
        return _UNTIMELY
    return None


def judge_keys(partition: Partition, batch: Batch, data: bytes | memoryview) -> Refusal | None:
    """The reason why a compacted topic refuses a batch: a record without a key (LogValidator.validateKey). Or None."""
    indexes, count = [], 0
    try:
        for count, index in enumerate(keyless(batch, data), 1):
            if count <= MOST_ERRORS:
                indexes.append(index)
    except UndecodableRecords as error:
        return Refusal(INVALID_RECORD, str(error), tells_log_start=True)
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
