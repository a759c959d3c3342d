"""A connection of a listener with SASL: a gate before the requests of its client.

A connection has some seconds for its login, and those that have not logged in have a bound. Before the login only
ApiVersions, SaslHandshake and SaslAuthenticate are decoded, in small frames, one at a time. What a client sends behind
one of these waits undecoded in the splitter, which then gets no more bytes. So does everything behind a second login. A
connection without SASL is a plain `Connection` and pays nothing for this.
"""

from __future__ import annotations

import asyncio
import struct

from korvet.api.shared.context import Frontend, Listener
from korvet.errors import MalformedRequest
from korvet.security.principal import Principal
from korvet.security.sasl import API_VERSIONS_KEY, HANDSHAKE_KEY, Login, OwnUsers, State
from korvet.security.unauthenticated import Unauthenticated
from korvet.server.bounds.connections import Connections
from korvet.server.conversation.connection import NO_HEADER, NO_MECHANISM, Connection, Identify, anonymous
from korvet.server.tenants.choice import Choice, ChosenRealm
from korvet.wire.proxy_header import ProxyHeader

_read_key = struct.Struct(">h").unpack_from
_LEAST_FRAME_BYTES = 2
_LAST_WORDS_S = 0.1
"""Time between the answer that a login failed and the end: kafka-python loses an answer that comes with the end."""


class SaslConnection(Connection):
    """A connection whose client logs in."""

    def __init__(
        self,
        connections: Connections,
        listener: Listener,
        frontend: Frontend,
        header: ProxyHeader = NO_HEADER,
        identify: Identify = anonymous,
        choice: Choice | None = None,
    ) -> None:
        super().__init__(connections, listener, frontend, header, identify, choice)
        limits = connections.limits
        self._chosen = None if choice is None else ChosenRealm(choice, self)
        self._successes = 0
        """The logins that are counted."""
        self._login = self._headers.login = Login(
            listener.sasl,
            self._chosen or OwnUsers(frontend.namespace.name, frontend.users, connections.credentials),
            max_reauth_ms=limits.max_reauth_ms,
            failed_s=limits.failed_login_delay_ms / 1000,
            guesses=connections.guesses,
            tokens=connections.tokens,
        )
        self._unauthenticated: Unauthenticated | None = None
        self._deadline: asyncio.TimerHandle | None = None
        """The end of the time for the first login."""
        self._is_gated = True
        """Whether frames go through one at a time."""
        self._frames.bound(min(limits.sasl_receive_bytes, limits.max_frame_bytes))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._frontend.users.watch(self._users_changed)
        self._unauthenticated = self._connections.unauthenticated.add(Unauthenticated(self.client, self._make_room))
        self._unauthenticated.is_busy = self._is_judged
        self._deadline = self._loop.call_later(self._connections.limits.login_s, self._be_too_late)

    def _is_judged(self) -> bool:
        return bool(self._queue.requests)

    def _make_room(self) -> None:
        self._tell("connection closed: it has not logged in, and too many others begin")
        self.abort()

    def _be_too_late(self) -> None:
        if self._login.state is State.FAILED:
            # It gets its answer after connection.failed.authentication.delay.ms, and then its end.
            return
        self._tell("connection closed: its login took too long", most_s=f"{self._connections.limits.login_s:g}")
        self.abort()

    def _be_no_guest(self) -> None:
        """Take it for a connection that has logged in, or that has ended."""
        if self._unauthenticated is not None and self._deadline is not None:
            self._deadline.cancel()
            self._connections.unauthenticated.remove(self._unauthenticated)
            self._unauthenticated = self._deadline = None

    def _choose(self, _choice: Choice, principal: Principal) -> Principal:
        # The login chooses, beside the server name.
        if self._chosen is not None:
            self._chosen.host_name = self._host_name
        return principal

    def _join(self, choice: Choice, frontend: Frontend) -> None:
        self._frontend.users.unwatch(self._users_changed)
        super()._join(choice, frontend)
        frontend.users.watch(self._users_changed)

    def connection_lost(self, exc: Exception | None) -> None:
        self._be_no_guest()
        self._frontend.users.unwatch(self._users_changed)
        super().connection_lost(exc)

    def _users_changed(self) -> None:
        if self._login.is_gone and not self._is_closing:
            self._tell("session ended: its user is deleted")
            self.abort()

    # ------------------------------------------------------------------ the gate

    def _take(self, frame: bytes | memoryview) -> None:
        if len(frame) < _LEAST_FRAME_BYTES:
            raise MalformedRequest(f"a frame of {len(frame)} bytes is too short for a request header")
        key = _read_key(frame)[0]
        problem = self._login.problem(key)
        if problem is not None:
            self._tell(f"connection closed: {problem}", api_key=key)
            self.close()
            return
        super()._take(frame)
        if self._login.state is State.READY and key == HANDSHAKE_KEY:
            self._is_gated = True
        if self._is_gated:
            if key == API_VERSIONS_KEY and self._queue.requests and self._queue.requests[-1].api is None:
                self._login.asks_versions_again()
            self._frames.is_held = True

    def _hold(self) -> None:
        if not self._is_gated or not self._queue.requests:
            super()._hold()
        elif self._transport is not None and self._is_reading:
            self._is_reading = False
            self._transport.pause_reading()

    def _go_on(self) -> None:
        # The end of a throttle does not open the gate.
        if not (self._is_gated and self._queue.requests):
            super()._go_on()

    def _settle(self) -> None:
        super()._settle()
        if not self._is_gated or self._queue.requests:
            return
        if self._login.state is State.FAILED:
            self._connections.logins[self.kind[0], self._login.mechanism or NO_MECHANISM, "failure"] += 1
            login = self._login
            self._frontend.audit.login_failed(
                user=login.claimed, is_known=login.is_of_user, **self._way(), reason=login.reason
            )
            self._loop.call_later(_LAST_WORDS_S, self.close)
            return
        if self._login.state is State.READY:
            self._open()
        if self._frames.is_held:
            self._loop.call_soon(self._go_on)

    def _open(self) -> None:
        """Let requests through, for the user who logged in."""
        if self._transport is None:
            return
        self._is_gated = False
        self._be_no_guest()
        self._frames.bound(self._connections.limits.max_frame_bytes)
        if self._chosen is not None and self._choice is not None and self._chosen.frontend is not None:
            self._enter_chosen(self._choice, self._chosen.frontend)
        self._headers.log_in(str(self._login.principal))
        if self._login.successes != self._successes:
            self._successes = self._login.successes
            self._connections.logged_in(self, self._login.mechanism)
            self._frontend.audit.logged_in(principal=str(self._login.principal), **self._way())
        if self._login.is_gone:
            self._users_changed()

    def _enter_chosen(self, choice: Choice, frontend: Frontend) -> None:
        if self._frontend is not frontend:
            self._join(choice, frontend)

    def _way(self) -> dict[str, str]:
        """For the audit log, how the client came."""
        return {"host": self.client, "listener": self.kind[0], "mechanism": self._login.mechanism}

    def _tell(self, event: str, **values: str | int) -> None:
        self._connections.lines.write("warning", event, client=self.client, **values)
