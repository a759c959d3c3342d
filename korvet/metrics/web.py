"""The HTTP port: ``/metrics``, ``/livez`` and ``/readyz``, on Starlette and uvicorn; perhaps the console behind it.

It runs in a process that serves no Kafka clients. Everything is bounded: a request has 5 s to arrive and 8 KiB for its
head, a connection carries one request and ends after 30 s, and there are 64 connections at most. One more ends another
one, so that a health check is answered whoever holds the others. Four scrapes are answered at a time, in pieces, so a
slow scraper holds one page and a piece. A page is made in a thread, at most once a second for each format.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, Protocol

import anyio
import anyio.to_thread
import structlog
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from korvet.metrics.clients import Pushed
from korvet.metrics.exposition import render
from korvet.metrics.hosts import HostCheck, private_hosts
from korvet.metrics.lags import Lags
from korvet.metrics.samples import Samples
from korvet.security.guests import Guest, Guests

log = structlog.get_logger()

_MOST_CONNECTIONS: Final = 64
_MOST_SCRAPES: Final = 4
_ARRIVES_S: Final = 5.0
_LASTS_S: Final = 30.0
_MOST_HEAD_BYTES: Final = 8192
_PIECE_BYTES: Final = 64 << 10
_FRESH_S: Final = 1.0
_STOP_S: Final = 1
_CLOSE: Final = {"connection": "close", "cache-control": "no-store"}


class Told(Protocol):
    """What the port tells of; ``lags`` are those of the last hour."""

    lags: Lags

    def samples(self) -> Samples:
        """All figures, as of now."""

    def pushed(self) -> Pushed:
        """The series that clients pushed, as of now."""

    def death(self) -> str:
        """Why the process tree has to be started anew, in lines; empty if it lives."""

    def unreadiness(self) -> str:
        """Why clients should go elsewhere, in lines; empty if they may come."""


def application(told: Told, others: ASGIApp | None = None, hostnames: Sequence[str] = ()) -> Starlette:
    """The application of the port; ``others`` answers all other paths.

    :param hostnames: its names, beside IP addresses and those of a private network.
    """
    pages = _Pages(told)

    async def livez(_request: Request) -> Response:
        return _health(told.death())

    async def readyz(_request: Request) -> Response:
        return _health(told.unreadiness())

    async def lags(request: Request) -> Response:
        asked = request.query_params
        found = told.lags.told(asked.get("namespace", ""), asked.get("group", ""))
        return JSONResponse(found, 404 if found is None else 200, _CLOSE)

    routes: list[BaseRoute] = [
        Route("/metrics", pages.answer),
        Route("/livez", livez),
        Route("/readyz", readyz),
        Route("/lags", lags),
    ]
    if others is not None:
        routes.append(Mount("/", others))
    hosts = private_hosts(frozenset(hostnames))
    checked = [Middleware(HostCheck, hosts=hosts)]
    return Starlette(routes=routes, middleware=checked, exception_handlers={Exception: _failed})


def _health(problem: str) -> Response:
    return PlainTextResponse(f"{problem or 'ok'}\n", 503 if problem else 200, _CLOSE)


async def _failed(_request: Request, error: Exception) -> Response:
    log.error("metrics cannot be told", exc_info=error)
    return PlainTextResponse("the log says why\n", 500, _CLOSE)


class _Pages:
    """Pages of figures, each kept for a second."""

    def __init__(self, told: Told) -> None:
        self._told = told
        self._made: dict[str, tuple[float, bytes, str]] = {}
        self._making = anyio.Lock()
        self._scrapes = 0

    async def answer(self, request: Request) -> Response:
        if self._scrapes >= _MOST_SCRAPES:
            return PlainTextResponse("others are scraping\n", 503, _CLOSE)
        self._scrapes += 1
        try:
            page, content_type = await self._page(request.headers.get("accept", ""))
        except BaseException:
            self._scrapes -= 1
            raise
        headers = {**_CLOSE, "content-length": str(len(page)), "content-type": content_type}
        return _Scrape(self._left, page, headers)

    def _left(self) -> None:
        self._scrapes -= 1

    async def _page(self, accept: str) -> tuple[bytes, str]:
        # Any other header than these two means the same as one of them.
        accept = "application/openmetrics-text" if "application/openmetrics-text" in accept else ""
        async with self._making:
            made_at, page, content_type = self._made.get(accept, (-_FRESH_S, b"", ""))
            if anyio.current_time() - made_at >= _FRESH_S:
                samples = self._told.samples()
                pushed = self._told.pushed()
                page, content_type = await anyio.to_thread.run_sync(render, samples, pushed, accept)
                self._made[accept] = anyio.current_time(), page, content_type
        return page, content_type


class _Scrape(StreamingResponse):
    """A page in pieces; ``left`` is called once it is sent, or its client has left."""

    def __init__(self, left: Callable[[], None], page: bytes, headers: dict[str, str]) -> None:
        super().__init__(_pieces(page), headers=headers)
        self._left = left

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._left()


async def _pieces(page: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(page), _PIECE_BYTES):
        yield page[at : at + _PIECE_BYTES]


class _Guarded(H11Protocol):
    """A connection that ends in time."""

    _ends: asyncio.TimerHandle | None = None
    _guest: Guest

    def __init__(self, guests: Guests, *args: Any, **values: Any) -> None:
        super().__init__(*args, **values)
        self._guests = guests

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._guest = self._guests.add(Guest("" if self.client is None else self.client[0], transport.abort))
        self._guest.is_busy = self._has_arrived
        self._ends = self.loop.call_later(_ARRIVES_S, self._has_it_arrived, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._ends is not None:
            self._ends.cancel()
        self._guests.remove(self._guest)
        super().connection_lost(exc)

    def _has_arrived(self) -> bool:
        # There is none before the first request is whole, though its type does not say so.
        return self.cycle is not None

    def _has_it_arrived(self, transport: asyncio.Transport) -> None:
        rest_s = _LASTS_S - _ARRIVES_S if self._has_arrived() else 0.0
        self._ends = self.loop.call_later(rest_s, transport.abort)


class _Server(uvicorn.Server):
    """uvicorn as a part of a process that has its own signals."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(told: Told, bound: socket.socket, others: ASGIApp | None = None, hostnames: Sequence[str] = ()) -> None:
    """Serve the port until cancelled. The socket is bound, and is closed at the end. See `application`."""
    # Its lines are about strangers' requests; a failure of ours is told of by `_failed`.
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
    config = uvicorn.Config(
        application(told, others, hostnames),
        http=partial(_Guarded, Guests(lambda: _MOST_CONNECTIONS)),  # type: ignore[arg-type]
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        # Else a client of the loopback could say that it is another one.
        proxy_headers=False,
        server_header=False,
        h11_max_incomplete_event_size=_MOST_HEAD_BYTES,
        timeout_keep_alive=_STOP_S,
        timeout_graceful_shutdown=_STOP_S,
        backlog=_MOST_CONNECTIONS,
    )
    server = _Server(config)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_stop_when_cancelled, server)
        with anyio.CancelScope(shield=True):
            await server.serve(sockets=[bound])
        tasks.cancel_scope.cancel()


async def _stop_when_cancelled(server: uvicorn.Server) -> None:
    try:
        await anyio.sleep_forever()
    finally:
        server.should_exit = True
