"""Fetch (key 1), versions 4 to 18.

- 4: magic 2   - 5: log start offset   - 7: sessions   - 9: current leader epoch   - 11: rack
- 12: flexible, last fetched epoch   - 13: topics by id   - 15: replica state   - 16: leader hints, never given here

Sessions are not granted: every answer carries session id 0, on which clients send full requests (KIP-227). A full
request is served whatever session it names; an incremental one names a session that nobody granted.

The first Fetch of a connection on a partition makes the Redis group of the consumer group that it is for.

A Fetch that finds too little waits until its partitions' channels tell of appends. It is never answered out of turn,
so its answer is as fresh as can be.

Source: KafkaApis.handleFetchRequest, FetchManager.newContext, ReplicaManager.fetchMessages, DelayedFetch
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import anyio
from kio.schema.errors import ErrorCode

from korvet.api import Answer, api
from korvet.api.context import Context
from korvet.api.data_failures import UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION, read_failure_code
from korvet.errors import KorvetError
from korvet.store.catalog import Topic
from korvet.store.log import Log, Want
from korvet.wire.fetch_response import SESSIONS_SINCE, TOPIC_ID_SINCE, PartitionRead, pack

FETCH_SESSION_ID_NOT_FOUND: Final = int(ErrorCode.fetch_session_id_not_found)
MOST_BYTES: Final = 55 << 20
"""Of one answer, whatever the client asks for: Kafka's default of fetch.max.bytes."""
_FULL_EPOCHS: Final = (-1, 0)
_READ_COMMITTED: Final = 1
_PAUSES_S: Final = (0.0, 0.001, 0.004, 0.016, 0.05)
_MILLISECOND: Final = timedelta(milliseconds=1)

Slots = list[PartitionRead | Want]


@api(1, 4, 18)
async def handle(ctx: Context, request: Any) -> Answer:
    """Read what is there, or wait for ``min_bytes`` until ``max_wait`` is over."""
    if ctx.version >= SESSIONS_SINCE and request.session_epoch not in _FULL_EPOCHS:
        return pack(ctx.version, [], FETCH_SESSION_ID_NOT_FOUND)
    topics = _resolve(ctx, request)
    if topics is None:
        try:
            await ctx.frontend.catalog.refresh()
        except KorvetError as error:
            return pack(ctx.version, _all_failed(ctx, request, read_failure_code(error, "fetch")))
        topics = _resolve(ctx, request, is_fresh=True)
        assert topics is not None
    wants = [slot for _, slots in topics for slot in slots if isinstance(slot, Want)]
    new = [want for want in wants if want.partition not in ctx.fetched]
    if new:
        ctx.fetched.update(await ctx.frontend.groups.redis_groups.attach(ctx.client_id or "", ctx.client_host, new))
    reads = iter(await _read(ctx, request, wants))
    if request.isolation_level == _READ_COMMITTED:
        answered = [(name, [_committed(_filled(slot, reads)) for slot in slots]) for name, slots in topics]
    else:
        answered = [(name, [_filled(slot, reads) for slot in slots]) for name, slots in topics]
    return pack(ctx.version, answered)


def _filled(slot: PartitionRead | Want, reads: Any) -> PartitionRead:
    return next(reads) if isinstance(slot, Want) else slot


def _committed(read: PartitionRead) -> PartitionRead:
    if read.aborted is None and read.code == 0:
        read.aborted = ()
    return read


# ---------------------------------------------------------------------- what is asked for


def _resolve(ctx: Context, request: Any, *, is_fresh: bool = False) -> list[tuple[str | UUID, Slots]] | None:
    """Each topic by its name or id with what to read of it, or None when the catalog must be read first."""
    topics: list[tuple[str | UUID, Slots]] = []
    is_committed = request.isolation_level == _READ_COMMITTED
    for asked in request.topics:
        name, topic = _topic(ctx, asked)
        slots: Slots = []
        for part in asked.partitions:
            if topic is not None and 0 <= part.partition < topic.partitions:
                slots.append(_want(ctx.frontend.log, topic, part, is_committed))
            elif is_fresh:
                slots.append(PartitionRead(part.partition, _unknown(ctx, topic), aborted=()))
            else:
                return None
        topics.append((name, slots))
    return topics


def _want(log: Log, topic: Topic, part: Any, is_committed: bool) -> Want:
    return Want(
        log.partition(topic, part.partition),
        part.fetch_offset,
        part.partition_max_bytes,
        getattr(part, "current_leader_epoch", -1),
        getattr(part, "last_fetched_epoch", -1),
        is_committed,
    )


def _topic(ctx: Context, asked: Any) -> tuple[str | UUID, Topic | None]:
    """What the request calls a topic, and the topic if the catalog's cache has it."""
    if ctx.version < TOPIC_ID_SINCE:
        return asked.topic, ctx.frontend.catalog.topic(asked.topic)
    if asked.topic_id is None:
        return UUID(int=0), None
    return asked.topic_id, ctx.frontend.catalog.topic_by_id(asked.topic_id)


def _unknown(ctx: Context, topic: Topic | None) -> int:
    by_id = topic is None and ctx.version >= TOPIC_ID_SINCE
    return UNKNOWN_TOPIC_ID if by_id else UNKNOWN_TOPIC_OR_PARTITION


def _all_failed(ctx: Context, request: Any, code: int) -> list[tuple[str | UUID, list[PartitionRead]]]:
    return [
        (_topic(ctx, asked)[0], [PartitionRead(part.partition, code, aborted=()) for part in asked.partitions])
        for asked in request.topics
    ]


# ---------------------------------------------------------------------- reading and waiting


async def _read(ctx: Context, request: Any, wants: Sequence[Want]) -> Sequence[PartitionRead]:
    """One read for each partition, after waiting where there is a reason to. A failing store is their error code."""
    max_bytes = min(request.max_bytes, MOST_BYTES)
    try:
        reads = await ctx.frontend.log.read(wants, max_bytes)
        wait_s = request.max_wait / _MILLISECOND / 1000
        if wait_s <= 0 or _is_enough(reads, request.min_bytes):
            return reads
        return await _wait(ctx, wants, reads, max_bytes, request.min_bytes, wait_s)
    except KorvetError as error:
        code = read_failure_code(error, "fetch")
        return [PartitionRead(want.partition.index, code) for want in wants]


def _is_enough(reads: Sequence[PartitionRead], min_bytes: int) -> bool:
    """Whether there is no reason to wait: enough bytes, nothing to wait for, or something that must be told at once."""
    size_bytes = 0
    for read in reads:
        if read.code != 0 or read.diverging is not None:
            return True
        size_bytes += read.size_bytes
    return size_bytes >= min_bytes or not reads


async def _wait(
    ctx: Context, wants: Sequence[Want], reads: list[PartitionRead], max_bytes: int, min_bytes: int, wait_s: float
) -> Sequence[PartitionRead]:
    """Read again what moved, until it is enough, the time is over or the front-end stops."""
    frontend = ctx.frontend
    deadline = anyio.current_time() + wait_s
    turn = 0
    with frontend.wakeups.listen([want.partition.channel for want in wants]) as listening:
        await listening.ready()
        moved = {want.partition.channel for want in wants if not frontend.log.stands_at_end(want)}
        while not frontend.draining.is_set():
            if moved:
                await _read_again(frontend.log, wants, reads, moved, max_bytes)
                if _is_enough(reads, min_bytes):
                    break
                # Where much is waited for, appends are gathered instead of being read one by one again and again.
                if min_bytes > 1:
                    await anyio.sleep(min(_PAUSES_S[min(turn, 4)], max(0.0, deadline - anyio.current_time())))
                    turn += 1
            moved = await listening.wait(deadline - anyio.current_time())
            if not moved:
                break
    return reads


async def _read_again(
    log: Log, wants: Sequence[Want], reads: list[PartitionRead], moved: set[str], max_bytes: int
) -> None:
    """Replace the reads of the partitions that moved."""
    stale = [number for number, want in enumerate(wants) if want.partition.channel in moved]
    kept_bytes = sum(read.size_bytes for number, read in enumerate(reads) if number not in stale)
    renewed = await log.read([wants[number] for number in stale], max_bytes - kept_bytes)
    for number, read in zip(stale, renewed, strict=True):
        reads[number] = read
