"""Batches that are opened before they are stored: where values must fit a schema, the topic says the compression, is
compacted and takes no record without a key, or stores records one by one.

Those of other topics are not. They are opened beside the loop where they are long or compressed, one batch of a request
after the other, and the connection's later requests wait for that.
"""

from __future__ import annotations

from functools import partial
from typing import Final, NamedTuple

import anyio.to_thread
from kio.schema.errors import ErrorCode

from korvet.store.log import Limits, Log, Partition
from korvet.store.schema_keywords import PATIENCE, OutOfPatience, spend
from korvet.store.value_schema import ValueSchema
from korvet.wire.batch import CODEC_MASK, MESSAGE_TOO_LARGE, Batch, Refusal, refusal
from korvet.wire.compacted import keyless
from korvet.wire.recompressed import recompressed
from korvet.wire.record_entries import SplitRecord, TooManyRecords, split
from korvet.wire.records import UndecodableRecords
from korvet.wire.values import values

INVALID_RECORD: Final = int(ErrorCode.invalid_record)
_MOST_ERRORS: Final = 100
"""Records of a batch that are named; clients say of the others that they were in a batch with these."""
_LONG_BYTES: Final = 2048
MOST_CPU_S: Final = 10.0
"""What a batch may take to be held against a schema, beside the loop; clients wait for 30 s."""
_LOOP_CPU_S: Final = 0.005
_NO_KEY_MESSAGE: Final = "Compacted topic cannot accept message without key in topic partition"


def is_short(batch: Batch) -> bool:
    """Whether a batch is quickly gone through, so that this may be done on the loop."""
    return not batch.attributes & CODEC_MASK and batch.size_bytes < _LONG_BYTES


class Opened(NamedTuple):
    """A batch as its topic wants it; ``split`` are its records where these are stored one by one."""

    batch: Batch
    records: bytes | memoryview
    split: list[SplitRecord] | None


async def opened_for(log: Log, partition: Partition, batch: Batch, data: bytes | memoryview) -> Opened | Refusal:
    """What a topic that looks into batches makes of one, or why it is not taken."""
    refused = await refused_for_keys(log, partition, batch, data)
    refused = refused or await refused_for_values(log, partition, batch, data)
    changed = refused or await recompressed_for(log, partition, batch, data)
    if isinstance(changed, Refusal):
        return changed
    limits = log.limits(partition)
    # What became too large by that is refused as such, by who sends it.
    if not limits.is_record or refusal(*changed, limits.max_message_bytes) is not None:
        return Opened(*changed, None)
    split = await split_for(log, limits, *changed)
    return split if isinstance(split, Refusal) else Opened(*changed, split)


async def split_for(log: Log, limits: Limits, batch: Batch, data: bytes | memoryview) -> list[SplitRecord] | Refusal:
    """The records of a batch that are to be stored one by one, or why they are not taken."""
    work = partial(split, batch, data, is_json=limits.is_json)
    try:
        return work() if is_short(batch) else await anyio.to_thread.run_sync(work, limiter=log.decoders)
    except TooManyRecords as error:
        return Refusal(MESSAGE_TOO_LARGE, str(error))
    except UndecodableRecords as error:
        return Refusal(INVALID_RECORD, str(error), tells_log_start=True)


async def recompressed_for(
    log: Log, partition: Partition, batch: Batch, data: bytes | memoryview
) -> tuple[Batch, bytes | memoryview] | Refusal:
    """The batch in its topic's codec, itself where it is so already, or why it is not taken."""
    limits = log.limits(partition)
    codec = limits.codec
    if codec is None or batch.attributes & CODEC_MASK == codec:
        return batch, data
    try:
        return await anyio.to_thread.run_sync(recompressed, batch, data, codec, limits.level, limiter=log.decoders)
    except UndecodableRecords as error:
        return Refusal(INVALID_RECORD, str(error), tells_log_start=True)


async def refused_for_values(log: Log, partition: Partition, batch: Batch, data: bytes | memoryview) -> Refusal | None:
    """Why a batch is not taken, by its records' values; None where it is, or the topic has no schema."""
    schema = log.limits(partition).value_schema
    if schema is None:
        return None
    if is_short(batch):
        try:
            return _refusal(schema, batch, data, _LOOP_CPU_S)
        except OutOfPatience:
            # A few bytes may ask for much, where the schema's parts refer to each other.
            pass
    return await anyio.to_thread.run_sync(_refusal_in_time, schema, batch, data, limiter=log.decoders)


def _refusal_in_time(schema: ValueSchema, batch: Batch, data: bytes | memoryview) -> Refusal | None:
    try:
        return _refusal(schema, batch, data, MOST_CPU_S)
    except OutOfPatience:
        message = f"It takes more than {MOST_CPU_S:.0f} s to hold the records against the topic's schema"
        return Refusal(INVALID_RECORD, message, tells_log_start=True)


def _refusal(schema: ValueSchema, batch: Batch, data: bytes | memoryview, cpu_s: float) -> Refusal | None:
    """:raises OutOfPatience: where it takes longer than ``cpu_s`` of this thread's time."""
    wrong: list[tuple[int, str]] = []
    PATIENCE.begin(cpu_s=cpu_s)
    try:
        for index, value in enumerate(values(batch, data)):
            spend()
            problem = None if value is None else schema.problem(value)
            if problem is not None:
                wrong.append((index, problem))
                if len(wrong) == _MOST_ERRORS:
                    break
    except UndecodableRecords as error:
        return Refusal(INVALID_RECORD, str(error), tells_log_start=True)
    if not wrong:
        return None
    index, problem = wrong[0]
    message = f"One or more records break the topic's schema, the first at index {index}: {problem}"
    return Refusal(INVALID_RECORD, message, tells_log_start=True, record_errors=tuple(wrong))


async def refused_for_keys(log: Log, partition: Partition, batch: Batch, data: bytes | memoryview) -> Refusal | None:
    """Why a compacted topic does not take a batch; None where it does, or the topic is another."""
    if not log.limits(partition).is_compacted:
        return None
    if is_short(batch):
        return judge_keys(partition, batch, data)
    return await anyio.to_thread.run_sync(judge_keys, partition, batch, data, limiter=log.decoders)


def judge_keys(partition: Partition, batch: Batch, data: bytes | memoryview) -> Refusal | None:
    """As LogValidator.validateKey: what a compacted topic takes has a key."""
    places, count = [], 0
    try:
        for count, place in enumerate(keyless(batch, data), 1):
            if count <= _MOST_ERRORS:
                places.append(place)
    except UndecodableRecords as error:
        return Refusal(INVALID_RECORD, str(error), tells_log_start=True)
    if not places:
        return None
    why = f"{_NO_KEY_MESSAGE} {partition.topic.name}-{partition.index}"
    shown = ", ".join(f"RecordError(batchIndex={place}, message='{why}')" for place in places[:3])
    return Refusal(
        INVALID_RECORD,
        f"One or more records have been rejected due to {count} record errors in total, "
        f"and only showing the first three errors at most: [{shown}]",
        tells_log_start=True,
        record_errors=tuple((place, why) for place in places),
    )
