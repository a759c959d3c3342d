"""OAUTHBEARER on the server (RFC 7628): a client sends a token, and the token's subject is the user.

The server answers an invalid token with a JSON status. The client replies with one byte 0x01, and its login fails with
the same text. Kafka would judge a second token of the same login; korvet fails that login, too. A client's extensions
are checked for syntax and ignored.

Source: OAuthBearerSaslServer, OAuthBearerClientInitialResponse; KIP-255, KIP-342
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from korvet.security.scram import LoginRefused
from korvet.security.tokens import InvalidToken, Token, Tokens

MECHANISM: Final = "OAUTHBEARER"
_STATUS: Final = '{"status":"invalid_token"}'
_TOLD: Final = 20
_MOST_PAIRS: Final = 64
_SEPARATOR: Final = "\x01"
_ACKNOWLEDGED: Final = b"\x01"
_HEADER = re.compile(r"n,(?:a=(?P<authzid>(?:[\x02-+\--<>-\x7F]|=2C|=3D)+))?,")
_PAIR = re.compile(r"(?P<key>[A-Za-z]+)=(?P<value>[\x21-\x7E \t\r\n]+)")
_AUTH = re.compile(r"(?P<scheme>\w+) +(?P<token>[-_~+/.A-Za-z0-9]+=*)")
_OTHER_USER: Final = (
    "Authentication failed: Client requested an authorization id ({}) that is different from the token's principal "
    "name ({})"
)


class Shown(NamedTuple):
    """A client's first message. ``authzid`` is empty if the client requests no authorization id."""

    token: str
    authzid: str


def parse_first(message: bytes) -> Shown:
    """Parse a client's first message.

    :raises LoginRefused: the message is malformed.
    """
    header, *pairs = message.decode(errors="replace").split(_SEPARATOR, _MOST_PAIRS)
    found, parsed = _HEADER.fullmatch(header), [_PAIR.fullmatch(pair) for pair in pairs[:-2]]
    if found is None or pairs[-2:] != ["", ""] or not all(parsed):
        raise LoginRefused("this is no first message of OAUTHBEARER")
    values = [pair["value"] for pair in parsed if pair is not None and pair["key"] == "auth"]
    auth = _AUTH.fullmatch(values[0]) if len(values) == 1 else None
    if auth is None or auth["scheme"].lower() != "bearer":
        raise LoginRefused("the first message of OAUTHBEARER has no bearer token, or several")
    return Shown(auth["token"], (found["authzid"] or "").replace("=2C", ",").replace("=3D", "="))


class BearerServer:
    """One login. `step` takes the client's message and then sets ``token``.

    :param tokens: verifies tokens.
    """

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._problem = ""
        self.token: Token | None = None

    async def step(self, message: bytes) -> bytes:
        """The answer to a client's message.

        :raises LoginRefused: the login has failed.
        """
        if self._problem:
            raise LoginRefused(self._problem, _STATUS if message == _ACKNOWLEDGED else None)
        shown = parse_first(message)
        try:
            token = await self._tokens.verify(shown.token)
        except InvalidToken as invalid:
            return self.refuse(f"the token is invalid: {invalid}")
        if shown.authzid and shown.authzid != token.user:
            requested = shown.authzid if len(shown.authzid) <= _TOLD else f"{shown.authzid[:_TOLD]}..."
            raise LoginRefused("the authorization id is another user", _OTHER_USER.format(requested, token.user))
        self.token = token
        return b""

    def refuse(self, problem: str) -> bytes:
        """The answer to an invalid token. The next step fails."""
        self._problem = problem
        return _STATUS.encode()
