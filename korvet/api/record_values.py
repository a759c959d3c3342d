"""Batches that are opened before they are stored: where values must fit a schema, the topic says the compression, or
its records are stored one by one.

Those of other topics are not. They are opened beside the loop where they are long or compressed, one batch of a request
after the other, and the connection's later requests wait for that.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import anyio.to_thread
from kio.schema.errors import ErrorCode

from korvet.store.log import Log, Partition
from korvet.store.value_schema import ValueSchema
from korvet.wire.batch import CODEC_MASK, MESSAGE_TOO_LARGE, Batch, Refusal
from korvet.wire.recompressed import recompressed
from korvet.wire.record_entries import SplitRecord, TooManyRecords, split
from korvet.wire.records import UndecodableRecords
from korvet.wire.values import values

INVALID_RECORD: Final = int(ErrorCode.invalid_record)
_MOST_ERRORS: Final = 100
"""Records of a batch that are named; clients say of the others that they were in a batch with these."""
_LONG_BYTES: Final = 2048


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


async def split_for(
    log: Log, partition: Partition, batch: Batch, data: bytes | memoryview
) -> list[SplitRecord] | Refusal | None:
    """The records of a batch where its topic stores them one by one, or why it is not taken; None elsewhere."""
    limits = log.limits(partition)
    if not limits.is_record:
        return None
    work = partial(split, batch, data, is_json=limits.is_json)
    try:
        if len(data) < _LONG_BYTES:
            return work()
        return await anyio.to_thread.run_sync(work, limiter=log.decoders)
    except TooManyRecords as error:
        return Refusal(MESSAGE_TOO_LARGE, str(error))
    except UndecodableRecords as error:
        return Refusal(INVALID_RECORD, str(error), tells_log_start=True)


async def refused_for_values(log: Log, partition: Partition, batch: Batch, data: bytes | memoryview) -> Refusal | None:
    """Why a batch is not taken, by its records' values; None where it is, or the topic has no schema."""
    schema = log.limits(partition).value_schema
    if schema is None:
        return None
    if not batch.attributes & CODEC_MASK and len(data) < _LONG_BYTES:
        return _refusal(schema, batch, data)
    return await anyio.to_thread.run_sync(_refusal, schema, batch, data, limiter=log.decoders)


def _refusal(schema: ValueSchema, batch: Batch, data: bytes | memoryview) -> Refusal | None:
    wrong: list[tuple[int, str]] = []
    try:
        for index, value in enumerate(values(batch, data)):
            problem = None if value is None else schema.problem(value)
            if problem is not None and len(wrong) < _MOST_ERRORS:
                wrong.append((index, problem))
    except UndecodableRecords as error:
        return Refusal(INVALID_RECORD, str(error), tells_log_start=True)
    if not wrong:
        return None
    index, problem = wrong[0]
    message = f"One or more records break the topic's schema, the first at index {index}: {problem}"
    return Refusal(INVALID_RECORD, message, tells_log_start=True, record_errors=tuple(wrong))
