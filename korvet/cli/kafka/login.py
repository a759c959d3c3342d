"""The SASL logins of a client without I/O: PLAIN, SCRAM and OAUTHBEARER with a token of a file (RFC 4616, 5802, 7628).

Source: PlainSaslClient, ScramSaslClient, OAuthBearerSaslClient, FileJwtRetriever
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from korvet.errors import ConfigError
from korvet.security.salted import HASHES
from korvet.security.scram_client import UntrustedServer, scram_exchange

MECHANISMS: Final = ("PLAIN", *HASHES, "OAUTHBEARER")
_MAX_TOKEN_BYTES: Final = 1 << 19

Exchange = Generator[bytes, bytes, None]
"""The client's messages; each takes the server's answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """A login mechanism. ``who`` names the user in messages, ``begin`` starts the exchange of one login."""

    mechanism: str
    who: str
    begin: Callable[[], Exchange] = field(repr=False)


def password_login(mechanism: str, user: str, password: str) -> Login:
    """A login by PLAIN or SCRAM."""

    def begin() -> Exchange:
        if mechanism == "PLAIN":
            return _one_message(f"\0{user}\0{password}".encode())
        return scram_exchange(mechanism, user, password)

    return Login(mechanism=mechanism, who=f"user {user!r}", begin=begin)


def token_login(path: Path) -> Login:
    """A login by OAUTHBEARER. Each login reads the token from the file, so a new token counts at the next one."""

    def begin() -> Exchange:
        return _token_exchange(_read_token(path))

    return Login(mechanism="OAUTHBEARER", who=f"the token of {path}", begin=begin)


def _one_message(message: bytes) -> Exchange:
    yield message


def _token_exchange(token: str) -> Exchange:
    answer = yield f"n,,\x01auth=Bearer {token}\x01\x01".encode()
    if answer:
        # The answer says why the token is refused. The server ends the login after this.
        yield b"\x01"
        raise UntrustedServer("it took a login whose token it had refused")


def _read_token(path: Path) -> str:
    try:
        with path.open("rb") as file:
            token = file.read(_MAX_TOKEN_BYTES).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the token in {path}: {error}") from None
    # Anything else would end the token's field in the message.
    if not token or not (token.isascii() and token.isprintable()) or " " in token:
        raise ConfigError(f"{path} holds no token: want a JSON web token in compact form, and nothing else")
    return token
