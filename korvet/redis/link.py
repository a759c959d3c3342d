"""A link: one purpose's connection to one Redis server, kept up.

A link connects, logs in, and reads the server's run id and replication id before it sends anything else. It reconnects
with backoff, and turns error replies into korvet's errors. Without a connection, commands fail at once with a known
outcome. The links of one server log an outage once (`ServerLines`).

If a server lacks the library, or has an older one, the link loads it (`korvet.redis.library_loading`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from math import inf
from typing import Any, Protocol

import anyio
import structlog

from korvet.errors import KorvetError, StoreError, StoreUnavailable, ValueTooLarge
from korvet.redis.address import Address
from korvet.redis.connecting import Login, close_connection, connect, watch
from korvet.redis.error_replies import as_exception, failure_text, is_final, is_redirection, with_key
from korvet.redis.library_loading import LibraryLoading
from korvet.redis.outage_log import ServerLines
from korvet.redis.resp import Connection, Owner, Placed, ReplyError, Sent, Waits, fail, pack_command

log = structlog.get_logger()

CONNECT_TIMEOUT_S = 5.0
_BACKOFF_S = (0.05, 2.0)
_MAX_ATTEMPTS = 6
LEAST_MOST_VALUE_BYTES = 1 << 20
"""The lowest possible setting of Redis's two limits. The link assumes it after a value was too large for a server that
does not reveal its limits."""
_BESIDE_BYTES = 65_536
"""The bytes of other commands that the server's buffer may hold beside a value."""
_TOO_LARGE = "ERR Protocol error: invalid bulk length"
_OF_LIBRARY = "@user_function:"
"""A part of each error from a function."""


class Send(Protocol):
    """Queue a command that was sent ``attempts`` times before."""

    def __call__(self, future: asyncio.Future[Any] | None, packed: bytes, attempts: int = 0) -> None: ...


class Link(Owner):
    """One purpose's connection to one server.

    :param name: the purpose, and in a cluster the server; CLIENT LIST shows it.
    :param locate: finds the server's address at each connect, because Sentinel may name another.
    :param library: the Lua library's text, for "Function not found".
    :param is_older: true for a version older than the library's.
    :param asks_limits: true to read the server's largest value at each connect.
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
        asks_limits: bool = False,
        waits: Waits | None = None,
    ) -> None:
        super().__init__(waits)
        self.name = name
        self.run_id = ""
        self.replid = ""
        """The server's last known replication id."""
        self.history = ""
        """The server's history: when it changes, data may be older or another server's. Empty before a connect."""
        self.most_value_bytes = inf
        """The largest value that the server accepts, as far as known."""
        self._asks_limits = asks_limits
        self._has_reported_limit = False
        self.server: dict[str, str] = {}
        self.problem: KorvetError = StoreUnavailable(f"not connected to Redis yet ({name})")
        self.is_turned_away = False
        """True if the server refused the login for good."""
        self.on_history: Callable[[], None] = _nothing
        self.on_change: Callable[[], None] = _nothing
        self.on_up: Callable[[], None] = _nothing
        self.on_down: Callable[[], None] = _nothing
        self.on_demoted: Callable[[str], None] = self.break_off
        """Called with the error that reports the demotion."""
        self.on_push: Callable[[Any], None] = _nothing
        self.on_redirected: Callable[[Sent, str], bool] = _not_redirected
        self.loads_through: Callable[[], Link | None] | None = None
        """Finds the same server's link of the user who loads the library, if this link's user may not."""
        self._locate = locate
        self._login = login
        self.lines = lines
        self._subscriber = subscriber
        self._live: Connection | None = None
        self._gate: Connection | None = None
        self._held: list[Sent] | None = None
        self._loading = LibraryLoading(self, library, is_older)
        self._given_up = ""
        self.address: Address | None = None
        """The server's address at this connection, or the last one."""
        self.send: Send = self._send_nowhere
        """Sends every command: the connection's own method while connected and not on hold."""

    @property
    def live(self) -> Connection | None:
        """The current connection."""
        return self._live

    @property
    def loader(self) -> Connection | None:
        """The connection that loads the library, if up: that of `loads_through`, or the link's own."""
        if self.loads_through is None:
            return self._live
        through = self.loads_through()
        return None if through is None else through.live

    @property
    def is_connected(self) -> bool:
        """True if there is a connection, even a congested one."""
        return self._live is not None

    @property
    def is_up(self) -> bool:
        """True if the link would send a command now."""
        return self._gate is not None

    def note_history(self, run_id: str, replid: str) -> None:
        """Store the run id and the replication id that the server reported."""
        self.run_id, self.replid = run_id, replid
        self.history = f"{run_id}/{replid}" if run_id else ""

    @property
    def is_steady(self) -> bool:
        """True if the server's bytes arrived without a pause lately; see `Connection.is_steady`."""
        return self._live is not None and self._live.is_steady

    @property
    def silent_s(self) -> float:
        """The seconds for which the server has owed replies without a byte; 0 if it owes none."""
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

    def hold(self) -> None:
        """Hold new commands until `let_go`."""
        self._held = []
        self._choose_send()

    def let_go(self) -> list[Sent]:
        """End the hold. Returns the held commands."""
        held, self._held = self._held or [], None
        self._choose_send()
        return held

    def _hold(self, future: asyncio.Future[Any] | None, packed: bytes, attempts: int = 0) -> None:
        assert self._held is not None
        self._held.append((future, packed, attempts))

    def send_placed(self, future: asyncio.Future[Any], placed: Placed, attempts: int = 0) -> None:
        """Queue the SET of a temporary key, then the call that takes the key."""
        if self.refuses(future, placed.size_bytes):
            return
        if self._held is not None and self._gate is not None:
            self._held.append((future, placed, attempts))
        elif self._gate is not None:
            self._gate.send_placed(future, placed, attempts)
        else:
            fail(future, StoreUnavailable(str(self.problem)))

    def refuses(self, future: asyncio.Future[Any], size_bytes: int) -> bool:
        """Fail a command whose value is larger than the server accepts: it would break the shared connection.

        The log reports the first one at each limit.
        """
        if size_bytes <= self.most_value_bytes:
            return False
        fail(future, ValueTooLarge(f"Redis takes values of {self.most_value_bytes} bytes, not of {size_bytes}"))
        if not self._has_reported_limit:
            self._has_reported_limit = True
            log.warning(
                "a batch is larger than redis takes; such batches are refused",
                server=self.lines.server, bytes=size_bytes, most=self.most_value_bytes,
                remedy="raise proto-max-bulk-len and client-query-buffer-limit of redis, or lower max.message.bytes",
            )  # fmt: skip
        return True

    def resend(self, sent: Sent) -> None:
        """Queue a command of either kind."""
        future, command, attempts = sent
        if not isinstance(command, Placed):
            self.send(future, command, attempts)
        elif future is not None:
            self.send_placed(future, command, attempts)

    def send_asking(self, sent: Sent) -> None:
        """Queue a command after ASKING, because its slot is moving to this server."""
        if self._gate is not None and self._held is None:
            self._gate.send(None, pack_command(("ASKING",)))
        self.resend(sent)

    def send_unanswered(self, packed: bytes) -> None:
        """Queue a subscriber's command. Dropped without a connection, because a new one subscribes again."""
        if self._gate is not None:
            self._gate.send_unanswered(packed)

    def break_off(self, reason: str = "") -> None:
        """Drop the connection and reconnect; ``reason`` goes to the log."""
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
                await watch(connection)
            finally:
                await self._retire(connection)
            if anyio.current_time() - up_at > _BACKOFF_S[1]:
                backoff_s = _BACKOFF_S[0]
            else:
                # Some servers, such as a replica, accept a connection and drop it: they get the same pauses.
                await anyio.sleep(backoff_s)
                backoff_s = min(backoff_s * 2, _BACKOFF_S[1])

    async def _retire(self, connection: Connection) -> None:
        if connection is self._live:
            self._live = self._gate = None
            self._choose_send()
        await close_connection(connection)

    def _note(self, error: Exception) -> None:
        text = failure_text(error)
        self.is_turned_away = is_final(error)
        self.lines.failed(self, text, is_final=self.is_turned_away)
        self.problem = StoreUnavailable(text)
        if self.is_turned_away:
            self.on_change()

    async def _connect(self) -> Connection:
        address = await self._locate()
        connection, server = await connect(self, address, self._login, self.name, is_first=not self.run_id)
        try:
            await self._ask_limits(connection)
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

    async def _ask_limits(self, connection: Connection) -> None:
        """Read the largest value. A server that refuses is not queried again, because it logs the refusal."""
        if not self._asks_limits:
            return
        try:
            found = await connection.command("CONFIG", "GET", "proto-max-bulk-len", "client-query-buffer-limit")
            limits = {bytes(name): int(value) for name, value in zip(found[::2], found[1::2], strict=True)}
            value_bytes, query_bytes = limits[b"proto-max-bulk-len"], limits[b"client-query-buffer-limit"]
            most_bytes = min(value_bytes, query_bytes - _BESIDE_BYTES)
            self._has_reported_limit = self._has_reported_limit and most_bytes == self.most_value_bytes
            self.most_value_bytes = most_bytes
        except StoreUnavailable:
            pass
        except (StoreError, KeyError, ValueError):
            self._asks_limits = False

    def _enter(self, server: dict[str, str]) -> None:
        self.server = server
        self.is_turned_away = False
        before = self.history
        self.note_history(server.get("run_id", ""), server.get("master_replid", ""))
        self.lines.back(self, same_history=before in ("", self.history))
        if before not in ("", self.history):
            self.on_history()
        self.on_up()
        self.on_change()

    def refused_unasked(self, error: ReplyError) -> None:
        if str(error).startswith(_TOO_LARGE):
            # The server closes the connection, and the client's next batch would break the next one.
            self._given_up = f"a value was larger than it takes (proto-max-bulk-len): {error}"
            self.most_value_bytes = min(self.most_value_bytes, LEAST_MOST_VALUE_BYTES)
            self._asks_limits = True

    def refused(self, sent: Sent, error: ReplyError) -> None:
        future, packed, attempts = sent
        assert future is not None
        text = str(error)
        self.refused_unasked(error)
        if text.startswith("ERR Function not found") and attempts < _MAX_ATTEMPTS:
            self._loading.load_and_resend((future, packed, attempts + 1))
        elif is_redirection(text) and self.on_redirected(sent, text):
            pass
        elif _OF_LIBRARY in text and attempts < _MAX_ATTEMPTS and self._loading.may_judge():
            self._loading.judge(sent, text)
        else:
            fail(future, as_exception(with_key(text, packed)))
            if text.startswith("READONLY"):
                self.on_demoted(text)

    def pushed(self, message: Any) -> None:
        self.on_push(message)

    def congested(self, connection: Connection, congested: bool) -> None:
        if connection is self._live:
            self.problem = StoreUnavailable("Redis does not take commands fast enough")
            self._gate = None if congested else connection
            self._choose_send()

    def lost(self, connection: Connection, unanswered: Sequence[Sent]) -> None:
        why = "the connection to Redis was lost"
        if connection is self._live:
            self._live = self._gate = None
            self._choose_send()
            self.lines.lost(self, self._given_up)
            why, self._given_up = self._given_up or why, ""
            self.problem = StoreUnavailable(why)
            self.on_down()
        for future, _, _ in unanswered:
            fail(future, StoreUnavailable(why, outcome_unknown=True))


def _nothing(*_: object) -> None:
    """The callback of a link without a listener."""


def _not_redirected(_sent: Sent, _text: str) -> bool:
    return False
