"""Fetch (key 1), versions 4 to 18.

- 4: magic 2   - 5: log start offset   - 7: sessions   - 9: current leader epoch   - 11: rack
- 12: flexible, last fetched epoch   - 13: topics by id   - 15: replica state   - 16: leader hints, never given here

Korvet grants no sessions: every answer has session id 0, after which clients send full requests (KIP-227). A front-end
serves a full request with any session id. It refuses an incremental one, because no front-end granted its session.

The first Fetch of a connection on a partition creates the Redis group of the client's consumer group.

A Fetch that finds too few bytes waits until its partitions' channels report appends. While it waits it keeps no large
records, and reads them again at its end. It does not wait if the connection's share of memory, or the slice that one
read may take, cut the records short. A partition whose records are on their way from a tier (`PartitionRead.pending`)
is read again when they are there; at the end of the wait it is answered without records, as Kafka's DelayedRemoteFetch
does.

Source: KafkaApis.handleFetchRequest, FetchManager.newContext, ReplicaManager.fetchMessages, DelayedFetch
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence, Set
from itertools import starmap
from typing import Any, Final
from uuid import UUID

import anyio

from korvet.api import IN_TURN, Answer, api
from korvet.api.shared import needs
from korvet.api.shared.context import Context
from korvet.api.shared.data_failures import LASTING, PASSING_S, read_failure_code
from korvet.api.shared.loop_turns import SLICE
from korvet.codes import (
    FETCH_SESSION_ID_NOT_FOUND,
    KAFKA_STORAGE_ERROR,
    NOT_LEADER_OR_FOLLOWER,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from korvet.errors import KorvetError
from korvet.redis.wakeup import Listening
from korvet.store.catalog.topic import Topic
from korvet.store.log.log import Log
from korvet.store.log.memory.room import PartitionRead, Want
from korvet.wire import requests
from korvet.wire.writer import Fields

SESSIONS_SINCE: Final = 7
TOPIC_ID_SINCE: Final = 13
MOST_BYTES: Final = 55 << 20
"""The most bytes of one answer, even if the client allows more: Kafka's default of fetch.max.bytes."""
_PASSING: Final = (NOT_LEADER_OR_FOLLOWER, KAFKA_STORAGE_ERROR)
"""Codes of failures that end when Redis answers again."""
_FULL_EPOCHS: Final = (-1, 0)
_READ_COMMITTED: Final = 1
_PAUSES_S: Final = (0.0, 0.001, 0.004, 0.016, 0.05)

Slots = list[PartitionRead | Want]
Merged = dict[str | UUID | None, tuple[requests.FetchTopic, dict[int, requests.FetchPartition]]]
"""Topic name or id -> the request's first entry for the topic, and partition index -> the entry of the partition."""


@api(1, 4, 18, needs=needs.by_handler, start=IN_TURN)
async def handle(ctx: Context, request: requests.FetchRequest) -> Answer:
    """Read the present records, or wait for ``min_bytes`` until ``max_wait`` is over."""
    if ctx.version >= SESSIONS_SINCE and request.session_epoch not in _FULL_EPOCHS:
        return {"error_code": FETCH_SESSION_ID_NOT_FOUND, "responses": ()}
    merged, generation = _merged(ctx, request), _generation(ctx)
    topics = await _resolve(ctx, request, merged)
    if topics is None:
        try:
            await ctx.frontend.catalog.refresh()
        except KorvetError as error:
            await anyio.sleep(min(PASSING_S, _wait_s(request)))
            return _answer(ctx, _all_failed(ctx, request, read_failure_code(error, "fetch")))
        topics = await _resolve(ctx, request, merged, is_fresh=True)
        assert topics is not None
    wants = [slot for _, slots in topics for slot in slots if isinstance(slot, Want)]
    new = [want for want in wants if want.partition not in ctx.fetched]
    if new:
        ctx.fetched.update(await ctx.frontend.groups.readers.attach(ctx.client_id or "", ctx.client_host, new))
    found = await _read(ctx, request, wants)
    if _generation(ctx) != generation:
        found = await _still_allowed(ctx, request, wants, found)
    reads = iter(found)
    if request.isolation_level == _READ_COMMITTED:
        answered = [(name, [_committed(_filled(slot, reads)) for slot in slots]) for name, slots in topics]
    else:
        answered = [(name, [_filled(slot, reads) for slot in slots]) for name, slots in topics]
    return _answer(ctx, answered)


def _answer(ctx: Context, topics: Sequence[tuple[str | UUID, Sequence[PartitionRead]]]) -> Answer:
    """An answer without a session."""
    field = "topic" if ctx.version < TOPIC_ID_SINCE else "topic_id"
    responses = [{field: topic, "partitions": [_partition_answer(one) for one in reads]} for topic, reads in topics]
    return {"responses": responses}


def _partition_answer(read: PartitionRead) -> Fields:
    answer: dict[str, Any] = {
        "partition_index": read.partition,
        "error_code": read.code,
        "high_watermark": read.high_watermark,
        "last_stable_offset": read.last_stable,
        "log_start_offset": read.log_start,
        "aborted_transactions": read.aborted
        and [{"producer_id": id, "first_offset": offset} for id, offset in read.aborted],
        "records": read.records,
    }
    if read.diverging is not None:
        answer["diverging_epoch"] = {"epoch": read.diverging.epoch, "end_offset": read.diverging.end_offset}
    return answer


def _generation(ctx: Context) -> int:
    """Counts the changes of the access rules."""
    return 0 if ctx.rights is None else ctx.rights.generation


async def _still_allowed(
    ctx: Context, request: requests.FetchRequest, wants: Sequence[Want], reads: Sequence[PartitionRead]
) -> Sequence[PartitionRead]:
    """The reads without topics whose right was revoked while the Fetch waited."""
    denied = await _denied(ctx, request, {want.partition.topic.name for want in wants})
    return [
        _forbidden(read.partition) if want.partition.topic.name in denied else read
        for want, read in zip(wants, reads, strict=True)
    ]


def _filled(slot: PartitionRead | Want, reads: Iterator[PartitionRead]) -> PartitionRead:
    return next(reads) if isinstance(slot, Want) else slot


def _committed(read: PartitionRead) -> PartitionRead:
    if read.aborted is None and read.code == 0:
        read.aborted = ()
    return read


# ---------------------------------------------------------------------- the request's partitions


def _merged(ctx: Context, request: requests.FetchRequest) -> Merged:
    """The request's partitions by topic; if one is named twice, its last entry counts (FetchRequest.fetchData)."""
    merged: Merged = {}
    for requested in request.topics:
        _, parts = merged.setdefault(
            requested.topic if ctx.version < TOPIC_ID_SINCE else requested.topic_id, (requested, {})
        )
        for part in requested.partitions:
            parts[part.partition] = part
    return merged


async def _resolve(
    ctx: Context, request: requests.FetchRequest, merged: Merged, *, is_fresh: bool = False
) -> list[tuple[str | UUID, Slots]] | None:
    """Each topic's name or id with the partitions to read, or None if the catalog must be read first."""
    topics: list[tuple[str | UUID, Slots]] = []
    turns, names = ctx.frontend.turns, [_topic(ctx, requested) for requested, _ in merged.values()]
    denied = await _denied(ctx, request, starmap(_shown, names)) if ctx.rights is not None else frozenset()
    is_committed, is_follower = request.isolation_level == _READ_COMMITTED, _is_follower(request)
    for (_, parts), (name, topic) in zip(merged.values(), names, strict=True):
        is_forbidden = bool(denied) and _shown(name, topic) in denied
        slots: Slots = []
        for part in parts.values():
            if turns.is_due():
                await turns.turn()
            if is_forbidden:
                slots.append(_forbidden(part.partition))
            elif topic is not None and 0 <= part.partition < topic.partitions:
                slots.append(
                    PartitionRead(part.partition, NOT_LEADER_OR_FOLLOWER)
                    if is_follower
                    else _want(ctx.frontend.log, topic, part, is_committed)
                )
            elif is_fresh:
                slots.append(PartitionRead(part.partition, _unknown(ctx, topic), aborted=()))
            else:
                return None
        topics.append((name, slots))
    return topics


def _want(log: Log, topic: Topic, part: requests.FetchPartition, is_committed: bool) -> Want:
    return Want(
        log.partition(topic, part.partition),
        part.fetch_offset,
        part.partition_max_bytes,
        part.current_leader_epoch,
        part.last_fetched_epoch,
        is_committed,
    )


def _topic(ctx: Context, requested: requests.FetchTopic) -> tuple[str | UUID, Topic | None]:
    """The name or id of a topic in the request, and the topic if the catalog's cache has it."""
    if ctx.version < TOPIC_ID_SINCE:
        return requested.topic, ctx.frontend.catalog.topic(requested.topic)
    if requested.topic_id is None:
        return UUID(int=0), None
    return requested.topic_id, ctx.frontend.catalog.topic_by_id(requested.topic_id)


def _is_follower(request: requests.FetchRequest) -> bool:
    """True if the client claims to be a follower. Korvet's partitions have none, so it gets nothing."""
    # Each version has one of the two fields; the default of the other is -1.
    return max(request.replica_id, request.replica_state.replica_id) >= 0


def _shown(name: str | UUID, topic: Topic | None) -> str | None:
    """The name of a topic that the client knows by name or id; None if there is no such topic."""
    return name if isinstance(name, str) else None if topic is None else topic.name


async def _denied(ctx: Context, request: requests.FetchRequest, names: Iterable[str | None]) -> Set[str | None]:
    """The topics that the client may not read; None stands for all that do not exist.

    A client that claims to be a follower needs the right of brokers instead.
    """
    rights = ctx.rights
    if rights is None:
        return frozenset()
    if _is_follower(request):
        return frozenset() if rights.allows_on_cluster(needs.CLUSTER_ACTION) else frozenset(names)
    existing = (name for name in names if name is not None)
    return await ctx.frontend.turns.result(needs.denied_names(ctx, rights, needs.READ, needs.TOPIC, existing))


def _forbidden(index: int) -> PartitionRead:
    return PartitionRead(index, TOPIC_AUTHORIZATION_FAILED, aborted=())


def _unknown(ctx: Context, topic: Topic | None) -> int:
    by_id = topic is None and ctx.version >= TOPIC_ID_SINCE
    return UNKNOWN_TOPIC_ID if by_id else UNKNOWN_TOPIC_OR_PARTITION


def _all_failed(
    ctx: Context, request: requests.FetchRequest, code: int
) -> list[tuple[str | UUID, list[PartitionRead]]]:
    return [
        (_topic(ctx, requested)[0], [PartitionRead(part.partition, code, aborted=()) for part in requested.partitions])
        for requested in request.topics
    ]


# ---------------------------------------------------------------------- reading and waiting


async def _read(ctx: Context, request: requests.FetchRequest, wants: Sequence[Want]) -> Sequence[PartitionRead]:
    """One read for each partition, after a wait if necessary. If the store fails, each has its error code."""
    max_bytes = min(request.max_bytes, MOST_BYTES)
    meters = ctx.frontend.quotas.meters
    if meters is not None:
        # More than the quota allows now would only make the client wait longer afterwards.
        max_bytes = min(max_bytes, meters.most_fetched(ctx.principal, ctx.client_id))
    min_bytes = min(request.min_bytes, max_bytes)
    try:
        reads = await _read_once(ctx, wants, max_bytes)
        wait_s = _wait_s(request)
        if wait_s > 0 and _has_only_failed(reads):
            await anyio.sleep(min(PASSING_S, wait_s))
            return await _read_once(ctx, wants, max_bytes)
        if wait_s <= 0 or _is_enough(reads, min_bytes):
            return reads
        return await _wait(ctx, wants, reads, max_bytes, min_bytes, wait_s)
    except KorvetError as error:
        code = read_failure_code(error, "fetch")
        return [PartitionRead(want.partition.index, code) for want in wants]


def _wait_s(request: requests.FetchRequest) -> float:
    return max(0.0, request.max_wait.total_seconds())


def _has_only_failed(reads: Sequence[PartitionRead]) -> bool:
    """True if the reads consist only of temporary failures."""
    return any(read.code in _PASSING for read in reads) and not any(read.size_bytes for read in reads)


async def _read_once(
    ctx: Context, wants: Sequence[Want], max_bytes: int, *, is_first: bool = True
) -> list[PartitionRead]:
    """Read partitions, some hundreds at once; ``is_first`` is false if the answer holds records already."""
    reads: list[PartitionRead] = []
    left_bytes = max_bytes
    for at in range(0, len(wants), SLICE):
        if at:
            await ctx.frontend.turns.turn()
        some = wants[at : at + SLICE]
        found = await ctx.frontend.log.read(some, left_bytes, ctx.share, is_first=is_first)
        found_bytes = sum(read.size_bytes for read in found)
        is_first = is_first and not found_bytes
        left_bytes = max(0, left_bytes - found_bytes)
        reads += found
    return reads


def _is_enough(reads: Sequence[PartitionRead], min_bytes: int) -> bool:
    """True if there is no reason to wait: enough bytes, no partitions, or a code that must be reported at once."""
    size_bytes = 0
    for read in reads:
        if read.code not in (0, *LASTING) or read.diverging is not None or read.is_cut:
            return True
        size_bytes += read.size_bytes
    return size_bytes >= min_bytes or not reads


async def _wait(
    ctx: Context, wants: Sequence[Want], reads: list[PartitionRead], max_bytes: int, min_bytes: int, wait_s: float
) -> Sequence[PartitionRead]:
    """Read partitions with appends again, until it is enough, the time is over or the front-end stops."""
    frontend = ctx.frontend
    now = asyncio.get_running_loop().time
    deadline = now() + wait_s
    turn = 0
    is_let_go = _let_go(ctx, reads)
    with frontend.wakeups.listen([want.partition.channel for want in wants]) as listening:
        await listening.ready()
        _listen_to_pending(listening, wants, reads, None)
        moved = {
            want.partition.channel
            for want, read in zip(wants, reads, strict=True)
            if read.code == 0 and read.pending is None and not frontend.log.stands_at_end(want)
        }
        while not frontend.draining.is_set():
            if moved:
                await _read_again(ctx, wants, reads, moved, max_bytes)
                _listen_to_pending(listening, wants, reads, moved)
                if _is_enough(reads, min_bytes):
                    break
                is_let_go = _let_go(ctx, reads) or is_let_go
                # A Fetch that waits for many bytes lets appends accumulate instead of reading each.
                if min_bytes > 1:
                    await anyio.sleep(min(_PAUSES_S[min(turn, 4)], max(0.0, deadline - now())))
                    turn += 1
            moved = await listening.wait(deadline - now())
            if not moved:
                break
    if is_let_go:
        _let_go(ctx, reads)
        return await _read_once(ctx, wants, max_bytes)
    return reads


def _listen_to_pending(
    listening: Listening, wants: Sequence[Want], reads: Sequence[PartitionRead], moved: Set[str] | None
) -> None:
    """Listen to the reads that await segments: those of some channels, or all."""
    for want, read in zip(wants, reads, strict=True):
        if read.pending is not None and (moved is None or want.partition.channel in moved):
            listening.add(want.partition.channel, read.pending)


def _let_go(ctx: Context, reads: Sequence[PartitionRead]) -> bool:
    """Drop the records that a waiting Fetch holds, but keep their sizes; returns whether it held any."""
    if ctx.share is None or not ctx.share.held_bytes:
        return False
    ctx.share.let_go()
    for read in reads:
        read.records = []
    return True


async def _read_again(
    ctx: Context, wants: Sequence[Want], reads: list[PartitionRead], moved: set[str], max_bytes: int
) -> None:
    """Replace the reads of the partitions with appends."""
    stale: list[int] = []
    kept_bytes = 0
    for number, want in enumerate(wants):
        if want.partition.channel in moved:
            stale.append(number)
        else:
            kept_bytes += reads[number].size_bytes
    some = [wants[number] for number in stale]
    renewed = await _read_once(ctx, some, max(0, max_bytes - kept_bytes), is_first=not kept_bytes)
    for number, read in zip(stale, renewed, strict=True):
        reads[number] = read
