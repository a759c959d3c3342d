"""The connections of one front-end process: what they share, accepting them, and draining them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

import anyio
import structlog
from anyio.abc import TaskGroup, TaskStatus

from korvet.api import registry
from korvet.api.context import Frontend, Listener
from korvet.errors import ConfigError, KorvetError
from korvet.server.connection import Connection
from korvet.server.large_frames import LargeFrames
from korvet.server.logs import LimitedLog
from korvet.server.proxied import Proxied
from korvet.server.settings import Limits, shown_address

log = structlog.get_logger()

_BACKLOG = 1024


class Door(NamedTuple):
    """A bound socket, closed when the server ends, with its listener and what is behind it."""

    bound: socket.socket
    listener: Listener
    frontend: Frontend


class Server:
    """Connections and their bounds. `serve` owns the tasks."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.apis = registry()
        self.lines = LimitedLog()
        self.charged_bytes = 0
        self.connections: set[Connection] = set()
        self.paused: set[Connection] = set()
        self.large_frames = LargeFrames(limits.large_frames_bytes)
        self._unsent: dict[Connection, int] = {}
        self.strangers: set[Proxied] = set()
        self._draining = False
        self._empty = anyio.Event()
        self._tasks: TaskGroup | None = None

    async def serve(
        self,
        doors: Sequence[Door],
        stop: anyio.Event,
        *,
        task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Accept and serve until ``stop`` is set, then drain: what is in flight is answered, for a few seconds.

        :raises ConfigError: where another socket listens at a door's address.
        """
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            accepting: list[asyncio.Server] = []
            try:
                accepting += [await _accept(self, door) for door in doors]
                tasks.start_soon(self._expire_idle)
                tasks.start_soon(self._relieve)
                task_status.started()
                await stop.wait()
            finally:
                for listening in accepting:
                    listening.close()
                with anyio.CancelScope(shield=True):
                    await self._drain([door.frontend for door in doors])
                tasks.cancel_scope.cancel()

    async def _drain(self, frontends: Iterable[Frontend]) -> None:
        self._draining = True
        for frontend in frontends:
            frontend.draining.set()
            frontend.wakeups.wake_all()
        for stranger in list(self.strangers):
            stranger.abort()
        for connection in list(self.connections):
            connection.drain()
        with anyio.move_on_after(self.limits.drain_s):
            if self.connections:
                await self._empty.wait()
        if self.connections:
            log.warning("connections cut off at the end of the drain", count=len(self.connections))
        for connection in list(self.connections):
            connection.abort()

    async def _expire_idle(self) -> None:
        """Close connections that have been idle for connections.max.idle.ms (negative: never)."""
        max_idle_s = self.limits.max_idle_ms / 1000 if self.limits.max_idle_ms >= 0 else float("inf")
        while True:
            await anyio.sleep(min(5.0, max(0.05, max_idle_s / 10)))
            now = asyncio.get_running_loop().time()
            for connection in list(self.connections):
                if connection.is_expired(now, max_idle_s):
                    connection.abort()

    async def _relieve(self) -> None:
        """Now and then cut off who holds memory that others need, and makes no progress."""
        while True:
            await anyio.sleep(self.limits.stall_s)
            stalled = self.large_frames.find_stalled()
            for connection in [one for one in self.connections if one in stalled]:
                self._cut_off(connection, "it sends a large request too slowly, and others wait")
            for connection in self._find_not_reading():
                self._cut_off(connection, "it does not read its answers, and too much is unread in all")

    def _find_not_reading(self) -> list[Connection]:
        """Where too much is unsent in all: those that took nothing since the last look, until it would be less."""
        before, self._unsent = self._unsent, {one: one.unsent_bytes for one in self.connections if one.unsent_bytes}
        too_much = sum(self._unsent.values()) - self.limits.unsent_bytes
        found = []
        for connection, unsent_bytes in sorted(self._unsent.items(), key=lambda pair: -pair[1]):
            if too_much > 0 and unsent_bytes >= before.get(connection, 1 << 62):
                found.append(connection)
                too_much -= unsent_bytes
        return found

    def _cut_off(self, connection: Connection, reason: str) -> None:
        self.lines.write("warning", "connection cut off for want of memory", client=connection.client, reason=reason)
        connection.abort()

    # ------------------------------------------------------------------ what connections report

    @property
    def is_overloaded(self) -> bool:
        """Whether requests in flight are over the process's bound."""
        return self.charged_bytes > self.limits.process_bytes

    def opened(self, connection: Connection) -> None:
        assert self._tasks is not None
        self.connections.add(connection)
        self._tasks.start_soon(connection.serve)

    def closed(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self.paused.discard(connection)
        self.large_frames.leave(connection)
        if not self.connections and self._draining:
            self._empty.set()

    def let_read(self) -> None:
        """Let connections that had to pause for the process read on, once it is below its bound."""
        if self.paused and not self.is_overloaded:
            waiting, self.paused = self.paused, set()
            for connection in waiting:
                connection.read_on()

    def report(self, error: Exception, api: str, client: str) -> None:
        """One line for an exception that a handler let out; a traceback where it is not one of ours."""
        if isinstance(error, KorvetError):
            self.lines.write("warning", f"{api} failed", client=client, reason=str(error))
        else:
            self.lines.write("error", f"{api} failed unexpectedly", client=client, exc_info=error)


async def _accept(server: Server, door: Door) -> asyncio.Server:
    make = partial(Connection, server, door.listener, door.frontend)
    factory = partial(Proxied, server, make) if door.listener.proxy_protocol else make
    try:
        # uvloop would not say that somebody else listens there.
        door.bound.listen(_BACKLOG)
        return await asyncio.get_running_loop().create_server(factory, sock=door.bound, backlog=_BACKLOG)
    except OSError as error:
        where = shown_address(door.listener.host, door.listener.port)
        raise ConfigError(f"cannot listen on {where}: {(error.strerror or str(error)).lower()}") from None
