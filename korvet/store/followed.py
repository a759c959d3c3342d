"""A front-end's copy of a small unit in Redis: users, access rules, quotas, tenants.

The unit has a version, which its channel tells after each change. The copy is read again when the channel says so,
every so often, and after a change of history. Redis sends nothing but the version if that is the known one.
"""

from __future__ import annotations

import base64
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

from korvet.redis.client import Purpose, Store
from korvet.redis.wakeup import Wakeups
from korvet.store.every import every

REFRESH_S: Final = 30.0
_UNKNOWN: Final = -1
"""The version that no unit has."""
_SECRET_BYTES: Final = 32


class Followed(ABC):
    """The base of a copy.

    :param channel: the channel on which the unit's versions are told.
    :param complaint: the line of the log if the unit cannot be read.
    :param refresh_s: the longest time between two readings.
    """

    def __init__(
        self, store: Store, wakeups: Wakeups, channel: str, complaint: str, refresh_s: float = REFRESH_S
    ) -> None:
        self._has_told = store.has_told
        self._wakeups = wakeups
        self._channel = channel
        self._complaint = complaint
        self._refresh_s = refresh_s
        self._version = _UNKNOWN
        self._watchers: set[Callable[[], None]] = set()
        store.on_history_change(self._distrust)

    @abstractmethod
    async def _read(self, known_version: int) -> int:
        """Read the unit, and take it over unless its version is the known one.

        :returns: its version.
        """

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call ``watcher`` after each change of the copy."""
        self._watchers.add(watcher)

    def unwatch(self, watcher: Callable[[], None]) -> None:
        """Call ``watcher`` no more."""
        self._watchers.discard(watcher)

    async def follow(self) -> None:
        """Keep the copy current until cancelled."""
        await every(0.0, self._follow, self._complaint, has_told=self._has_told)

    async def _follow(self) -> None:
        with self._wakeups.listen([self._channel]) as listening:
            await listening.ready()
            await self.refresh()
            await listening.wait(self._refresh_s)

    async def refresh(self) -> None:
        """Read the unit; nothing is transferred if its version is the known one."""
        known = self._version
        version = await self._read(known)
        if version != known:
            # If history changed meanwhile, the answer may be of the former one: ask for everything again.
            self._version = version if self._version == known else _UNKNOWN
            for watcher in list(self._watchers):
                watcher()

    def _distrust(self) -> None:
        """Forget the known version: after history went back, it may come again with other contents."""
        self._version = _UNKNOWN


async def read_secret(store: Store, key: str) -> bytes:
    """The secret of a key, the same at every front-end: the first one that asks makes it.

    :raises StoreUnavailable, StoreFull, StoreError:
    """
    proposed = base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()
    _, secret = await store.call_function(Purpose.COORDINATE, "korvet_security_secret", [key], proposed=proposed)
    return base64.b64decode(secret)
