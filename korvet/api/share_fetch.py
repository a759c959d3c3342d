"""ShareFetch (key 78), versions 1 and 2 (KIP-932).

- 2: exactly MaxRecords (KIP-1206), renewals (KIP-1222)

A request acknowledges first. Then it acquires from the session's partitions, each in its turn the first, until it has
as many records or bytes as it may. If it gets none it waits, and `korvet.store.shares.supply` decides when it calls
again. Unlike Kafka it does not wait for MinBytes: what it acquired meanwhile would lie locked.

Source: KafkaApis.handleShareFetchRequest, SharePartitionManager.fetchMessages, DelayedShareFetch
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence, Set
from datetime import timedelta
from functools import partial
from typing import Any, Final

import anyio

from korvet.api import IN_TURN, Answer, api
from korvet.api.shared.context import AT_ONCE, Context
from korvet.api.shared.data_failures import LASTING, PASSING_S, read_failure_code
from korvet.api.shared.share_acknowledgements import Batch, acknowledged
from korvet.api.shared.share_groups import (
    NO_ID,
    Member,
    Outcome,
    Topics,
    acknowledge,
    answered,
    check,
    end,
    failed,
    limits_of,
    name_of,
    parts_of,
    refused,
    reset_of,
)
from korvet.api.shared.share_sessions import FINAL_EPOCH, FIRST_EPOCH, ShareSession, TopicPartition
from korvet.codes import INVALID_REQUEST, SHARE_SESSION_LIMIT_REACHED
from korvet.errors import KorvetError, StoreUnavailable
from korvet.store.catalog.settings import GroupSetting
from korvet.store.contract import RETRY
from korvet.store.log.state.partition import Partition
from korvet.store.outcomes import settled
from korvet.store.shares.delivery import Delivery, Joined, Wanted
from korvet.store.shares.shares import MOST_ACKNOWLEDGEMENTS
from korvet.store.shares.supplies import SharedSupply
from korvet.store.shares.supply import Waiter
from korvet.store.shares.types import AcknowledgeType, Isolation, Reset
from korvet.wire import requests

MOST_BYTES: Final = 55 << 20
"""The most bytes of one answer, even if the client allows more: Kafka's default of fetch.max.bytes."""
_MOST_SESSIONS: Final = "group.share.max.share.sessions"
_ISOLATION: Final = "share.isolation.level"
_TIME_HEADER: Final = "korvet.share.delivery.time.header"
_RECORD_LIMIT: Final = 1
_FEW: Final = 8
"""The partitions that are tried one after the other: the first one may have all the records."""

_SUPPLIES_A_TURN: Final = 100
"""The new supplies in one turn: each subscribes to two channels."""

Deliveries = dict[TopicPartition, Delivery]
"""What a request gets, by partition."""


@api(78, 1, 2, needs=check, start=IN_TURN)
async def handle(ctx: Context, request: requests.ShareFetchRequest) -> Answer:
    """Acknowledge records, then acquire some, perhaps after a wait."""
    epoch, parts, name = request.share_session_epoch, parts_of(request.topics), name_of(request)
    if name is None or (request.is_renew_ack and _wants_records(request)):
        return refused(INVALID_REQUEST)
    session = ctx.frontend.share_sessions.fetch(
        ctx.share_opener,
        name,
        epoch,
        parts,
        has_acknowledgements=any(parts.values()),
        most=ctx.frontend.catalog.integer(None, _MOST_SESSIONS),
    )
    if isinstance(session, int):
        return await _refused(ctx, request, session)
    member, topics = Member.of(session), Topics(ctx)
    new = _changed(session, request, parts)
    refusal = ctx.frontend.share_sessions.refusal(session)
    if refusal:
        end(ctx.frontend, session)
        return await _refused(ctx, request, refusal)
    await topics.look_up([*parts, *session])
    outcomes, found = await _serve(ctx, request, session, member, topics, parts, new)
    if epoch == FINAL_EPOCH:
        end(ctx.frontend, session)
    return answered(_entries(session, epoch, found, outcomes), limits_of(ctx.frontend, member.group_id).lock_ms)


async def _refused(ctx: Context, request: requests.ShareFetchRequest, code: int) -> Answer:
    if code == SHARE_SESSION_LIMIT_REACHED:
        # Clients try again at once.
        with anyio.move_on_after(request.max_wait.total_seconds()):
            await ctx.frontend.draining.wait()
    return refused(code)


async def _serve(
    ctx: Context,
    request: requests.ShareFetchRequest,
    session: ShareSession,
    member: Member,
    topics: Topics,
    parts: Mapping[TopicPartition, Sequence[Batch]],
    new: Sequence[TopicPartition],
) -> tuple[Mapping[TopicPartition, Outcome], Deliveries]:
    """What became of the request's acknowledgements, and what it gets."""
    acknowledging = partial(acknowledge, ctx, member, parts, topics, is_renewal=request.is_renew_ack)
    has_acknowledgements = any(parts.values())
    if request.share_session_epoch == FINAL_EPOCH or request.is_renew_ack:
        return await acknowledging() if has_acknowledgements else {}, {}
    joined = _joined(session, parts)
    if joined is not None or not has_acknowledgements:
        await _release_others(ctx, member, topics, new)
        found = await _fetch(ctx, request, session, member, topics, _released(parts), joined)
        if joined is None:
            return {}, found
        if joined.outcome is None or joined.outcome == RETRY:
            return await acknowledging(), found
        outcome = Outcome(joined.outcome) if isinstance(joined.outcome, int) else failed(joined.outcome)
        return dict.fromkeys(parts, outcome), found
    # The calls of both leave in one write, and Redis acknowledges first.
    task = asyncio.ensure_future(acknowledging())
    try:
        await asyncio.sleep(0)
        await _release_others(ctx, member, topics, new)
        found = await _fetch(ctx, request, session, member, topics, _released(parts))
        return await task, found
    except BaseException:
        task.cancel()
        raise


def _joined(session: ShareSession, parts: Mapping[TopicPartition, Sequence[Batch]]) -> Joined | None:
    """The acknowledgements of a session's only partition, which its acquisition makes in the same call."""
    if len(session) != 1 or list(parts) != list(session):
        return None
    runs = acknowledged(*parts.values(), may_renew=False)
    return Joined(runs) if runs and len(runs) <= MOST_ACKNOWLEDGEMENTS else None


def _released(parts: Mapping[TopicPartition, Sequence[Batch]]) -> Set[TopicPartition]:
    """The partitions of which the request releases records, which it may get again."""
    release = AcknowledgeType.RELEASE
    return {named for named, batches in parts.items() if any(release in batch.acknowledge_types for batch in batches)}


def _wants_records(request: requests.ShareFetchRequest) -> bool:
    """True if a request wants records. One with renewals may not: records could come after the locks."""
    return any((request.max_bytes, request.min_bytes, request.max_records, request.max_wait))


def _changed(
    session: ShareSession, request: requests.ShareFetchRequest, parts: Iterable[TopicPartition]
) -> Sequence[TopicPartition]:
    """The partitions that a request adds to its session, after it has forgotten others."""
    if request.share_session_epoch == FIRST_EPOCH:
        return list(session)
    if request.share_session_epoch == FINAL_EPOCH:
        return ()
    forgotten = (
        (topic.topic_id or NO_ID, index) for topic in request.forgotten_topics_data for index in topic.partitions
    )
    return session.change(parts, forgotten)


async def _release_others(ctx: Context, member: Member, topics: Topics, new: Sequence[TopicPartition]) -> None:
    """Release what the member acquired of its new partitions by connections that are gone.

    Their front-end did so, unless it was killed.
    """
    if not new:
        return
    partitions = [partition for named in new if isinstance(partition := topics.partition(named), Partition)]
    limits = limits_of(ctx.frontend, member.group_id)
    async for some in ctx.sliced(partitions, AT_ONCE):
        await ctx.frontend.deliveries.release_others(*member, limits, some)


# ---------------------------------------------------------------------- acquiring and waiting


async def _fetch(
    ctx: Context,
    request: requests.ShareFetchRequest,
    session: ShareSession,
    member: Member,
    topics: Topics,
    released: Set[TopicPartition],
    joined: Joined | None = None,
) -> Deliveries:
    """What the request gets of each partition of its session, or the error code.

    :param released: the partitions that may have records although their supplies know of none.
    :param joined: acknowledgements for the only partition.
    """
    found: Deliveries = {}
    wanted: dict[TopicPartition, Partition] = {}
    async for named in ctx.paced(session.rotated(request.share_session_epoch)):
        partition = topics.partition(named)
        if isinstance(partition, int):
            found[named] = Delivery(partition)
        else:
            wanted[named] = partition
    is_first = request.share_session_epoch == FIRST_EPOCH
    found |= {named: Delivery() for named in (wanted if is_first else session.due) if named in wanted}
    max_bytes = _most_bytes(ctx, request)
    if not wanted or request.max_records <= 0 or max_bytes <= 0:
        if any(one.code for one in found.values()):
            await anyio.sleep(max(0.0, min(PASSING_S, request.max_wait.total_seconds())))
        return found
    every, turns = ctx.frontend.deliveries.supplies, ctx.frontend.turns
    with every.used((), member.group_id) as supplies:
        for partition in wanted.values():
            known = len(every)
            supplies.append(every.use(partition, member.group_id))
            if len(every) > known and turns.is_due(_SUPPLIES_A_TURN):
                await turns.turn()
        all_of_them = list(zip(wanted, supplies, strict=True))
        fetching = _Fetching(ctx, request, member, all_of_them, max_bytes, released, joined)
        try:
            await fetching.run()
        finally:
            fetching.leave()
            session.holds |= fetching.held
            if fetching.held and session.name not in session.opener.sessions:
                # Another connection ended it meanwhile.
                end(ctx.frontend, session)
    if any(one.has_lost for one in fetching.found.values()):
        # Nobody knows what the member holds. Its next session releases all of it.
        end(ctx.frontend, session)
        session.opener.renew()
    return found | fetching.found


def _most_bytes(ctx: Context, request: requests.ShareFetchRequest) -> int:
    """The most bytes of records; none if the client is over its quota."""
    max_bytes = min(request.max_bytes, MOST_BYTES)
    meters = ctx.frontend.quotas.meters
    if meters is None:
        return max_bytes
    if meters.wait_s(meters.meter(ctx.principal, ctx.client_id).fetch) > 0:
        return 0
    # As for a Fetch.
    return min(max_bytes, meters.most_fetched(ctx.principal, ctx.client_id))


def _reading(setting: GroupSetting) -> tuple[Isolation, Reset | timedelta, str]:
    """A group's isolation, where it begins, and the header with times."""
    isolation: Isolation = "committed" if setting(_ISOLATION) == "read_committed" else "uncommitted"
    return isolation, reset_of(setting), setting(_TIME_HEADER)


class _Fetching:
    """The acquisitions of one request, and its places in the queues of its supplies."""

    def __init__(
        self,
        ctx: Context,
        request: requests.ShareFetchRequest,
        member: Member,
        supplies: Sequence[tuple[TopicPartition, SharedSupply]],
        max_bytes: int,
        released: Set[TopicPartition],
        joined: Joined | None,
    ) -> None:
        frontend, (group_id, acquirer) = ctx.frontend, member
        isolation, reset, time_header = frontend.catalog.of_group(group_id, _reading)
        self._ctx = ctx
        self._loop = asyncio.get_running_loop()
        self._wanted = Wanted(
            group_id=group_id,
            acquirer=acquirer,
            limits=limits_of(frontend, group_id),
            mode="records" if request.share_acquire_mode == _RECORD_LIMIT else "batches",
            isolation=isolation,
            reset=reset,
            batch_size=max(1, request.batch_size),
            time_header=time_header,
            joined=joined,
        )
        self._supplies = supplies
        self._deadline = self._loop.time() + max(0.0, request.max_wait.total_seconds())
        self._released = set(released)
        self._left_records, self._left_bytes = request.max_records, max_bytes
        self._waiters: dict[int, Waiter] = {}
        """By the position of their supplies."""
        self._woken: list[int] = []
        self._wake: asyncio.Future[None] | None = None
        self._failed: set[int] = set()
        """The positions of supplies that are not tried again."""
        self._given_back: list[int] = []
        """The positions of supplies with records that could not be read at once."""
        self.found: Deliveries = {}
        self.held: set[TopicPartition] = set()
        """The partitions of which something may have been acquired."""

    async def run(self) -> None:
        """Acquire until there are records or an error, or the time is over."""
        draining, generation = self._ctx.frontend.draining, _generation(self._ctx)
        positions: Sequence[int] = range(len(self._supplies))
        if self._wanted.joined is not None and not self._may_try(0):
            await self._ctx.frontend.deliveries.acknowledge(self._supplies[0][1].partition, self._wanted)
        while not draining.is_set() and generation == _generation(self._ctx):
            if await self._try_all(positions):
                if not self._has_records:
                    # Clients try again at once after an error.
                    await anyio.sleep(max(0.0, min(PASSING_S, self._deadline - self._loop.time())))
                return
            if not await self._woken_in_time():
                return
            positions, self._woken = self._woken, []

    @property
    def _has_records(self) -> bool:
        return any(one.size_bytes for one in self.found.values())

    async def _try_all(self, positions: Sequence[int]) -> bool:
        """Acquire from the partitions that may have records; true if there is something to answer.

        Each has its part of the bytes, as in Kafka. Of many partitions some are tried at once, with a part of the
        records each: one after the other they would take too long.
        """
        due = [at for at in positions if self._may_try(at)]
        # In the other queues it would hold up those behind it if a try takes long.
        for at in self._waiters.keys() - set(due):
            self._supplies[at][1].leave(self._waiters.pop(at))
        begun, has_news, self._given_back = 0, False, []
        while begun < len(due) and self._left_records > 0 and self._left_bytes > 0:
            most = 1 if len(due) <= _FEW else min(AT_ONCE, self._left_records)
            some = due[begun : begun + most]
            max_records, max_bytes = self._left_records // len(some), max(1, self._left_bytes // (len(due) - begun))
            is_first = not self._has_records
            tries = [self._try(at, max_records, max_bytes, is_first=is_first and at == some[0]) for at in some]
            has_news = any([await tries[0]] if len(tries) == 1 else await settled(tries)) or has_news
            begun += len(some)
        if not has_news and self._given_back:
            has_news = await self._try(
                self._given_back[0], self._left_records, self._left_bytes, is_first=True, waits=True
            )
        return has_news

    def _may_try(self, at: int) -> bool:
        named, supply = self._supplies[at]
        waiter = self._waiters.get(at)
        return (waiter is not None and waiter.has_turn) or named in self._released or supply.may_call()

    async def _try(self, at: int, max_records: int, max_bytes: int, *, is_first: bool, waits: bool = False) -> bool:
        """Acquire from one partition; true if there is something to answer.

        :param waits: true to wait for records that are on their way from a tier. Their locks go on meanwhile.
        """
        named, supply = self._supplies[at]
        waiter = self._waiters.pop(at, None)
        if waiter is not None and not waiter.has_turn:
            supply.leave(waiter)
            waiter = None
        self._released.discard(named)
        pending_until = self._deadline if waits else self._loop.time()
        try:
            delivery = await self._ctx.frontend.deliveries.deliver(
                supply,
                waiter,
                self._wanted,
                max_records,
                max_bytes,
                self._ctx.share,
                pending_until,
                is_first=is_first,
            )
        except KorvetError as error:
            has_lost = isinstance(error, StoreUnavailable) and error.outcome_unknown
            delivery = Delivery(read_failure_code(error, "share_fetch"), has_lost=has_lost)
        except BaseException:
            # The client has left, and Redis may acquire for it all the same.
            self.held.add(named)
            raise
        if delivery.acquired or delivery.has_lost:
            self.held.add(named)
        elif delivery.code in LASTING:
            self._failed.add(at)
            self.found[named] = delivery
            return False
        elif not delivery.code:
            if delivery.is_given_back:
                self._given_back.append(at)
            if delivery.is_given_back and waits:
                self._failed.add(at)
            return False
        self._left_records -= delivery.count
        self._left_bytes -= delivery.size_bytes
        self.found[named] = delivery
        return True

    async def _woken_in_time(self) -> bool:
        """Wait for the turn at one of the supplies; false at the end of the time."""
        left_s = self._deadline - self._loop.time()
        if left_s <= 0:
            return False
        for at, (_, supply) in enumerate(self._supplies):
            if at not in self._waiters and at not in self._failed:
                waiter = self._waiters[at] = Waiter(partial(self._note, at))
                supply.wait(waiter)
        if not self._woken:
            self._wake = self._loop.create_future()
            timer = self._loop.call_later(left_s, self._rouse)
            try:
                await self._wake
            finally:
                timer.cancel()
                self._wake = None
        return bool(self._woken) and not self._ctx.frontend.draining.is_set()

    def _note(self, at: int) -> None:
        self._woken.append(at)
        self._rouse()

    def _rouse(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def leave(self) -> None:
        """Pass on the turns that the request has, and leave the queues."""
        for at, waiter in self._waiters.items():
            self._supplies[at][1].leave(waiter)
        self._waiters.clear()


def _generation(ctx: Context) -> int:
    """Counts the changes of the access rules: after one, the client's next request is judged anew."""
    return 0 if ctx.rights is None else ctx.rights.generation


# ---------------------------------------------------------------------- the answer


def _entries(
    session: ShareSession, epoch: int, found: Deliveries, outcomes: Mapping[TopicPartition, Outcome]
) -> dict[TopicPartition, dict[str, Any]]:
    """The answer's partitions: those with news, and all that the request acknowledged.

    Source: KafkaApis.combineShareFetchAndShareAcknowledgeResponses, ShareSessionContext.PartitionIterator
    """
    entries: dict[TopicPartition, dict[str, Any]] = {}
    for named, one in found.items():
        has_error = one.code != 0
        if epoch == FIRST_EPOCH or session.names(named, has_records=bool(one.size_bytes), has_error=has_error):
            entries[named] = {
                "error_code": one.code,
                "records": one.records,
                "acquired_records": [
                    {"first_offset": first, "last_offset": last, "delivery_count": count}
                    for first, last, count in one.acquired
                ],
            }
    for named, outcome in outcomes.items():
        entry = entries.setdefault(named, {"error_code": 0})
        entry |= {"acknowledge_error_code": outcome.code, "acknowledge_error_message": outcome.message}
    return entries
