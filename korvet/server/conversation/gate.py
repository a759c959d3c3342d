"""The gate of a connection's requests while its client is unknown: a login, or a load balancer's health check.

A client has some seconds for its login, and the number of clients without a login is bounded. Before the login only
ApiVersions, SaslHandshake and SaslAuthenticate are decoded, in small frames, one at a time. What a client sends after
one of these waits undecoded in the splitter, which then gets no more bytes. So does everything after a second login.
Anybody may claim to be a health check, so it counts as a client without a login. It gets ApiVersions, and nothing else.
A connection without a gate pays nothing for this.
"""

from __future__ import annotations

import asyncio
import struct

from korvet.api.shared.context import Listener
from korvet.errors import MalformedRequest
from korvet.security.sasl import API_VERSIONS_KEY, HANDSHAKE_KEY, Login, OwnUsers
from korvet.security.sasl import State as LoginState
from korvet.security.unauthenticated import Unauthenticated
from korvet.server.conversation.answering import Owner
from korvet.server.conversation.states import LOGINS, Event, Pause, State
from korvet.server.ground.host_pattern import HostName
from korvet.server.tenants.choice import Choice, ChosenRealm

_read_key = struct.Struct(">h").unpack_from
_LEAST_FRAME_BYTES = 2
NO_MECHANISM = "none"
"""The mechanism of a connection without a login."""
_LAST_WORDS_S = 0.1
"""The pause between a failed login's answer and the close: kafka-python loses an answer that comes with the close."""


class Gate:
    """The gate of one connection, in the states `BEFORE_LOGIN` and `LOGINS`.

    :param choice: finds the namespace by the login, if clients choose it.
    """

    def __init__(
        self, connection: Owner, listener: Listener, choice: Choice | None, host_name: HostName | None
    ) -> None:
        connections, frontend, limits = connection.connections, connection.frontend, connection.connections.limits
        self._connection = connection
        self._connections = connections
        self._conversation = connection.conversation
        self._loop = asyncio.get_running_loop()
        self._choice = choice
        self._chosen = None if choice is None else ChosenRealm(choice, connection, host_name)
        self._login: Login | None = None
        """None for a health check."""
        self._successes = 0
        """The counter of logins."""
        self._deadline: asyncio.TimerHandle | None = None
        """The deadline of the first login."""
        self._guest: Unauthenticated | None = Unauthenticated(connection.client, self._make_room)
        self._guest.is_busy = lambda: bool(connection.answering.requests)
        connections.unauthenticated.add(self._guest)
        connection.frames.bound(min(limits.sasl_receive_bytes, limits.max_frame_bytes))
        if self._conversation.state is State.LOGIN:
            self._login = connection.headers.login = Login(
                listener.sasl,
                self._chosen or OwnUsers(frontend.namespace.name, frontend.users, connections.credentials),
                max_reauth_ms=limits.max_reauth_ms,
                failed_s=limits.failed_login_delay_ms / 1000,
                guesses=connections.guesses,
                tokens=connections.tokens,
            )
            frontend.users.watch(self._users_changed)
            self._deadline = self._loop.call_later(limits.login_s, self._be_too_late)

    def leave(self) -> None:
        """End: the connection is lost."""
        self._be_no_guest()
        if self._login is not None:
            self._connection.frontend.users.unwatch(self._users_changed)

    def _make_room(self) -> None:
        if self._login is not None:
            self._warn("connection closed: it has not logged in, and too many others begin")
        self._connection.abort()

    def _be_too_late(self) -> None:
        assert self._login is not None
        if self._login.state is LoginState.FAILED:
            # It gets its answer after connection.failed.authentication.delay.ms, and then its end.
            return
        self._warn("connection closed: its login took too long", most_s=f"{self._connections.limits.login_s:g}")
        self._connection.abort()

    def _be_no_guest(self) -> None:
        """Count the connection no longer as one without a login."""
        if self._deadline is not None:
            self._deadline.cancel()
        if self._guest is not None:
            self._connections.unauthenticated.remove(self._guest)
        self._guest = self._deadline = None

    def _users_changed(self) -> None:
        """End the connection if its user is gone."""
        assert self._login is not None
        if self._login.is_gone and not self._conversation.state.is_closing:
            self._warn("session ended: its user is deleted")
            self._connection.abort()

    # ------------------------------------------------------------------ requests

    def lets_through(self, frame: bytes | memoryview) -> bool:
        """True if a frame may become a request; otherwise the connection closes.

        :raises MalformedRequest: if the frame holds no request.
        """
        if len(frame) < _LEAST_FRAME_BYTES:
            raise MalformedRequest(f"a frame of {len(frame)} bytes is too short for a request header")
        key, login, conversation = _read_key(frame)[0], self._login, self._conversation
        if login is None:
            if key != API_VERSIONS_KEY:
                raise MalformedRequest("a load balancer's health check that asks for more than ApiVersions")
            return True
        problem = login.problem(key)
        if problem is not None:
            self._warn(f"connection closed: {problem}", api_key=key)
            self._connection.close()
            return False
        if login.state is LoginState.READY and key == HANDSHAKE_KEY:
            conversation.on(Event.BEGIN_LOGIN)
        if conversation.state in LOGINS:
            conversation.pause(Pause.STEP)
        return True

    def answered(self) -> None:
        """Go on after an answer, if no request of a login waits."""
        connection, login, conversation = self._connection, self._login, self._conversation
        if login is None or conversation.state not in (*LOGINS, State.DRAINING) or connection.answering.requests:
            return
        if login.state is LoginState.FAILED:
            conversation.on(Event.REFUSE)
            self._connections.logins[connection.kind[0], login.mechanism or NO_MECHANISM, "failure"] += 1
            connection.frontend.audit.login_failed(
                user=login.claimed, is_known=login.is_of_user, **self._way(login), reason=login.reason
            )
            self._loop.call_later(_LAST_WORDS_S, connection.close)
            return
        if login.state is LoginState.READY and connection.transport is not None:
            self._open(login)
        self._loop.call_soon(connection.resume, Pause.STEP)

    def _open(self, login: Login) -> None:
        """Let requests through, for the user who logged in."""
        connection, frontend = self._connection, None if self._chosen is None else self._chosen.frontend
        self._conversation.on(Event.ADMIT)
        self._be_no_guest()
        connection.frames.bound(self._connections.limits.max_frame_bytes)
        if self._choice is not None and frontend is not None and frontend is not connection.frontend:
            connection.frontend.users.unwatch(self._users_changed)
            connection.join(self._choice, frontend)
            frontend.users.watch(self._users_changed)
        connection.headers.log_in(str(login.principal))
        if login.successes != self._successes:
            self._successes = login.successes
            self._connections.logged_in(connection, login.mechanism)
            connection.frontend.audit.logged_in(principal=str(login.principal), **self._way(login))
        self._users_changed()

    def _way(self, login: Login) -> dict[str, str]:
        """How the client connected, for the audit log."""
        return {"host": self._connection.client, "listener": self._connection.kind[0], "mechanism": login.mechanism}

    def _warn(self, event: str, **values: str | int) -> None:
        self._connections.lines.write("warning", event, client=self._connection.client, **values)
