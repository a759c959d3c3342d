"""A link: one purpose's connection to one Redis node, kept up.

A link connects, logs in, reads the server's run id before anything else is sent, reconnects with backoff, and gives
error replies their meaning. While no connection is up, commands fail at once and their outcome is known.

The name is of a server and a purpose; what the log says of an outage is said once for a server (`ServerLines`).

**Function not found** (a fresh replica became primary, somebody flushed the functions): the library is loaded through
this very connection, and what was refused is sent again in its old order before what was asked meanwhile. Where there
is a library of an older version, which lacks that function, this one takes its place.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import anyio
import structlog

from korvet.errors import KorvetError, StoreError, StoreUnavailable
from korvet.store.address import Address
from korvet.store.refusals import (
    NO_TLS_THERE,
    TLS_THERE,
    as_exception,
    is_final,
    is_redirection,
    told,
    why_closed,
)
from korvet.store.resp import Connection, Owner, Placed, ReplyError, Sent, pack_command
from korvet.store.server_lines import ServerLines
from korvet.store.tls_probe import speaks_plainly, speaks_tls

log = structlog.get_logger()

CONNECT_TIMEOUT_S = 5.0
_TLS_HANDSHAKE_S = 3.0
_GOODBYE_S = 1.0
SILENCE_LIMIT_S = 15.0
_BACKOFF_S = (0.05, 2.0)
_MAX_ATTEMPTS = 6
_UNIX_BUFFER_BYTES = 1 << 20
"""Of a unix socket towards the server, as far as the kernel allows: a large batch goes in fewer writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """What every connection says first."""

    auth: tuple[str, ...] = ()
    db: int = 0
    tls: ssl.SSLContext | None = None


class Send(Protocol):
    """Queue a command, and say how often it was sent before."""

    def __call__(self, future: asyncio.Future[Any] | None, packed: bytes, attempts: int = 0) -> None: ...


class Link(Owner):
    """One purpose's way to one node.

    :param locate: finds the server's address, asked at every connect (Sentinel may name another).
    :param library: the Lua library's text, for "Function not found".
    :param is_older: whether a library of some version is older than that.
    """

    def __init__(
        self,
        name: str,
        locate: Callable[[], Awaitable[Address]],
        login: Login,
        *,
        library: Callable[[], bytes],
        is_older: Callable[[str], bool],
        lines: ServerLines,
        subscriber: bool = False,
    ) -> None:
        self.name = name
        self.run_id = ""
        self.server: dict[str, str] = {}
        self.problem: KorvetError = StoreUnavailable(f"not connected to Redis yet ({name})")
        self.is_turned_away = False
        """Whether the server refused the login for a reason that time does not mend."""
        self.on_run_id: Callable[[], None] = _nothing
        self.on_change: Callable[[], None] = _nothing
        self.on_up: Callable[[], None] = _nothing
        self.on_down: Callable[[], None] = _nothing
        self.on_push: Callable[[Any], None] = _nothing
        self.on_redirected: Callable[[Sent, str], bool] = _not_redirected
        self._locate = locate
        self._login = login
        self._library = library
        self._is_older = is_older
        self._lines = lines
        self._subscriber = subscriber
        self._live: Connection | None = None
        self._gate: Connection | None = None
        self._refused: list[Sent] = []
        self._held: list[Sent] | None = None
        self._given_up = ""
        self.address: Address | None = None
        """Of the server that it is, or was last, connected to."""
        self.send: Send = self._send_nowhere
        """The connection's own method where there is one and nothing is held back: every command goes through it."""

    @property
    def is_up(self) -> bool:
        """Whether a command would be sent now."""
        return self._gate is not None

    @property
    def silent_s(self) -> float:
        """For how long replies have been owed without a byte; 0 where nothing is owed."""
        since = None if self._live is None else self._live.silent_since
        return 0.0 if since is None else asyncio.get_running_loop().time() - since

    def _choose_send(self) -> None:
        if self._gate is None:
            self.send = self._send_nowhere
        elif self._held is not None:
            self.send = self._hold
        else:
            self.send = self._gate.send

    def _send_nowhere(self, future: asyncio.Future[Any] | None, packed: bytes, attempts: int = 0) -> None:
        fail(future, StoreUnavailable(str(self.problem)))

    def _hold(self, future: asyncio.Future[Any] | None, packed: bytes, attempts: int = 0) -> None:
        assert self._held is not None
        self._held.append((future, packed, attempts))

    def send_placed(self, future: asyncio.Future[Any], placed: Placed, attempts: int = 0) -> None:
        """Queue a call and, before it, the SET of what it needs."""
        if self._held is not None and self._gate is not None:
            self._held.append((future, placed, attempts))
        elif self._gate is not None:
            self._gate.send_placed(future, placed, attempts)
        else:
            fail(future, StoreUnavailable(str(self.problem)))

    def resend(self, sent: Sent) -> None:
        """Queue a command of either kind."""
        future, command, attempts = sent
        if not isinstance(command, Placed):
            self.send(future, command, attempts)
        elif future is not None:
            self.send_placed(future, command, attempts)

    def send_asking(self, sent: Sent) -> None:
        """Queue a command of a slot that is being moved here (after ASK)."""
        if self._gate is not None and self._held is None:
            self._gate.send(None, pack_command(("ASKING",)))
        self.resend(sent)

    def send_unanswered(self, packed: bytes) -> None:
        """Queue a command of a subscriber; dropped where there is no connection, for connecting subscribes anew."""
        if self._gate is not None:
            self._gate.send_unanswered(packed)

    def break_off(self, reason: str = "") -> None:
        """Give the present connection up, and connect anew; ``reason`` is what is told of it."""
        if self._live is not None:
            self._given_up = reason
            self._live.abort()

    async def run(self) -> None:
        """Keep the link up until cancelled."""
        backoff_s = _BACKOFF_S[0]
        while True:
            try:
                with anyio.fail_after(CONNECT_TIMEOUT_S):
                    connection = await self._connect()
            except (OSError, KorvetError) as error:
                self._note(error)
                await anyio.sleep(backoff_s)
                backoff_s = min(backoff_s * 2, _BACKOFF_S[1])
                continue
            up_at = anyio.current_time()
            try:
                await _watch(connection)
            finally:
                await self._retire(connection)
            if anyio.current_time() - up_at > _BACKOFF_S[1]:
                backoff_s = _BACKOFF_S[0]
            else:
                # A server that takes connections and drops them (a replica that refuses writes) is not hammered.
                await anyio.sleep(backoff_s)
                backoff_s = min(backoff_s * 2, _BACKOFF_S[1])

    async def _retire(self, connection: Connection) -> None:
        if connection is self._live:
            self._live = self._gate = None
            self._choose_send()
        await _close(connection)

    def _note(self, error: Exception) -> None:
        text = told(error)
        self._lines.failed(self, text)
        self.problem = StoreUnavailable(text)
        self.is_turned_away = is_final(error)
        if self.is_turned_away:
            self.on_change()

    async def _connect(self) -> Connection:
        address = await self._locate()
        try:
            connection = await _open(self, address, self._login.tls)
        except OSError:
            if self._may_be_misnamed(address) and self._login.tls and await speaks_plainly(address):
                raise StoreError(NO_TLS_THERE) from None
            raise
        try:
            server = await self._shake_hands(connection)
        except StoreUnavailable as error:
            connection.abort()
            if self._may_be_misnamed(address) and not self._login.tls and await speaks_tls(address):
                raise StoreError(TLS_THERE) from None
            raise why_closed(error, connection) from None
        except BaseException:
            connection.abort()
            raise
        self._live = self._gate = connection
        self._given_up = ""
        self.address = address
        self._choose_send()
        connection.subscriber = self._subscriber
        self._enter(server)
        return connection

    def _may_be_misnamed(self, address: Address) -> bool:
        return bool(address.port) and not self.run_id

    async def _shake_hands(self, connection: Connection) -> dict[str, str]:
        owed = []
        if self._login.auth:
            owed.append(connection.command("AUTH", *self._login.auth))
        if self._login.db:
            owed.append(connection.command("SELECT", self._login.db))
        owed.append(connection.command("CLIENT", "SETNAME", f"korvet-{self.name}"))
        info = connection.command("INFO", "server")
        for reply in owed:
            await reply
        lines = (await info).decode().splitlines()
        return {name: value.strip() for name, found, value in (line.partition(":") for line in lines) if found}

    def _enter(self, server: dict[str, str]) -> None:
        self.server = server
        self.is_turned_away = False
        run_id, before = server.get("run_id", ""), self.run_id
        self.run_id = run_id
        self._lines.back(self, same_history=before in ("", run_id))
        if before and before != run_id:
            self.on_run_id()
        self.on_up()
        self.on_change()

    def refused(self, sent: Sent, error: ReplyError) -> None:
        future, packed, attempts = sent
        assert future is not None
        text = str(error)
        if text.startswith("ERR Function not found") and attempts < _MAX_ATTEMPTS:
            self._load_and_resend((future, packed, attempts + 1))
        elif is_redirection(text) and self.on_redirected(sent, text):
            pass
        else:
            fail(future, as_exception(text))
            if text.startswith("READONLY"):
                self.break_off(text)

    def _load_and_resend(self, sent: Sent) -> None:
        self._refused.append(sent)
        if self._held is None and self._live is not None:
            self._held = []
            self._choose_send()
            log.warning("the server lost korvet's functions; loading them", link=self.name)
            # Not REPLACE: where another front-end has loaded a library meanwhile, that one is mostly right or newer.
            loading = self._live.command("FUNCTION", "LOAD", self._library())
            loading.add_done_callback(self._loaded)

    def _loaded(self, loading: asyncio.Future[Any]) -> None:
        error = _failure(loading)
        if "already exists" not in str(error):
            self._send_again(error)
        elif self._live is not None:
            self._live.command("FCALL_RO", "korvet_version", "0").add_done_callback(self._compared)
        else:
            self._send_again(None)

    def _compared(self, asked: asyncio.Future[Any]) -> None:
        """There is a library, which another front-end loaded: its version is known."""
        if self._live is not None and _failure(asked) is None and self._is_older(asked.result().decode()):
            replacing = self._live.command("FUNCTION", "LOAD", "REPLACE", self._library())
            replacing.add_done_callback(lambda replaced: self._send_again(_failure(replaced)))
        else:
            self._send_again(None)

    def _send_again(self, error: BaseException | None) -> None:
        """Send what was refused, and what was asked since; or fail it, where the library could not be loaded."""
        refused, self._refused = self._refused, []
        held, self._held = self._held or [], None
        self._choose_send()
        if error is not None:
            log.error("korvet's functions cannot be loaded", link=self.name, reason=str(error))
            for future, _, _ in refused:
                fail(future, error)
            refused = []
        for sent in (*refused, *held):
            self.resend(sent)

    def pushed(self, message: Any) -> None:
        self.on_push(message)

    def congested(self, connection: Connection, congested: bool) -> None:
        if connection is self._live:
            self.problem = StoreUnavailable("Redis does not take what is sent to it fast enough")
            self._gate = None if congested else connection
            self._choose_send()

    def lost(self, connection: Connection, unanswered: Sequence[Sent]) -> None:
        why = "the connection to Redis was lost"
        if connection is self._live:
            self._live = self._gate = None
            self._choose_send()
            self._lines.lost(self, self._given_up)
            why, self._given_up = self._given_up or why, ""
            self.problem = StoreUnavailable(why)
            self.on_down()
        for future, _, _ in unanswered:
            fail(future, StoreUnavailable(why, outcome_unknown=True))


def _failure(done: asyncio.Future[Any]) -> BaseException | None:
    return None if done.cancelled() else done.exception()


def _nothing(*_: object) -> None:
    """Nobody listens."""


def _not_redirected(_sent: Sent, _text: str) -> bool:
    return False


async def _watch(connection: Connection) -> None:
    """Return when the connection is lost, or aborted for owing replies without a byte for `SILENCE_LIMIT_S`.

    An idle one is pinged. For a subscriber that is more than a courtesy: nothing else is ever owed there, and readers
    at the end of a log believe its silence.
    """
    loop = asyncio.get_running_loop()
    while not connection.closed.done():
        with anyio.move_on_after(SILENCE_LIMIT_S / 3):
            await asyncio.shield(connection.closed)
        silent_since = connection.silent_since
        if silent_since is not None and loop.time() - silent_since > SILENCE_LIMIT_S:
            connection.abort()
        elif not connection.closed.done():
            connection.ping()


async def _close(connection: Connection) -> None:
    """Close, and over TLS hear the server's goodbye; a server that has none, and takes no more bytes, is left."""
    connection.close()
    with anyio.CancelScope(shield=True):
        with anyio.move_on_after(_GOODBYE_S):
            await asyncio.shield(connection.closed)
        if not connection.closed.done():
            connection.abort()
            await connection.closed


async def _open(owner: Owner, address: Address, tls: ssl.SSLContext | None) -> Connection:
    loop = asyncio.get_running_loop()
    if not address.port:
        transport, connection = await loop.create_unix_connection(lambda: Connection(owner), address.host)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _UNIX_BUFFER_BYTES)
    else:
        patience_s = _TLS_HANDSHAKE_S if tls else None
        _, connection = await loop.create_connection(
            lambda: Connection(owner), *address, ssl=tls, ssl_handshake_timeout=patience_s
        )
    return connection


def fail(future: asyncio.Future[Any] | None, error: BaseException) -> None:
    """Fail a future that may be done or cancelled; nobody is warned when nobody looks at it."""
    if future is not None and not future.done():
        future.set_exception(error)
        future.exception()
