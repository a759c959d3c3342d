"""The broker. ``korvet serve`` calls `run`."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

import anyio
import structlog

import korvet
from korvet.errors import KorvetError
from korvet.metrics.clients import Clients
from korvet.redis.address import parse_redis_url
from korvet.redis.client import Store
from korvet.server.bounds.connection_quotas import bounds_of
from korvet.server.ground import tracing
from korvet.server.ground.logs import configure_logging
from korvet.server.ground.settings import ServeSettings, check_listener_configs, check_sasl, limits_of, shown_address
from korvet.server.ground.sockets import bind, ports_of, reserve
from korvet.server.ground.token_settings import token_settings
from korvet.server.processes.board import Board
from korvet.server.processes.console import ConsoleSocket, keep_console, open_console_socket
from korvet.server.processes.embedded import Embedded, embedded_server
from korvet.server.processes.figures import Serving
from korvet.server.processes.frontend import certificates_of, open_frontends, serve_listeners, server_name
from korvet.server.processes.live import Live, Read
from korvet.server.processes.rounds import make_rounds
from korvet.server.processes.stopping import first_korvet_error, stop_on_signals
from korvet.server.processes.supervisor import supervise
from korvet.server.processes.systemd import Notices

log = structlog.get_logger()


def run(settings: ServeSettings, read_again: Read | None = None) -> int:
    """Serve until SIGTERM or SIGINT; the exit code. A KorvetError is one line on stderr and code 1.

    :param read_again: reads the settings again, for SIGHUP.
    """
    configure_logging(settings.log_level, settings.log_format)
    try:
        limits_of(settings.broker)
        bounds_of(settings.broker)
        check_sasl(settings.listeners, settings.broker)
        check_listener_configs(settings.listeners, settings.broker)
        _check_tokens(settings)
        tracing.endpoint(os.environ)
        for listener in settings.listeners:
            certificates_of(listener)
        anyio.run(_serve, Live(settings, read_again), backend_options={"use_uvloop": True})
    except BaseExceptionGroup as group:
        error = first_korvet_error(group)
        if error is None:
            raise
        return _refuse(settings, error)
    except KorvetError as error:
        return _refuse(settings, error)
    except KeyboardInterrupt:
        return 130
    log.info("stopped")
    return 0


def _check_tokens(settings: ServeSettings) -> None:
    """Refuse an invalid source of tokens' keys.

    :raises ConfigError: if it is invalid.
    """
    found = token_settings(settings.broker)
    if found is not None:
        from korvet.security.key_source import check_source

        check_source(found.source)


def _refuse(settings: ServeSettings, error: KorvetError) -> int:
    if settings.log_format == "json":
        log.error("cannot serve", reason=str(error))
    else:
        sys.stderr.write(f"korvet: {error}\n")
    return 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Redis:
    """The Redis of this broker: its URL, and the embedded server, if it runs one."""

    url: str
    embedded: Embedded | None

    def described(self, store: Store) -> str:
        if self.embedded is not None:
            data = "new data in" if self.embedded.is_new else "data found in"
            return f"embedded {server_name(store)}, {data} {self.embedded.data_dir}"
        return f"{server_name(store)} at {store.url}"


async def _serve(live: Live) -> None:
    settings = live.settings
    stop, serving = anyio.Event(), anyio.Event()
    notices = Notices.of(os.environ)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stop_on_signals, stop, serving, tasks.cancel_scope, live.read_again)
        tasks.start_soon(notices.follow, stop)
        # A process without clients serves metrics: the supervisor.
        is_alone = settings.workers == 1 and settings.metrics is None
        open_socket = bind if is_alone else reserve
        clients = Clients(settings.values.integer("korvet.metrics.max.client.series"))
        board = Board(settings.workers, stop.is_set, clients)
        with ExitStack() as stack:
            bound = [stack.enter_context(open_socket(one.host, one.port)) for one in settings.listeners]
            console_socket = stack.enter_context(open_console_socket()) if settings.console != "off" else None
            async with _metrics_port(settings, board, console_socket), _redis(settings) as redis:
                if is_alone:
                    await _serve_here(live, redis, bound, stop, serving, notices)
                else:
                    await _serve_with_workers(live, redis, bound, stop, serving, notices, board, console_socket)
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def _metrics_port(
    settings: ServeSettings, board: Board, console_socket: ConsoleSocket | None
) -> AsyncIterator[None]:
    """Serve the HTTP port for the time of the block, if the settings have one."""
    if settings.metrics is None:
        yield
        return
    # The import takes a tenth of a second.
    from korvet.server.processes.http_server import serve_port

    console = None if console_socket is None else console_socket.path
    hostnames = [*settings.metrics_hostnames, *settings.console_hostnames]
    with bind(*settings.metrics) as port:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve_port, board, port, console, hostnames)
            yield
            tasks.cancel_scope.cancel()


async def _serve_here(
    live: Live, redis: _Redis, bound: Sequence[socket.socket], stop: anyio.Event, serving: anyio.Event, notices: Notices
) -> None:
    def ready(served: Serving) -> None:
        serving.set()
        _say_ready(live.settings, ports_of(bound), redis.described(served.process.store), notices)

    await serve_listeners(live, redis.url, bound, stop, ready)


async def _serve_with_workers(
    live: Live,
    redis: _Redis,
    bound: Sequence[socket.socket],
    stop: anyio.Event,
    serving: anyio.Event,
    notices: Notices,
    board: Board,
    console_socket: ConsoleSocket | None,
) -> None:
    # The supervisor loads the library first, so that the workers do not all load it at once.
    async with open_frontends(live.settings, redis.url) as opened:
        where = redis.described(opened.store)
    serving.set()
    ports = ports_of(bound)
    async with anyio.create_task_group() as tasks:
        if live.settings.metrics is not None:
            tasks.start_soon(make_rounds, live.settings, redis.url, board)
        if console_socket is not None:
            tasks.start_soon(keep_console, live.settings, redis.url, ports, console_socket)

        def ready() -> None:
            _say_ready(live.settings, ports, where, notices)

        await supervise(live, redis.url, ports, stop, ready, board)
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def _redis(settings: ServeSettings) -> AsyncIterator[_Redis]:
    if settings.redis_url is not None:
        parse_redis_url(settings.redis_url)
        yield _Redis(url=settings.redis_url, embedded=None)
        return
    async with embedded_server(settings.data_dir) as server:
        yield _Redis(url=server.url, embedded=server)


def _say_ready(settings: ServeSettings, ports: Sequence[int], redis: str, notices: Notices) -> None:
    listeners = zip(settings.listeners, ports, strict=True)
    where = [shown_address(listener.host, port) for listener, port in listeners]
    line = f"korvet {korvet.__version__} ready on {', '.join(where)} ({redis})"
    notices.ready(line)
    if settings.log_format == "json":
        now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        fields = {"event": "ready", "version": korvet.__version__, "listeners": where, "redis": redis}
        line = json.dumps({**fields, "level": "info", "timestamp": now})
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
