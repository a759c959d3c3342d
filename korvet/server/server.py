"""The connections of one front-end process: what they share, accepting them, and draining them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from functools import partial

import anyio
import structlog
from anyio.abc import TaskGroup, TaskStatus

from korvet.api import registry
from korvet.api.context import Frontend, Listener
from korvet.errors import KorvetError
from korvet.server.connection import Connection
from korvet.server.logs import LimitedLog
from korvet.server.proxied import Proxied
from korvet.server.settings import Limits

log = structlog.get_logger()

_BACKLOG = 1024


class Server:
    """Connections and their bounds. `serve` owns the tasks."""

    def __init__(self, frontend: Frontend, limits: Limits) -> None:
        self.frontend = frontend
        self.limits = limits
        self.apis = registry()
        self.lines = LimitedLog()
        self.charged_bytes = 0
        self.connections: set[Connection] = set()
        self.paused: set[Connection] = set()
        self.strangers: set[Proxied] = set()
        self._empty = anyio.Event()
        self._tasks: TaskGroup | None = None

    async def serve(
        self,
        doors: Sequence[tuple[socket.socket, Listener]],
        stop: anyio.Event,
        *,
        task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Accept and serve until ``stop`` is set, then drain: what is in flight is answered, for a few seconds.

        :param doors: bound sockets, each with the listener it belongs to; closed on return.
        """
        loop = asyncio.get_running_loop()
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            accepting = [
                await loop.create_server(_factory(self, listener), sock=sock, backlog=_BACKLOG)
                for sock, listener in doors
            ]
            try:
                tasks.start_soon(self._expire_idle)
                task_status.started()
                await stop.wait()
            finally:
                for door in accepting:
                    door.close()
                with anyio.CancelScope(shield=True):
                    await self._drain()
                tasks.cancel_scope.cancel()

    async def _drain(self) -> None:
        self.frontend.draining.set()
        self.frontend.wakeups.wake_all()
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
        if not self.connections and self.frontend.draining.is_set():
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


def _factory(server: Server, listener: Listener) -> Callable[[], asyncio.BaseProtocol]:
    if listener.proxy_protocol:
        return lambda: Proxied(server, partial(Connection, server, listener))
    return partial(Connection, server, listener)
