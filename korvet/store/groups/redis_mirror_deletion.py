"""The deletion of groups: it destroys their Redis groups first, so that none remains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from korvet.codes import COORDINATOR_NOT_AVAILABLE, GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP
from korvet.errors import KorvetError
from korvet.store.contract import RETRY
from korvet.store.groups.call import GroupCalls, chunks
from korvet.store.groups.redis_mirror import RedisMirror
from korvet.store.groups.redis_mirror_calls import RedisGroupCalls
from korvet.store.groups.redis_mirror_portions import AT_ONCE, Portion, own, pairs
from korvet.store.outcomes import settled

_ROUNDS: Final = 200
"""The rounds of one deletion; each destroys up to `AT_ONCE` Redis groups of each group."""


class Deletion:
    """Deletes groups of one namespace together with their Redis groups."""

    def __init__(self, groups: GroupCalls, calls: RedisGroupCalls, mirror: RedisMirror) -> None:
        self._groups = groups
        self._calls = calls
        self._mirror = mirror

    async def delete(self, group_ids: Sequence[str], *, only_expired: bool = False) -> list[int | KorvetError]:
        """Destroy the Redis groups of groups without members, then the groups; a code or the store's failure for each.

        Repeatable at any point. COORDINATOR_NOT_AVAILABLE if other front-ends attach Redis groups faster than this
        detaches them.

        :param only_expired: delete only expired groups; any other gets NON_EMPTY_GROUP, even without members.
        """
        outcomes: dict[str, int | KorvetError] = dict.fromkeys(group_ids, COORDINATOR_NOT_AVAILABLE)
        for some in chunks(list(outcomes), AT_ONCE):
            remaining: Sequence[str] = some
            forgotten: list[Portion] = []
            for _ in range(_ROUNDS):
                outcomes |= await self._delete(remaining, "expired" if only_expired else "any", forgotten)
                remaining = [group_id for group_id in remaining if outcomes[group_id] == RETRY]
                if not remaining:
                    break
            outcomes |= dict.fromkeys(remaining, COORDINATOR_NOT_AVAILABLE)
            # Another front-end may have attached them again before the group forgot them.
            for portion in forgotten:
                await self._mirror.detach_gone([portion])
        return [outcomes[group_id] for group_id in group_ids]

    async def _delete(
        self, group_ids: Sequence[str], which: str, forgotten: list[Portion]
    ) -> dict[str, int | KorvetError]:
        """One round: destroys some Redis groups of a group with very many, and removes these from the group."""
        outcomes: dict[str, int | KorvetError] = {}
        attached: dict[str, list[bytes]] = {}
        calls = (self._groups.call("korvet_group_attached", group_id) for group_id in group_ids)
        for group_id, reply in zip(group_ids, await settled(calls), strict=True):
            if isinstance(reply, BaseException):
                outcomes[group_id] = own(reply)
            elif reply[0] in (0, GROUP_ID_NOT_FOUND) and not (which == "expired" and reply[0] == 0):
                attached[group_id] = reply[1]
            else:
                outcomes[group_id] = reply[0] or NON_EMPTY_GROUP
        outcomes |= await self._detach_all(attached)
        large = [one for one, flat in attached.items() if len(flat) >= 2 * AT_ONCE and one not in outcomes]
        outcomes |= await self._forget(large, attached, forgotten)
        left = [group_id for group_id in attached if group_id not in outcomes]
        calls = (
            self._groups.call("korvet_group_delete", group_id, which=which, partitions=attached[group_id])
            for group_id in left
        )
        for group_id, reply in zip(left, await settled(calls), strict=True):
            outcomes[group_id] = own(reply) if isinstance(reply, BaseException) else reply
        lives = [group_id for group_id in attached.keys() - large if outcomes[group_id] not in (0, GROUP_ID_NOT_FOUND)]
        self._mirror.put_back([Portion(group_id, _redis_groups(attached[group_id])) for group_id in lives])
        return outcomes

    async def _forget(
        self, group_ids: Sequence[str], attached: dict[str, list[bytes]], forgotten: list[Portion]
    ) -> dict[str, int | KorvetError]:
        """Remove destroyed Redis groups from groups; returns RETRY, because they may have more."""
        calls = (self._groups.call("korvet_group_detach", one, partitions=attached[one]) for one in group_ids)
        replies = zip(group_ids, await settled(calls), strict=True)
        forgotten += [Portion(group_id, _redis_groups(attached[group_id])) for group_id in group_ids]
        return {group_id: own(reply) if isinstance(reply, BaseException) else RETRY for group_id, reply in replies}

    async def _detach_all(self, attached: dict[str, list[bytes]]) -> dict[str, int | KorvetError]:
        """Destroy Redis groups; the failures by group."""
        failures: dict[str, int | KorvetError] = {}
        gone = [(group_id, *pair) for group_id, flat in attached.items() for pair in _redis_groups(flat)]
        for group_id in attached:
            self._mirror.forget(group_id)
        for some in chunks(gone, AT_ONCE):
            for (group_id, *_), reply in zip(
                some, await settled(self._calls.detach(*one) for one in some), strict=True
            ):
                if isinstance(reply, BaseException):
                    failures[group_id] = own(reply)
        return failures


def _redis_groups(flat: Sequence[bytes]) -> list[tuple[str, str]]:
    """The partitions and topics' ids of a flat reply, without the topics of a share group that was damaged by hand."""
    return [pair for pair in pairs(flat) if ":" in pair[0]]
