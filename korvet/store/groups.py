"""Consumer groups: the library's group functions as typed calls, and the wait of a parked member.

Replies carry Kafka's error codes as values (``code``, 0 is none). What the store raises comes out as it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence, Set
from functools import partial
from typing import Any, Final, NamedTuple
from uuid import UUID, uuid4

import anyio
import structlog
from kio.schema.errors import ErrorCode

from korvet.errors import KorvetError, StoreError
from korvet.store import group_replies as replies
from korvet.store.catalog import Catalog
from korvet.store.client import Purpose, Store
from korvet.store.consumer_groups import ConsumerGroups
from korvet.store.contract import RETRY
from korvet.store.group_calls import GroupCalls
from korvet.store.group_rooms import Member, Rooms, is_parked
from korvet.store.group_types import (
    CommitRequest,
    GroupDescription,
    Joined,
    JoinRequest,
    ListedGroup,
    Offset,
    Place,
    Synced,
    SyncRequest,
)
from korvet.store.keys import Namespace
from korvet.store.outages import Outages
from korvet.store.redis_groups import RedisGroups
from korvet.store.wakeup import Wakeups

log = structlog.get_logger()

NOT_FOUND: Final = int(ErrorCode.group_id_not_found)
NOT_AVAILABLE: Final = int(ErrorCode.coordinator_not_available)
REBALANCE_IN_PROGRESS: Final = int(ErrorCode.rebalance_in_progress)
_EMPTY: Final = b"Empty"
_UNSTABLE: Final = b"unstable"
_NO_EXPIRY: Final = -1
_JOIN_STATUS: Final = 2
_SYNC_STATUS: Final = 1
"""Where a reply of group_join or group_sync has its status; behind it is the time to wait."""
_CALLS: Final = 5
"""Calls of one join or heartbeat to a group of both protocols, whose target may change again and again."""
_ANY_ROUND: Final = -1
"""A parked join is answered by whatever generation comes."""
_PATIENCE_S: Final = 35.0
"""A join is parked at least this long; its group's own deadlines end it much earlier."""
_GRACE_S: Final = 5.0
"""Clients wait this much longer than their rebalance timeout for the answer of a join."""
_MINUTE_MS: Final = 60_000
_FORGOTTEN_AT_ONCE: Final = 1000
"""Arguments; two for each place."""


class Neglected(NamedTuple):
    """Groups that somebody has to look after: whose members all died unnoticed, and entries without a group."""

    dead: set[str]
    missing: set[str]


def _needs_target(reply: Any) -> bool:
    """Whether a member of the classic protocol joined a group that has others, whose target is not made yet."""
    return len(reply) > _JOIN_STATUS and reply[_JOIN_STATUS] == b"target"


def _flat(offsets: Iterable[tuple[Place, Offset]]) -> list[str]:
    flat: list[str] = []
    for (topic, partition), offset in offsets:
        flat.append(f"{topic}:{partition}")
        flat.append(f"{offset.offset} {offset.leader_epoch} {offset.topic_id.hex} {offset.metadata}")
    return flat


class Groups:
    """The groups of one namespace."""

    def __init__(
        self, namespace: Namespace, store: Store, catalog: Catalog, wakeups: Wakeups, outages: Outages
    ) -> None:
        self._namespace = namespace
        self._store = store
        self._catalog = catalog
        self.outages = outages
        self.redis_groups = RedisGroups(namespace, store)
        self._on_commit: dict[str, Callable[[Iterable[Place]], None]] = {}
        self._calls = GroupCalls(namespace, store, outages)
        self._index = self._calls.index
        self.consumers = ConsumerGroups(self._calls, catalog)
        self._joining = Rooms(wakeups, _JOIN_STATUS)
        self._syncing = Rooms(wakeups, _SYNC_STATUS)

    def _setting(self, name: str) -> int:
        return int(self._catalog.setting(None, name))

    @property
    def _retention_ms(self) -> int:
        return self._setting("offsets.retention.minutes") * _MINUTE_MS

    # ------------------------------------------------------------------ members

    async def join(self, request: JoinRequest, draining: anyio.Event) -> Joined:
        """Join, and wait while the group gathers. Ends with COORDINATOR_NOT_AVAILABLE at drain."""
        group_id = request.group_id
        new_member_id = f"{request.instance_id or request.client_id}-{uuid4()}" if not request.member_id else ""
        for _ in range(_CALLS):
            join = partial(self._join, request, new_member_id)
            reply = await self._index.making(group_id, join)
            if not _needs_target(reply):
                break
            await self._catalog.refresh()
            await self.consumers.bring_up_to_date(group_id)
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
                return Joined(code=NOT_AVAILABLE, member_id=member[0])
        return replies.joined(reply)

    def _ask_join(self, group_id: str, members: Sequence[Member]) -> Awaitable[Sequence[Any]]:
        return self._calls.call("korvet_group_await", group_id, *(part for member in members for part in member))

    def _ask_sync(self, group_id: str, generation: int, members: Sequence[Member]) -> Awaitable[Sequence[Any]]:
        flat = (part for member in members for part in member)
        return self._calls.call("korvet_group_await_sync", group_id, generation, *flat)

    def _join(self, request: JoinRequest, new_member_id: str, id: str, locator: str) -> Awaitable[Any]:
        return self._calls.attended(
            self._calls.keys(request.group_id),
            "korvet_group_join",
            id,
            locator,
            request.member_id,
            new_member_id,
            request.instance_id or "",
            request.client_id,
            request.client_host,
            request.session_timeout_ms,
            max(request.rebalance_timeout_ms, 0),
            request.protocol_type,
            request.version,
            self._setting("group.min.session.timeout.ms"),
            self._setting("group.max.session.timeout.ms"),
            self._setting("group.max.size"),
            self._setting("group.initial.rebalance.delay.ms"),
            self._retention_ms,
            *(part for protocol in request.protocols for part in protocol),
        )

    async def sync(self, request: SyncRequest, draining: anyio.Event) -> Synced:
        """Hand in the leader's assignments, or wait for one's own. Ends as `join` does at drain."""

        group_id, generation = request.group_id, request.generation
        member = (request.member_id, request.instance_id or "")
        reply = await self._calls.call(
            "korvet_group_sync",
            group_id,
            *member,
            generation,
            0 if request.protocol is None else 1,
            *(request.protocol or ("", "")),
            *(part for assignment in request.assignments for part in assignment),
        )
        if is_parked(reply, _SYNC_STATUS):
            ask = partial(self._ask_sync, group_id, generation)
            reply = await self._syncing.wait(self._calls.keys(group_id).group, generation, member, reply, draining, ask)
            if is_parked(reply, _SYNC_STATUS):
                return Synced(code=NOT_AVAILABLE)
        return replies.synced(reply)

    async def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> int:
        """The code of a heartbeat.

        Classic members may be alone in a group of the consumer protocol, so they have its target follow the catalog.
        """
        call = partial(self._calls.call, "korvet_group_heartbeat", group_id, member_id, instance_id or "", generation)
        for _ in range(_CALLS):
            code: int = await call(self._catalog.topics_digest)
            if code != RETRY:
                return code
            await self.consumers.follow_catalog(group_id)
        code = await call()
        return code

    async def leave(self, group_id: str, members: Iterable[tuple[str, str | None]]) -> Sequence[int]:
        """A code for each (member id or empty, instance id or None)."""
        flat = [part for member_id, instance_id in members for part in (member_id, instance_id or "")]
        codes: Sequence[int] = await self._calls.call("korvet_group_leave", group_id, *flat)
        return codes

    # ------------------------------------------------------------------ offsets

    async def commit(self, request: CommitRequest) -> int:
        """Commit offsets; the code is for all of them."""
        keys, flat = self._calls.keys(request.group_id), _flat(request.offsets)
        head = (request.member_id, request.instance_id or "", request.generation, request.version, self._retention_ms)

        def commit(id: str, locator: str) -> Awaitable[Any]:
            return self._calls.attended(keys, "korvet_group_commit", id, locator, *head, *flat)

        code: int = await self._index.making(request.group_id, commit)
        if code == 0:
            self._committed(request.group_id, [(place, offset.topic_id.hex) for place, offset in request.offsets])
        return code

    def on_commit(self, group_id: str, callback: Callable[[Iterable[Place]], None]) -> None:
        """Have a group's commits through this front-end told, when they are there."""
        self._on_commit[group_id] = callback

    def _committed(self, group_id: str, places: Sequence[tuple[Place, str]]) -> None:
        self.redis_groups.committed(group_id, places)
        if group_id in self._on_commit:
            self._on_commit[group_id](place for place, _ in places)

    async def hold(
        self, request: CommitRequest, transactional_id: str, producer_id: int, producer_epoch: int, ordinal: int
    ) -> int:
        """Hold offsets that a transaction commits when it is committed; the code is for all of them."""
        keys, flat = self._calls.all_keys(request.group_id), _flat(request.offsets)
        head = (request.member_id, request.instance_id or "", request.generation, self._retention_ms)
        transaction = (producer_id, producer_epoch, ordinal, transactional_id)

        def hold(id: str, locator: str) -> Awaitable[Any]:
            return self._calls.timely(keys, "korvet_group_txn_commit", id, locator, *head, *transaction, *flat)

        code: int = await self._index.making(request.group_id, hold)
        return code

    async def release(self, group_id: str, producer_id: int, ordinal: int, *, is_commit: bool) -> None:
        """Commit what a transaction holds, or forget it. May be repeated."""
        keys = self._calls.all_keys(group_id)
        outcome = "commit" if is_commit else "abort"
        _, flat = await self._store.fcall(
            Purpose.COORDINATE, "korvet_group_txn_end", keys, producer_id, ordinal, outcome
        )
        places = zip(flat[::2], flat[1::2], strict=True)
        self._committed(group_id, [(replies.place(name), replies.text(id)) for name, id in places])

    async def fetch(self, group_id: str, places: Iterable[Place] | None) -> Mapping[Place, Offset]:
        """The committed offsets of some places, or of all; what is not committed is left out."""
        return (await self._fetch(self._calls.keys(group_id), places))[0]

    async def fetch_stable(
        self, group_id: str, places: Iterable[Place] | None
    ) -> tuple[Mapping[Place, Offset], Set[Place]]:
        """As `fetch`, and the places whose offsets an open transaction may change."""
        keys = self._calls.all_keys(group_id)
        return await self._fetch((*self._calls.keys(group_id), keys.pending), places)

    async def _fetch(
        self, keys: Sequence[str], places: Iterable[Place] | None
    ) -> tuple[Mapping[Place, Offset], Set[Place]]:
        named = [] if places is None else [f"{topic}:{partition}" for topic, partition in places]
        if places is not None and not named:
            return {}, frozenset()
        flat = await self._store.fcall(Purpose.COORDINATE, "korvet_group_fetch", keys, *named)
        found = {replies.place(name): text for name, text in zip(flat[::2], flat[1::2], strict=True) if text}
        unstable = {place for place, text in found.items() if text == _UNSTABLE}
        return {place: replies.offset(text) for place, text in found.items() if place not in unstable}, unstable

    async def delete_offsets(self, group_id: str, places: Sequence[tuple[Place, str]]) -> tuple[int, Sequence[int]]:
        """Forget committed offsets, also those that transactions hold, and the Redis groups that stand for them.

        :param places: each with its topic's id in hex.
        :returns: a code for all, and where that is none one for each.
        """
        keys = self._calls.all_keys(group_id)
        named = [f"{topic}:{partition}" for (topic, partition), _ in places]
        outages = self.outages.known_at(keys.group)
        with_pending = (*self._calls.keys(group_id), keys.pending)
        code, codes = await self._store.fcall(
            Purpose.COORDINATE, "korvet_group_offset_delete", with_pending, outages, *named
        )
        deleted = [at for at, outcome in enumerate(codes) if outcome == 0]
        await self.redis_groups.uncommitted(group_id, [places[at] for at in deleted])
        return code, codes

    # ------------------------------------------------------------------ administration

    async def describe(self, group_id: str) -> GroupDescription | None:
        """A group and its members; None where there is no such group."""
        reply = await self._calls.call("korvet_group_describe", group_id)
        return None if reply[0] == NOT_FOUND else replies.described(reply)

    async def list(self) -> Sequence[ListedGroup]:
        """All groups there are, but those whose keys cannot be read."""
        groups: list[ListedGroup] = []
        for some in await self._index.group_ids():
            groups += [
                ListedGroup(
                    group_id, replies.text(state["state"]), replies.text(state["protocol_type"]), replies.type_of(state)
                )
                for group_id, state in (await self._states(some)).items()
                if state is not None
            ]
        return groups

    async def _states(self, group_ids: Sequence[str]) -> Mapping[str, Mapping[str, Any] | None]:
        """What korvet_group_state names, None where there is no such group; those that cannot be read are left out."""
        outcomes = await asyncio.gather(
            *(self._calls.call("korvet_group_state", group_id) for group_id in group_ids), return_exceptions=True
        )
        states: dict[str, Mapping[str, Any] | None] = {}
        unreadable: dict[str, StoreError] = {}
        for group_id, outcome in zip(group_ids, outcomes, strict=True):
            if isinstance(outcome, StoreError):
                unreadable[group_id] = outcome
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                states[group_id] = replies.named(outcome) if outcome[0] == 0 else None
        if unreadable:
            first, error = next(iter(unreadable.items()))
            log.error("groups cannot be read", groups=len(unreadable), first=first, reason=str(error))
        return states

    async def delete(self, group_ids: Sequence[str]) -> Sequence[int | KorvetError]:
        """Remove groups without members, with Redis groups and offsets: a code or the store's failure for each."""
        return await self._delete(group_ids)

    async def _delete(self, group_ids: Sequence[str], *, only_expired: bool = False) -> Sequence[int | KorvetError]:
        outcomes = await self.redis_groups.delete(group_ids, self.outages.known_at, only_expired=only_expired)

        async def take_out(at: int) -> None:
            try:
                await self._index.take_out(group_ids[at], self._exists)
            except KorvetError as error:
                outcomes[at] = error

        async with anyio.create_task_group() as tasks:
            for at, outcome in enumerate(outcomes):
                if outcome in (0, NOT_FOUND):
                    tasks.start_soon(take_out, at)
        return outcomes

    async def neglected(self) -> Neglected:
        """What nobody looks after."""
        dead: set[str] = set()
        missing: set[str] = set()
        for some in await self._index.group_ids():
            states = await self._states(some)
            missing.update(group_id for group_id, state in states.items() if state is None)
            empty = [group_id for group_id, state in states.items() if state is not None and state["state"] == _EMPTY]
            keys = [self._calls.keys(group_id).group for group_id in empty]
            lives = await asyncio.gather(*(self._store.call(Purpose.COORDINATE, key, "PTTL", key) for key in keys))
            # The keys of a group that is known to be Empty have an expiry.
            dead.update(group_id for group_id, left_ms in zip(empty, lives, strict=True) if left_ms == _NO_EXPIRY)
        return Neglected(dead, missing)

    async def tend(self, group_id: str) -> None:
        """Have a group do what became due; of one that is not there, remove what is left."""
        code, _ = await self.delete_offsets(group_id, ())
        if code == NOT_FOUND:
            (outcome,) = await self._delete([group_id], only_expired=True)
            if isinstance(outcome, KorvetError):
                raise outcome

    async def topic_ids(self) -> Set[UUID]:
        """The topics that there are."""
        await self._catalog.refresh()
        return frozenset(topic.id for topic in self._catalog.topics())

    async def forget_former_topics(self) -> None:
        """Forget the offsets that were committed for topics that are gone, or made again since."""
        for some in await self._index.group_ids():
            for group_id in some:
                try:
                    await self._forget_former_topics(group_id)
                except StoreError as error:
                    log.error("a group's offsets cannot be read", group=group_id, reason=str(error))

    async def _forget_former_topics(self, group_id: str) -> None:
        committed = await self.fetch(group_id, None)
        if self._former(committed):
            # There may be topics that the catalog's cache does not know yet; what was committed before this is known.
            await self._catalog.refresh()
        former = [part for (topic, index), id in self._former(committed) for part in (f"{topic}:{index}", id.hex)]
        for at in range(0, len(former), _FORGOTTEN_AT_ONCE):
            keys, some = self._calls.keys(group_id), former[at : at + _FORGOTTEN_AT_ONCE]
            await self._store.fcall(Purpose.COORDINATE, "korvet_group_offset_forget", keys, *some)

    def _former(self, committed: Mapping[Place, Offset]) -> Sequence[tuple[Place, UUID]]:
        """Of committed offsets those of topics that are not there, each with its topic's id."""
        ids = {topic.name: topic.id for topic in self._catalog.topics()}
        return [(place, offset.topic_id) for place, offset in committed.items() if ids.get(place[0]) != offset.topic_id]

    async def _exists(self, group_id: str) -> bool:
        return bool((await self._calls.call("korvet_group_state", group_id))[0] == 0)
