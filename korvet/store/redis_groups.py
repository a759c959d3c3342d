"""Redis consumer groups on the streams: where the Kafka groups of the same names stand, seen from Redis.

Committed offsets are the authority, the Redis groups follow them. One is made at the first Fetch of a group's member on
a partition, or by the first commit; it is moved within a second of a commit; it is destroyed with its group. Nobody who
fetches waits for more than three round trips of this, once, nobody who commits waits for it, and neither fails with it.

Whatever is made is remembered by the group before it is made, and looked at again after it, so that of two front-ends
the last one is right, and what a group that was deleted meanwhile left behind goes. Any step may be repeated.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

import anyio
import structlog
from kio.schema.errors import ErrorCode
from ulid import ULID

from korvet.errors import KorvetError, StoreUnavailable
from korvet.store.client import Purpose, Store
from korvet.store.contract import GONE, RETRY
from korvet.store.keys import Namespace
from korvet.store.log import Partition, Want
from korvet.store.redis_group_units import (
    AT_ONCE,
    Followed,
    Place,
    Unit,
    chunks,
    name_of,
    own,
    pairs,
    place_of,
    replies,
    settled,
    units_of,
)

log = structlog.get_logger()

NOT_FOUND: Final = int(ErrorCode.group_id_not_found)
NOT_AVAILABLE: Final = int(ErrorCode.coordinator_not_available)
NOTE_MS: Final = 600_000
"""How long it is remembered who reads what for which group."""
INTERVAL_S: Final = 1.0
"""Commits are followed at most this often, and so are failures."""
MOST_PENDING: Final = 50_000
"""Places that are yet to be followed. The one that waits longest is dropped for another: nothing is lost by that but
time, for its next commit, or the first Fetch of any connection there, is followed again."""
_MOST_NOTED: Final = 10_000
_KEYS_KEPT: Final = 10_000
_PATIENCE_S: Final = 1.0
_QUIET_S: Final = 10.0
_ROUNDS: Final = 5


class RedisGroups:
    """The Redis groups of one namespace, as one front-end follows them. `follow` is to run as a task."""

    def __init__(self, namespace: Namespace, store: Store) -> None:
        self._store = store
        self._name = str(ULID())
        self._keys = lru_cache(_KEYS_KEPT)(namespace.attached_group)
        self._all_keys = lru_cache(_KEYS_KEPT)(namespace.transaction_group)
        self._partition = lru_cache(_KEYS_KEPT)(namespace.partition)
        self._reader = namespace.reader
        self._now = asyncio.get_running_loop().time
        self._pending: OrderedDict[tuple[str, Place], str] = OrderedDict()
        self._followed = Followed()
        store.on_history_change(self._followed.clear)
        self._due = anyio.Event()
        self._following = anyio.Lock()
        self._rests_until = 0.0
        self._quiet_until = 0.0

    # ------------------------------------------------------------------ who reads what

    async def note_reader(self, client_id: str, client_host: str, group_id: str, places: Sequence[Place]) -> None:
        """A client at a host reads places for a group: so its Fetches, which name none, will be known. Never raises."""
        if not places:
            return
        names = [name_of(place) for place in places[:_MOST_NOTED]]
        try:
            with anyio.fail_after(_PATIENCE_S):
                await self._call(
                    "korvet_reader_note", [self._reader(client_id, client_host)], group_id, NOTE_MS, *names
                )
        except (KorvetError, TimeoutError) as error:
            self._failed(error)

    async def attach(self, client_id: str, client_host: str, wants: Sequence[Want]) -> list[Partition]:
        """Before the first Fetch of partitions: make the Redis groups that the client reads for, where it reads.

        Never raises. Where it fails it rests a while, so that no Fetch is held up again and again.

        :returns: the partitions for which this need not be done again.
        """
        if self._now() < self._rests_until:
            return []
        try:
            with anyio.fail_after(_PATIENCE_S):
                return await self._attach(self._reader(client_id, client_host), wants)
        except (KorvetError, TimeoutError) as error:
            self._rests_until = self._now() + INTERVAL_S
            self._failed(error)
            return []

    async def _attach(self, reader: str, wants: Sequence[Want]) -> list[Partition]:
        names = [name_of(_where(want)) for want in wants]
        found = await self._call("korvet_reader_find", [reader], *names)
        reads: dict[str, list[Want]] = {}
        done = []
        for want, group_id in zip(wants, found, strict=True):
            if group_id and want.offset >= 0:
                reads.setdefault(group_id.decode(), []).append(want)
            else:
                done.append(want.partition)
        if reads:
            done += await self._make(reads)
        return done

    async def _make(self, reads: dict[str, list[Want]]) -> list[Partition]:
        """Make the Redis groups that are not there yet; those of groups that are not there are not made."""
        units = [
            Unit(group_id, [(name_of(_where(want)), want.partition.topic_id) for want in wants])
            for group_id, wants in reads.items()
        ]
        told = replies(await settled(self._remember(unit, "") for unit in units))
        done = []
        making = []
        for (group_id, wants), reply in zip(reads.items(), told, strict=True):
            if reply[0] == NOT_FOUND:
                done += [want.partition for want in wants]
            else:
                making += [(group_id, want) for want in wants]
        calls = (
            self._call("korvet_log_attach", want.partition.keys, want.partition.topic_id, group_id, want.offset, "keep")
            for group_id, want in making
        )
        try:
            codes = replies(await settled(calls))
        except BaseException:
            # They may be made all the same, for groups that are gone by now.
            for group_id, want in making:
                self._await_following(group_id, _where(want), want.partition.topic_id)
            raise
        for (group_id, want), (code,) in zip(making, codes, strict=True):
            if code == 0:
                done.append(want.partition)
                # It may have stood elsewhere since long ago, or be a new one, and the group may be gone by now.
                self._followed.forget(group_id)
                self._await_following(group_id, _where(want), want.partition.topic_id)
        return done

    # ------------------------------------------------------------------ following commits

    def committed(self, group_id: str, places: Iterable[tuple[Place, str]]) -> None:
        """Have the Redis groups follow a commit, soon. Each place comes with its topic's id in hex."""
        for place, topic_id in places:
            self._await_following(group_id, place, topic_id)

    async def uncommitted(self, group_id: str, places: Sequence[tuple[Place, str]]) -> None:
        """Destroy Redis groups of offsets that were deleted. Never raises.

        Where one was committed again meanwhile its Redis group is made again.
        """
        if places:
            await self._detach_gone([Unit(group_id, [(name_of(place), topic_id) for place, topic_id in places])])

    def _await_following(self, group_id: str, place: Place, topic_id: str) -> None:
        self._pending[group_id, place] = topic_id
        if len(self._pending) > MOST_PENDING:
            self._pending.popitem(last=False)
        if not self._due.is_set():
            self._due.set()

    async def follow(self) -> None:
        """Follow commits, until cancelled."""
        while True:
            await self._due.wait()
            self._due = anyio.Event()
            began = self._now()
            await self.flush()
            # Where there is much to follow, at least half of the time is left to what clients wait for.
            await anyio.sleep(max(INTERVAL_S, self._now() - began))

    async def drain(self) -> None:
        """Follow what is left, for a short time."""
        with anyio.move_on_after(_PATIENCE_S):
            await self.flush()

    async def flush(self) -> None:
        """Follow everything that waits to be followed; what Redis cannot be asked for now waits on. Never raises."""
        async with self._following:
            if self._is_redis_away():
                self._due.set()
                return
            pending, self._pending = self._pending, OrderedDict()
            for units in units_of(pending):
                await self._follow(units)

    def _is_redis_away(self) -> bool:
        """All of it; of a cluster some nodes may be there."""
        return self._store.url.kind != "cluster" and not self._store.is_connected()

    async def _follow(self, units: Sequence[Unit]) -> None:
        """Move until a group tells the position to which its Redis group was moved."""
        for _ in range(_ROUNDS):
            moves: list[tuple[Unit, str, str, bytes]] = []
            gone: list[Unit] = []
            for unit, reply in zip(units, await self._ask(units), strict=True):
                if isinstance(reply, BaseException):
                    self._postpone([unit], reply)
                elif reply[0] == NOT_FOUND:
                    gone.append(unit)
                else:
                    moves += self._moves(unit, *reply[1:])
            await self._detach_gone(gone)
            units = await self._move(moves)
            if not units:
                return
        self._put_back(units)

    async def _ask(self, units: Sequence[Unit]) -> list[Any]:
        return await settled(self._remember(unit, self._name) for unit in units)

    def _moves(self, unit: Unit, was_last: int, offsets: Sequence[bytes]) -> Iterator[tuple[Unit, str, str, bytes]]:
        """What is not where it should be, or not known to be, since another front-end was here."""
        if not was_last:
            self._followed.forget(unit.group_id)
        known = self._followed.of(unit.group_id)
        for (place, topic_id), offset in zip(unit.places, offsets, strict=True):
            if offset and known.get(place) != (topic_id, offset):
                yield unit, place, topic_id, offset

    async def _move(self, moves: Sequence[tuple[Unit, str, str, bytes]]) -> list[Unit]:
        """Move Redis groups; returns the units of those that were moved."""
        moved: dict[int, Unit] = {}
        calls = (
            self._call("korvet_log_attach", self._at(place), topic_id, unit.group_id, offset, "move")
            for unit, place, topic_id, offset in moves
        )
        for (unit, place, topic_id, offset), reply in zip(moves, await settled(calls), strict=True):
            if isinstance(reply, BaseException):
                self._postpone([Unit(unit.group_id, [(place, topic_id)])], reply)
            elif reply[0] != GONE:
                self._followed.put(unit.group_id, place, (topic_id, offset))
                moved[id(unit)] = unit
        return list(moved.values())

    async def _detach_gone(self, units: Sequence[Unit]) -> None:
        """Destroy what was made, or may have been, for groups that are not there any more.

        One that is there again by now may have had its Redis groups destroyed: it is followed anew.
        """
        places = [(unit, place, topic_id) for unit in units for place, topic_id in unit.places]
        for unit in units:
            self._followed.forget(unit.group_id)
        calls = (self._detach(unit.group_id, place, topic_id) for unit, place, topic_id in places)
        for (unit, place, topic_id), reply in zip(places, await settled(calls), strict=True):
            if isinstance(reply, BaseException):
                self._postpone([Unit(unit.group_id, [(place, topic_id)])], reply)
        for unit, reply in zip(units, await self._ask(units), strict=True):
            if isinstance(reply, BaseException):
                self._postpone([unit], reply)
            elif reply[0] != NOT_FOUND:
                self._put_back([unit])

    def _postpone(self, units: Sequence[Unit], error: BaseException) -> None:
        """Try again where that may help. What was known of these is not certain any more."""
        self._failed(error)
        for unit in units:
            self._followed.forget(unit.group_id)
        if isinstance(error, StoreUnavailable):
            self._put_back(units)

    def _put_back(self, units: Sequence[Unit]) -> None:
        for unit in units:
            for place, topic_id in unit.places:
                self._await_following(unit.group_id, place_of(place), topic_id)

    # ------------------------------------------------------------------ the end of groups

    async def delete(
        self, group_ids: Sequence[str], known_at: Callable[[str], str], *, only_expired: bool = False
    ) -> list[int | KorvetError]:
        """Destroy the Redis groups of groups without members, then the groups; a code or the store's failure for each.

        Repeatable at any point. COORDINATOR_NOT_AVAILABLE where others attach it faster than it is detached.

        :param known_at: outages as the node of a key knows them.
        :param only_expired: a group that is there gets NON_EMPTY_GROUP, also without members.
        """
        outcomes: dict[str, int | KorvetError] = dict.fromkeys(group_ids, NOT_AVAILABLE)
        for some in chunks(list(outcomes), AT_ONCE):
            asked: Sequence[str] = some
            for _ in range(_ROUNDS):
                outcomes |= await self._delete(asked, known_at, "expired" if only_expired else "any")
                asked = [group_id for group_id in asked if outcomes[group_id] == RETRY]
            outcomes |= dict.fromkeys(asked, NOT_AVAILABLE)
        return [outcomes[group_id] for group_id in group_ids]

    async def _delete(
        self, group_ids: Sequence[str], known_at: Callable[[str], str], which: str
    ) -> dict[str, int | KorvetError]:
        outcomes: dict[str, int | KorvetError] = {}
        attached: dict[str, list[bytes]] = {}
        keys = {group_id: self._keys(group_id) for group_id in group_ids}
        outages = {group_id: known_at(keys[group_id].group) for group_id in group_ids}
        calls = (self._call("korvet_group_attached", keys[group_id], outages[group_id]) for group_id in group_ids)
        for group_id, reply in zip(group_ids, await settled(calls), strict=True):
            if isinstance(reply, BaseException):
                outcomes[group_id] = own(reply)
            elif reply[0] in (0, NOT_FOUND) and not (which == "expired" and reply[0] == 0):
                attached[group_id] = reply[1]
            else:
                outcomes[group_id] = reply[0] or int(ErrorCode.non_empty_group)
        outcomes |= await self._detach_all(attached)
        left = [group_id for group_id in attached if group_id not in outcomes]
        calls = (
            self._call("korvet_group_delete", self._all_keys(group_id), outages[group_id], which, *attached[group_id])
            for group_id in left
        )
        for group_id, reply in zip(left, await settled(calls), strict=True):
            outcomes[group_id] = own(reply) if isinstance(reply, BaseException) else reply
        lives = [group_id for group_id in attached if outcomes[group_id] not in (0, NOT_FOUND)]
        self._put_back([Unit(group_id, list(pairs(attached[group_id]))) for group_id in lives])
        return outcomes

    async def _detach_all(self, attached: dict[str, list[bytes]]) -> dict[str, int | KorvetError]:
        """Destroy Redis groups; returns the failures."""
        failures: dict[str, int | KorvetError] = {}
        places = [(group_id, *pair) for group_id, flat in attached.items() for pair in pairs(flat)]
        for group_id in attached:
            self._followed.forget(group_id)
        for some in chunks(places, AT_ONCE):
            for place, reply in zip(some, await settled(self._detach(*place) for place in some), strict=True):
                if isinstance(reply, BaseException):
                    failures[place[0]] = own(reply)
        return failures

    # ------------------------------------------------------------------ calls

    def _call(self, function: str, keys: Sequence[str], *args: str | int | bytes) -> asyncio.Future[Any]:
        return self._store.fcall(Purpose.COORDINATE, function, keys, *args)

    def _remember(self, unit: Unit, follower: str) -> asyncio.Future[Any]:
        """Have the group remember the places; the answer tells where their Redis groups should stand."""
        flat = (part for place in unit.places for part in place)
        return self._call("korvet_group_attach", self._keys(unit.group_id), follower, *flat)

    def _detach(self, group_id: str, place: str, topic_id: str) -> asyncio.Future[Any]:
        return self._call("korvet_log_detach", self._at(place), topic_id, group_id)

    def _at(self, place: str) -> Sequence[str]:
        return self._partition(*place_of(place))

    def _failed(self, error: BaseException) -> None:
        """One line, and no more until a while after."""
        if self._now() >= self._quiet_until:
            self._quiet_until = self._now() + _QUIET_S
            log.warning("redis groups cannot follow; they are tried again", reason=str(error) or "no answer in time")


def _where(want: Want) -> Place:
    return want.partition.topic.name, want.partition.index
