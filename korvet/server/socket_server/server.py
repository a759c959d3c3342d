"""The server of one front-end process: it accepts connections, cuts off those that block others, and drains all."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import anyio
import structlog
from anyio.abc import TaskStatus

from korvet.errors import ConfigError
from korvet.server.bounds.accepting import Accepting
from korvet.server.bounds.connections import Connections, OpenConnection
from korvet.server.ground.settings import shown_address
from korvet.server.socket_server.arrival import open_arrival, open_plain
from korvet.server.socket_server.endpoint import Endpoint

log = structlog.get_logger()

_BACKLOG = 1024
_LOOK_S = 0.25
_STILL_PART = 0.2
"""The part of ``stall_s`` after which a connection without any progress is cut off."""


class Server(Connections):
    """The server of a process's connections. `serve` owns their tasks."""

    async def serve(
        self,
        endpoints: Sequence[Endpoint],
        stop: anyio.Event,
        *,
        task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Accept and serve until ``stop`` is set, then drain: requests in flight get ``drain_s`` for their answers.

        :raises ConfigError: if another socket listens at an endpoint's address.
        :raises RuntimeError: if it ends before ``stop`` is set, so that the process does not go on without it.
        """
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            try:
                for endpoint in endpoints:
                    self._accept_at(endpoint)
                tasks.start_soon(self._expire_idle)
                tasks.start_soon(self._relieve)
                task_status.started()
                await stop.wait()
            finally:
                for accepting in self._accepting:
                    accepting.close()
                with anyio.CancelScope(shield=True):
                    await self._drain(endpoints)
                tasks.cancel_scope.cancel()
        if not stop.is_set():
            raise RuntimeError("the server of connections ended, and nobody stopped it")

    async def _drain(self, endpoints: Sequence[Endpoint]) -> None:
        self._draining = True
        wakeups = {endpoint.frontend.wakeups for endpoint in endpoints}
        for endpoint in endpoints:
            endpoint.frontend.draining.set()
            if endpoint.choice is not None:
                endpoint.choice.namespaces.drain()
        for one in wakeups:
            one.wake_all()
        for connection in list(self.unidentified):
            connection.abort()
        for connection in list(self.open_connections):
            connection.drain()
        with anyio.move_on_after(self.limits.drain_s):
            if not self.is_empty:
                await self._empty.wait()
        if self.open_connections:
            log.warning("connections cut off at the end of the drain", count=len(self.open_connections))
        for connection in list(self.open_connections):
            connection.abort()

    async def _expire_idle(self) -> None:
        """Close connections that have been idle for connections.max.idle.ms (negative: never)."""
        max_idle_s = self.limits.max_idle_ms / 1000 if self.limits.max_idle_ms >= 0 else float("inf")
        while True:
            await anyio.sleep(min(5.0, max(0.05, max_idle_s / 10)))
            now = asyncio.get_running_loop().time()
            for connection in list(self.open_connections):
                if connection.is_expired(now, max_idle_s):
                    connection.abort()

    async def _relieve(self) -> None:
        """Cut off, again and again, connections without progress that hold memory which others need."""
        stall_s, looked_at = self.limits.stall_s, 0.0
        while True:
            await anyio.sleep(min(_LOOK_S, stall_s * _STILL_PART))
            for connection in self.unread.find_in_the_way(self.answers.missing_bytes, stall_s):
                self._cut_off(connection, "it does not read its answers, and others wait for the memory")
            for connection in self.stalled_requests.find_in_the_way(self.open_connections, self._excess_bytes, stall_s):
                self._cut_off(connection, "its requests queue up after one that waits, and others are not read")
            now = anyio.current_time()
            stalled = self.large_frames.find_still(now, stall_s * _STILL_PART)
            if now - looked_at >= stall_s:
                looked_at = now
                stalled += self.large_frames.find_stalled()
            for connection in self.open_connections.intersection(stalled):
                self._cut_off(connection, "it sends a large request too slowly, and others wait")

    def _cut_off(self, connection: OpenConnection, reason: str) -> None:
        self.lines.write("warning", "connection cut off for want of memory", client=connection.client, reason=reason)
        connection.abort()

    def _cannot_accept(self, reason: str) -> None:
        self.lines.write("error", "connections cannot be accepted", reason=reason)

    def _accept_at(self, endpoint: Endpoint) -> None:
        if endpoint.is_plain:
            open_ = partial(open_plain, self, endpoint.listener, endpoint.frontend)
        else:
            open_ = partial(open_arrival, self, endpoint)
        accepting = Accepting(
            self.connection_quotas, endpoint.listener.name, self._cannot_accept, self, endpoint.bound, open_
        )
        try:
            accepting.listen(_BACKLOG)
        except OSError as error:
            where = shown_address(endpoint.listener.host, endpoint.listener.port)
            raise ConfigError(f"cannot listen on {where}: {(error.strerror or str(error)).lower()}") from None
        self._accepting.append(accepting)
