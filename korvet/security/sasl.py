"""The SASL login of one connection, as a state machine without I/O: allowed requests, user and end of session.

START -> HANDSHAKEN -> READY or FAILED. A READY connection may log in again (KIP-368): a handshake makes it HANDSHAKEN
again, with the same mechanism and user. `korvet.server.conversation.gate` delays frames during a step.

Source: SaslServerAuthenticator, KafkaChannel.maybeBeginServerReauthentication; KIP-43, KIP-152, KIP-368
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from functools import partial
from time import monotonic, time
from typing import Final, NamedTuple, Protocol

from kio.schema.errors import ErrorCode

from korvet.security import oauthbearer, plain
from korvet.security.guesses import Guesses
from korvet.security.oauthbearer import BearerServer
from korvet.security.origins import origin_of
from korvet.security.principal import Principal
from korvet.security.salted import HASHES
from korvet.security.scram import Credentials, Judge, LoginRefused, ScramServer, name_in
from korvet.security.tokens import Tokens
from korvet.store.security.users import CredentialKey, Users

API_VERSIONS_KEY: Final = 18
HANDSHAKE_KEY: Final = 17
AUTHENTICATE_KEY: Final = 36
_LEAST_REAUTH_S: Final = 1.0
_MOST_BYTES: Final = 4096
_MOST_BYTES_WITH_TOKEN: Final = 65_536
"""The longest message of each mechanism, in bytes: clients without a login must not cost more memory or time."""
_LONGEST_SESSION_MS: Final = 365 * 86_400_000
"""The longest session reported to a client, which calculates with it; a token may never expire."""
_FAILED: Final = "Authentication failed during authentication due to invalid credentials with SASL mechanism {}"


class State(Enum):
    """The state of a login; the module's docstring has the transitions."""

    START = auto()
    HANDSHAKEN = auto()
    READY = auto()
    FAILED = auto()


class Outcome(NamedTuple):
    """The answer to a step. ``error`` and ``message`` are for the client."""

    error: ErrorCode = ErrorCode.none
    message: str = ""
    token: bytes = b""
    lifetime_ms: int = 0


class Realm(Protocol):
    """The set of users that may log in."""

    async def judge(self, name: str) -> Judge:
        """The credentials that apply to the login of a name."""

    async def admit(self, name: str, claimed: str | None = None) -> str:
        """Admit a client that has proved its name; returns its user's name.

        :param claimed: the token's namespace, as `Token.namespace`; None without a token.
        :raises LoginRefused: the client may not enter.
        """

    def has(self, key: CredentialKey) -> bool:
        """True if an admitted client's user still has a credential."""


class Views:
    """The credentials of each namespace as they were last read."""

    def __init__(self) -> None:
        self._views: dict[Users, Credentials] = {}

    def of(self, users: Users) -> Credentials:
        """The current credentials."""
        view = self._views.get(users)
        if view is None or view.known is not users.credentials:
            view = self._views[users] = Credentials(users.credentials, users.secret)
        return view


class OwnUsers:
    """The realm of a listener with one namespace."""

    def __init__(self, name: str, users: Users, views: Views) -> None:
        self._name = name
        self._users = users
        self._views = views

    async def judge(self, _name: str) -> Judge:
        return self._views.of(self._users)

    async def admit(self, name: str, claimed: str | None = None) -> str:
        if claimed and claimed != self._name:
            raise LoginRefused("its token names another namespace")
        return name

    def has(self, key: CredentialKey) -> bool:
        return key in self._users.credentials


class Login:
    """The login of one connection.

    :param mechanisms: of the listener.
    :param max_reauth_ms: connections.max.reauth.ms; 0 for sessions without an end.
    :param failed_s: seconds from a step to the answer that it failed, the same for every reason.
    :param guesses: the bound on password guesses.
    :param tokens: verifies tokens, if the listener has OAUTHBEARER.
    :param clock: monotonic seconds.
    """

    def __init__(
        self,
        mechanisms: Sequence[str],
        realm: Realm,
        *,
        max_reauth_ms: int,
        failed_s: float,
        guesses: Guesses,
        tokens: Tokens | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.mechanisms = mechanisms
        self.failed_s = failed_s
        self.state = State.START
        self.principal: Principal | None = None
        """The user of the first login; later logins must keep it."""
        self.successes = 0
        """The number of the client's logins."""
        self.mechanism = self.reason = ""
        """The mechanism and the reason of a failed login, for the log."""
        self.claimed = ""
        """The user name that the client sent with a password, for the log."""
        self.is_of_user = False
        """True if a user of this name exists."""
        self._realm = realm
        self._max_reauth_ms = max_reauth_ms
        self._guesses = guesses
        self._tokens = tokens
        self._clock = clock
        self._knows_versions = False
        self._scram: ScramServer | None = None
        self._bearer: BearerServer | None = None
        self._ends_at = float("inf")
        self._began_at = -_LEAST_REAUTH_S

    # ------------------------------------------------------------------ allowed requests

    def problem(self, api_key: int) -> str | None:
        """The reason to refuse a request now, or None. Called once for each frame, before it is decoded."""
        if self.state is State.READY:
            is_late = api_key != HANDSHAKE_KEY and self._clock() > self._ends_at
            return "its session has expired" if is_late else None
        if self.state is State.HANDSHAKEN:
            return None if api_key == AUTHENTICATE_KEY else "it does not go on with its login"
        if self.state is State.START and api_key == API_VERSIONS_KEY and not self._knows_versions:
            self._knows_versions = True
            return None
        return None if self.state is State.START and api_key == HANDSHAKE_KEY else "it has not logged in"

    def asks_versions_again(self) -> None:
        """Allow ApiVersions once more, after an answer with an error."""
        self._knows_versions = False

    @property
    def is_gone(self) -> bool:
        """True if the user's credential has been deleted; users with tokens have none."""
        if self.principal is None or self.mechanism == oauthbearer.MECHANISM:
            return False
        names = HASHES if self.mechanism == plain.MECHANISM else (self.mechanism,)
        return not any(self._realm.has(CredentialKey(name, self.principal.name)) for name in names)

    # ------------------------------------------------------------------ steps

    def handshake(self, mechanism: str) -> Outcome:
        """Choose the mechanism. A ready connection may begin another login once a second."""
        if self.state is State.READY:
            now = self._clock()
            if now - self._began_at < _LEAST_REAUTH_S:
                return Outcome(ErrorCode.illegal_sasl_state)
            self._began_at = now
            if mechanism != self.mechanism:
                return self._failed("it changed its mechanism", ErrorCode.sasl_authentication_failed)
        elif mechanism not in self.mechanisms:
            return self._failed("it asked for a mechanism that is not enabled", ErrorCode.unsupported_sasl_mechanism)
        self.mechanism = mechanism
        self.state = State.HANDSHAKEN
        self._scram = self._bearer = None
        self.claimed, self.is_of_user = "", False
        return Outcome()

    async def authenticate(self, token: bytes, address: str = "") -> Outcome:
        """Process a client's SASL message; the login succeeds, fails or goes on."""
        if self.state is not State.HANDSHAKEN:
            return Outcome(ErrorCode.illegal_sasl_state, "SaslAuthenticate came without a SaslHandshake")
        try:
            most = _MOST_BYTES_WITH_TOKEN if self.mechanism == oauthbearer.MECHANISM else _MOST_BYTES
            if len(token) > most:
                raise LoginRefused(f"a message of {len(token)} bytes; the most are {most}")
            name, answer = await self._step(token, address)
            if name is None:
                return Outcome(token=answer)
            try:
                user = await self._admit(name)
            except LoginRefused as refused:
                if self._bearer is None:
                    raise
                # The client sees the same answer for an unknown tenant as for an invalid token.
                return Outcome(token=self._bearer.refuse(str(refused)))
            if self.principal is not None and user != self.principal.name:
                raise LoginRefused("it logged in again as another user")
        except LoginRefused as refused:
            return self._failed(str(refused), ErrorCode.sasl_authentication_failed, refused.client_text)
        self.principal = self.principal or Principal("User", user)
        lifetime_ms = self._lifetime_ms()
        self.state, self._scram, self._bearer = State.READY, None, None
        self.successes += 1
        if lifetime_ms:
            self._ends_at = self._clock() + lifetime_ms / 1000
        return Outcome(token=answer, lifetime_ms=lifetime_ms)

    async def _admit(self, name: str) -> str:
        token = None if self._bearer is None else self._bearer.token
        return await self._realm.admit(name, None if token is None else token.namespace)

    def _lifetime_ms(self) -> int:
        """Milliseconds until the client must log in again; 0 for never."""
        if self._bearer is None or self._bearer.token is None:
            return self._max_reauth_ms
        # A token that expired within the allowed clock skew is good for one request.
        left_ms = max(1, int(min(_LONGEST_SESSION_MS, 1000 * (self._bearer.token.expires_at - time()))))
        return min(left_ms, self._max_reauth_ms or left_ms)

    async def _step(self, token: bytes, address: str) -> tuple[str | None, bytes]:
        """The user's name, None if the login is incomplete, and the answer's token."""
        if self.mechanism == plain.MECHANISM:
            login = plain.parse_plain(token)
            self.claimed = login.user
            in_thread = partial(self._guesses.threads.run, origin_of(address))
            async with self._guesses.attempt(address, login.user):
                if not await plain.is_right(login, partial(self._judge, login.user), in_thread):
                    raise LoginRefused("invalid credentials")
            return login.user, b""
        if self.mechanism == oauthbearer.MECHANISM:
            assert self._tokens is not None
            self._bearer = self._bearer or BearerServer(self._tokens)
            answer = await self._bearer.step(token)
            return None if self._bearer.token is None else self._bearer.token.user, answer
        if self._scram is None:
            self.claimed = name_in(token)
            self._scram = ScramServer(self.mechanism, await self._judge(self.claimed))
            return None, self._scram.step(token)
        async with self._guesses.attempt(address, self._scram.name):
            # The client chooses the time between the steps: an old password must not count at the second.
            self._scram.credentials = await self._judge(self._scram.name)
            answer = self._scram.step(token)
        return self._scram.user, answer

    async def _judge(self, name: str) -> Judge:
        judge = await self._realm.judge(name)
        _, _, self.is_of_user = judge.best(name)
        return judge

    def _failed(self, reason: str, code: ErrorCode, message: str | None = None) -> Outcome:
        self.state, self.reason = State.FAILED, reason
        return Outcome(code, message or _FAILED.format(self.mechanism))
