"""Transactional ids by their state, and transactions that are open for long."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from itertools import count
from typing import Any, Final

from korvet.metrics.rounds.pace import Bounded, Pace
from korvet.metrics.rounds.partitions import Seen
from korvet.metrics.samples import Samples
from korvet.redis.client import Purpose, Store
from korvet.store.groups.replies import text
from korvet.store.groups.types import TopicPartition
from korvet.store.keys import TRANSACTION_SHARDS, Namespace

_SLICE: Final = 100


async def read_transactions(namespace: Namespace, store: Store, pace: Pace, samples: Bounded) -> None:
    """Read the states of all transactional ids.

    :raises StoreUnavailable, StoreError: a shard cannot be read.
    """
    states: Counter[str] = Counter()

    def ask(transactional_id: str) -> asyncio.Future[Any]:
        key = namespace.transaction(transactional_id).id
        return store.call(Purpose.COORDINATE, key, "HMGET", key, "state")

    for shard in range(TRANSACTION_SHARDS):
        deadlines = namespace.transaction_deadlines(shard)
        for first in count(0, _SLICE):
            window = await store.call(Purpose.COORDINATE, deadlines, "ZRANGE", deadlines, first, first + _SLICE - 1)
            for _, (state,) in await pace.ask([text(one) for one in window if one], ask):
                if state is not None:
                    states[text(state)] += 1
            if len(window) < _SLICE:
                break
    for state, number in states.items():
        samples.set_sum("korvet_transactional_ids", number, namespace.name, state)


class OpenTransactions:
    """Partitions with an open transaction, and since when this process has seen each one."""

    def __init__(self) -> None:
        self._since: dict[TopicPartition, tuple[int, float]] = {}

    def note(self, namespace: str, seen: Mapping[TopicPartition, Seen], now: float, samples: Samples) -> None:
        """Set the figures of a round's partitions.

        :param now: seconds that never go back.
        """
        opened = {partition: one.first_open for partition, one in seen.items() if one.first_open >= 0}
        known = self._since
        self._since = {
            partition: (first, known[partition][1] if known.get(partition, (-1, 0.0))[0] == first else now)
            for partition, first in opened.items()
        }
        for (topic, index), (_, since) in self._since.items():
            samples.set("korvet_partition_open_transaction_seconds", now - since, namespace, topic, str(index))
