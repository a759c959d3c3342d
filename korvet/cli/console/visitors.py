"""The visitors of the console, and the sessions after a login.

A random id names a session, and the browser keeps it as a cookie. The console keeps the id's hash, so that the time
of a comparison reveals nothing of it, and in memory alone: a restart ends all sessions.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from typing import Final, ParamSpec, TypeVar

from anyio import CapacityLimiter, to_thread

from korvet.cli.console.clients import Clients
from korvet.cli.kafka.errors import BrokerError

IDLE_S: Final = 1800.0
LASTS_S: Final = 43_200.0
"""The time after which a session ends, however busy it is."""
MOST_SESSIONS: Final = 256
MOST_OF_USER: Final = 8
MOST_AT_ONCE: Final = 4
MOST_WAITING: Final = 16

P = ParamSpec("P")
T = TypeVar("T")


class Busy(BrokerError):
    """The visitor has too many requests at once."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Visitor:
    """A browser that looks at the console, and its clients.

    ``user`` is None without a login. ``token`` is in each form, so a foreign page cannot send one. Operators also see
    what no rule of the cluster protects.
    """

    clients: Clients
    user: str | None = None
    is_operator: bool = True
    token: str = field(default_factory=partial(secrets.token_urlsafe, 32))
    turns: CapacityLimiter = field(default_factory=partial(CapacityLimiter, MOST_AT_ONCE))

    async def run(self, function: Callable[P, T], *args: P.args, **_kwargs: P.kwargs) -> T:
        """The result of a function that blocks, by a thread.

        :raises Busy: if the visitor has too many requests under way.
        """
        if self.turns.statistics().tasks_waiting >= MOST_WAITING:
            raise Busy("the console is busy with your other requests; try again")
        async with self.turns:
            return await to_thread.run_sync(partial(function, *args))


class TooManySessions(Exception):
    """All sessions are taken."""


@dataclass(slots=True, kw_only=True)
class _Session:
    visitor: Visitor
    began: float
    used: float


class Sessions:
    """The sessions that have not ended.

    :param idle_s: the time after which an unused session ends.
    """

    def __init__(self, idle_s: float = IDLE_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._idle_s = idle_s
        self._clock = clock
        self._sessions: dict[bytes, _Session] = {}

    def open(self, visitor: Visitor) -> str:
        """Begin a session; its id. A user's oldest one ends if there are too many.

        :raises TooManySessions: there are `MOST_SESSIONS` of others.
        """
        self.end_old()
        own = [key for key, one in self._sessions.items() if one.visitor.user == visitor.user]
        for key in own[: max(0, len(own) + 1 - MOST_OF_USER)]:
            self._end(key)
        if len(self._sessions) >= MOST_SESSIONS:
            raise TooManySessions
        id, now = secrets.token_urlsafe(32), self._clock()
        self._sessions[_key(id)] = _Session(visitor=visitor, began=now, used=now)
        return id

    def find(self, id: str, *, is_use: bool) -> Visitor | None:
        """The visitor of a session; None if it has ended, or there was none.

        :param is_use: False for a request that a page sends by itself, which keeps no session alive.
        """
        key = _key(id)
        session = self._sessions.get(key)
        if session is None:
            return None
        if self._is_over(session):
            self._end(key)
            return None
        if is_use:
            session.used = self._clock()
        return session.visitor

    def end(self, id: str) -> None:
        """End a session, if there is one."""
        self._end(_key(id))

    def end_old(self) -> None:
        """End expired sessions, with their passwords and connections."""
        for key in [key for key, session in self._sessions.items() if self._is_over(session)]:
            self._end(key)

    def _is_over(self, session: _Session) -> bool:
        now = self._clock()
        return now - session.used >= self._idle_s or now - session.began >= LASTS_S

    def _end(self, key: bytes) -> None:
        session = self._sessions.pop(key, None)
        if session is not None:
            session.visitor.clients.close()


def _key(id: str) -> bytes:
    return sha256(id.encode(errors="replace")).digest()
