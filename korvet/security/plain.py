"""PLAIN of a server (RFC 4616): a name and a password, judged by the user's SCRAM credential.

A wrong password and an unknown user cost the same: one PBKDF2, in a thread.

Source: PlainSaslServer
"""

from __future__ import annotations

import hmac
from typing import Final, NamedTuple

from anyio import CapacityLimiter, to_thread

from korvet.security.salted import salted_password
from korvet.security.scram import Judge, LoginRefused, derive_credential

MECHANISM: Final = "PLAIN"
MOST_PASSWORD_BYTES: Final = 1024
_TOKENS: Final = 3


class PlainLogin(NamedTuple):
    """A client's message."""

    user: str
    password: str


def parse_plain(message: bytes) -> PlainLogin:
    """The name and the password of a client's message.

    :raises LoginRefused: if it is no such message, or asks for another user's identity.
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


async def is_right(login: PlainLogin, credentials: Judge, threads: CapacityLimiter) -> bool:
    """Whether a user has this password, by the best credential there is; by a false one for an unknown user.

    :param threads: the bound on threads that derive keys at the same time.
    """
    mechanism, credential, is_known = credentials.best(login.user)
    salt, iterations = credential.salt, credential.iterations
    salted = await to_thread.run_sync(salted_password, mechanism, login.password, salt, iterations, limiter=threads)
    derived = derive_credential(mechanism, salted, salt, iterations)
    return hmac.compare_digest(derived.stored_key, credential.stored_key) and is_known
