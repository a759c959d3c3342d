"""Calls of the library's functions that decide for a client. The function's contract decides these things:

- An argument ``outages`` gets the known outages of the keys' server. A front-end without recent knowledge first reads
  them from the server.
- The code LATE means that the call waited while Redis or this front-end hung, and did nothing. Its client may have
  moved elsewhere by then. If the client is still connected at the reply, the call is repeated.
- The code UNINDEXED means that the call would make a group that the index lacks. The group is added first.
- The code RETRY means that the call was made from something outdated, which its caller brings up to date.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

import anyio

from korvet.errors import KorvetError, StoreFull, StoreUnavailable
from korvet.rate_limited_log import RateLimitedLog
from korvet.redis.client import Named, Purpose, Store
from korvet.store.contract import FUNCTIONS, LATE, RETRY, UNINDEXED, arguments
from korvet.store.outages import Outages

KEPT: Final = {
    "korvet_group_join": ("client_id", "protocols"),
    "korvet_group_sync": ("assignments",),
    "korvet_group_consumer_heartbeat": ("regex", "names"),
    "korvet_group_share_heartbeat": ("names",),
    "korvet_group_commit": ("offsets",),
    "korvet_group_txn_commit": ("offsets",),
    "korvet_txn_init": ("transactional_id",),
    "korvet_txn_add": ("members",),
}
"""The functions that store a client's data, with the arguments that hold it. Without any of these they add nothing."""
_MOST_CALLS: Final = 5
_TURNS: Final = 3
"""Turns in which the loop reads what arrived, finds a closed connection, and cancels its requests."""
_WITH_OUTAGES: Final = frozenset(name for name, function in FUNCTIONS.items() if "outages" in function.fixed)


class Index(Protocol):
    """The groups of a namespace."""

    async def admit(self, group_id: str) -> Mapping[str, str]:
        """Add a group that is about to be made. Returns its id and locator."""

    async def add(self, group_id: str) -> None:
        """Add an existing group."""


class StateRoom:
    """The bytes that a namespace's groups, readers and transactions may still add; unlimited without a limit."""

    def __init__(self) -> None:
        self.is_limited = False
        self.left_bytes = math.inf
        self.use = anyio.Event()
        """Set when bytes are about to be added."""
        self._lines = RateLimitedLog()

    def take(self, key: str, size_bytes: int) -> bool:
        """Reserve bytes to add to a unit; false, reserving nothing, without room."""
        if not self.is_limited:
            return True
        self.use.set()
        if self.left_bytes < size_bytes:
            event = "a tenant's groups and transactions must wait: they take as many bytes as its limit allows"
            self._lines.write("warning", event, key=key)
            return False
        self.left_bytes -= size_bytes
        return True


OnRetry = Callable[[str, int], Awaitable[Mapping[str, Named]]]


class Calls:
    """One front-end's calls of functions that decide for clients. They raise the store's errors."""

    def __init__(self, store: Store, outages: Outages, room: StateRoom) -> None:
        self._store = store
        self._outages = outages
        self._room = room

    async def call(
        self,
        function: str,
        keys: Sequence[str],
        named: dict[str, Named],
        *,
        is_awaited: bool = False,
        index: Index | None = None,
        group_id: str = "",
        on_retry: OnRetry | None = None,
    ) -> Any:
        """Call a function, and again as its code says.

        :param named: its arguments by their names in the contract, without ``outages``; no iterators, because the call
            may be repeated.
        :param is_awaited: true to cancel the call if its client has gone. The client may have left while this front-end
            hung, or did not read from it, too briefly for the call to be late.
        :param index: the index to which a group is added before the function makes it.
        :param on_retry: brings up to date what the call was made from, after the code RETRY; gets the group and the
            number of calls that are left, and returns the arguments that have changed.
        :raises StoreFull: the function would exceed the tenant's limit.
        """
        key = keys[0]
        store, link = self._store, self._store.coordination(key) if is_awaited else None
        # A steady stream of replies from Redis proves that this process did not pause a moment ago.
        if is_awaited and (store.doubt.lasts or link is None or not link.is_steady):
            await _some_turns()
        if self._room.is_limited and function in KEPT:
            self._reserve(function, key, named)
        gets_outages, is_admitted = function in _WITH_OUTAGES, False
        for calls_left in range(_MOST_CALLS, 0, -1):
            if gets_outages:
                outages = self._outages.known_recently(key)
                named["outages"] = await self._learned(key) if outages is None else outages
            reply = await store.fcall(Purpose.COORDINATE, function, keys, *arguments(function, named))
            code = reply[0] if isinstance(reply, list) and reply else reply
            if not isinstance(code, int) or code >= 0:
                break
            if code == LATE:
                await self._outages.catch_up(key)
            elif code == UNINDEXED and index is not None:
                named.update(await index.admit(group_id))
                is_admitted = True
            elif code == RETRY and on_retry is not None:
                named.update(await on_retry(group_id, calls_left))
            else:
                break
        else:
            raise StoreUnavailable("Redis stands still again and again", outcome_unknown=False)
        if is_admitted and index is not None:
            # A deletion meanwhile may have removed the group from the index.
            await index.add(group_id)
        return reply

    def _reserve(self, function: str, key: str, named: Mapping[str, Named]) -> None:
        added_bytes = 0 if named.get("mode") == "verify" else sum(_length(named[name]) for name in KEPT[function])
        if added_bytes and not self._room.take(key, added_bytes):
            raise StoreFull("the tenant takes as many bytes as its limit allows")

    async def _learned(self, key: str) -> str:
        # A server that refuses writes may still be read; the function then decides as during an outage.
        with suppress(KorvetError):
            await self._outages.catch_up(key)
        return self._outages.known_at(key)


async def _some_turns() -> None:
    for _ in range(_TURNS):
        await asyncio.sleep(0)


def _length(value: Named) -> int:
    """The approximate bytes of one or several texts."""
    if isinstance(value, Iterable) and not isinstance(value, str | bytes | memoryview):
        return sum(map(_length, value))
    return len(value) if isinstance(value, str | bytes | memoryview) else 0
