"""All connections of one front-end process, their bounds, and the log lines about them."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVarTuple

import anyio
import structlog
from anyio.abc import TaskGroup

from korvet.api import registry
from korvet.errors import KorvetError
from korvet.metrics.requests import Requests
from korvet.quotas.tally import Tally
from korvet.rate_limited_log import RateLimitedLog
from korvet.security.guesses import Guesses
from korvet.security.sasl import Views
from korvet.security.tokens import Tokens
from korvet.security.unauthenticated import UnauthenticatedConnections
from korvet.server.bounds.accepting import Accepting
from korvet.server.bounds.connection_quotas import Bounds, ConnectionQuotas
from korvet.server.bounds.handshakes import Handshakes
from korvet.server.bounds.large_frames import LargeFrames, Receiving
from korvet.server.bounds.stalled_requests import Queueing, StalledRequests
from korvet.server.bounds.unread import Answered, Unread
from korvet.server.ground.settings import ServerLimits
from korvet.server.ground.tracing import Tracing
from korvet.store.log.memory.budget import AnswerBudget
from korvet.wire.frames import SCRATCH_BYTES

log = structlog.get_logger()

_Args = TypeVarTuple("_Args")
_UNBOUNDED = Bounds()


class OpenConnection(Receiving, Answered, Queueing, Protocol):
    """A client's connection; `korvet.server.conversation.connection.Connection` documents the methods."""

    client: str
    kind: tuple[str, str]
    """The listener's name, and the mechanism of the login."""

    async def serve(self) -> None: ...

    def drain(self) -> None: ...

    @property
    def moved_at(self) -> float: ...

    def is_expired(self, now: float, max_idle_s: float) -> bool: ...

    def abort(self) -> None: ...


class UnidentifiedConnection(Protocol):
    """A connection whose client is not known yet."""

    def abort(self) -> None:
        """Close at once."""


class Connections:
    """The connections and their bounds; `korvet.server.socket_server.server.Server` accepts and drains them.

    :param requests: the figures of requests; None without metrics.
    :param tracing: the traces of requests; None without tracing.
    :param bounds: the bounds on connections.
    """

    def __init__(
        self,
        limits: ServerLimits,
        answers: AnswerBudget | None = None,
        tokens: Tokens | None = None,
        requests: Requests | None = None,
        tracing: Tracing | None = None,
        bounds: Bounds = _UNBOUNDED,
    ) -> None:
        self.tracing = tracing
        self.limits = limits
        self.requests = requests
        self.kinds: Counter[tuple[str, str]] = Counter()
        """The number of connections of each kind."""
        self.came_at: Counter[str] = Counter()
        """The number of connections opened since the start, by listener."""
        self.throttles, self.throttled_s = 0, 0.0
        """How often a quota throttled a connection, and for how long in all."""
        self.logins: Counter[tuple[str, str, str]] = Counter()
        """Logins by listener, mechanism and outcome."""
        self.answers = answers or AnswerBudget(limits.answer_bytes)
        self.apis = registry()
        self.lines = RateLimitedLog(most=5, period_s=10)
        self.charged_bytes = 0
        self.produced_bytes = 0
        """The part of Produces in ``charged_bytes``."""
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        """The receive buffer of all connections: no other connection runs between `get_buffer` and `buffer_updated`."""
        self.open_connections: set[OpenConnection] = set()
        self.paused: set[Receiving] = set()
        self.large_frames = LargeFrames(limits.large_frames_bytes)
        self.unread: Unread[OpenConnection] = Unread(asyncio.get_running_loop().time)
        self.stalled_requests: StalledRequests[OpenConnection] = StalledRequests(asyncio.get_running_loop().time)
        self.unidentified: set[UnidentifiedConnection] = set()
        self.handshakes = Handshakes(limits.handshakes, limits.handshake_patience_s)
        self.connection_quotas = ConnectionQuotas(bounds)
        self.guesses = Guesses()
        self.unauthenticated = UnauthenticatedConnections(lambda: max(1, self.connection_quotas.most // 2))
        """Connections before the end of a TLS handshake or of a login: half of what the process may have."""
        self.credentials = Views()
        self.tokens = tokens
        """The judge of tokens, if a listener has OAUTHBEARER."""
        self.addresses = Tally("ip", self._most_of)
        """The connections by address."""
        self._expected: set[OpenConnection] = set()
        """Connections that are counted before they are open."""
        self._accepting: list[Accepting] = []
        self._draining = False
        self._empty = anyio.Event()
        self._tasks: TaskGroup | None = None

    # ------------------------------------------------------------------ bounds on connections

    def configure(self, bounds: Bounds) -> None:
        """Apply other bounds on connections. If there are too many, close those that have been idle longest.

        Source: Processor.closeExcessConnections
        """
        self.connection_quotas.configure(bounds)
        excess = self.connection_quotas.open - self.connection_quotas.most
        if excess > 0:
            log.warning("connections are closed: there are more than max.connections", closed=excess)
            for connection in sorted(self.open_connections, key=lambda one: one.moved_at)[:excess]:
                connection.abort()

    def _most_of(self, client: str) -> int | None:
        return self.limits.most_of(client)

    def _is_too_many(self, client: str, more: int = 0) -> bool:
        """True, with a log line, if an address has too many connections. Source: ConnectionQuotas.inc"""
        if not self.addresses.is_over(client, more):
            return False
        most = self.addresses.most(client)
        self.lines.write("warning", "connection refused: its address has as many as it may", client=client, most=most)
        return True

    def has_no_room_for(self, client: str) -> bool:
        """True if an address has no room for one more connection, so a handshake would be wasted."""
        return self._is_too_many(client, more=1)

    @contextmanager
    def expecting(self, client: str) -> Iterator[Callable[[OpenConnection], None]]:
        """Reserve one connection of an address for the time of the block.

        The block passes the connection to the function that it gets, so the connection is not counted twice when it
        opens.
        """
        self.addresses.increment(client)
        named: list[OpenConnection] = []

        def name(connection: OpenConnection) -> None:
            named.append(connection)
            self._expected.add(connection)

        try:
            yield name
        finally:
            if not named or named[0] in self._expected:
                self._expected.difference_update(named)
                self.addresses.decrement(client)

    # ------------------------------------------------------------------ called by connections

    @property
    def is_overloaded(self) -> bool:
        """True if requests in flight are over the process's bound."""
        return self.charged_bytes > self.limits.process_bytes

    @property
    def _excess_bytes(self) -> int:
        """The bytes of requests to be answered before all connections may send again; 0 if none has to wait."""
        return self.charged_bytes - self.limits.process_bytes // 2 if self.paused or self.is_overloaded else 0

    @property
    def memory_in_use(self) -> int:
        """Bytes of requests and answers."""
        return self.charged_bytes + self.large_frames.taken_bytes + self.answers.taken_bytes

    def start_soon(self, task: Callable[[*_Args], Awaitable[None]], *args: *_Args) -> None:
        """Start a task of one connection."""
        assert self._tasks is not None
        self._tasks.start_soon(self._run_alone, task, *args)

    async def _run_alone(self, task: Callable[[*_Args], Awaitable[None]], *args: *_Args) -> None:
        """Run a connection's task. If a future that it awaits is cancelled, only this task ends.

        A task group would take such a child for a cancelled one, and cancel all others without an error.
        """
        try:
            await task(*args)
        except asyncio.CancelledError as error:
            if anyio.current_effective_deadline() == -math.inf:
                raise
            self.lines.write("error", "a connection ended: a future that it awaited was cancelled", exc_info=error)

    def opened(self, connection: OpenConnection) -> None:
        self.kinds[connection.kind] += 1
        self.came_at[connection.kind[0]] += 1
        if connection in self._expected:
            self._expected.remove(connection)
        else:
            self.addresses.increment(connection.client)
        self.addresses.register(connection.client, connection)
        if self._is_too_many(connection.client):
            connection.abort()
        else:
            self.open_connections.add(connection)
            self.start_soon(connection.serve)
            if self._draining:
                connection.drain()

    def logged_in(self, connection: OpenConnection, mechanism: str) -> None:
        """Note a login, which may be a repeated one."""
        listener, _ = connection.kind
        self.logins[listener, mechanism, "success"] += 1
        self.kinds[connection.kind] -= 1
        connection.kind = (listener, mechanism)
        self.kinds[connection.kind] += 1

    def closed(self, connection: OpenConnection) -> None:
        self.kinds[connection.kind] -= 1
        self.addresses.decrement(connection.client, connection)
        self.connection_quotas.left(connection.kind[0])
        self.open_connections.discard(connection)
        self.paused.discard(connection)
        self.unread.discard(connection)
        self.large_frames.leave(connection)
        self._note_empty()

    def _note_empty(self) -> None:
        if self._draining and self.is_empty:
            self._empty.set()

    @property
    def is_empty(self) -> bool:
        """True without connections, and without requests of clients that have left."""
        return not (self.open_connections or self.charged_bytes)

    def let_read(self) -> None:
        """Resume reading from paused connections, if the process is below its bound."""
        self._note_empty()
        if self.paused and not self.is_overloaded:
            waiting, self.paused = self.paused, set()
            for connection in waiting:
                connection.read_on()

    def report(self, error: Exception, api: str, client: str) -> None:
        """Log an exception of a handler: one line, and a traceback if it is not a KorvetError."""
        if isinstance(error, KorvetError):
            self.lines.write("warning", f"{api} failed", client=client, reason=str(error))
        else:
            self.lines.write("error", f"{api} failed unexpectedly", client=client, exc_info=error)
