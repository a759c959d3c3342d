"""Calls of a group's functions: which keys they get, and what they are told of outages."""

from __future__ import annotations

from collections.abc import Awaitable
from functools import lru_cache
from typing import Any, Final

from anyio.lowlevel import checkpoint

from korvet.errors import StoreUnavailable
from korvet.store.client import Purpose, Store
from korvet.store.contract import LATE
from korvet.store.group_index import GroupIndex
from korvet.store.keys import GroupKeys, Namespace, TransactionGroupKeys
from korvet.store.outages import Outages

_KEYS_KEPT: Final = 10_000
_LATE_CALLS: Final = 5
_TURNS: Final = 3
"""Of the loop, until it has read what was there, found the connection closed behind it, and cancelled its requests."""

Keys = GroupKeys | TransactionGroupKeys


class GroupCalls:
    """The functions of one namespace's groups, and their index."""

    def __init__(self, namespace: Namespace, store: Store, outages: Outages) -> None:
        self._store = store
        self._outages = outages
        self.index = GroupIndex(namespace, store)
        self.keys = lru_cache(_KEYS_KEPT)(namespace.group)
        self.all_keys = lru_cache(_KEYS_KEPT)(namespace.transaction_group)

    def call(self, function: str, group_id: str, *args: str | int | bytes) -> Awaitable[Any]:
        """Call one of the functions that are told of outages: all but korvet_group_fetch and korvet_group_beat."""
        return self.call_with(self.keys(group_id), function, *args)

    def call_with(self, keys: Keys, function: str, *args: str | int | bytes) -> Awaitable[Any]:
        """As `call`, with these keys of the group."""
        return self._store.fcall(Purpose.COORDINATE, function, keys, self._outages.known_at(keys.group), *args)

    def beat(self, group_id: str, *args: str | int) -> Awaitable[Any]:
        """Call korvet_group_beat, which is good for nothing that an outage matters to."""
        return self._store.fcall(Purpose.COORDINATE, "korvet_group_beat", self.keys(group_id), *args)

    async def attended(self, keys: Keys, function: str, *args: str | int | bytes) -> Any:
        """As `timely`, for what nobody sends who does not wait for the answer.

        Where this front-end hung for less time than makes a call late, its client may have left, and asked another one,
        before this one has read what it was asked: then this is cancelled before the call is made.
        """
        for _ in range(_TURNS):
            await checkpoint()
        return await self.timely(keys, function, *args)

    async def timely(self, keys: Keys, function: str, *args: str | int | bytes) -> Any:
        """A call that does nothing where it waited while Redis or this front-end stood still.

        Its client may have come back elsewhere by then and gone on from there; where it is still here, which is known
        by the time of the answer, the call is made again.
        """
        for _ in range(_LATE_CALLS):
            reply = await self.call_with(keys, function, *args)
            if (reply[0] if isinstance(reply, list) else reply) != LATE:
                return reply
            await self._outages.catch_up(keys.group)
        raise StoreUnavailable("Redis stands still again and again", outcome_unknown=False)
