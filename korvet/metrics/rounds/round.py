"""One round: everything of a namespace, once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from time import monotonic, time
from typing import Any, Final

from korvet.metrics.lags import Lags
from korvet.metrics.rounds.groups import read_groups
from korvet.metrics.rounds.pace import Bounded, Pace
from korvet.metrics.rounds.partitions import Seen, read_partitions
from korvet.metrics.samples import Samples
from korvet.redis.client import Purpose, Store
from korvet.store.catalog.catalog import Catalog
from korvet.store.groups.groups import Groups
from korvet.store.groups.replies import text
from korvet.store.groups.types import TopicPartition
from korvet.store.keys import TRANSACTION_SHARDS, Namespace
from korvet.store.log.log import Log

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """A namespace whose figures are read, and what stays from round to round.

    ``lags`` takes the lags that rounds read, also those of other namespaces.
    """

    namespace: Namespace
    store: Store
    catalog: Catalog
    log: Log
    groups: Groups
    lags: Lags = field(default_factory=Lags)
    opened: OpenTransactions = field(default_factory=OpenTransactions)


async def sample(watched: Watched, most: int) -> Samples:
    """Read everything of a namespace, at a pace that Redis hardly notices.

    :param most: the largest number of series.
    :raises StoreUnavailable, StoreError: the catalog, an index or a shard cannot be read.
    """
    began, name = monotonic(), watched.namespace.name
    pace, samples = Pace(), Bounded(most)
    await watched.catalog.refresh()
    topics = sorted(watched.catalog.topics(), key=lambda topic: topic.name)
    samples.set_sum("korvet_topics", len(topics), name)
    samples.set_sum("korvet_partitions", sum(topic.partitions for topic in topics), name)
    partitions = (watched.log.partition(topic, index) for topic in topics for index in range(topic.partitions))
    seen = await read_partitions(watched.log, name, partitions, pace, samples)
    watched.opened.note(name, seen, monotonic(), samples)
    await read_transactions(watched.namespace, watched.store, pace, samples)
    watched.lags.note(name, await read_groups(watched.groups, name, seen, pace, samples), time())
    return _with_own(samples, pace, name, monotonic() - began)


def _with_own(bounded: Bounded, pace: Pace, namespace: str, seconds: float) -> Samples:
    """The figures of a round, and the figures about it, which no bound leaves out."""
    samples = Samples()
    samples.add(bounded)
    for metric, number in bounded.dropped.items():
        samples.set("korvet_metrics_series_dropped", number, namespace, metric)
    samples.set("korvet_metrics_unreadable", pace.unreadable, namespace)
    samples.set("korvet_metrics_round_seconds", seconds, namespace)
    samples.set("korvet_metrics_round_timestamp_seconds", time(), namespace)
    return samples
