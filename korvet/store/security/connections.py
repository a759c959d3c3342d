"""The connection counts in Redis, by address or tenant, of all front-ends with a lease."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from secrets import token_hex
from typing import Final, NamedTuple

from korvet.redis.client import Purpose, Store
from korvet.store.keys import ConnectionKeys

MOST_AT_ONCE: Final = 100
"""Counters of one call."""
LEASE_S: Final = 10.0

Counter = tuple[str, str]
"""The kind and the name of a counter: ``("ip", "10.0.0.7")``."""


class Heard(NamedTuple):
    """The connections of all other front-ends. Without ``had_lease`` this one's earlier counts may be lost."""

    had_lease: bool
    others: Mapping[Counter, int]


class StoredConnections:
    """The calls of one front-end.

    :raises StoreUnavailable, StoreFull, StoreError: every method.
    """

    def __init__(self, keys: ConnectionKeys, store: Store) -> None:
        self._keys = keys
        self._store = store
        self._front_end = token_hex(16)
        store.on_history_change(self._begin_again)
        self._lost: Callable[[], None] | None = None

    def on_loss(self, lost: Callable[[], None]) -> None:
        """Call ``lost`` when Redis may have lost this front-end's counts."""
        self._lost = lost

    def _begin_again(self) -> None:
        """Take another name: the former one's counts expire with its lease."""
        self._front_end = token_hex(16)
        if self._lost is not None:
            self._lost()

    async def publish(self, counts: Mapping[Counter, int], lease_s: float = LEASE_S) -> Heard:
        """Report at most `MOST_AT_ONCE` counters, and renew the lease; ``lease_s`` of 0 ends it."""
        keys = [self._keys.leases, *(self._keys.counter(*one) for one in counts)]
        _, had_lease, others = await self._store.call_function(
            Purpose.COORDINATE, "korvet_connections_count", keys,
            front_end=self._front_end, lease_ms=round(lease_s * 1000), counts=list(counts.values()),
        )  # fmt: skip
        return Heard(bool(had_lease), dict(zip(counts, map(int, others), strict=True)))
