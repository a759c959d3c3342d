"""PLAIN on the server (RFC 4616): a name and a password, verified by the user's SCRAM credential.

A wrong password and an unknown user cost the same: one PBKDF2, in a thread.

Source: PlainSaslServer
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, NamedTuple

from korvet.security.salted import salted_password
from korvet.security.scram import Judge, LoginRefused, derive_credential

MECHANISM: Final = "PLAIN"
InThread = Callable[[Callable[[], bytes]], Awaitable[bytes]]
MOST_PASSWORD_BYTES: Final = 1024
"""The longest password."""
_TOKENS: Final = 3
_MOST_DERIVATIONS: Final = 3
"""The most tries of one login, if its credential changes during each."""


class PlainLogin(NamedTuple):
    """A client's message."""

    user: str
    password: str


def parse_plain(message: bytes) -> PlainLogin:
    """Parse a client's message.

    :raises LoginRefused: the message is malformed or requests another user's identity.
    """
    try:
        tokens = message.decode().split("\0")
    except UnicodeDecodeError:
        raise LoginRefused("the message of PLAIN is not UTF-8") from None
    if len(tokens) != _TOKENS:
        raise LoginRefused(f"the message of PLAIN has {len(tokens)} parts instead of {_TOKENS}")
    authzid, user, password = tokens
    if not user or not password:
        raise LoginRefused("the name or the password is empty")
    if authzid and authzid != user:
        raise LoginRefused("the authorization id is another user")
    if len(password.encode()) > MOST_PASSWORD_BYTES:
        raise LoginRefused("the password is too long")
    return PlainLogin(user, password)


async def is_right(login: PlainLogin, judge: Callable[[], Awaitable[Judge]], in_thread: InThread) -> bool:
    """True if the password matches the user's best credential; an unknown user is checked against a false one.

    A login may wait long for its thread. The credential that is current when the thread ends decides.

    :param judge: returns the current credentials.
    :param in_thread: derives a key in a thread.
    """
    found = (await judge()).best(login.user)
    for _ in range(_MOST_DERIVATIONS):
        mechanism, credential, is_known = judged = found
        salt, iterations = credential.salt, credential.iterations
        salted = await in_thread(partial(salted_password, mechanism, login.password, salt, iterations))
        found = (await judge()).best(login.user)
        if found == judged:
            derived = derive_credential(mechanism, salted, salt, iterations)
            return hmac.compare_digest(derived.stored_key, credential.stored_key) and is_known
    return False
