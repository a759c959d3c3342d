"""A front-end's view of the SCRAM credentials of a namespace, and the calls that change them.

The view has all credentials, so a login makes no call to Redis, and its duration does not reveal which users exist. The
view follows the channel of the credentials' key. `korvet.security.scram` interprets credentials.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Final, NamedTuple

from korvet.redis.client import Store
from korvet.redis.wakeup import Wakeups
from korvet.store.followed import Followed, read_secret
from korvet.store.keys import Namespace

MOST_AT_ONCE: Final = 1000
"""Credentials that one call alters."""


class CredentialKey(NamedTuple):
    """The mechanism and the user of a credential; ``mechanism`` is a name, such as SCRAM-SHA-256."""

    mechanism: str
    user: str


class Credential(NamedTuple):
    """A server's record of a password (RFC 5802): neither the password nor its salted form can be derived from it."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return "Credential([hidden])"


class Users(Followed):
    """The credentials of a namespace.

    :raises StoreUnavailable, StoreFull, StoreError: `open`, `refresh` and `alter`.
    """

    def __init__(self, namespace: Namespace, store: Store, wakeups: Wakeups) -> None:
        self._keys = namespace.security
        complaint = "the users cannot be read; those last known may log in"
        super().__init__(store, wakeups, self._keys, "users", complaint)
        self.credentials: Mapping[CredentialKey, Credential] = MappingProxyType({})
        """All credentials as last read."""
        self.secret = b""
        """The secret of the namespace, the same at every front-end; empty before `open`."""

    async def open(self) -> None:
        """Read the secret and all credentials."""
        self.secret = await read_secret(self._store, self._keys.secret)
        await self.refresh()

    async def _take(self, fields: Sequence[bytes]) -> None:
        self.credentials = MappingProxyType(parse_credentials(fields))

    async def alter(self, changes: Mapping[CredentialKey, Credential | None]) -> tuple[int, Sequence[int]]:
        """Set at most `MOST_AT_ONCE` credentials, or delete those with None.

        :returns: 0, INVALID_REQUEST or POLICY_VIOLATION for all of them, and for each 0 or RESOURCE_NOT_FOUND.
        """
        texts = [text for key, one in changes.items() for text in (field_of(key), "" if one is None else text_of(one))]
        code, codes = await self._change("korvet_users_alter", changes=texts)
        return code, codes


def field_of(key: CredentialKey) -> str:
    """The field of a credential in Redis."""
    return f"{key.mechanism}:{key.user}"


def text_of(credential: Credential) -> str:
    """The text of a credential in Redis."""
    parts = (credential.salt, credential.stored_key, credential.server_key)
    return " ".join([str(credential.iterations), *(base64.b64encode(part).decode() for part in parts)])


def parse_credential(text: bytes) -> Credential:
    """The credential of a text.

    :raises ValueError: if it is none.
    """
    iterations, *parts = text.split(b" ")
    salt, stored_key, server_key = (base64.b64decode(part, validate=True) for part in parts)
    return Credential(salt, stored_key, server_key, int(iterations))


def parse_credentials(flat: Sequence[bytes]) -> dict[CredentialKey, Credential]:
    """The credentials by their keys; a field that korvet did not write lets nobody in."""
    found: dict[CredentialKey, Credential] = {}
    for field, text in zip(flat[::2], flat[1::2], strict=True):
        with suppress(ValueError):
            mechanism, _, user = field.decode().partition(":")
            found[CredentialKey(mechanism, user)] = parse_credential(text)
    return found
