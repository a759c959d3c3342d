"""The buckets of a namespace's quotas in Redis, shared by all front-ends."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from korvet.errors import KorvetError
from korvet.redis.client import Purpose, Store
from korvet.store.keys import Namespace
from korvet.store.outcomes import settled

MOST_AT_ONCE: Final = 1000
"""Quotas that one call alters."""
_BUCKETS_A_CALL: Final = 100


class Use(NamedTuple):
    """A front-end's use of a bucket; ``rate`` is per second."""

    bucket: str
    amount: float
    rate: float
    capacity: float


class StoredBuckets:
    """The buckets of a namespace."""

    def __init__(self, namespace: Namespace, store: Store) -> None:
        self._namespace = namespace
        self._store = store

    async def use(self, uses: Sequence[Use]) -> Mapping[str, float]:
        """Take from buckets. Returns each one's level for all front-ends together.

        A bucket is left out if its shard failed.

        :raises KorvetError: every shard failed.
        """
        shards: dict[str, dict[str, Use]] = defaultdict(dict)
        for use in uses:
            key = self._namespace.quota_bucket(use.bucket)
            shards[key.partition("}")[0]][key] = use
        calls = [
            list(shard.items())[at : at + _BUCKETS_A_CALL]
            for shard in shards.values()
            for at in range(0, len(shard), _BUCKETS_A_CALL)
        ]
        outcomes = await settled(self._use(some) for some in calls)
        levels: dict[str, float] = {}
        for some, outcome in zip(calls, outcomes, strict=True):
            if not isinstance(outcome, KorvetError):
                levels.update({use.bucket: float(level) for (_, use), level in zip(some, outcome[1], strict=True)})
        if calls and not levels:
            raise outcomes[0]
        return levels

    def _use(self, some: Sequence[tuple[str, Use]]) -> Awaitable[Any]:
        figures = [repr(float(figure)) for _, use in some for figure in (use.amount, use.rate, use.capacity)]
        return self._store.call_function(
            Purpose.COORDINATE, "korvet_quotas_use", [key for key, _ in some], uses=figures
        )
