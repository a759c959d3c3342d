"""The room of one tenant's producers: what Redis has left for all, and what the tenant's own limit leaves.

The bytes of a tenant's batches are counted every second while its producers write, and less often if it has thousands
of partitions. In between the front-end subtracts what it writes itself. So a tenant exceeds its limit by what other
front-ends write in that time, at most.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Final

import anyio

from korvet.store.every import every
from korvet.store.memory import ProducerRoom
from korvet.store.seldom import Seldom

_INTERVAL_S: Final = 1.0
_PER_PARTITION_S: Final = 0.002


class Allowance:
    """As `korvet.store.memory.Reserve`, with a limit for one namespace. `watch` runs while the namespace is open.

    :param shared: the room for all namespaces.
    :param stored: tells the stored bytes and the number of partitions; raises KorvetError.
    """

    def __init__(self, name: str, shared: ProducerRoom, stored: Callable[[], Awaitable[tuple[int, int]]]) -> None:
        self._name = name
        self._shared = shared
        self._stored = stored
        self._limit: int | None = None
        self._left = math.inf
        self._rest_s = _INTERVAL_S
        self._use = anyio.Event()
        self._refused = Seldom("a tenant's producers must wait: it stores as many bytes as its limit allows")

    def limit(self, limit_bytes: int | None) -> None:
        """Have another limit count; None for none."""
        if limit_bytes != self._limit:
            self._limit = limit_bytes
            self._left = math.inf
            self._use.set()

    @property
    def is_full(self) -> bool:
        return self._shared.is_full

    def note_full(self, is_full: bool) -> None:
        if is_full and self._left <= 0:
            self._refused.warn(tenant=self._name, limit=self._limit)
        else:
            self._shared.note_full(is_full)

    async def shortage(self) -> None:
        await self._shared.shortage()

    def is_used_up(self, key: str) -> bool:
        self._use.set()
        return self._left <= 0 or self._shared.is_used_up(key)

    def take(self, key: str, size_bytes: int) -> bool:
        if self._left <= 0 or not self._shared.take(key, size_bytes):
            return False
        self._left -= size_bytes
        return True

    async def ask(self, key: str) -> None:
        await self._shared.ask(key)

    async def watch(self) -> None:
        """Count the stored bytes while producers write, until cancelled."""
        complaint = "the bytes that a tenant stores cannot be counted"
        await every(lambda: self._rest_s, self._step, complaint, at_once=True)

    async def _step(self) -> None:
        await self._use.wait()
        self._use = anyio.Event()
        if self._limit is None:
            return
        stored_bytes, partitions = await self._stored()
        self._left = self._limit - stored_bytes
        self._rest_s = max(_INTERVAL_S, _PER_PARTITION_S * partitions)
