"""A front-end's copy of a small unit in Redis: users, access rules, quotas, tenants.

The unit has a version, which Redis publishes on its channel after each change. The copy is read again after such a
message, periodically, and after a change of history. Redis returns only the version if it is the known one. A table
deleted by hand is restored from the copy.
"""

from __future__ import annotations

import base64
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, Final

import structlog

from korvet.errors import KorvetError, StoreError
from korvet.redis.client import Named, Purpose, Store
from korvet.redis.wakeup import Wakeups
from korvet.store.every import every
from korvet.store.keys import SecurityKeys, TenantsKeys

log = structlog.get_logger()

REFRESH_S: Final = 30.0
_UNKNOWN: Final = -1
"""The version that no unit has."""
_SECRET_BYTES: Final = 32


class Followed(ABC):
    """The base of a copy.

    :param keys: the keys of the table's unit. Without its secret the whole unit was deleted.
    :param name: the name of the table among these keys, and in the name of the function that reads it. Its key is also
        the channel of its versions.
    :param complaint: the line of the log if the unit cannot be read.
    :param refresh_s: the longest time between two readings.
    """

    def __init__(
        self,
        store: Store,
        wakeups: Wakeups,
        keys: SecurityKeys | TenantsKeys,
        name: str,
        complaint: str,
        refresh_s: float = REFRESH_S,
    ) -> None:
        self._store = store
        self._wakeups = wakeups
        self._function = f"korvet_{name}_read"
        self._table: str = getattr(keys, name)
        self._witness = keys.secret
        self._complaint = complaint
        self._refresh_s = refresh_s
        self._version = _UNKNOWN
        self._fields: Sequence[bytes] = ()
        self._secret: bytes | None = None
        """The unit's secret at the last read. A new unit after a deletion has another."""
        self._read_at, self._since = 0.0, 0
        self._watchers: set[Callable[[], None]] = set()
        store.on_history_change(self._distrust)

    @abstractmethod
    async def _take(self, fields: Sequence[bytes]) -> None:
        """Take over the table of another version: names and texts in turn."""

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call ``watcher`` after each change of the copy."""
        self._watchers.add(watcher)

    def unwatch(self, watcher: Callable[[], None]) -> None:
        """Call ``watcher`` no more."""
        self._watchers.discard(watcher)

    async def follow(self) -> None:
        """Keep the copy current until cancelled."""
        await every(0.0, self._follow, self._complaint, has_reported=self._store.has_reported)

    async def _follow(self) -> None:
        with self._wakeups.listen([self._table]) as listening:
            await listening.ready()
            await self.refresh()
            await listening.wait(self._refresh_s)

    async def refresh(self) -> None:
        """Read the unit; transfers nothing if its version is the known one."""
        known, since = self._version, self._wakeups.subscribed_since(self._table)
        version, fields = await self._read(known)
        if version == 0 < self._version:
            await self._restore(since)
            version, fields = await self._read(known)
        self._read_at, self._since = monotonic(), since
        if version != known:
            await self._take(fields)
            self._fields, self._secret = fields, None
            # If history changed meanwhile, the reply may be of the former one: read everything again.
            self._version = version if self._version == known else _UNKNOWN
            for watcher in list(self._watchers):
                watcher()
        if self._fields and self._secret is None:
            with suppress(StoreError):
                self._secret = await self._ask_secret()

    async def _read(self, known_version: int) -> tuple[int, Sequence[bytes]]:
        _, version, fields = await self._store.call_function(
            Purpose.COORDINATE, self._function, [self._table], known_version=known_version
        )
        return version, fields

    async def _ask_secret(self) -> bytes | None:
        secret: bytes | None = await self._store.call(Purpose.COORDINATE, self._witness, "GET", self._witness)
        return secret

    def _pairs(self) -> Sequence[bytes]:
        """The names and texts of the table, as last read."""
        return self._fields

    async def _restore(self, since: int) -> None:
        """Restore the lost table. Does nothing if its unit is also gone, or if the table was empty.

        :raises StoreError: this front-end was away meanwhile, and may not know the last changes.
        """
        if not (fields := self._pairs()) or self._secret is None:
            return
        # A follower that misses no message reads each change at once.
        if since != self._since or monotonic() - self._read_at > 2 * self._refresh_s:
            if await self._ask_secret() == self._secret:
                raise StoreError(f"{self._table} was deleted, and this front-end may not know what it held at last")
            return
        _, is_written = await self._store.call_function(
            Purpose.COORDINATE, "korvet_table_restore", [self._table, self._witness], secret=self._secret, fields=fields
        )
        if is_written:
            log.warning("a table that was deleted in redis is written back", key=self._table)

    async def _change(self, function: str, /, **named: Named) -> Any:
        """Call a function that changes the table, and read the table again; returns the function's reply.

        :raises StoreUnavailable, StoreFull, StoreError: the change may not be made.
        """
        reply = await self._store.call_function(Purpose.COORDINATE, function, [self._table], **named)
        try:
            await self.refresh()
        except KorvetError as error:
            # The change is made, and `follow` makes up for the lost read.
            if not self._store.has_reported(error):
                log.warning("a table was changed, but could not be read again yet", key=self._table, reason=str(error))
        return reply

    def _distrust(self) -> None:
        """Forget the known version: after a rollback of history it may recur with other contents."""
        self._version = _UNKNOWN


async def read_secret(store: Store, key: str) -> bytes:
    """The secret of a key, the same at every front-end: the first reader creates it.

    :raises StoreUnavailable, StoreFull, StoreError:
    """
    proposed = base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()
    _, secret = await store.call_function(Purpose.COORDINATE, "korvet_security_secret", [key], proposed=proposed)
    return base64.b64decode(secret)
