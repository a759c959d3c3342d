"""One way to call a function of the library that decides for a client. Its contract says what it is told and when it is
called again.

- An argument ``outages`` is what is known of outages of the keys' server. A front-end that knows nothing recent asks
  the server for it first.
- The code LATE says that the call waited while Redis or this front-end stood still, and did nothing. Its client may
  have gone on elsewhere by then. If the client is still here when the answer comes, the call is made again.
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
"""The functions that keep what a client gives them, and these arguments. Without any they add nothing."""
_MOST_CALLS: Final = 5
_TURNS: Final = 3
"""Of the loop, until it has read what was there, found the connection closed behind it, and cancelled its requests."""
_TOLD_OF_OUTAGES: Final = frozenset(name for name, function in FUNCTIONS.items() if "outages" in function.fixed)
_MAY_BE_LATE: Final = frozenset(name for name, function in FUNCTIONS.items() if "LATE" in function.codes)


class StateRoom:
    """The bytes that the groups, readers and transactions of a namespace may still add; any number without a limit."""

    def __init__(self) -> None:
        self.is_limited = False
        self.left_bytes = math.inf
        self.use = anyio.Event()
        """Set when something is to be added."""
        self._lines = RateLimitedLog()

    def take(self, key: str, size_bytes: int) -> bool:
        """Note bytes that are about to be added to a unit. False if there is no room; then this notes nothing."""
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
    """The functions that decide for clients, as one front-end calls them. What they raise is the store's."""

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

        :param named: its arguments by their names in the contract, to which the call adds ``outages``; no iterators,
            for a second call.
        :param is_awaited: a client that does not wait for the answer does not want the call. It may have left while
            this front-end hung, or did not read from it, for less time than makes a call late. The call is cancelled
            then before it is made.
        :param is_counted: whether the tenant's room has what the call adds already.
        :raises StoreFull: at once, if the function would add to what its tenant may not exceed.
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
        """Make the one call that is mostly enough; None if something must be waited for first. See `call`.

        The arguments are in order, because such functions are called most of all; ``outages`` comes before them. The
        reply may be LATE.
        """
        if (is_awaited and self._may_have_paused(keys)) or (self._room.is_limited and function in KEPT):
            return None
        if function not in _TOLD_OF_OUTAGES:
            return self._store.fcall(Purpose.COORDINATE, function, keys, *args)
        known = self._outages.known_recently(keys[0])
        return None if known is None else self._store.fcall(Purpose.COORDINATE, function, keys, known, *args)

    def beat(self, function: str, keys: Sequence[str], *args: Argument) -> Awaitable[Any]:
        """Call a function with its arguments in order, as `begin`, and learn of outages first if that is needed."""
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
        """Whether this process, or a client's connection, may have stood still a moment ago.

        The process did not if Redis's replies came all the time.
        """
        link = self._store.coordination(keys[0])
        return self._store.doubt.lasts or link is None or not link.is_steady

    def _knows_too_little(self, function: str, keys: Sequence[str]) -> bool:
        return function in _TOLD_OF_OUTAGES and self._outages.is_stale(keys[0])

    async def _learn(self, keys: Sequence[str]) -> None:
        # A server that refuses writes may still be read; then nobody is served, as the function will take it.
        with suppress(KorvetError):
            await self._outages.catch_up(keys[0])


def _length(value: Named) -> int:
    """The bytes of a text, or of several, about."""
    if isinstance(value, Iterable) and not isinstance(value, str | bytes | memoryview):
        return sum(map(_length, value))
    return len(value) if isinstance(value, str | bytes | memoryview) else 0
