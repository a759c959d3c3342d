"""A bound on guesses at passwords, which locks nobody out whose address has no guesser.

An address may fail some logins at once. Beyond that its logins wait, and some of them are judged each second, those of
each user in turn. A user who logged in from an address before counts apart there, so that guesses at other users do not
delay him. What is not judged tells a guesser nothing, also not whether there is such a user: so names that nobody has
take turns like others, and hundreds of them keep a newcomer at their address waiting for as long as a login may take.

Keys are derived in threads, which addresses get in rotation.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from korvet.errors import KorvetError
from korvet.rate_limited_log import RateLimitedLog
from korvet.security.attempts import Attempts
from korvet.security.origins import origin_of
from korvet.store.threads import FairThreads, Rotation

MOST_AT_ONCE: Final = 100
"""The logins by password that an address may fail at once."""
EVERY_S: Final = 0.1
"""The time after which an address may fail one more."""
_THREADS: Final = 3
_MOST_THREADS_OF_ONE: Final = 2
_MOST_KNOWN: Final = 10_000


class Guesses:
    """The logins by password of a process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.threads = FairThreads(_THREADS, _MOST_THREADS_OF_ONE)
        """Those that derive keys, by address."""
        self._attempts = Attempts(MOST_AT_ONCE, EVERY_S, clock)
        self._waiting: dict[str, Rotation] = {}
        """The logins that wait, by name of their attempts and then by user."""
        self._known: OrderedDict[str, None] = OrderedDict()
        """Users that logged in, by address, the last one at the end."""
        self._lines = RateLimitedLog()

    @asynccontextmanager
    async def attempt(self, address: str, user: str) -> AsyncIterator[None]:
        """Wait until a login may be judged; the block judges it, and raises if it is refused.

        A failure of the store takes no attempt.
        """
        origin = origin_of(address)
        pair = f"{origin} {user}"
        name = pair if pair in self._known else origin
        if name in self._waiting or not self._attempts.take(name):
            await self._wait(name, user, address)
        try:
            yield
        except KorvetError:
            self._give_back(name)
            raise
        self._give_back(name)
        self._known[pair] = None
        self._known.move_to_end(pair)
        if len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)

    async def _wait(self, name: str, user: str, address: str) -> None:
        self._lines.write("warning", "logins of an address wait, because too many of them failed", address=address)
        if name not in self._waiting:
            self._waiting[name] = Rotation()
            self._serve_later(name)
        waiting = self._waiting[name]
        turn = waiting.add(user)
        try:
            await turn
        except BaseException:
            if not waiting.remove(user, turn):
                self._give_back(name)
            raise

    def _serve_later(self, name: str) -> None:
        asyncio.get_running_loop().call_later(self._attempts.wait_s(name), self._serve, name)

    def _serve(self, name: str) -> None:
        """Let those go on that have waited long enough, until nobody waits."""
        waiting = self._waiting[name]
        while waiting and self._attempts.take(name):
            waiting.admit()
        if waiting:
            self._serve_later(name)
        else:
            del self._waiting[name]

    def _give_back(self, name: str) -> None:
        self._attempts.give_back(name)
        waiting = self._waiting.get(name)
        if waiting and self._attempts.take(name):
            waiting.admit()
