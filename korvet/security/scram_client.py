"""SCRAM-SHA-256 and SCRAM-SHA-512 on the client, without I/O (RFC 5802, RFC 7677).

Client and server each prove that they know the user's keys: a server without them cannot make the last message. The
server chooses the iterations that the client computes, so they have an upper bound (CVE-2026-10143). The lower bound
keeps a false server from making guesses cheap.

Source: ScramSaslClient, ScramFormatter
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
import secrets
from collections.abc import Generator
from typing import Final

from korvet.errors import KorvetError
from korvet.security.salted import HASHES, MIN_ITERATIONS, keys_of, salted_password

MAX_ITERATIONS: Final = 1_000_000
"""Kafka's brokers use at most 16,384 iterations. These cost half a second."""
_NONCE_BYTES: Final = 24
_SERVER_FIRST = re.compile(
    r"(?P<nonce>r=[\x21-\x2B\x2D-\x7E]+),s=(?P<salt>[a-zA-Z0-9+/]+={0,2}),i=(?P<iterations>[1-9]\d{0,9})"
    r"(?:,[a-zA-Z]+=[^\x00,]+)*"
)
_SERVER_FINAL = re.compile(r"v=(?P<signature>[a-zA-Z0-9+/]+={0,2})(?:,[a-zA-Z]+=[^\x00,]+)*")
_NO_BINDING: Final = base64.b64encode(b"n,,").decode()


class UntrustedServer(KorvetError):
    """The server has not proved that it knows the user's keys."""


def scram_exchange(mechanism: str, user: str, password: str) -> Generator[bytes, bytes, None]:
    """Yield the client's messages and receive the server's answers. The generator's end completes the login.

    :raises UntrustedServer: an answer is wrong.
    """
    nonce = base64.b64encode(secrets.token_bytes(_NONCE_BYTES)).decode()
    bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
    first = _text((yield f"n,,{bare}".encode()))
    found = _SERVER_FIRST.fullmatch(first)
    if found is None or len(found["nonce"]) <= len(f"r={nonce}") or not found["nonce"].startswith(f"r={nonce}"):
        raise UntrustedServer("its first SCRAM message is wrong")
    iterations = int(found["iterations"])
    if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
        raise UntrustedServer(
            f"it asks for {iterations} iterations of the password's hash, and {MIN_ITERATIONS} to {MAX_ITERATIONS} "
            "are taken"
        )
    salt = _decoded(found["salt"])
    keys = keys_of(mechanism, salted_password(mechanism, password, salt, iterations))
    final = f"c={_NO_BINDING},{found['nonce']}"
    signed = f"{bare},{first},{final}".encode()
    signature = hmac.digest(keys.stored, signed, HASHES[mechanism])
    proof = bytes(one ^ other for one, other in zip(keys.client, signature, strict=True))
    last = _SERVER_FINAL.fullmatch(_text((yield f"{final},p={base64.b64encode(proof).decode()}".encode())))
    wanted = hmac.digest(keys.server, signed, HASHES[mechanism])
    if last is None or not hmac.compare_digest(_decoded(last["signature"]), wanted):
        raise UntrustedServer("it does not prove that it knows the user's password")


def _text(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise UntrustedServer("a SCRAM message is not UTF-8") from None


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise UntrustedServer("a SCRAM message is not base64") from None
