"""The index of groups: a set of group ids, in shards, beside the catalog.

A group is put in before it is written and taken out after it is deleted; an entry without a group means nothing. Only
the function that is about to make a group asks for it, so that everything else about groups costs one call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final
from urllib.parse import quote

import anyio
from ulid import ULID

from korvet.store.client import Purpose, Store
from korvet.store.contract import UNINDEXED
from korvet.store.keys import GROUP_INDEX_SHARDS, Namespace

_AT_ONCE: Final = 500
_PATIENCE_S: Final = 5.0


class GroupIndex:
    """The groups of one namespace, by their ids."""

    def __init__(self, namespace: Namespace, store: Store) -> None:
        self._namespace = namespace
        self._store = store

    async def group_ids(self) -> Iterable[Sequence[str]]:
        """The ids in order, as many together as are to be asked for at once."""
        shards = [self._namespace.group_index(shard) for shard in range(GROUP_INDEX_SHARDS)]
        found = await asyncio.gather(*(self._store.call(Purpose.COORDINATE, key, "SMEMBERS", key) for key in shards))
        group_ids = sorted(group_id.decode() for shard in found for group_id in shard)
        return (group_ids[at : at + _AT_ONCE] for at in range(0, len(group_ids), _AT_ONCE))

    async def making(self, group_id: str, call: Callable[[str, str], Awaitable[Any]]) -> Any:
        """A call that may make the group: its own id and locator are for that, and empty while it is not indexed."""
        reply = await call("", "")
        if (reply[0] if isinstance(reply, list) else reply) != UNINDEXED:
            return reply
        await self._add(group_id)
        reply = await call(f"cgp_{ULID()}", f"{self._namespace.name}/consumer-groups/{quote(group_id, safe='')}")
        # A deletion that went on meanwhile may have taken it out.
        await self._add(group_id)
        return reply

    async def take_out(self, group_id: str, exists: Callable[[str], Awaitable[bool]]) -> None:
        """Take out a group that is gone; ``exists`` tells whether somebody has made it again.

        Who asked may leave meanwhile: then this goes on, for a group that is there would be missing from all lists.
        """
        index = self._namespace.group_index_of(group_id)
        with anyio.move_on_after(_PATIENCE_S, shield=True):
            await self._store.call(Purpose.COORDINATE, index, "SREM", index, group_id)
            if await exists(group_id):
                await self._add(group_id)

    async def _add(self, group_id: str) -> None:
        index = self._namespace.group_index_of(group_id)
        await self._store.fcall(Purpose.COORDINATE, "korvet_group_index", [index], group_id)
