"""A bound on password guesses that affects only the guesser's address.

An address may fail a burst of logins. Then its logins wait; some are judged each second, its users in turn. A user who
has logged in from an address before is counted apart there, so guesses at other users do not delay that user. Unknown
users take turns like known ones, so waiting reveals no names. Hundreds of them can make a newcomer at their address
wait until its login times out.

Keys are derived in threads, which addresses take in rotation.
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
"""Seconds until an address may fail once more."""
_THREADS: Final = 3
_MOST_THREADS_OF_ONE: Final = 2
_MOST_KNOWN: Final = 10_000


class Guesses:
    """The password logins of a process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.threads = FairThreads(_THREADS, _MOST_THREADS_OF_ONE)
        """Running key derivations by address."""
        self._attempts = Attempts(MOST_AT_ONCE, EVERY_S, clock)
        self._waiting: dict[str, Rotation] = {}
        """The waiting logins, by the name that their attempts count for, then by user."""
        self._known: OrderedDict[str, None] = OrderedDict()
        """Users that logged in, by address, the most recent last."""
        self._lines = RateLimitedLog()

    @asynccontextmanager
    async def attempt(self, address: str, user: str) -> AsyncIterator[None]:
        """Wait for a login's turn; the block judges the login, and raises if it refuses.

        A failure of the store costs no attempt.
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
        """Release waiting logins as attempts become available, until none waits."""
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
