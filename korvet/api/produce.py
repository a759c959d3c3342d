"""Produce (key 0), versions 3 to 13; advertised from 0, because librdkafka looks for it there (KAFKA-18659).

- 3: record batches of magic 2 only   - 5: log start offset   - 7: zstd   - 8: record errors and messages
- 9: flexible   - 10: leader hints, which korvet never gives   - 13: topics by id

A request whose batches are opened first is handled in its turn. Such batches are for a topic with a value schema, a
compression of its own or storage by records. Compressed or long batches for a compacted topic are opened, too.

Some libraries do not compute a batch's greatest timestamp from all records: franz-go writes the last record's, Sarama
-1. Kafka computes it for every batch, which costs more than all else here. So korvet trusts the libraries that are
known to compute it (`korvet.api.shared.telemetry.Peer`), and opens the batches of all others: in a thread if that takes
long. A client that lies about its library has only its own records deleted early. No library is trusted if the topic
bounds the age of records, because a header does not contain the oldest timestamp.

With acks=all and min.insync.replicas above 1 the answer waits for Redis's replicas
(`korvet.store.log.partitions.replicas`).
Batches are appended as they arrive. A batch of a topic with message.timestamp.type=LogAppendTime gets a new header.

From version 12 on a transaction's batch adds its partition to the transaction. Before, the client must have sent
AddPartitionsToTxn. Codes of the transaction coordinator are mapped to those that the version's clients know.

Source: KafkaApis.handleProduceRequest, ProduceRequest.validateRecords, ReplicaManager.handleProduceAppend,
AddPartitionsToTxnManager
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Final, NamedTuple
from uuid import UUID

from korvet.api import PIPELINED, Answer, api
from korvet.api.shared import needs
from korvet.api.shared.context import Context
from korvet.api.shared.data_failures import failure_code
from korvet.api.shared.produced import (
    JOINS_SINCE,
    NO_TIMESTAMP,
    TOPIC_ID_SINCE,
    Outcome,
    Pending,
    answered,
    partition_answer,
    unknown_code,
)
from korvet.codes import (
    INVALID_REQUIRED_ACKS,
    INVALID_TOPIC_EXCEPTION,
    KAFKA_STORAGE_ERROR,
    NOT_ENOUGH_REPLICAS,
    TOPIC_AUTHORIZATION_FAILED,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
)
from korvet.configs.types import LONG_MAX
from korvet.errors import KorvetError
from korvet.redis.reply import in_task
from korvet.security.rights import Rights
from korvet.store.catalog.topic import Topic
from korvet.store.log.appending.judge import date_at_once, is_short, judge, judge_keys
from korvet.store.log.appending.opened import opened_for
from korvet.store.log.state.limits import TopicLimits
from korvet.store.log.state.partition import Partition
from korvet.store.topics import INTERNAL_TOPICS
from korvet.store.transactions.transactions import Member
from korvet.wire import requests
from korvet.wire.batch import CODEC_MASK, LOG_APPEND_TIME, TRANSACTIONAL, Batch, Refusal, read_batch, refusal, stamped
from korvet.wire.record_entries import SplitRecord, arguments
from korvet.wire.writer import Fields

ALL: Final = -1


_NO_TRANSACTIONAL_ID: Final = Refusal(TRANSACTIONAL_ID_AUTHORIZATION_FAILED, fails_request=True)
_VALID_ACKS: Final = (ALL, 0, 1)
AT_ONCE: Final = 200
"""Partitions whose batches are sent at once, in 4 to 6 ms; a request with more is handled in its turn."""

OPENED_AT_ONCE: Final = 10
"""Batches that are opened at once, each in 0.2 ms at most."""


class _Job(NamedTuple):
    """A batch whose outcome, ``outcomes[at]``, is pending. ``oldest`` is its records' least timestamp if it was opened;
    ``split`` has the records if they are stored one by one."""

    outcomes: list[Outcome]
    at: int
    partition: Partition
    batch: Batch
    records: bytes | memoryview
    oldest: int | None = None
    split: list[SplitRecord] | None = None


_Row = tuple[str | UUID, Topic | None, bool, list[Outcome]]
"""A topic's name or id, the topic, whether it is forbidden, and its outcomes."""
_Plan = tuple[list[tuple[str | UUID, list[Outcome]]], list[_Job], list[Refusal]]
"""The outcomes by topic, a job for each pending outcome, and reasons why the whole request fails. It is a plain tuple
because each request makes one."""


@api(0, 3, 13, needs=needs.by_handler, start=PIPELINED, advertised_lowest=0)
async def handle(ctx: Context, request: requests.ProduceRequest) -> Answer:
    """Send all batches to Redis at once. If something must be waited for first, or there are too many, send them in the
    request's turn, after the catalog is read."""
    plan, turns, is_opened = _planned_at_once(ctx, request), ctx.frontend.turns, False
    if plan is None:
        await in_task()
        plan, is_opened = await _planned_in_turn(ctx, request), True
    topics, jobs, whys = plan
    if whys:
        return await answered(ctx, request, _all_failed(ctx, request, whys[0]))
    for job in jobs:
        if is_opened and turns.is_due(AT_ONCE):
            await turns.turn()
        _send_or_refuse(ctx, request, job, is_opened=is_opened)
    return await answered(ctx, request, topics)


async def _planned_in_turn(ctx: Context, request: requests.ProduceRequest) -> _Plan:
    """The plan of a request, after waiting for whatever its batches need."""
    away: KorvetError | None = None
    try:
        await ctx.frontend.catalog.refresh()
    except KorvetError as error:
        away = error
    plan = topics, jobs, _ = await _planned(ctx, request)
    if away is not None:
        for job in jobs:
            job.partition.in_flight.refuse(job.batch, "the catalog could not be read")
        return topics, [], [Refusal(failure_code(away, "produce"))]
    for job in jobs:
        await query_memory(ctx, job.partition)
        await query_replicas(ctx, request, job.partition)
    return await _opened(ctx, request, plan)


def _planned_at_once(ctx: Context, request: requests.ProduceRequest) -> _Plan | None:
    """The plan of a request whose batches may be sent at once; None if something must be waited for first, or there are
    too many."""
    plan: _Plan = [], [], []
    count = 0
    for data in request.topic_data:
        parts = data.partition_data
        count += len(parts) or 1
        if count > AT_ONCE:
            return None
        row = _row(ctx, data)
        for part in parts:
            if not _plan(ctx, request, plan, row, part, may_wait=True):
                return None
    return plan


async def _opened(ctx: Context, request: requests.ProduceRequest, plan: _Plan) -> _Plan:
    """The plan with batches compressed as their topics require, and without the batches that a schema refuses.

    Only a batch that the log would accept is opened.
    """
    topics, jobs, whys = plan
    if whys or request.acks not in _VALID_ACKS:
        return plan
    log = ctx.frontend.log
    left = []
    for job in jobs:
        records = job.records[: job.batch.size_bytes]
        limits = log.limits(job.partition)
        is_open = limits.opens_batches or limits.is_compacted or not _is_believed(ctx, job.batch, limits)
        if not is_open or refusal(job.batch, records, limits.max_message_bytes) is not None:
            left.append(job)
            continue
        if ctx.frontend.turns.is_due(OPENED_AT_ONCE):
            await ctx.frontend.turns.turn()
        opened = await opened_for(log, job.partition, job.batch, records)
        if isinstance(opened, Refusal):
            job.outcomes[job.at] = Pending(job.partition, None, refusal=opened)
        else:
            left.append(_Job(job.outcomes, job.at, job.partition, *opened))
    return topics, left, whys


def _send_or_refuse(ctx: Context, request: requests.ProduceRequest, job: _Job, *, is_opened: bool) -> None:
    if request.acks in _VALID_ACKS:
        job.outcomes[job.at] = _append(ctx, request, job, is_opened=is_opened)
    else:
        job.outcomes[job.at] = partition_answer(job.partition.index, INVALID_REQUIRED_ACKS)


async def _planned(ctx: Context, request: requests.ProduceRequest) -> _Plan:
    """The plan of a request, after waiting for whatever it needs, with turns for other requests."""
    plan: _Plan = [], [], []
    rights, turns = ctx.rights, ctx.frontend.turns
    for data in request.topic_data:
        if turns.is_due(AT_ONCE if rights is None else max(1, AT_ONCE // rights.weight)):
            await turns.turn()
        row = _row(ctx, data)
        for part in data.partition_data:
            if turns.is_due():
                await turns.turn()
            _plan(ctx, request, plan, row, part, may_wait=False)
    return plan


def _row(ctx: Context, data: requests.TopicProduceData) -> _Row:
    name, topic = _topic(ctx, data)
    return name, topic, ctx.rights is not None and _is_forbidden(ctx.rights, name, topic), []


def _plan(
    ctx: Context,
    request: requests.ProduceRequest,
    plan: _Plan,
    row: _Row,
    part: requests.PartitionProduceData,
    *,
    may_wait: bool,
) -> bool:
    """Plan the batch of a partition; nothing is sent yet. False if ``may_wait``, and something must be waited for."""
    topics, jobs, whys = plan
    name, topic, is_forbidden, outcomes = row
    if not outcomes:
        topics.append((name, outcomes))
    batch = read_batch(part.records, ctx.version)
    if not whys and (why := _fails_request(ctx, request, batch)) is not None:
        whys.append(why)
    if is_forbidden:
        outcomes.append(partition_answer(part.index, TOPIC_AUTHORIZATION_FAILED))
        return True
    outcome, partition = _judge(ctx, topic, part.index, batch)
    if may_wait and (partition is None or _has_to_wait(ctx, request, partition, batch)):
        return False
    if partition is not None and part.records is not None and not isinstance(batch, Refusal):
        job = _Job(outcomes, len(outcomes), partition, batch, part.records)
        is_judged = may_wait and request.acks in _VALID_ACKS
        must_be_dated = is_judged and not _is_believed(ctx, batch, ctx.frontend.log.limits(partition))
        dated = _dated(ctx, job, len(jobs)) if must_be_dated else job
        if dated is None:
            return False
        if isinstance(dated, Refusal):
            outcomes.append(Pending(partition, None, refusal=dated))
            return True
        jobs.append(dated)
    outcomes.append(outcome)
    return True


def _is_forbidden(rights: Rights, name: str | UUID, topic: Topic | None) -> bool:
    """True if the client may not write to a topic that it knows by name or id."""
    shown = name if isinstance(name, str) else None if topic is None else topic.name
    return shown is not None and not rights.allows(needs.WRITE, needs.TOPIC, shown)


def _has_to_wait(ctx: Context, request: requests.ProduceRequest, partition: Partition, batch: Batch | Refusal) -> bool:
    """True if a batch cannot be sent at once; for almost all batches this check is quick."""
    log = ctx.frontend.log
    if partition.repairing or log.reserve.is_used_up(partition.keys.log):
        return True
    limits = log.limits(partition)
    return not limits.is_plain and (_must_be_opened(limits, batch) or lacking(ctx, request, partition) is None)


def _is_believed(ctx: Context, batch: Batch, limits: TopicLimits) -> bool:
    """True if the header's greatest timestamp is that of the records, and the topic has no bound on their least."""
    is_dated = ctx.peer.dates_batches and batch.max_timestamp >= batch.base_timestamp
    return is_dated and limits.max_behind_ms == LONG_MAX


def _dated(ctx: Context, job: _Job, before: int) -> _Job | Refusal | None:
    """The job with its records' greatest timestamp, unless the log refuses the batch for something else.

    None if its records must be read in a thread: they take long, or many batches come ``before`` it.
    """
    records = job.records[: job.batch.size_bytes]
    if refusal(job.batch, records, ctx.frontend.log.limits(job.partition).max_message_bytes) is not None:
        return job
    if job.batch.attributes & CODEC_MASK and before >= OPENED_AT_ONCE:
        return None
    found = date_at_once(job.batch, records)
    return found if found is None or isinstance(found, Refusal) else _Job(job.outcomes, job.at, job.partition, *found)


def _must_be_opened(limits: TopicLimits, batch: Batch | Refusal) -> bool:
    """True if a batch must be opened, which may block the loop for too long."""
    return limits.opens_batches or (limits.is_compacted and not isinstance(batch, Refusal) and not is_short(batch))


_OPEN: Final = partition_answer(-1, 0)


def _judge(ctx: Context, topic: Topic | None, index: int, batch: Batch | Refusal) -> tuple[Fields, Partition | None]:
    """The outcome as far as known without an append, and the partition if it exists."""
    if topic is None or not 0 <= index < topic.partitions:
        return partition_answer(index, unknown_code(ctx, topic)), None
    if topic.name in INTERNAL_TOPICS:
        return partition_answer(index, INVALID_TOPIC_EXCEPTION), None
    partition = ctx.frontend.log.partition(topic, index)
    if isinstance(batch, Refusal):
        return partition_answer(index, batch.code, message=batch.message), partition
    return _OPEN, partition


def _topic(ctx: Context, data: requests.TopicProduceData) -> tuple[str | UUID, Topic | None]:
    """The name or id of a topic in the request, and the topic if the catalog's cache has it."""
    if ctx.version < TOPIC_ID_SINCE:
        return data.name, ctx.frontend.catalog.topic(data.name)
    if data.topic_id is None:
        return UUID(int=0), None
    return data.topic_id, ctx.frontend.catalog.topic_by_id(data.topic_id)


def _fails_request(ctx: Context, request: requests.ProduceRequest, batch: Batch | Refusal) -> Refusal | None:
    if isinstance(batch, Refusal):
        return batch if batch.fails_request else None
    if not batch.attributes & TRANSACTIONAL:
        return None
    is_allowed = request.transactional_id is not None and (
        ctx.rights is None or ctx.rights.allows(needs.WRITE, needs.TRANSACTIONAL_ID, request.transactional_id)
    )
    return None if is_allowed else _NO_TRANSACTIONAL_ID


def _all_failed(ctx: Context, request: requests.ProduceRequest, why: Refusal) -> list[tuple[str | UUID, list[Outcome]]]:
    return [
        (
            _topic(ctx, data)[0],
            [partition_answer(part.index, why.code, message=why.message) for part in data.partition_data],
        )
        for data in request.topic_data
    ]


def _append(ctx: Context, request: requests.ProduceRequest, job: _Job, *, is_opened: bool) -> Outcome:
    """Check a batch as the log does, and send it to Redis."""
    log = ctx.frontend.log
    partition, batch, records = job.partition, job.batch, job.records
    limits = log.limits(partition)
    if len(records) != batch.size_bytes:
        records = records[: batch.size_bytes]
    append_time = NO_TIMESTAMP
    now_ms = time.time_ns() // 1_000_000
    refused = judge(limits, batch, records, now_ms, job.oldest)
    if refused is None and limits.is_compacted and not is_opened:
        refused = judge_keys(partition, batch, records)
    if refused is not None:
        if refused.tells_log_start:
            return Pending(partition, None, refusal=refused)
        return partition_answer(partition.index, refused.code, message=refused.message)
    if limits.is_log_append_time:
        append_time = now_ms
        batch, records = stamped(batch, records, batch.attributes | LOG_APPEND_TIME, now_ms)
    elif batch.attributes & LOG_APPEND_TIME:
        batch, records = stamped(batch, records, batch.attributes & ~LOG_APPEND_TIME, batch.max_timestamp)
    if records is not job.records:
        job = job._replace(batch=batch, records=records)
    return _send(ctx, request, job, limits, append_time)


def _send(ctx: Context, request: requests.ProduceRequest, job: _Job, limits: TopicLimits, append_time: int) -> Outcome:
    """Send a batch to Redis if there is room for it, and enough replicas if its answer waits for them."""
    log, partition, batch = ctx.frontend.log, job.partition, job.batch
    size_bytes = sum(one.size_bytes for one in job.split) if job.split else len(job.records)
    if not log.reserve.take(partition.keys.log, size_bytes):
        log.reserve.note_full(True)
        partition.in_flight.refuse(batch, "redis is nearly at maxmemory")
        return partition_answer(partition.index, KAFKA_STORAGE_ERROR)
    is_held = limits.is_held and request.acks == ALL
    if is_held and (why := lacking(ctx, request, partition)):
        partition.in_flight.refuse(batch, why)
        return partition_answer(partition.index, NOT_ENOUGH_REPLICAS, message=why)
    entries = None if job.split is None else arguments(batch, job.split)
    appending = log.append(partition, batch, job.records, _membership(ctx, request, batch), entries)
    if not is_held:
        return Pending(partition, appending, append_time=append_time)
    unconfirmed = log.replicas.hold(partition, appending.reply, limits.copies, on_disk=limits.is_synced)
    return Pending(
        partition,
        appending,
        append_time=append_time,
        unconfirmed=unconfirmed,
        timeout_s=request.timeout.total_seconds(),
    )


def _membership(ctx: Context, request: requests.ProduceRequest, batch: Batch) -> Member | None:
    id = request.transactional_id
    if id is None or not batch.attributes & TRANSACTIONAL or batch.producer_id < 0:
        return None
    joins = ctx.version >= JOINS_SINCE
    return Member(ctx.frontend.transactions, id, batch.producer_id, batch.producer_epoch, joins)


def lacking(ctx: Context, request: requests.ProduceRequest, partition: Partition) -> str | None:
    """Why the servers or the disk cannot acknowledge a batch of a Produce request; empty if they can, None if unknown.

    Source: Partition.appendRecordsToLeader
    """
    log = ctx.frontend.log
    limits = log.limits(partition)
    if not limits.is_held or request.acks != ALL:
        return ""
    return log.replicas.lacking(partition.keys.meta, limits.copies, on_disk=limits.is_synced)


async def query_replicas(ctx: Context, request: requests.ProduceRequest, partition: Partition) -> None:
    """Query the server if `lacking` returns None; a failure shows in the wait after the append."""
    if lacking(ctx, request, partition) is None:
        log = ctx.frontend.log
        with suppress(KorvetError):
            await log.replicas.ask(partition.keys.meta, on_disk=log.limits(partition).is_synced)


async def query_memory(ctx: Context, partition: Partition) -> None:
    """Query the memory of a partition's server if it had hardly any left."""
    reserve = ctx.frontend.log.reserve
    if reserve.is_used_up(partition.keys.log):
        with suppress(KorvetError):
            await reserve.ask(partition.keys.log)
