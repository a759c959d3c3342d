"""Consumer groups: the library's group functions as typed calls, the wait of a parked member, and the group index.

Replies carry Kafka's error codes as values (``code``, 0 is none). What the store raises comes out as it is.

The index is a set of group ids, in shards, beside the catalog. A group is put in before it is written and taken out
after it is deleted; an entry without a group means nothing. Only the function that is about to make a group asks for
it, so that everything else about groups costs one call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple
from urllib.parse import quote
from uuid import UUID, uuid4

import anyio
from kio.schema.errors import ErrorCode
from ulid import ULID

from korvet.errors import KorvetError
from korvet.store.catalog import Catalog
from korvet.store.client import Purpose, Store
from korvet.store.contract import UNINDEXED
from korvet.store.keys import GROUP_INDEX_SHARDS, Namespace
from korvet.store.outages import Outages
from korvet.store.redis_groups import RedisGroups
from korvet.store.wakeup import Wakeups

NOT_FOUND: Final = int(ErrorCode.group_id_not_found)
NOT_AVAILABLE: Final = int(ErrorCode.coordinator_not_available)
_PARKED: Final = b"parked"
_EMPTY: Final = b"Empty"
_NO_EXPIRY: Final = -1
_JOIN_STATUS: Final = 2
_SYNC_STATUS: Final = 1
"""Where a reply of group_join or group_sync has its status; behind it is the time to wait."""
_KEYS_KEPT: Final = 10_000
_PATIENCE_S: Final = 35.0
"""A join is parked at least this long; its group's own deadlines end it much earlier."""
_GRACE_S: Final = 5.0
"""Clients wait this much longer than their rebalance timeout for the answer of a join."""
_DESCRIBED_AT_ONCE: Final = 500
_MINUTE_MS: Final = 60_000

Place = tuple[str, int]
"""A topic's name and a partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """A JoinGroup. ``member_id`` is empty for who has none yet; protocols are (name, metadata), preferred first."""

    group_id: str
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Sequence[tuple[str, bytes]]
    version: int


class JoinedMember(NamedTuple):
    """A member as the leader is told of it."""

    id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The answer to a join; ``members`` are for the leader."""

    code: int
    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: Sequence[JoinedMember] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest:
    """A SyncGroup. ``protocol`` is type and name where the client names them; assignments are the leader's."""

    group_id: str
    member_id: str
    instance_id: str | None
    generation: int
    protocol: tuple[str, str] | None
    assignments: Sequence[tuple[str, bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Synced:
    """The answer to a sync."""

    code: int
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


class Offset(NamedTuple):
    """A committed offset; ``leader_epoch`` is -1 where the client named none."""

    offset: int
    leader_epoch: int
    topic_id: UUID
    metadata: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRequest:
    """An OffsetCommit; ``generation`` is -1 for a consumer that is not a member."""

    group_id: str
    member_id: str
    instance_id: str | None
    generation: int
    version: int
    offsets: Sequence[tuple[Place, Offset]]


class GroupMember(NamedTuple):
    """A member as an administrator sees it."""

    id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A group as an administrator sees it; ``id`` is its own and stays, ``locator`` says whose it is."""

    id: str
    locator: str
    state: str
    generation: int
    protocol_type: str
    protocol: str
    leader: str
    members: Sequence[GroupMember]


class ListedGroup(NamedTuple):
    """A group in a list."""

    group_id: str
    state: str
    protocol_type: str


class Groups:
    """The groups of one namespace."""

    def __init__(
        self, namespace: Namespace, store: Store, catalog: Catalog, wakeups: Wakeups, outages: Outages
    ) -> None:
        self._namespace = namespace
        self._store = store
        self._catalog = catalog
        self._wakeups = wakeups
        self._outages = outages
        self.redis_groups = RedisGroups(namespace, store)
        self._keys = lru_cache(_KEYS_KEPT)(namespace.group)

    def _call(self, function: str, group_id: str, *args: str | int | bytes) -> Awaitable[Any]:
        """Call one of the functions that are told of outages: all but korvet_group_fetch."""
        keys = self._keys(group_id)
        return self._store.fcall(Purpose.COORDINATE, function, keys, self._outages.known_at(keys.group), *args)

    def _setting(self, name: str) -> int:
        return int(self._catalog.setting(None, name))

    @property
    def _retention_ms(self) -> int:
        return self._setting("offsets.retention.minutes") * _MINUTE_MS

    # ------------------------------------------------------------------ members

    async def join(self, request: JoinRequest, draining: anyio.Event) -> Joined:
        """Join, and wait while the group gathers. Ends with COORDINATOR_NOT_AVAILABLE at drain."""
        reply = await self._making(request.group_id, lambda id, locator: self._join(request, id, locator))
        if _is_parked(reply, _JOIN_STATUS):
            member_id = _text(reply[1])

            async def ask() -> Any:
                instance_id = request.instance_id or ""
                return (await self._call("korvet_group_await", request.group_id, member_id, instance_id))[0]

            longest_s = max(request.rebalance_timeout_ms, request.session_timeout_ms) / 1000 + _GRACE_S
            with anyio.move_on_after(max(longest_s, _PATIENCE_S)):
                reply = await self._parked(request.group_id, _JOIN_STATUS, draining, ask)
            if _is_parked(reply, _JOIN_STATUS):
                return Joined(code=NOT_AVAILABLE, member_id=member_id)
        return _joined(reply)

    def _join(self, request: JoinRequest, id: str, locator: str) -> Awaitable[Any]:
        member_id = f"{request.instance_id or request.client_id}-{uuid4()}" if not request.member_id else ""
        return self._call(
            "korvet_group_join",
            request.group_id,
            id,
            locator,
            request.member_id,
            member_id,
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

        member = (request.member_id, request.instance_id or "")

        async def ask() -> Any:
            return (await self._call("korvet_group_await_sync", request.group_id, request.generation, *member))[0]

        reply = await self._call(
            "korvet_group_sync",
            request.group_id,
            *member,
            request.generation,
            0 if request.protocol is None else 1,
            *(request.protocol or ("", "")),
            *(part for assignment in request.assignments for part in assignment),
        )
        if _is_parked(reply, _SYNC_STATUS):
            reply = await self._parked(request.group_id, _SYNC_STATUS, draining, ask)
            if _is_parked(reply, _SYNC_STATUS):
                return Synced(code=NOT_AVAILABLE)
        if reply[0] != 0:
            return Synced(code=reply[0])
        return Synced(code=0, protocol_type=_text(reply[3]), protocol=_text(reply[4]), assignment=reply[5])

    async def _parked(
        self, group_id: str, status_at: int, draining: anyio.Event, ask: Callable[[], Awaitable[Any]]
    ) -> Any:
        """Ask until there is an answer: when the group's channel moves, and when the last reply said to.

        Asking is also what holds the member's session, so a member whose connection is gone is given up in time.
        """
        with self._wakeups.listen([self._keys(group_id).group]) as listening:
            await listening.ready()
            reply = await ask()
            while _is_parked(reply, status_at) and not draining.is_set():
                await listening.wait(reply[status_at + 1] / 1000)
                if not draining.is_set():
                    reply = await ask()
            return reply

    async def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> int:
        """The code of a heartbeat."""
        code: int = await self._call("korvet_group_heartbeat", group_id, member_id, instance_id or "", generation)
        return code

    async def leave(self, group_id: str, members: Iterable[tuple[str, str | None]]) -> Sequence[int]:
        """A code for each (member id or empty, instance id or None)."""
        flat = [part for member_id, instance_id in members for part in (member_id, instance_id or "")]
        codes: Sequence[int] = await self._call("korvet_group_leave", group_id, *flat)
        return codes

    # ------------------------------------------------------------------ offsets

    async def commit(self, request: CommitRequest) -> int:
        """Commit offsets; the code is for all of them."""
        flat: list[str] = []
        for (topic, partition), offset in request.offsets:
            flat.append(f"{topic}:{partition}")
            flat.append(f"{offset.offset} {offset.leader_epoch} {offset.topic_id.hex} {offset.metadata}")
        head = (request.member_id, request.instance_id or "", request.generation, request.version, self._retention_ms)

        def commit(id: str, locator: str) -> Awaitable[Any]:
            return self._call("korvet_group_commit", request.group_id, id, locator, *head, *flat)

        code: int = await self._making(request.group_id, commit)
        if code == 0:
            self.redis_groups.committed(
                request.group_id, [(place, offset.topic_id.hex) for place, offset in request.offsets]
            )
        return code

    async def fetch(self, group_id: str, places: Iterable[Place] | None) -> Mapping[Place, Offset]:
        """The committed offsets of some places, or of all; what is not committed is left out."""
        named = [] if places is None else [f"{topic}:{partition}" for topic, partition in places]
        if places is not None and not named:
            return {}
        flat = await self._store.fcall(Purpose.COORDINATE, "korvet_group_fetch", self._keys(group_id), *named)
        return {_place(place): _offset(text) for place, text in zip(flat[::2], flat[1::2], strict=True) if text}

    async def delete_offsets(self, group_id: str, places: Sequence[Place]) -> tuple[int, Sequence[int]]:
        """Forget committed offsets: a code for all, and where that is none one for each."""
        named = [f"{topic}:{partition}" for topic, partition in places]
        code, codes = await self._call("korvet_group_offset_delete", group_id, *named)
        return code, codes

    # ------------------------------------------------------------------ administration

    async def describe(self, group_id: str) -> GroupDescription | None:
        """A group and its members; None where there is no such group."""
        reply = await self._call("korvet_group_describe", group_id)
        return None if reply[0] == NOT_FOUND else _described(reply)

    async def list(self) -> Sequence[ListedGroup]:
        """All groups there are."""
        groups: list[ListedGroup] = []
        for some in await self._indexed():
            replies = await asyncio.gather(*(self._call("korvet_group_state", group_id) for group_id in some))
            groups += [
                ListedGroup(group_id, _text(_named(reply)["state"]), _text(_named(reply)["protocol_type"]))
                for group_id, reply in zip(some, replies, strict=True)
                if reply[0] == 0
            ]
        return groups

    async def delete(self, group_ids: Sequence[str]) -> Sequence[int | KorvetError]:
        """Remove groups without members, with Redis groups and offsets: a code or the store's failure for each."""
        return await self._delete(group_ids)

    async def _delete(self, group_ids: Sequence[str], *, only_expired: bool = False) -> Sequence[int | KorvetError]:
        outcomes = await self.redis_groups.delete(group_ids, self._outages.known_at, only_expired=only_expired)
        for at, group_id in enumerate(group_ids):
            if outcomes[at] in (0, NOT_FOUND):
                try:
                    await self._take_out_of_index(group_id)
                except KorvetError as error:
                    outcomes[at] = error
        return outcomes

    async def neglected(self) -> set[str]:
        """The groups whose members all died unnoticed, and the entries of the index without a group."""
        found: set[str] = set()
        for some in await self._indexed():
            states = await asyncio.gather(*(self._call("korvet_group_state", group_id) for group_id in some))
            keys = [self._keys(group_id).group for group_id in some]
            lives = await asyncio.gather(*(self._store.call(Purpose.COORDINATE, key, "PTTL", key) for key in keys))
            for group_id, state, left_ms in zip(some, states, lives, strict=True):
                # The keys of a group that is known to be Empty have an expiry.
                if state[0] == NOT_FOUND or (_named(state)["state"] == _EMPTY and left_ms == _NO_EXPIRY):
                    found.add(group_id)
        return found

    async def tend(self, group_id: str) -> None:
        """Have a group do what became due; of one that is not there, remove what is left."""
        code, _ = await self.delete_offsets(group_id, ())
        if code == NOT_FOUND:
            (outcome,) = await self._delete([group_id], only_expired=True)
            if isinstance(outcome, KorvetError):
                raise outcome

    # ------------------------------------------------------------------ the index

    async def _indexed(self) -> Iterable[Sequence[str]]:
        """The ids in the index in order, as many together as are to be asked for at once."""
        shards = [self._namespace.group_index(shard) for shard in range(GROUP_INDEX_SHARDS)]
        found = await asyncio.gather(*(self._store.call(Purpose.COORDINATE, key, "SMEMBERS", key) for key in shards))
        group_ids = sorted(_text(group_id) for shard in found for group_id in shard)
        return (group_ids[at : at + _DESCRIBED_AT_ONCE] for at in range(0, len(group_ids), _DESCRIBED_AT_ONCE))

    async def _take_out_of_index(self, group_id: str) -> None:
        index = self._namespace.group_index_of(group_id)
        await self._store.call(Purpose.COORDINATE, index, "SREM", index, group_id)
        # Another front-end may have made it again in between.
        if (await self._call("korvet_group_state", group_id))[0] == 0:
            await self._add_to_index(group_id)

    async def _making(self, group_id: str, call: Callable[[str, str], Awaitable[Any]]) -> Any:
        """A call that may make the group: its own id and locator are for that, and empty while it is not indexed."""
        reply = await call("", "")
        if (reply[0] if isinstance(reply, list) else reply) != UNINDEXED:
            return reply
        await self._add_to_index(group_id)
        reply = await call(f"cgp_{ULID()}", f"{self._namespace.name}/consumer-groups/{quote(group_id, safe='')}")
        # A deletion that went on meanwhile may have taken it out.
        await self._add_to_index(group_id)
        return reply

    async def _add_to_index(self, group_id: str) -> None:
        index = self._namespace.group_index_of(group_id)
        await self._store.call(Purpose.COORDINATE, index, "SADD", index, group_id)


def _text(value: bytes) -> str:
    return value.decode()


def _named(reply: Any) -> dict[str, Any]:
    """The names and values behind a reply's code."""
    return {_text(name): value for name, value in zip(reply[1::2], reply[2::2], strict=True)}


def _is_parked(reply: Any, status_at: int) -> bool:
    return len(reply) > status_at and reply[status_at] == _PARKED


def _joined(reply: Any) -> Joined:
    code, member_id = reply[0], _text(reply[1])
    if code != 0:
        return Joined(code=code, member_id=member_id)
    _, _, _, _, generation, protocol_type, protocol, leader, skip_assignment, told = reply
    return Joined(
        code=code,
        member_id=member_id,
        generation=generation,
        protocol_type=_text(protocol_type),
        protocol=_text(protocol),
        leader=_text(leader),
        skip_assignment=bool(skip_assignment),
        members=[
            JoinedMember(_text(id), _text(instance_id) or None, metadata)
            for id, instance_id, metadata in zip(told[::3], told[1::3], told[2::3], strict=True)
        ],
    )


def _described(reply: Any) -> GroupDescription:
    found = _named(reply)
    return GroupDescription(
        id=_text(found["id"]),
        locator=_text(found["locator"]),
        state=_text(found["state"]),
        generation=found["generation"],
        protocol_type=_text(found["protocol_type"]),
        protocol=_text(found["protocol"]),
        leader=_text(found["leader"]),
        members=[_described_member(told) for told in found["members"]],
    )


def _described_member(told: Any) -> GroupMember:
    of = _named((0, *told))
    return GroupMember(
        id=_text(of["member_id"]),
        instance_id=_text(of["instance_id"]) or None,
        client_id=_text(of["client_id"]),
        client_host=_text(of["client_host"]),
        metadata=of["metadata"],
        assignment=of["assignment"],
    )


def _place(name: bytes) -> Place:
    topic, _, partition = _text(name).rpartition(":")
    return topic, int(partition)


def _offset(text: bytes) -> Offset:
    offset, leader_epoch, topic_id, metadata = _text(text).split(" ", 3)
    return Offset(int(offset), int(leader_epoch), UUID(topic_id), metadata)
