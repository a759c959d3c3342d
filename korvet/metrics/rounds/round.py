"""One round: everything of a namespace, once."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import monotonic, time

from korvet.metrics.lags import Lags
from korvet.metrics.rounds.groups import read_groups
from korvet.metrics.rounds.pace import Bounded, Pace
from korvet.metrics.rounds.partitions import read_partitions
from korvet.metrics.rounds.transactions import OpenTransactions, read_transactions
from korvet.metrics.samples import Samples
from korvet.redis.client import Store
from korvet.store.catalog.catalog import Catalog
from korvet.store.groups.groups import Groups
from korvet.store.keys import Namespace
from korvet.store.log.log import Log


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """A namespace of which figures are read, and what is remembered from round to round.

    ``lags`` takes what a round saw of groups, of other namespaces as well.
    """

    namespace: Namespace
    store: Store
    catalog: Catalog
    log: Log
    groups: Groups
    lags: Lags = field(default_factory=Lags)
    opened: OpenTransactions = field(default_factory=OpenTransactions)


async def look(watched: Watched, most: int) -> Samples:
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
