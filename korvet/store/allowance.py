"""The room of one tenant: the smaller of Redis's free memory and the rest of the tenant's own limit.

The front-end counts a tenant's bytes every second while its clients add some, and less often with thousands of
partitions, groups and transactional ids. In between it subtracts its own additions. So a tenant exceeds its limit by at
most the additions of other front-ends in that time.

Batches and all else share the limit, but full logs refuse only producers: consumers must go on, because
``korvet.retention=archived`` waits for them. Groups, transactions and the like are refused once they alone reach the
limit.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Final

import anyio

from korvet.rate_limited_log import RateLimitedLog
from korvet.store.calls import StateRoom
from korvet.store.every import every
from korvet.store.memory import ProducerRoom

_INTERVAL_S: Final = 1.0
_PER_UNIT_S: Final = 0.002


class Allowance:
    """As `korvet.store.memory.Reserve`, with a limit for one namespace. `watch` runs while the namespace is open.

    :param shared: the room for all namespaces.
    :param state: the room for everything except batches.
    :param stored: returns the bytes of partitions, the bytes of all else and the number of units; raises KorvetError.
    """

    def __init__(
        self, name: str, shared: ProducerRoom, state: StateRoom, stored: Callable[[], Awaitable[tuple[int, int, int]]]
    ) -> None:
        self._name = name
        self._shared = shared
        self._state = state
        self._stored = stored
        self._limit: int | None = None
        self._left = math.inf
        self._rest_s = _INTERVAL_S
        self._lines = RateLimitedLog()

    def limit(self, limit_bytes: int | None) -> None:
        """Replace the limit; None for none."""
        if limit_bytes != self._limit:
            self._limit = limit_bytes
            self._left = self._state.left_bytes = math.inf
            self._state.is_limited = limit_bytes is not None
            self._state.use.set()

    @property
    def is_full(self) -> bool:
        return self._shared.is_full

    def note_full(self, is_full: bool) -> None:
        if is_full and self._left <= 0:
            event = "a tenant's producers must wait: it stores as many bytes as its limit allows"
            self._lines.write("warning", event, tenant=self._name, limit=self._limit)
        else:
            self._shared.note_full(is_full)

    async def shortage(self) -> None:
        await self._shared.shortage()

    def is_used_up(self, key: str) -> bool:
        self._state.use.set()
        return self._left <= 0 or self._shared.is_used_up(key)

    def take(self, key: str, size_bytes: int) -> bool:
        if self._left <= 0 or not self._shared.take(key, size_bytes):
            return False
        self._left -= size_bytes
        return True

    async def ask(self, key: str) -> None:
        await self._shared.ask(key)

    async def watch(self) -> None:
        """Count the stored bytes while clients add some, until cancelled."""
        complaint = "the bytes that a tenant stores cannot be counted"
        await every(lambda: self._rest_s, self._step, complaint, at_once=True)

    async def _step(self) -> None:
        await self._state.use.wait()
        self._state.use = anyio.Event()
        if self._limit is None:
            return
        partition_bytes, state_bytes, units = await self._stored()
        limit = math.inf if self._limit is None else self._limit
        self._left = limit - partition_bytes - state_bytes
        self._state.left_bytes = limit - state_bytes
        self._rest_s = max(_INTERVAL_S, _PER_UNIT_S * units)
