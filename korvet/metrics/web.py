"""The pages of the HTTP port: ``/metrics``, ``/livez``, ``/readyz`` and ``/lags``, on Starlette.

They are served in a process without Kafka clients. Four scrapes are answered at a time, in pieces, so a slow scraper
holds one page and a piece. A page is made in a thread, at most once a second for each format.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final, Protocol

import anyio
import anyio.to_thread
import structlog
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import Receive, Scope, Send

from korvet.metrics.clients import Pushed
from korvet.metrics.exposition import render
from korvet.metrics.hosts import HostCheck, private_hosts
from korvet.metrics.lags import Lags
from korvet.metrics.samples import Samples

log = structlog.get_logger()

_MOST_SCRAPES: Final = 4
_PIECE_BYTES: Final = 64 << 10
_FRESH_S: Final = 1.0
PATHS: Final = frozenset({"/metrics", "/livez", "/readyz", "/lags"})
"""The paths of its pages."""
_UNKEPT: Final = {"cache-control": "no-store"}


class ServerStatus(Protocol):
    """The state of the server, as the port serves it; ``lags`` are the last hour's."""

    lags: Lags

    def samples(self) -> Samples:
        """All figures, as of now."""

    def pushed(self) -> Pushed:
        """The series that clients pushed, as of now."""

    def death(self) -> str:
        """Why the process tree has to be started anew, in lines; empty if it lives."""

    def unreadiness(self) -> str:
        """Why clients should go elsewhere, in lines; empty if they may come."""


def application(status: ServerStatus, hostnames: Sequence[str] = (), *, has_console: bool = False) -> Starlette:
    """The application of the port.

    :param hostnames: its names, beside IP addresses and those of a private network.
    :param has_console: another process answers all other paths; here is the answer while that process is away.
    """
    pages = _Pages(status)

    async def livez(_request: Request) -> Response:
        return _health(status.death())

    async def readyz(_request: Request) -> Response:
        return _health(status.unreadiness())

    async def lags(request: Request) -> Response:
        query = request.query_params
        found = status.lags.of_group(query.get("namespace", ""), query.get("group", ""))
        return JSONResponse(found, 404 if found is None else 200, _UNKEPT)

    routes: list[BaseRoute] = [
        Route("/metrics", pages.answer),
        Route("/livez", livez),
        Route("/readyz", readyz),
        Route("/lags", lags),
    ]
    if has_console:
        routes.append(
            Mount("/", PlainTextResponse("the console does not answer now; the log says why\n", 503, _UNKEPT))
        )
    hosts = private_hosts(frozenset(hostnames))
    checked = [Middleware(HostCheck, hosts=hosts)]
    return Starlette(routes=routes, middleware=checked, exception_handlers={Exception: _failed})


def _health(problem: str) -> Response:
    return PlainTextResponse(f"{problem or 'ok'}\n", 503 if problem else 200, _UNKEPT)


async def _failed(_request: Request, error: Exception) -> Response:
    log.error("metrics cannot be read", exc_info=error)
    return PlainTextResponse("the log says why\n", 500, _UNKEPT)


class _Pages:
    """Pages of figures, each kept for a second."""

    def __init__(self, status: ServerStatus) -> None:
        self._status = status
        self._made: dict[str, tuple[float, bytes, str]] = {}
        self._making = anyio.Lock()
        self._scrapes = 0

    async def answer(self, request: Request) -> Response:
        if self._scrapes >= _MOST_SCRAPES:
            return PlainTextResponse("others are scraping\n", 503, _UNKEPT)
        self._scrapes += 1
        try:
            page, content_type = await self._page(request.headers.get("accept", ""))
        except BaseException:
            self._scrapes -= 1
            raise
        headers = {**_UNKEPT, "content-length": str(len(page)), "content-type": content_type}
        return _Scrape(self._left, page, headers)

    def _left(self) -> None:
        self._scrapes -= 1

    async def _page(self, accept: str) -> tuple[bytes, str]:
        # Any other header than these two means the same as one of them.
        accept = "application/openmetrics-text" if "application/openmetrics-text" in accept else ""
        async with self._making:
            made_at, page, content_type = self._made.get(accept, (-_FRESH_S, b"", ""))
            if anyio.current_time() - made_at >= _FRESH_S:
                samples = self._status.samples()
                pushed = self._status.pushed()
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
