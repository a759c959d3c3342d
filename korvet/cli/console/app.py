"""The console's pages as a Starlette application.

Each page reads from the cluster anew, in a thread, by the visitor's own client. Changes need
``allow_changes``, a POST from the console's own pages, and the visitor's token, which no other site's page can read.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from korvet import __version__
from korvet.cli.console import changes, form_fields, views
from korvet.cli.console.changes import Change, Plan, Question
from korvet.cli.console.complaints import Complaints
from korvet.cli.console.guard import Guard
from korvet.cli.console.lists import Lists, ListsOfVisitor
from korvet.cli.console.login import ENDED, Logins, NotLoggedIn, Refused, is_refusal, page_inside, to_login
from korvet.cli.console.paging import query
from korvet.cli.console.sources import Sources
from korvet.cli.console.views import View
from korvet.cli.console.visitors import Busy, Visitor
from korvet.cli.kafka.client import may_pass
from korvet.cli.kafka.errors import BrokerError
from korvet.errors import ConfigError, KorvetError
from korvet.metrics.hosts import Hosts
from korvet.unknown import known

FORBIDDEN: Final = "only the users that the console was started with as --operator see and change this"
STATIC: Final = Path(__file__).with_name("static")
COMPLAINS_EVERY_S: Final = 60.0
"""Pages refresh themselves, and each of them fails while a broker is away."""
PATHS: Final = frozenset(path for path, _, _ in views.PAGES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Console:
    """The state that the pages share.

    :ivar authentication: the visitors' login; or the one visitor that everybody is.
    """

    authentication: Logins | Visitor
    sources: Sources
    allow_changes: bool
    lists: Lists = field(default_factory=Lists)
    complaints: Complaints = field(default_factory=partial(Complaints, COMPLAINS_EVERY_S))
    templates: Environment = field(default_factory=lambda: _templates())

    def visitor(self, request: Request) -> Visitor:
        """The visitor of a request.

        :raises NotLoggedIn: if visitors log in, and this one did not.
        """
        return self.authentication if isinstance(self.authentication, Visitor) else self.authentication.visitor(request)


def _templates() -> Environment:
    templates = Environment(
        loader=PackageLoader("korvet.cli.console"),
        autoescape=select_autoescape(default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters.update(
        known=known,
        bytes=partial(known, form=_bytes),
        number=partial(known, form="{:,}".format),
        rate=partial(known, form="{:,.1f}".format),
        when=partial(known, form=_when),
    )
    templates.globals.update(query=query, version=__version__)
    return templates


def _when(time: str) -> str:
    """A time of ISO 8601 in UTC, which the page may show in the browser's zone; another text stays as it is."""
    try:
        at = datetime.fromisoformat(time)
    except ValueError:
        return time
    at = at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
    text = f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03}Z"
    return Markup('<time datetime="{0}">{0}</time>').format(text)


def _bytes(size: float) -> str:
    value, unit = float(size), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def make_app(
    authentication: Logins | Visitor, hosts: Hosts, sources: Sources, *, scheme: str, allow_changes: bool
) -> Starlette:
    """The console.

    :param scheme: http or https, as browsers see it.

    :param hosts: the Host headers that name it; a request with another one is refused, because a foreign site's name
        may lead to the console's address (DNS rebinding).
    """
    console = Console(authentication=authentication, sources=sources, allow_changes=allow_changes)
    pages = [Route(path, partial(_page, console, name, view)) for path, name, view in views.PAGES]
    actions = [Route(path, partial(_change, console, change), methods=["POST"]) for path, change in changes.CHANGES]
    login_routes = []
    if isinstance(authentication, Logins):
        login_routes = [
            Route("/login", partial(_login_page, console), methods=["GET"]),
            Route("/login", partial(_log_in, console, authentication), methods=["POST"]),
            Route("/logout", partial(_log_out, console, authentication), methods=["POST"]),
        ]
    return Starlette(
        routes=[
            *login_routes,
            *pages,
            Route("/group/lag", partial(_lag, console)),
            *actions,
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        middleware=[Middleware(Guard, hosts=hosts, scheme=scheme)],
        exception_handlers={
            NotLoggedIn: partial(_unknown, console),
            HTTPException: partial(_refused, console),
            KorvetError: partial(_failed, console),
        },
    )


async def _page(console: Console, name: str, view: View, request: Request) -> Response:
    visitor, fields = console.visitor(request), dict(request.query_params)
    may_be_kept = "page" in fields or "hx-request" in request.headers
    if request.url.path in views.FOR_OPERATORS and not visitor.is_operator:
        raise HTTPException(403, FORBIDDEN)
    values = await visitor.run(_shown, console, visitor, view, fields, may_be_kept)
    return _html(console, name, values, visitor, done=fields.get("done", ""))


def _shown(
    console: Console, visitor: Visitor, view: View, fields: Mapping[str, str], may_be_kept: bool
) -> dict[str, Any]:
    """The contents of a page; one that continues an earlier page may use that page's list."""
    sources = console.sources if visitor.is_operator else console.sources.public
    lists = ListsOfVisitor(lists=console.lists, visitor=visitor.token, may_be_kept=may_be_kept)
    with visitor.clients.borrow() as client:
        return view(client, fields, replace(sources, lists=lists))


async def _lag(console: Console, request: Request) -> Response:
    visitor, fields = console.visitor(request), dict(request.query_params)
    return JSONResponse(await visitor.run(_shown, console, visitor, views.lag, fields, False))


async def _change(console: Console, change: Change, request: Request) -> Response:
    visitor = console.visitor(request)
    if not console.allow_changes:
        raise HTTPException(403, "this console changes nothing; start it with --allow-changes")
    if request.url.path in changes.FOR_OPERATORS and not visitor.is_operator:
        raise HTTPException(403, FORBIDDEN)
    fields = await _signed_form(request, visitor)
    try:
        answer = await visitor.run(_changed, console, visitor, change, fields)
    except (HTTPException, KorvetError) as error:
        if request.url.path != changes.RESET:
            raise
        wrong = form_fields.wrong_field(error)
        values = await visitor.run(_shown, console, visitor, views.group, {"id": fields.get("id", "")}, False)
        return _html(console, "group.html", {**values, "form": fields, "wrong": wrong}, visitor)
    if isinstance(answer, Plan):
        return _html(console, "plan.html", {"plan": answer}, visitor)
    if isinstance(answer, Question):
        return _html(console, "question.html", {"question": answer}, visitor)
    return RedirectResponse(answer, 303)


def _changed(console: Console, visitor: Visitor, change: Change, fields: Mapping[str, str]) -> Plan | Question | str:
    with visitor.clients.borrow() as client:
        return change(client, fields, console.sources)


async def _form(request: Request) -> dict[str, str]:
    async with request.form(max_files=0, max_fields=20) as form:
        return {name: value for name, value in form.items() if isinstance(value, str)}


async def _signed_form(request: Request, visitor: Visitor) -> dict[str, str]:
    """The fields of a form of this visitor's pages.

    :raises HTTPException: 403, if it is of other pages.
    """
    fields = await _form(request)
    if not secrets.compare_digest(fields.get("token", "").encode(), visitor.token.encode()):
        raise HTTPException(403, "the form is of an earlier console or session; load its page again")
    return fields


async def _login_page(console: Console, request: Request) -> Response:
    fields = dict(request.query_params)
    problem = ENDED if "ended" in fields else ""
    return _login_form(console, fields, problem, 200)


async def _log_in(console: Console, logins: Logins, request: Request) -> Response:
    fields = await _form(request)
    response = RedirectResponse(page_inside(fields.get("next", ""), PATHS), 303)
    try:
        await logins.let_in(request, fields.get("user", ""), fields.get("password", ""), response)
    except Refused as refused:
        return _login_form(console, fields, str(refused), refused.status)
    return response


def _login_form(console: Console, fields: Mapping[str, str], problem: str, status: int) -> Response:
    values = {"next": page_inside(fields.get("next", ""), PATHS), "name": fields.get("user", ""), "problem": problem}
    return _html(console, "login.html", values, status=status)


async def _log_out(_console: Console, logins: Logins, request: Request) -> Response:
    await _signed_form(request, logins.visitor(request))
    response = RedirectResponse("/login", 303)
    logins.let_out(request, response)
    return response


async def _unknown(console: Console, request: Request, _error: Exception) -> Response:
    assert isinstance(console.authentication, Logins)
    return to_login(request, console.authentication, PATHS)


async def _refused(console: Console, request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _error(console, request, error.detail, error.status_code)


async def _failed(console: Console, request: Request, error: Exception) -> Response:
    if isinstance(console.authentication, Logins) and is_refusal(error):
        # The user was removed, or has another password.
        return to_login(request, console.authentication, PATHS)
    if isinstance(error, ConfigError):
        return _error(console, request, str(error), 400)
    if isinstance(error, Busy):
        return _error(console, request, str(error), 503)
    is_unreachable = isinstance(error, BrokerError) and error.code is None
    is_away = isinstance(error, BrokerError) and may_pass(error)
    if is_unreachable:
        console.complaints.say(
            f"the console's pages show nothing: {error}. If the broker runs, see its own log: it may have no more "
            "connections left"
        )
    return _error(console, request, str(error), 503 if is_unreachable or is_away else 404, is_away=is_away)


def _error(console: Console, request: Request, problem: str, status: int, *, is_away: bool = False) -> Response:
    try:
        visitor = console.visitor(request)
    except NotLoggedIn:
        visitor = None
    return _html(console, "error.html", {"problem": problem, "is_away": is_away}, visitor, status=status)


def _html(
    console: Console,
    name: str,
    values: Mapping[str, Any],
    visitor: Visitor | None = None,
    *,
    status: int = 200,
    done: str = "",
) -> HTMLResponse:
    """A page; without a visitor it leads nowhere."""
    is_operator = visitor is not None and visitor.is_operator
    shared = {
        "allow_changes": console.allow_changes,
        "has_redis": is_operator and console.sources.redis_url is not None,
        "token": "" if visitor is None else visitor.token,
        "user": None if visitor is None else visitor.user,
        "is_known": visitor is not None,
        "done": changes.DONE.get(done, ""),
        "form": {},
        "wrong": "",
    }
    values = {**shared, **values}
    return HTMLResponse(console.templates.get_template(name).render(values), 400 if values["wrong"] else status)
