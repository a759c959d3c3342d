"""The console's pages as a Starlette application.

Each page asks the cluster anew, in a thread, by a client that it borrows. Changes need ``allow_changes``, a POST from
the console's own pages, and the token of this process, which no other site's page can read.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from anyio import to_thread
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from korvet import __version__
from korvet.cli.console import changes, views
from korvet.cli.console.clients import Busy, Clients
from korvet.cli.console.guard import Guard
from korvet.cli.console.views import View
from korvet.cli.kafka.client import Client
from korvet.cli.kafka.errors import BrokerError
from korvet.errors import ConfigError, KorvetError

STATIC: Final = Path(__file__).with_name("static")


@dataclass(frozen=True, slots=True, kw_only=True)
class Console:
    """What the pages share."""

    clients: Clients
    redis_url: str | None
    allow_changes: bool
    token: str = field(default_factory=partial(secrets.token_urlsafe, 32))
    templates: Environment = field(default_factory=lambda: _templates())


def _templates() -> Environment:
    templates = Environment(
        loader=PackageLoader("korvet.cli.console"),
        autoescape=select_autoescape(default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters.update(bytes=_bytes, number=_number)
    templates.globals.update(query=_query, version=__version__)
    return templates


def _bytes(size: int) -> str:
    value, unit = float(size), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _query(path: str, **fields: object) -> str:
    """A link within the console."""
    return f"{path}?{urlencode({name: value for name, value in fields.items() if value not in (None, '')})}"


def make_app(
    make_client: Callable[[], Client],
    *,
    hosts: frozenset[str],
    redis_url: str | None = None,
    allow_changes: bool = False,
) -> Starlette:
    """The console.

    :param hosts: the Host headers that name it; a request with another one is refused, because a foreign site's name
        may lead to the loopback (DNS rebinding).
    """
    console = Console(clients=Clients(make_client), redis_url=redis_url, allow_changes=allow_changes)
    pages = [Route(path, partial(_page, console, name, view)) for path, name, view in views.PAGES]
    actions = [Route(path, partial(_change, console, change), methods=["POST"]) for path, change in changes.CHANGES]
    return Starlette(
        routes=[
            *pages,
            Route("/group/lag", partial(_lag, console)),
            *actions,
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        middleware=[Middleware(Guard, hosts=hosts)],
        exception_handlers={
            HTTPException: partial(_refused, console),
            KorvetError: partial(_failed, console),
        },
    )


async def _page(console: Console, name: str, view: View, request: Request) -> Response:
    fields = dict(request.query_params)
    values = await to_thread.run_sync(_shown, console, view, fields)
    return _html(console, name, values, done=fields.get("done", ""))


def _shown(console: Console, view: View, fields: Mapping[str, str]) -> dict[str, Any]:
    with console.clients.borrow() as client:
        return view(client, fields, console.redis_url)


async def _lag(console: Console, request: Request) -> Response:
    return JSONResponse(await to_thread.run_sync(_shown, console, views.lag, dict(request.query_params)))


async def _change(console: Console, change: changes.Change, request: Request) -> Response:
    if not console.allow_changes:
        raise HTTPException(403, "this console changes nothing; start it with --allow-changes")
    async with request.form(max_files=0, max_fields=20) as form:
        fields = {name: value for name, value in form.items() if isinstance(value, str)}
    if not secrets.compare_digest(fields.get("token", "").encode(), console.token.encode()):
        raise HTTPException(403, "the form is of an earlier console; load its page again")
    answer = await to_thread.run_sync(_changed, console, change, fields)
    if isinstance(answer, changes.Plan):
        return _html(console, "plan.html", {"plan": answer})
    return RedirectResponse(answer, 303)


def _changed(console: Console, change: changes.Change, fields: Mapping[str, str]) -> changes.Plan | str:
    with console.clients.borrow() as client:
        return change(client, fields)


async def _refused(console: Console, _request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _html(console, "error.html", {"problem": error.detail}, status=error.status_code)


async def _failed(console: Console, _request: Request, error: Exception) -> Response:
    status = 503 if isinstance(error, Busy) or (isinstance(error, BrokerError) and error.code is None) else 404
    return _html(
        console, "error.html", {"problem": str(error)}, status=400 if isinstance(error, ConfigError) else status
    )


def _html(console: Console, name: str, values: Mapping[str, Any], *, status: int = 200, done: str = "") -> HTMLResponse:
    shared = {
        "allow_changes": console.allow_changes,
        "has_redis": console.redis_url is not None,
        "token": console.token,
        "done": changes.DONE.get(done, ""),
    }
    return HTMLResponse(console.templates.get_template(name).render({**shared, **values}), status)
