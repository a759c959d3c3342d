"""Produce (key 0), versions 3 to 13; advertised from 0, because librdkafka looks for it there (KAFKA-18659).

- 3: record batches of magic 2 only   - 5: log start offset   - 7: zstd   - 8: record errors and messages
- 9: flexible   - 10: leader hints, which korvet never gives   - 13: topics by id

A request for a topic with a value schema, a compression of its own or storage by records is not started at once, but
handled in its turn: its batches are opened first. So is one for a compacted topic with a batch that is compressed or
long.
With acks=all and min.insync.replicas above 1 the answer waits for Redis's replicas (`korvet.store.log.replicas`).
Batches are appended as they came. A batch of a topic with message.timestamp.type=LogAppendTime gets a new header.

A batch of a transaction joins it with version 12 and newer; older ones must have had AddPartitionsToTxn before. Codes
of the transaction's coordinator are told as the version's clients know them.

Source: KafkaApis.handleProduceRequest, ProduceRequest.validateRecords, ReplicaManager.handleProduceAppend,
AddPartitionsToTxnManager
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Generator
from typing import Any, Final, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from korvet.api import Answer, api
from korvet.api.acks import ALL, ask_for_replicas, ask_for_room, lacks_replicas
from korvet.api.context import Context
from korvet.api.data_failures import (
    KAFKA_STORAGE_ERROR,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
    failure_code,
)
from korvet.api.record_values import is_short, judge_keys, opened_for
from korvet.errors import Disconnect, KorvetError, StoreFull
from korvet.store.catalog import Topic
from korvet.store.log import GONE, RESEND, VERIFY, Appending, Limits, Partition
from korvet.store.log.append import verify_together
from korvet.store.log.replicas import Held
from korvet.store.transactions import Member
from korvet.wire.batch import (
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    Batch,
    Refusal,
    read_batch,
    refusal,
    stamped,
)
from korvet.wire.produce_response import TOPIC_ID_SINCE, PartitionAnswer, pack
from korvet.wire.record_entries import SplitRecord, arguments

INVALID_REQUIRED_ACKS: Final = int(ErrorCode.invalid_required_acks)
INVALID_TIMESTAMP: Final = int(ErrorCode.invalid_timestamp)
CONCURRENT_TRANSACTIONS: Final = int(ErrorCode.concurrent_transactions)
INVALID_PRODUCER_EPOCH: Final = int(ErrorCode.invalid_producer_epoch)
INVALID_TXN_STATE: Final = int(ErrorCode.invalid_txn_state)
NOT_ENOUGH_REPLICAS: Final = int(ErrorCode.not_enough_replicas)
NOT_ENOUGH_REPLICAS_AFTER_APPEND: Final = int(ErrorCode.not_enough_replicas_after_append)
PRODUCER_FENCED: Final = int(ErrorCode.producer_fenced)
TRANSACTION_ABORTABLE: Final = int(ErrorCode.transaction_abortable)
_ABORTABLE_SINCE: Final = 11
_JOINS_SINCE: Final = 12
_NO_TRANSACTIONAL_ID: Final = Refusal(int(ErrorCode.transactional_id_authorization_failed), fails_request=True)
_TIMESTAMP_MESSAGE: Final = "One or more records have been rejected due to invalid timestamp"
_NO_TIMESTAMP: Final = -1
_VALID_ACKS: Final = (ALL, 0, 1)


class _Pending:
    """A partition whose answer is waited for: its append, or only its log start where the batch was refused."""

    __slots__ = ("append_time", "appending", "held", "partition", "refusal", "timeout_s")

    def __init__(
        self,
        partition: Partition,
        appending: Appending | None,
        *,
        append_time: int = _NO_TIMESTAMP,
        held: Held | None = None,
        timeout_s: float = 0.0,
        refusal: Refusal | None = None,
    ) -> None:
        self.partition = partition
        self.appending = appending
        self.append_time = append_time
        self.held = held
        """Where replicas must have the batch before it is acknowledged, for ``timeout_s`` at most."""
        self.timeout_s = timeout_s
        self.refusal = refusal


Outcome = PartitionAnswer | _Pending


class _Job(NamedTuple):
    """A partition whose outcome is open, at a place of its topic's; ``split`` are records to be stored one by one."""

    outcomes: list[Outcome]
    at: int
    partition: Partition
    batch: Batch
    records: bytes | memoryview
    split: list[SplitRecord] | None = None


_Plan = tuple[list[tuple[str | UUID, list[Outcome]]], list[_Job], Refusal | None]


def start(ctx: Context, request: Any) -> Awaitable[Answer] | None:
    """Send all batches to Redis at once; None when the catalog must be read first, or a partition is being repaired."""
    plan = _plan(ctx, request, may_wait=True)
    return None if plan is None else _begin(ctx, request, plan, is_opened=False)


@api(0, 3, 13, start=start, advertised_lowest=0)
async def handle(ctx: Context, request: Any) -> Answer:
    """The same in turn, with the catalog read before."""
    away: KorvetError | None = None
    try:
        await ctx.frontend.catalog.refresh()
    except KorvetError as error:
        away = error
    plan = _plan(ctx, request, may_wait=False)
    assert plan is not None
    if away is not None:
        for job in plan[1]:
            job.partition.in_flight.refuse(job.batch, "the catalog could not be read")
        return await _Produced(ctx, request.acks, _all_failed(ctx, request, Refusal(failure_code(away, "produce"))))
    for job in plan[1]:
        await ask_for_room(ctx, job.partition)
        await ask_for_replicas(ctx, request, job.partition)
    return await _begin(ctx, request, await _opened(ctx, request, plan), is_opened=True)


async def _opened(ctx: Context, request: Any, plan: _Plan) -> _Plan:
    """The plan with batches compressed as their topics say, and without those that a schema refuses.

    Only a batch that the log would take is opened.
    """
    topics, jobs, why = plan
    if why is not None or request.acks not in _VALID_ACKS:
        return plan
    log = ctx.frontend.log
    left = []
    for job in jobs:
        records = job.records[: job.batch.size_bytes]
        limits = log.limits(job.partition)
        is_open = limits.opens_batches or limits.is_compacted
        if not is_open or refusal(job.batch, records, limits.max_message_bytes) is not None:
            left.append(job)
            continue
        opened = await opened_for(log, job.partition, job.batch, records)
        if isinstance(opened, Refusal):
            job.outcomes[job.at] = _Pending(job.partition, None, refusal=opened)
        else:
            left.append(_Job(job.outcomes, job.at, job.partition, *opened))
    return topics, left, why


def _begin(ctx: Context, request: Any, plan: _Plan, *, is_opened: bool) -> _Produced:
    topics, jobs, why = plan
    if why is not None:
        return _Produced(ctx, request.acks, _all_failed(ctx, request, why))
    has_valid_acks = request.acks in _VALID_ACKS
    for job in jobs:
        if has_valid_acks:
            job.outcomes[job.at] = _append(ctx, request, job, is_opened=is_opened)
        else:
            job.outcomes[job.at] = PartitionAnswer(job.partition.index, INVALID_REQUIRED_ACKS)
    return _Produced(ctx, request.acks, topics)


def _plan(ctx: Context, request: Any, *, may_wait: bool) -> _Plan | None:
    """Outcomes by topic, with a job for each that is still open, and why the request fails as a whole if it does.

    Nothing is sent yet. None when something must be waited for first, and that is allowed.
    """
    jobs: list[_Job] = []
    topics: list[tuple[str | UUID, list[Outcome]]] = []
    why: Refusal | None = None
    for data in request.topic_data:
        name, topic = _topic(ctx, data)
        outcomes: list[Outcome] = []
        for part in data.partition_data:
            batch = read_batch(part.records, ctx.version)
            why = why or _fails_request(request, batch)
            outcome, partition = _judge(ctx, topic, part.index, batch)
            if may_wait and (partition is None or _has_to_wait(ctx, request, partition, batch)):
                return None
            if partition is not None and not isinstance(batch, Refusal):
                jobs.append(_Job(outcomes, len(outcomes), partition, batch, part.records))
            outcomes.append(outcome)
        if outcomes:
            topics.append((name, outcomes))
    return topics, jobs, why


def _has_to_wait(ctx: Context, request: Any, partition: Partition, batch: Batch | Refusal) -> bool:
    """Whether a batch cannot be sent at once. For most, by far, that is to be told quickly."""
    log = ctx.frontend.log
    if partition.repairing or log.reserve.is_used_up(partition.keys.log):
        return True
    limits = log.limits(partition)
    return not limits.is_plain and (_must_be_opened(limits, batch) or lacks_replicas(ctx, request, partition) is None)


def _must_be_opened(limits: Limits, batch: Batch | Refusal) -> bool:
    """Whether a batch must be looked into, and that may take longer than the loop may be held up."""
    return limits.opens_batches or (limits.is_compacted and not isinstance(batch, Refusal) and not is_short(batch))


_OPEN: Final = PartitionAnswer(-1, 0)


def _judge(
    ctx: Context, topic: Topic | None, index: int, batch: Batch | Refusal
) -> tuple[PartitionAnswer, Partition | None]:
    """The outcome as far as it can be told without appending, and the partition if there is one."""
    if topic is None or not 0 <= index < topic.partitions:
        return PartitionAnswer(index, _unknown(ctx, topic)), None
    partition = ctx.frontend.log.partition(topic, index)
    if isinstance(batch, Refusal):
        return PartitionAnswer(index, batch.code, message=batch.message), partition
    return _OPEN, partition


def _topic(ctx: Context, data: Any) -> tuple[str | UUID, Topic | None]:
    """What the request calls a topic, and the topic if the catalog's cache has it."""
    if ctx.version < TOPIC_ID_SINCE:
        return data.name, ctx.frontend.catalog.topic(data.name)
    if data.topic_id is None:
        return UUID(int=0), None
    return data.topic_id, ctx.frontend.catalog.topic_by_id(data.topic_id)


def _unknown(ctx: Context, topic: Topic | None) -> int:
    by_id = topic is None and ctx.version >= TOPIC_ID_SINCE
    return UNKNOWN_TOPIC_ID if by_id else UNKNOWN_TOPIC_OR_PARTITION


def _fails_request(request: Any, batch: Batch | Refusal) -> Refusal | None:
    if isinstance(batch, Refusal):
        return batch if batch.fails_request else None
    is_nobodys = batch.attributes & TRANSACTIONAL and request.transactional_id is None
    return _NO_TRANSACTIONAL_ID if is_nobodys else None


def _all_failed(ctx: Context, request: Any, why: Refusal) -> list[tuple[str | UUID, list[Outcome]]]:
    return [
        (
            _topic(ctx, data)[0],
            [PartitionAnswer(part.index, why.code, message=why.message) for part in data.partition_data],
        )
        for data in request.topic_data
    ]


def _append(ctx: Context, request: Any, job: _Job, *, is_opened: bool) -> Outcome:
    """Judge a batch as the log does, and send it to Redis."""
    log = ctx.frontend.log
    partition, batch, records = job.partition, job.batch, job.records
    limits = log.limits(partition)
    if len(records) != batch.size_bytes:
        records = records[: batch.size_bytes]
    append_time = _NO_TIMESTAMP
    now_ms = time.time_ns() // 1_000_000
    refused = refusal(batch, records, limits.max_message_bytes) or _judge_timestamps(job, limits, now_ms)
    if refused is None and limits.is_compacted and not is_opened:
        refused = judge_keys(partition, batch, records)
    if refused is not None:
        if refused.tells_log_start:
            return _Pending(partition, None, refusal=refused)
        return PartitionAnswer(partition.index, refused.code, message=refused.message)
    if limits.is_log_append_time:
        append_time = now_ms
        batch, records = stamped(batch, records, batch.attributes | LOG_APPEND_TIME, now_ms)
    elif batch.attributes & LOG_APPEND_TIME:
        batch, records = stamped(batch, records, batch.attributes & ~LOG_APPEND_TIME, batch.max_timestamp)
    if records is not job.records:
        job = job._replace(batch=batch, records=records)
    return _send(ctx, request, job, limits.copies, append_time)


def _send(ctx: Context, request: Any, job: _Job, copies: int, append_time: int) -> Outcome:
    """Send a batch to Redis, where there is room for it, and replicas if it is to wait for ``copies``."""
    log, partition, batch = ctx.frontend.log, job.partition, job.batch
    size_bytes = sum(one.size_bytes for one in job.split) if job.split else len(job.records)
    if not log.reserve.take(partition.keys.log, size_bytes):
        log.reserve.note_full(True)
        partition.in_flight.refuse(batch, "redis is nearly at maxmemory")
        return PartitionAnswer(partition.index, KAFKA_STORAGE_ERROR)
    is_held = copies > 1 and request.acks == ALL
    if is_held and lacks_replicas(ctx, request, partition):
        why = f"Fewer servers are in sync than min.insync.replicas={copies}"
        partition.in_flight.refuse(batch, why)
        return PartitionAnswer(partition.index, NOT_ENOUGH_REPLICAS, message=why)
    entries = None if job.split is None else arguments(batch, job.split)
    appending = log.append(partition, batch, job.records, _membership(ctx, request, batch), entries)
    if not is_held:
        return _Pending(partition, appending, append_time=append_time)
    held = log.replicas.hold(partition, appending.reply, copies)
    return _Pending(partition, appending, append_time=append_time, held=held, timeout_s=request.timeout.total_seconds())


def _membership(ctx: Context, request: Any, batch: Batch) -> Member | None:
    if not batch.attributes & TRANSACTIONAL or batch.producer_id < 0:
        return None
    joins = ctx.version >= _JOINS_SINCE
    return Member(ctx.frontend.transactions, request.transactional_id, batch.producer_id, batch.producer_epoch, joins)


def _judge_timestamps(job: _Job, limits: Limits, now_ms: int) -> Refusal | None:
    """As LogValidator.validateTimestamp, by the header alone where that is what counts. Records are not listed."""
    if limits.is_log_append_time:
        return None
    oldest, newest = job.batch.base_timestamp, job.batch.max_timestamp
    if job.split:
        times = [record.timestamp for record in job.split]
        oldest, newest = min(times), max(times)
    is_late = newest != _NO_TIMESTAMP and newest - now_ms > limits.max_ahead_ms
    if is_late or (oldest != _NO_TIMESTAMP and now_ms - oldest > limits.max_behind_ms):
        return Refusal(INVALID_TIMESTAMP, _TIMESTAMP_MESSAGE, tells_log_start=True)
    return None


class _Produced:
    """Waits for the outcomes and packs the answer. Not a coroutine, so that it may be dropped without being awaited."""

    __slots__ = ("_acks", "_ctx", "_topics")

    def __init__(self, ctx: Context, acks: int, topics: list[tuple[str | UUID, list[Outcome]]]) -> None:
        self._ctx = ctx
        self._acks = acks
        self._topics = topics

    def __await__(self) -> Generator[Any, None, Answer]:
        return self._answer().__await__()

    async def _answer(self) -> Answer:
        appendings = [one.appending for _, outcomes in self._topics for one in outcomes if isinstance(one, _Pending)]
        transactional = [one for one in appendings if one is not None and one.is_transactional]
        if len(transactional) > 1:
            await verify_together(transactional)
        topics = [
            (name, [p if isinstance(p, PartitionAnswer) else await _settled(self._ctx, p) for p in outcomes])
            for name, outcomes in self._topics
        ]
        if self._acks == 0:
            _check_silent(topics)
            return None
        return [pack(self._ctx.version, topics)]


def _check_silent(topics: list[tuple[str | UUID, list[PartitionAnswer]]]) -> None:
    """Who asked for no answer learns of an error by a closed connection, as on Kafka.

    :raises Disconnect:
    """
    for name, answers in topics:
        for answer in answers:
            if answer.code != 0:
                raise Disconnect(
                    f"produce with acks=0 failed on {name}-{answer.partition}: {ErrorCode(answer.code).name}"
                )


async def _settled(ctx: Context, pending: _Pending) -> PartitionAnswer:
    partition, log = pending.partition, ctx.frontend.log
    if pending.appending is None:
        return await _refused(ctx, pending)
    try:
        code, base_offset, log_start, _ = await pending.appending
        if pending.held is not None and code == 0:
            is_confirmed = await log.replicas.confirmed(pending.held, pending.timeout_s)
            code = 0 if is_confirmed else NOT_ENOUGH_REPLICAS_AFTER_APPEND
    except KorvetError as error:
        if isinstance(error, StoreFull):
            log.reserve.note_full(True)
        return PartitionAnswer(partition.index, failure_code(error, "produce"))
    if log.reserve.is_full:
        log.reserve.note_full(False)
    if code in (0, NOT_ENOUGH_REPLICAS_AFTER_APPEND):
        return PartitionAnswer(partition.index, code, base_offset, pending.append_time, log_start)
    if code == GONE:
        return PartitionAnswer(partition.index, _unknown(ctx, None))
    if code == RESEND:
        return PartitionAnswer(partition.index, KAFKA_STORAGE_ERROR)
    told, message = _told(ctx.version, code)
    return PartitionAnswer(partition.index, told, log_start=log_start, message=message)


def _told(version: int, code: int) -> tuple[int, str | None]:
    """A code as the clients of a version know it, and what Kafka says with it."""
    if code == PRODUCER_FENCED:
        return INVALID_PRODUCER_EPOCH, None
    if code == TRANSACTION_ABORTABLE and version < _ABORTABLE_SINCE:
        return INVALID_TXN_STATE, "Partition was not added to the transaction"
    if code in (VERIFY, CONCURRENT_TRANSACTIONS):
        # Old clients try again on this one, without asking for metadata before.
        if version < _JOINS_SINCE:
            return NOT_ENOUGH_REPLICAS, "The transaction before is not ended yet"
        return CONCURRENT_TRANSACTIONS, None
    return code, None


async def _refused(ctx: Context, pending: _Pending) -> PartitionAnswer:
    partition, refused = pending.partition, pending.refusal
    assert refused is not None
    try:
        (meta,) = await ctx.frontend.log.metas([partition])
    except KorvetError as error:
        return PartitionAnswer(partition.index, failure_code(error, "produce"))
    if meta is None:
        return PartitionAnswer(partition.index, _unknown(ctx, None))
    return PartitionAnswer(
        partition.index,
        refused.code,
        log_start=meta.start,
        message=refused.message,
        record_errors=refused.record_errors,
    )
