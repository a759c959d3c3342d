"""Calls of the library's functions that decide for a client. The function's contract decides two things:

- An argument ``outages`` gets the known outages of the keys' server. A front-end without recent knowledge first reads
  them from the server.
- The code LATE means that the call waited while Redis or this front-end hung, and did nothing. Its client may have
  moved elsewhere by then. If the client is still connected at the reply, the call is repeated.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

import anyio

from korvet.errors import KorvetError, StoreFull, StoreUnavailable
from korvet.rate_limited_log import RateLimitedLog
from korvet.redis.client import Argument, Named, Purpose, Store
from korvet.store.contract import FUNCTIONS, LATE
from korvet.store.outages import Outages

KEPT: Final = {
    "korvet_group_join": ("client_id", "protocols"),
    "korvet_group_sync": ("assignments",),
    "korvet_group_consume": ("regex", "names"),
    "korvet_group_commit": ("offsets",),
    "korvet_group_txn_commit": ("offsets",),
    "korvet_txn_init": ("transactional_id",),
    "korvet_txn_add": ("members",),
}
"""The functions that store a client's data, with the arguments that hold it. Without any of these they add nothing."""
_MOST_CALLS: Final = 5
_TURNS: Final = 3
"""Turns in which the loop reads what arrived, finds a closed connection, and cancels its requests."""
_TOLD_OF_OUTAGES: Final = frozenset(name for name, function in FUNCTIONS.items() if "outages" in function.fixed)
_MAY_BE_LATE: Final = frozenset(name for name, function in FUNCTIONS.items() if "LATE" in function.codes)


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


class Calls:
    """One front-end's calls of functions that decide for clients. They raise the store's errors."""

    def __init__(self, store: Store, outages: Outages, room: StateRoom) -> None:
        self._store = store
        self._outages = outages
        self._room = room

    def call(
        self,
        function: str,
        keys: Sequence[str],
        named: dict[str, Named],
        *,
        is_awaited: bool = False,
        is_counted: bool = False,
    ) -> Awaitable[Any]:
        """Call a function, and again while it is late.

        :param named: its arguments by their names in the contract, without ``outages``; no iterators, because the call
            may be repeated.
        :param is_awaited: true to cancel the call if its client has gone. The client may have left while this front-end
            hung, or did not read from it, too briefly for the call to be late.
        :param is_counted: true if the tenant's room already includes the added bytes.
        :raises StoreFull: at once, if the function would exceed the tenant's limit.
        """
        if self._room.is_limited and function in KEPT and not is_counted and named.get("mode") != "verify":
            added_bytes = sum(_length(named[name]) for name in KEPT[function])
            if added_bytes and not self._room.take(keys[0], added_bytes):
                raise StoreFull("the tenant takes as many bytes as its limit allows")
        if is_awaited or function in _MAY_BE_LATE or self._knows_too_little(function, keys):
            return self._insist(function, keys, named, is_awaited=is_awaited)
        return self._once(function, keys, named)

    def begin(
        self, function: str, keys: Sequence[str], *args: Argument, is_awaited: bool = False
    ) -> asyncio.Future[Any] | None:
        """Make a single call, which is mostly enough; None if the caller must use `call`, which may wait first.

        The arguments are in order, after ``outages``, because these are the most frequent calls. The reply may be LATE.
        """
        if (is_awaited and self._may_have_paused(keys)) or (self._room.is_limited and function in KEPT):
            return None
        if function not in _TOLD_OF_OUTAGES:
            return self._store.fcall(Purpose.COORDINATE, function, keys, *args)
        known = self._outages.known_recently(keys[0])
        return None if known is None else self._store.fcall(Purpose.COORDINATE, function, keys, known, *args)

    def beat(self, function: str, keys: Sequence[str], *args: Argument) -> Awaitable[Any]:
        """Call a function with its arguments in order, as `begin`, after reading outages if needed."""
        reply = self.begin(function, keys, *args)
        return self._learn_and_beat(function, keys, *args) if reply is None else reply

    async def _insist(self, function: str, keys: Sequence[str], named: dict[str, Named], *, is_awaited: bool) -> Any:
        if is_awaited and self._may_have_paused(keys):
            for _ in range(_TURNS):
                await asyncio.sleep(0)
        for _ in range(_MOST_CALLS):
            if self._knows_too_little(function, keys):
                await self._learn(keys)
            reply = await self._once(function, keys, named)
            if (reply[:1] if isinstance(reply, list) else [reply]) != [LATE]:
                return reply
            await self._outages.catch_up(keys[0])
        raise StoreUnavailable("Redis stands still again and again", outcome_unknown=False)

    def _once(self, function: str, keys: Sequence[str], named: dict[str, Named]) -> asyncio.Future[Any]:
        if function in _TOLD_OF_OUTAGES:
            named["outages"] = self._outages.known_at(keys[0])
        return self._store.call_function(Purpose.COORDINATE, function, keys, **named)

    async def _learn_and_beat(self, function: str, keys: Sequence[str], *args: Argument) -> Any:
        await self._learn(keys)
        return await self._store.fcall(Purpose.COORDINATE, function, keys, self._outages.known_at(keys[0]), *args)

    def _may_have_paused(self, keys: Sequence[str]) -> bool:
        """True if this process or reading from a client may have paused a moment ago.

        A steady stream of replies from Redis proves that the process did not.
        """
        link = self._store.coordination(keys[0])
        return self._store.doubt.lasts or link is None or not link.is_steady

    def _knows_too_little(self, function: str, keys: Sequence[str]) -> bool:
        return function in _TOLD_OF_OUTAGES and self._outages.is_stale(keys[0])

    async def _learn(self, keys: Sequence[str]) -> None:
        # A server that refuses writes may still be read; the function then decides as during an outage.
        with suppress(KorvetError):
            await self._outages.catch_up(keys[0])


def _length(value: Named) -> int:
    """The approximate bytes of one or several texts."""
    if isinstance(value, Iterable) and not isinstance(value, str | bytes | memoryview):
        return sum(map(_length, value))
    return len(value) if isinstance(value, str | bytes | memoryview) else 0
