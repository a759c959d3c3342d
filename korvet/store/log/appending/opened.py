"""Batches that a front-end opens before it stores them: if the topic has a schema or its own codec, is compacted (so
that records need keys) or stores records one by one, or if the producer's library may not compute the header from the
records.

Other batches stay closed. Threads open long or compressed batches, the batches of a request one by one, and the
connection's later requests wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, TypeVar

from korvet.codes import INVALID_RECORD, MESSAGE_TOO_LARGE
from korvet.configs.schema_keywords import PATIENCE, OutOfPatience, spend
from korvet.configs.value_schema import ValueSchema, is_made, value_schema
from korvet.store.log.appending.judge import MOST_ERRORS, Dated, date, date_at_once, is_short, judge_keys
from korvet.store.log.partitions.partitions import Partitions
from korvet.store.log.state.limits import TopicLimits
from korvet.store.log.state.partition import Partition
from korvet.wire.batch import CODEC_MASK, Batch, Refusal, refusal
from korvet.wire.recompressed import recompressed
from korvet.wire.record_entries import SplitRecord, TooManyRecords, split
from korvet.wire.records import UndecodableRecords
from korvet.wire.values import values

T = TypeVar("T")

MOST_CPU_S: Final = 10.0
"""Seconds to validate a batch by a schema, in a thread; clients wait for 30 s."""
_LOOP_CPU_S: Final = 0.005
MOST_KEYWORDS_OF_BATCH: Final = 200_000
"""The keywords that a schema may evaluate for a batch, in addition to those for its values."""
MOST_KEYWORDS_OF_VALUE: Final = 10_000
"""The additional keywords for each value."""
MOST_KEYWORDS_OF_BYTE: Final = 100
"""The additional keywords for each byte of a value."""


class Opened(NamedTuple):
    """A batch in its topic's form; ``split`` has its records if these are stored one by one. ``oldest`` is their lowest
    timestamp."""

    batch: Batch
    records: bytes | memoryview
    oldest: int
    split: list[SplitRecord] | None


async def opened_for(log: Partitions, partition: Partition, batch: Batch, data: bytes | memoryview) -> Opened | Refusal:
    """A batch in its topic's form, or the reason why the topic refuses it."""
    found = await dated_for(log, batch, data)
    if isinstance(found, Refusal):
        return found
    batch, data, oldest = found
    refused = await refused_for_keys(log, partition, batch, data)
    refused = refused or await refused_for_values(log, partition, batch, data)
    changed = refused or await recompressed_for(log, partition, batch, data)
    if isinstance(changed, Refusal):
        return changed
    limits = log.limits(partition)
    # The caller refuses a batch that became too large.
    if not limits.is_record or refusal(*changed, limits.max_message_bytes) is not None:
        return Opened(*changed, oldest, None)
    split = await split_for(log, limits, *changed)
    return split if isinstance(split, Refusal) else Opened(*changed, oldest, split)


async def dated_for(log: Partitions, batch: Batch, data: bytes | memoryview) -> Dated | Refusal:
    """As `korvet.store.log.appending.judge.date`, in a thread if it may take long."""
    found = date_at_once(batch, data) or await log.in_thread(partial(date, batch, data))
    assert found is not None
    return found


async def split_for(
    log: Partitions, limits: TopicLimits, batch: Batch, data: bytes | memoryview
) -> list[SplitRecord] | Refusal:
    """The records of a batch that the log stores one by one, or the reason why they are refused."""
    work = partial(_or_refusal, partial(split, batch, data, is_json=limits.is_json))
    return work() if is_short(batch) else await log.in_thread(work)


def _or_refusal(work: Callable[[], T]) -> T | Refusal:
    """The result of work, or the refusal for its failure: so threads raise nothing."""
    try:
        return work()
    except TooManyRecords as error:
        return Refusal(MESSAGE_TOO_LARGE, str(error))
    except UndecodableRecords as error:
        return Refusal(error.code, str(error), tells_log_start=True)


async def recompressed_for(
    log: Partitions, partition: Partition, batch: Batch, data: bytes | memoryview
) -> tuple[Batch, bytes | memoryview] | Refusal:
    """The batch in its topic's codec, or the reason why it is refused."""
    limits = log.limits(partition)
    codec = limits.codec
    if codec is None or batch.attributes & CODEC_MASK == codec:
        return batch, data
    return await log.in_thread(partial(_or_refusal, partial(recompressed, batch, data, codec, limits.level)))


async def refused_for_values(
    log: Partitions, partition: Partition, batch: Batch, data: bytes | memoryview
) -> Refusal | None:
    """The reason why a batch is refused for its values; None if accepted, or without a schema."""
    text = log.limits(partition).value_schema
    try:
        schema = value_schema(text) if is_made(text) else await log.in_thread(partial(value_schema, text))
    except ValueError as error:
        return Refusal(INVALID_RECORD, f"The topic's schema cannot be used: {error}", tells_log_start=True)
    if schema is None:
        return None
    if is_short(batch):
        try:
            return _refusal(schema, batch, data, _LOOP_CPU_S)
        except OutOfPatience:
            # A few bytes may take long if the schema's parts reference each other.
            pass
    given_up = threading.Event()
    work = partial(_refusal_in_time, schema, batch, data, given_up)
    try:
        # Neither a leaving client nor the end of a drain waits for the thread: it stops at its next check.
        return await log.in_thread(work, is_abandoned_on_cancel=True)
    finally:
        given_up.set()


def _refusal_in_time(
    schema: ValueSchema, batch: Batch, data: bytes | memoryview, given_up: threading.Event
) -> Refusal | None:
    try:
        return _refusal(schema, batch, data, MOST_CPU_S, given_up)
    except OutOfPatience:
        message = f"The check against the topic's schema takes more than {MOST_CPU_S:.0f} s, or too many keywords"
        return Refusal(INVALID_RECORD, message, tells_log_start=True)


def _refusal(
    schema: ValueSchema, batch: Batch, data: bytes | memoryview, cpu_s: float, given_up: threading.Event | None = None
) -> Refusal | None:
    """:raises OutOfPatience: the check took more than ``cpu_s`` of this thread's CPU time, or was given up."""
    wrong: list[tuple[int, str]] = []
    PATIENCE.begin(most_keywords=MOST_KEYWORDS_OF_BATCH, cpu_s=cpu_s, given_up=given_up)
    try:
        for index, value in enumerate(values(batch, data)):
            spend()
            if value is None:
                continue
            PATIENCE.allow(MOST_KEYWORDS_OF_VALUE + MOST_KEYWORDS_OF_BYTE * len(value))
            problem = schema.problem(value)
            if problem is not None:
                wrong.append((index, problem))
                if len(wrong) == MOST_ERRORS:
                    break
    except UndecodableRecords as error:
        return Refusal(error.code, str(error), tells_log_start=True)
    if not wrong:
        return None
    index, problem = wrong[0]
    message = f"One or more records break the topic's schema, the first at index {index}: {problem}"
    return Refusal(INVALID_RECORD, message, tells_log_start=True, record_errors=tuple(wrong))


async def refused_for_keys(
    log: Partitions, partition: Partition, batch: Batch, data: bytes | memoryview
) -> Refusal | None:
    """The reason why a compacted topic refuses a batch; None if accepted, or if not compacted."""
    if not log.limits(partition).is_compacted:
        return None
    if is_short(batch):
        return judge_keys(partition, batch, data)
    return await log.in_thread(partial(judge_keys, partition, batch, data))
