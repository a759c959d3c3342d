"""A front-end's view of the SCRAM credentials of a namespace, and the calls that change them.

The view has all credentials, so a login asks Redis nothing: its time tells nobody which users there are. The view
follows the channel of the credentials' key. `korvet.security.scram` knows what credentials mean.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Final, NamedTuple

from korvet.errors import StoreUnavailable
from korvet.redis.client import Purpose, Store
from korvet.redis.wakeup import Wakeups
from korvet.store.every import every
from korvet.store.keys import Namespace

MOST_AT_ONCE: Final = 1000
"""Credentials that one call alters."""
_REFRESH_S: Final = 30.0
_UNKNOWN_VERSION: Final = -1
_SECRET_BYTES: Final = 32


class CredentialKey(NamedTuple):
    """The mechanism and the user of a credential; ``mechanism`` is a name, such as SCRAM-SHA-256."""

    mechanism: str
    user: str


class Credential(NamedTuple):
    """What a server keeps of a password (RFC 5802): neither it nor its salted form can be found from this."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return "Credential([hidden])"


class Users:
    """The credentials of a namespace.

    :raises StoreUnavailable, StoreFull, StoreError: `open`, `refresh` and `alter`.
    """

    def __init__(self, namespace: Namespace, store: Store, wakeups: Wakeups) -> None:
        self._keys = namespace.security
        self._store = store
        self._wakeups = wakeups
        self._version = _UNKNOWN_VERSION
        self._watchers: set[Callable[[], None]] = set()
        self.credentials: Mapping[CredentialKey, Credential] = MappingProxyType({})
        """All credentials as last read."""
        self.secret = b""
        """The secret of the namespace, the same at every front-end; empty before `open`."""
        store.on_history_change(self._distrust)

    async def open(self) -> None:
        """Read the secret and all credentials."""
        proposed = base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()
        _, secret = await self._store.call_function(
            Purpose.COORDINATE, "korvet_security_secret", [self._keys.secret], proposed=proposed
        )
        self.secret = base64.b64decode(secret)
        await self.refresh()

    async def follow(self) -> None:
        """Keep the view current until cancelled: read at each announced change, and every 30 s."""
        complaint = "the users cannot be read; those last known may log in"
        await every(0.0, self._follow, complaint, has_told=self._store.has_told)

    async def _follow(self) -> None:
        with self._wakeups.listen([self._keys.users]) as listening:
            await listening.ready()
            await self.refresh()
            await listening.wait(_REFRESH_S)

    async def refresh(self) -> None:
        """Read the credentials; nothing is transferred if the version is the known one."""
        known = self._version
        _, version, flat = await self._store.call_function(
            Purpose.COORDINATE, "korvet_users_read", [self._keys.users], known_version=known
        )
        if version != known:
            self.credentials = MappingProxyType(parse_credentials(flat))
            # If history changed meanwhile, the answer may be of the former one: ask for everything again.
            self._version = version if self._version == known else _UNKNOWN_VERSION
            for watcher in list(self._watchers):
                watcher()

    def _distrust(self) -> None:
        """Forget the known version: after history went back, it may come again with other users."""
        self._version = _UNKNOWN_VERSION

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call ``watcher`` after each change of the view."""
        self._watchers.add(watcher)

    def unwatch(self, watcher: Callable[[], None]) -> None:
        self._watchers.discard(watcher)

    async def alter(self, changes: Mapping[CredentialKey, Credential | None]) -> tuple[int, Sequence[int]]:
        """Set at most `MOST_AT_ONCE` credentials, or delete those with None.

        :returns: 0, INVALID_REQUEST or POLICY_VIOLATION for all of them, and for each 0 or RESOURCE_NOT_FOUND.
        """
        texts = [text for key, one in changes.items() for text in (field_of(key), "" if one is None else text_of(one))]
        code, codes = await self._store.call_function(
            Purpose.COORDINATE, "korvet_users_alter", [self._keys.users], changes=texts
        )
        # The change counts, and `follow` makes up for a lost read.
        with suppress(StoreUnavailable):
            await self.refresh()
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
