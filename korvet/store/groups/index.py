"""The index of groups: a set of group ids, in shards, beside the catalog.

A group is added before it is written and removed after it is deleted. An entry without a group means nothing. Only a
function that is about to make a group needs the entry, so every other operation on groups is one call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final
from urllib.parse import quote

import anyio
from ulid import ULID

from korvet.errors import TooMany
from korvet.rate_limited_log import RateLimitedLog
from korvet.redis.client import Purpose, Store
from korvet.store.keys import GROUP_INDEX_SHARDS, Namespace

_AT_ONCE: Final = 500
_PATIENCE_S: Final = 5.0


class GroupIndex:
    """The groups of one namespace, by their ids."""

    def __init__(self, namespace: Namespace, store: Store, most: Callable[[], int]) -> None:
        self._namespace = namespace
        self._store = store
        self._most = most
        self._lines = RateLimitedLog()

    async def group_ids(self) -> Iterable[Sequence[str]]:
        """The ids in order, in chunks for concurrent calls."""
        shards = [self._namespace.group_index(shard) for shard in range(GROUP_INDEX_SHARDS)]
        found = await asyncio.gather(*(self._store.call(Purpose.COORDINATE, key, "SMEMBERS", key) for key in shards))
        group_ids = sorted(group_id.decode() for shard in found for group_id in shard)
        return (group_ids[at : at + _AT_ONCE] for at in range(0, len(group_ids), _AT_ONCE))

    async def admit(self, group_id: str) -> Mapping[str, str]:
        """Add a group that is about to be made. Returns its id and locator.

        :raises TooMany: the number of groups is at its bound.
        :raises StoreFull: the group is new and Redis is at maxmemory.
        """
        index, most = self._namespace.group_index_of(group_id), self._most()
        shards = map(self._namespace.group_index, range(GROUP_INDEX_SHARDS))
        keys = [index, *(shard for shard in shards if shard != index)]
        call = self._store.call_function(Purpose.COORDINATE, "korvet_group_admit", keys, group_id=group_id, most=most)
        if await call != 0:
            event = "new groups are refused: there are as many as korvet.max.groups allows"
            self._lines.write("warning", event, most=most, group=group_id)
            raise TooMany(f"there are {most} groups already, as many as korvet.max.groups allows")
        locator = f"{self._namespace.name}/consumer-groups/{quote(group_id, safe='')}"
        return {"id": f"cgp_{ULID()}", "locator": locator}

    async def add(self, group_id: str) -> None:
        """Add an existing group, even at maxmemory."""
        index = self._namespace.group_index_of(group_id)
        await self._store.call_function(Purpose.COORDINATE, "korvet_group_index", [index], group_id=group_id)

    async def take_out(self, group_id: str, exists: Callable[[str], Awaitable[bool]]) -> None:
        """Remove a deleted group; ``exists`` returns true if it was made again.

        This continues if the caller leaves meanwhile, or an existing group would be missing from all lists.
        """
        index = self._namespace.group_index_of(group_id)
        with anyio.move_on_after(_PATIENCE_S, shield=True):
            await self._store.call(Purpose.COORDINATE, index, "SREM", index, group_id)
            if await exists(group_id):
                await self.add(group_id)
