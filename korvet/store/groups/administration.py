"""Describing, listing and deleting groups, for administrators and the sweep."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import anyio
import structlog

from korvet.codes import GROUP_ID_NOT_FOUND
from korvet.errors import KorvetError, StoreError
from korvet.redis.client import Purpose, Store
from korvet.redis.reply import in_task
from korvet.store.groups import replies
from korvet.store.groups.call import GroupCalls
from korvet.store.groups.offsets import Offsets
from korvet.store.groups.redis_mirror_deletion import Deletion
from korvet.store.groups.share import ShareGroups
from korvet.store.groups.types import GroupDescription, ListedGroup
from korvet.store.outcomes import Failures, Wanted, all_of_them, settled

log = structlog.get_logger()

_EMPTY: Final = b"Empty"
_NO_EXPIRY: Final = -1


class Neglected(NamedTuple):
    """Abandoned groups: all members of ``dead`` expired, and ``missing`` are index entries without a group."""

    dead: set[str]
    missing: set[str]


class Administration:
    """All groups of one namespace."""

    def __init__(
        self, calls: GroupCalls, store: Store, offsets: Offsets, deletion: Deletion, shares: ShareGroups
    ) -> None:
        self._calls = calls
        self._store = store
        self._offsets = offsets
        self._deletion = deletion
        self._shares = shares

    async def describe(self, group_id: str) -> GroupDescription | None:
        """A group and its members; None if there is no such group."""
        reply = await self._calls.call("korvet_group_describe", group_id)
        if reply[0] == GROUP_ID_NOT_FOUND:
            return None
        found = replies.named(reply)
        cursor = found["cursor"]
        while cursor != b"0":
            page = await self._calls.call("korvet_group_members", group_id, cursor=cursor)
            if page[0] == GROUP_ID_NOT_FOUND:
                return None
            _, cursor, further = page
            found["members"] += further
        return replies.described(found)

    async def list(self, wanted: Wanted = all_of_them) -> Sequence[ListedGroup]:
        """Every group whose keys can be read.

        :param wanted: selects the ids of the groups to read.
        :raises StoreUnavailable: a server fails.
        """
        groups: list[ListedGroup] = []
        failures: Failures = []
        for some in await self._calls.index.group_ids():
            states = await self._states(await wanted(some), failures)
            if failures:
                raise failures[0]
            groups += [
                ListedGroup(
                    group_id, replies.text(state["state"]), replies.text(state["protocol_type"]), replies.type_of(state)
                )
                for group_id, state in states.items()
                if state is not None
            ]
        return groups

    async def state(self, group_id: str) -> Mapping[str, Any] | None:
        """The reply of korvet_group_state by its names; None if there is no such group.

        :raises StoreUnavailable, StoreError:
        """
        reply = await self._calls.call("korvet_group_state", group_id)
        return replies.named(reply) if reply[0] == 0 else None

    async def _states(self, group_ids: Sequence[str], failures: Failures) -> Mapping[str, Mapping[str, Any] | None]:
        """Each group's reply of korvet_group_state by its names, None if there is no such group.

        Leaves out unreadable groups, and groups on a failing server, whose failure is added to ``failures``.
        """
        calls = (self._calls.call("korvet_group_state", group_id) for group_id in group_ids)
        states: dict[str, Mapping[str, Any] | None] = {}
        unreadable: dict[str, StoreError] = {}
        for group_id, outcome in zip(group_ids, await settled(calls), strict=True):
            if isinstance(outcome, StoreError):
                unreadable[group_id] = outcome
            elif isinstance(outcome, KorvetError):
                failures.append(outcome)
            else:
                states[group_id] = replies.named(outcome) if outcome[0] == 0 else None
        if unreadable:
            first, error = next(iter(unreadable.items()))
            log.error("groups cannot be read", groups=len(unreadable), first=first, reason=str(error))
        return states

    async def delete(self, group_ids: Sequence[str]) -> Sequence[int | KorvetError]:
        """Remove groups without members, with their Redis groups and offsets, or their share partitions.

        :returns: a code or the store's failure for each.
        """
        shared = zip(group_ids, await settled(map(self._shares.forget, group_ids)), strict=True)
        outcomes: dict[str, int | KorvetError] = {
            group_id: outcome for group_id, outcome in shared if isinstance(outcome, KorvetError)
        }
        left = [group_id for group_id in group_ids if group_id not in outcomes]
        outcomes |= zip(left, await self._delete(left), strict=True)
        return [outcomes[group_id] for group_id in group_ids]

    async def _delete(self, group_ids: Sequence[str], *, only_expired: bool = False) -> Sequence[int | KorvetError]:
        outcomes = await self._deletion.delete(group_ids, only_expired=only_expired)

        async def take_out(at: int) -> None:
            try:
                await self._calls.index.take_out(group_ids[at], self._exists)
            except KorvetError as error:
                outcomes[at] = error

        await in_task()
        async with anyio.create_task_group() as tasks:
            for at, outcome in enumerate(outcomes):
                if outcome in (0, GROUP_ID_NOT_FOUND):
                    tasks.start_soon(take_out, at)
        return outcomes

    async def _exists(self, group_id: str) -> bool:
        return bool((await self._calls.call("korvet_group_state", group_id))[0] == 0)

    # ------------------------------------------------------------------ the sweep

    async def neglected(self, failures: Failures) -> Neglected:
        """The abandoned groups on each server that answers; adds the other servers' failures to ``failures``."""
        dead: set[str] = set()
        missing: set[str] = set()
        for some in await self._calls.index.group_ids():
            states = await self._states(some, failures)
            missing.update(group_id for group_id, state in states.items() if state is None)
            empty = {
                group_id: replies.type_of(state)
                for group_id, state in states.items()
                if state is not None and state["state"] == _EMPTY
            }
            noted = await settled(self._noted(group_id, kind) for group_id, kind in empty.items())
            failures += [one for one in noted if isinstance(one, KorvetError)]
            # A group that became Empty only by time, without a call that recorded it, has no expiry yet. A share group
            # never has one, because its state is in partitions; the hash has its former state then.
            dead.update(
                group_id
                for (group_id, kind), one in zip(empty.items(), noted, strict=True)
                if one == _NO_EXPIRY or (kind == replies.SHARE and isinstance(one, bytes) and one != _EMPTY)
            )
        return Neglected(dead, missing)

    def _noted(self, group_id: str, kind: str) -> Awaitable[Any]:
        """What an Empty group's hash says: the state of a share group, and the expiry of another one."""
        key = self._calls.keys(group_id).group
        command = ("HGET", key, "state") if kind == replies.SHARE else ("PTTL", key)
        return self._store.call(Purpose.COORDINATE, key, *command)

    async def tend(self, group_id: str) -> None:
        """Do a group's due work; without such a group, remove its remains."""
        code, _ = await self._offsets.delete(group_id, ())
        if code == GROUP_ID_NOT_FOUND:
            (outcome,) = await self._delete([group_id], only_expired=True)
            if isinstance(outcome, KorvetError):
                raise outcome
