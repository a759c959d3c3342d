"""Logins of visitors by the broker's own users: the console logs in at the broker with what the visitor typed.

So the broker judges the password, and its access rules decide what this visitor sees and changes. The console has no
users and no rights of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final
from urllib.parse import urlencode, urlsplit

from anyio import CapacityLimiter, to_thread
from kio.schema.errors import ErrorCode
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from korvet.cli.console.clients import Clients
from korvet.cli.console.complaints import Complaints
from korvet.cli.console.visitors import Sessions, TooManySessions, Visitor
from korvet.cli.kafka.client import Client
from korvet.cli.kafka.errors import BrokerError
from korvet.cli.kafka.framing import request
from korvet.security.attempts import Attempts
from korvet.security.origins import origin_of

MOST_NAME_CHARACTERS: Final = 250
MOST_PASSWORD_CHARACTERS: Final = 1000
MOST_AT_ONCE: Final = 10
"""The logins that an address may fail at once, and then another one each `EVERY_S`."""
EVERY_S: Final = 6.0
MOST_JUDGED: Final = 4
MOST_WAITING: Final = 32
COMPLAINS_EVERY_S: Final = 5.0
REFUSED: Final = "The broker knows no such user with this password."
ENDED: Final = "Your session has ended."


class NotLoggedIn(Exception):
    """A request without a session."""


class Refused(Exception):
    """A login that the broker, or a bound, refuses; the text is for the visitor."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class Logins:
    """The login of visitors, and the sessions after it.

    :ivar make_client: makes a client of a user and a password.
    :ivar operators: the users that see what no rule of the cluster protects.
    :ivar has_tls: browsers speak TLS with the console, or with a proxy before it.
    :ivar is_proxied: a proxy names the visitor's address.
    """

    make_client: Callable[[str, str], Client]
    operators: frozenset[str]
    cookie: str
    has_tls: bool
    is_proxied: bool
    sessions: Sessions
    attempts: Attempts = field(default_factory=partial(Attempts, MOST_AT_ONCE, EVERY_S))
    complaints: Complaints = field(default_factory=partial(Complaints, COMPLAINS_EVERY_S))
    turns: CapacityLimiter = field(default_factory=partial(CapacityLimiter, MOST_JUDGED))

    def visitor(self, request: Request) -> Visitor:
        """The visitor of a request.

        :raises NotLoggedIn: there is no session, or it has ended.
        """
        found = self.sessions.find(self._id(request), is_use=not _is_automatic(request))
        if found is None:
            raise NotLoggedIn
        return found

    async def let_in(self, request: Request, user: str, password: str, response: Response) -> None:
        """Begin a session of a user; the response carries its new id. An earlier session ends.

        :raises Refused: if the broker refuses the user, or cannot be reached.
        """
        address = origin_of(self._address(request))
        if self.turns.statistics().tasks_waiting >= MOST_WAITING:
            raise Refused("Too many visitors log in now; try again.", 503)
        if not self.attempts.take(address):
            raise Refused("Too many logins failed at your address; wait a minute.", 429)
        clients = Clients(partial(self.make_client, user, password))
        try:
            async with self.turns:
                await to_thread.run_sync(_judge, clients, user, password)
        except BrokerError as error:
            self.attempts.give_back(address)
            self.complaints.say(f"no broker judges logins: {error}")
            raise Refused("No broker can judge logins now; the console's output says why.", 503) from None
        self.attempts.give_back(address)
        visitor = Visitor(clients=clients, user=user, is_operator=user in self.operators)
        self.sessions.end(self._id(request))
        try:
            id = self.sessions.open(visitor)
        except TooManySessions:
            clients.close()
            raise Refused("Too many visitors are logged in; try again later.", 503) from None
        response.set_cookie(self.cookie, id, path="/", secure=self.has_tls, httponly=True, samesite="strict")

    def let_out(self, request: Request, response: Response) -> None:
        """End the session of a request."""
        self.sessions.end(self._id(request))
        response.delete_cookie(self.cookie, path="/", secure=self.has_tls, httponly=True, samesite="strict")

    def _id(self, request: Request) -> str:
        return request.cookies.get(self.cookie, "")

    def _address(self, request: Request) -> str:
        if self.is_proxied:
            # Some proxies append a header of their own to those from the visitor.
            return ",".join(request.headers.getlist("x-forwarded-for")).rpartition(",")[2].strip()
        return "" if request.client is None else request.client.host


def cookie_name(port: int, *, has_tls: bool) -> str:
    """The name of the cookie of a console at a port: browsers send a host's cookies to all of its ports."""
    return f"__Host-korvet-{port}" if has_tls else f"korvet-{port}"


def _is_automatic(request: Request) -> bool:
    """True if a page sent the request without its visitor."""
    return request.headers.get("hx-target") == "live" or request.url.path == "/group/lag"


def _judge(clients: Clients, user: str, password: str) -> None:
    """Let the broker check a login.

    :raises Refused: it does not let the user in.
    :raises BrokerError: it cannot be reached.
    """
    # The protocol has no such names and passwords, so no user has them.
    if not user or not password or "\0" in user + password or len(user) > MOST_NAME_CHARACTERS:
        raise Refused(REFUSED, 401)
    if len(password) > MOST_PASSWORD_CHARACTERS:
        raise Refused(REFUSED, 401)
    try:
        with clients.borrow() as client:
            client.ask(request("api_versions", 0))
    except BrokerError as error:
        if is_refusal(error):
            raise Refused(REFUSED, 401) from None
        raise


def is_refusal(error: Exception) -> bool:
    """True if a broker refuses the user's login, or has ended it."""
    return isinstance(error, BrokerError) and error.code is ErrorCode.sasl_authentication_failed


def to_login(request: Request, logins: Logins, pages: frozenset[str]) -> Response:
    """Redirect a visitor to the login, and then back to the requested page. An earlier session ends."""
    response = _to_login(request, logins, pages)
    logins.let_out(request, response)
    return response


def _to_login(request: Request, logins: Logins, pages: frozenset[str]) -> Response:
    if request.url.path == "/group/lag":
        return PlainTextResponse(ENDED, 401)
    fields = {"ended": "1"} if logins.cookie in request.cookies else {}
    if request.method == "GET" and not request.headers.get("hx-request"):
        wanted = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        if wanted != "/" and page_inside(wanted, pages) == wanted:
            fields["next"] = wanted
    target = "/login" + (f"?{urlencode(fields)}" if fields else "")
    if request.headers.get("hx-request"):
        return Response(headers={"HX-Redirect": target})
    return RedirectResponse(target, 303)


def page_inside(target: str, pages: frozenset[str]) -> str:
    """The page of the console that a text names; the first page if it names none, so a login leads to no other site."""
    try:
        parts = urlsplit(target)
    except ValueError:
        return "/"
    is_inside = not parts.scheme and not parts.netloc and parts.path in pages
    return target if is_inside and len(target) < 4000 else "/"
