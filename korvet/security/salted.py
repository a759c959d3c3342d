"""The keys that SCRAM derives from a password, on both ends of a login (RFC 5802, RFC 7677)."""

from __future__ import annotations

import hashlib
import hmac
from typing import Final, NamedTuple

HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""The hash of each mechanism."""
MIN_ITERATIONS: Final = 4096


class Keys(NamedTuple):
    """A client proves that it has ``client``, whose hash is ``stored``; a server proves that it has ``server``."""

    client: bytes
    stored: bytes
    server: bytes

    def __repr__(self) -> str:
        return "Keys([hidden])"


def salted_password(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    """Hi(password, salt, iterations): 1 to 10 ms of CPU time, without the GIL."""
    return hashlib.pbkdf2_hmac(HASHES[mechanism], password.encode(), salt, iterations)


def keys_of(mechanism: str, salted: bytes) -> Keys:
    """The keys of a salted password."""
    name = HASHES[mechanism]
    client = hmac.digest(salted, b"Client Key", name)
    return Keys(client, hashlib.new(name, client).digest(), hmac.digest(salted, b"Server Key", name))
