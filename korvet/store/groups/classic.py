"""Groups of the classic protocol: joins, syncs, heartbeats and leaves, and the wait of a parked member.

Replies carry Kafka's error codes as values (``code``, 0 is none). Methods pass on the store's errors.
"""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final
from uuid import uuid4

import anyio

from korvet.codes import COORDINATOR_NOT_AVAILABLE, REBALANCE_IN_PROGRESS, UNKNOWN_SERVER_ERROR
from korvet.redis.client import Named
from korvet.redis.wakeup import Wakeups
from korvet.store.catalog.catalog import Catalog
from korvet.store.groups import replies
from korvet.store.groups.call import GroupCalls, chunks
from korvet.store.groups.consumer import ConsumerGroups
from korvet.store.groups.offsets import retention_ms
from korvet.store.groups.parked_members import Member, ParkedMembers, is_parked
from korvet.store.groups.types import Joined, JoinRequest, Synced, SyncRequest

_JOIN_STATUS: Final = 2
_SYNC_STATUS: Final = 1
"""The index of the status in a reply of group_join and of group_sync; the time to wait follows."""
_CALLS: Final = 5
"""The most calls for one join in a group of both protocols, because its target may change repeatedly."""
_WITH_ANY: Final = 2
_ANY_ROUND: Final = -1
"""The number of the round of all parked joins: the next generation answers them, whatever its number."""
_PATIENCE_S: Final = 35.0
"""The least time that a join is parked, unless its group's deadlines end it earlier."""
_GRACE_S: Final = 5.0
"""The time that clients wait for a join's answer beyond their rebalance timeout."""
_LEAVING_AT_ONCE: Final = 200
_MOST_ASSIGNED: Final = 10_000
"""The members that a leader can assign to: the largest group.max.size."""


class ClassicGroups:
    """The groups of one namespace, for members that speak the classic protocol."""

    def __init__(self, calls: GroupCalls, catalog: Catalog, wakeups: Wakeups, consumers: ConsumerGroups) -> None:
        self._calls = calls
        self._catalog = catalog
        self._consumers = consumers
        self._joining = ParkedMembers(wakeups, _JOIN_STATUS)
        self._syncing = ParkedMembers(wakeups, _SYNC_STATUS)

    def _setting(self, name: str) -> int:
        return self._catalog.integer(None, name)

    async def join(self, request: JoinRequest, draining: anyio.Event) -> Joined:
        """Join, and wait while the group gathers; COORDINATOR_NOT_AVAILABLE when the front-end drains."""
        group_id = request.group_id
        new_member_id = f"{request.instance_id or request.client_id}-{uuid4()}" if not request.member_id else ""
        for _ in range(_CALLS):
            reply = await self._join(request, new_member_id)
            if not _needs_target(reply):
                break
            await self._catalog.refresh()
            await self._consumers.bring_up_to_date(group_id)
        else:
            return Joined(code=REBALANCE_IN_PROGRESS, member_id=request.member_id)
        if is_parked(reply, _JOIN_STATUS):
            member = (replies.text(reply[1]), request.instance_id or "")
            longest_s = max(request.rebalance_timeout_ms, request.session_timeout_ms) / 1000 + _GRACE_S
            with anyio.move_on_after(max(longest_s, _PATIENCE_S)):
                ask = partial(self._ask_join, group_id)
                channel = self._calls.keys(group_id).group
                reply = await self._joining.wait(channel, _ANY_ROUND, member, reply, draining, ask)
            if is_parked(reply, _JOIN_STATUS):
                return Joined(code=COORDINATOR_NOT_AVAILABLE, member_id=member[0])
        return replies.joined(reply)

    def _join(self, request: JoinRequest, new_member_id: str) -> Awaitable[Any]:
        return self._calls.call(
            "korvet_group_join",
            request.group_id,
            is_awaited=True,
            member_id=request.member_id,
            new_member_id=new_member_id,
            instance_id=request.instance_id or "",
            client_id=request.client_id,
            client_host=request.client_host,
            session_timeout=request.session_timeout_ms,
            rebalance_timeout=max(request.rebalance_timeout_ms, 0),
            protocol_type=request.protocol_type,
            version=request.version,
            min_session_timeout=self._setting("group.min.session.timeout.ms"),
            max_session_timeout=self._setting("group.max.session.timeout.ms"),
            max_size=self._setting("group.max.size"),
            initial_delay=self._setting("group.initial.rebalance.delay.ms"),
            retention=retention_ms(self._catalog),
            protocols=list(chain.from_iterable(request.protocols)),
        )

    def _ask_join(self, group_id: str, members: Sequence[Member]) -> Awaitable[Sequence[Any]]:
        return self._calls.call("korvet_group_await", group_id, members=list(chain.from_iterable(members)))

    async def sync(self, request: SyncRequest, draining: anyio.Event) -> Synced:
        """Submit the leader's assignments, or wait for the member's own; while draining, as `join`."""
        if len(request.assignments) > _MOST_ASSIGNED:
            return Synced(code=UNKNOWN_SERVER_ERROR)
        group_id, generation = request.group_id, request.generation
        member = (request.member_id, request.instance_id or "")
        protocol_type, protocol = request.protocol or ("", "")
        reply = await self._calls.call(
            "korvet_group_sync",
            group_id,
            member_id=member[0],
            instance_id=member[1],
            generation=generation,
            names_protocol=0 if request.protocol is None else 1,
            protocol_type=protocol_type,
            protocol=protocol,
            assignments=list(chain.from_iterable(request.assignments)),
        )
        if is_parked(reply, _SYNC_STATUS):
            ask = partial(self._ask_sync, group_id, generation)
            reply = await self._syncing.wait(self._calls.keys(group_id).group, generation, member, reply, draining, ask)
            if is_parked(reply, _SYNC_STATUS):
                return Synced(code=COORDINATOR_NOT_AVAILABLE)
        return replies.synced(reply)

    def _ask_sync(self, group_id: str, generation: int, members: Sequence[Member]) -> Awaitable[Sequence[Any]]:
        flat = list(chain.from_iterable(members))
        return self._calls.call("korvet_group_await_sync", group_id, generation=generation, members=flat)

    def heartbeat(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int
    ) -> Coroutine[Any, Any, int]:
        """The code of a heartbeat.

        A group of the consumer protocol may have only classic members. So their heartbeats also update its target from
        the catalog.
        """
        return self._calls.call(
            "korvet_group_heartbeat",
            group_id,
            on_retry=self._follow_catalog,
            member_id=member_id,
            instance_id=instance_id or "",
            generation=generation,
            catalog_version=self._catalog.topics_digest,
        )

    async def _follow_catalog(self, group_id: str, calls_left: int) -> Mapping[str, Named]:
        await self._consumers.follow_catalog(group_id)
        # The catalog may change again and again. So the last call takes the target of any.
        return {"catalog_version": self._catalog.topics_digest if calls_left > _WITH_ANY else None}

    async def leave(self, group_id: str, members: Iterable[tuple[str, str | None]]) -> Sequence[int]:
        """A code for each (member id or empty, instance id or None)."""
        codes: list[int] = []
        for some in chunks(list(members), _LEAVING_AT_ONCE):
            flat = [part for member_id, instance_id in some for part in (member_id, instance_id or "")]
            codes += await self._calls.call("korvet_group_leave", group_id, members=flat)
        return codes


def _needs_target(reply: Any) -> bool:
    """True if a classic member joined a group of the consumer protocol that still needs a target."""
    return len(reply) > _JOIN_STATUS and reply[_JOIN_STATUS] == b"target"
