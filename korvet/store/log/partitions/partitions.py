"""The partitions of a namespace: the front-end's cache of them, and the making, restoring and deleting of keys."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar
from uuid import UUID

from ulid import ULID

from korvet.configs.types import is_tiered
from korvet.errors import KorvetError, LostTier, StoreError
from korvet.redis.client import Purpose, Store
from korvet.redis.wakeup import Wakeups
from korvet.store.catalog.catalog import Catalog
from korvet.store.catalog.topic import Topic
from korvet.store.contract import GONE, LOST
from korvet.store.keys import Namespace, TierKeys
from korvet.store.log.partitions.shared import Shared
from korvet.store.log.partitions.source import RedisSource, TierGuard, TierSource
from korvet.store.log.state.limits import TopicLimits, keeps_unarchived, limits_of
from korvet.store.log.state.partition import Partition
from korvet.store.log.state.rules import rules_of
from korvet.store.memory import ProducerRoom
from korvet.store.outcomes import settled

T = TypeVar("T")

_PIPELINED = 500
"""The most calls in flight for a topic of thousands of partitions."""


class Partitions:
    """The partitions; `korvet.store.log.log.Log` appends to them and reads them.

    :param shared: the bounds and caches shared with other namespaces; by default none.
    """

    def __init__(
        self,
        namespace: Namespace,
        store: Store,
        catalog: Catalog,
        wakeups: Wakeups,
        shared: Shared | None = None,
    ) -> None:
        self.store = store
        self.whole_store = store.whole
        """For appends: a partition's keys are checked once, when its cache is made."""
        self.wakeups = wakeups
        shared = shared or Shared(store)
        self.cache, self.reads, self.answers = shared.cache, shared.reads, shared.answers
        self.fair_queues = shared.fair_queues
        self.source = RedisSource(store, shared.fair_queues)
        self.tier: TierSource | None = None
        """The segments below the logs' local starts, if this front-end reads a tier."""
        self.guard: TierGuard | None = None
        self._decoders = shared.decoders
        self.replicas, self.damage = shared.replicas, shared.damage
        self.reserve: ProducerRoom = shared.reserve
        self.reads_in_flight: dict[Any, tuple[asyncio.Future[Any] | None, asyncio.Future[Any]]] = {}
        """The requests under way of `korvet.store.log.reading.read`."""
        self.read_ahead: set[Partition] = set()
        """The partitions of which a bound read that is under way takes more than its own entries."""
        self.now = asyncio.get_running_loop().time
        self._namespace = namespace
        self._catalog = catalog
        self._partitions: dict[str, list[Partition]] = {}
        self._token_prefix = str(ULID())
        self._tokens = 0
        store.on_history_change(self.forget)

    # ------------------------------------------------------------------ the cache

    def partition(self, topic: Topic, index: int) -> Partition:
        """The cache of a partition; a new one for another topic id.

        :raises IndexError: the topic has no such partition.
        """
        known = self._partitions.get(topic.name)
        if known is None or known[0].topic is not topic:
            known = self._renew(topic, known or [])
        if index < 0:
            raise IndexError(index)
        return known[index]

    def _renew(self, topic: Topic, known: list[Partition]) -> list[Partition]:
        kept = {p.index: p for p in known} if known and known[0].topic.id == topic.id else {}
        renewed = []
        for index in range(topic.partitions):
            partition = kept.get(index) or self._made(topic, index)
            partition.topic = topic
            renewed.append(partition)
        if len(self._partitions) > 2 * len(self._catalog.topics()) + 100:
            self._partitions = {name: own for name, own in self._partitions.items() if self._catalog.topic(name)}
        self._partitions[topic.name] = renewed
        return renewed

    def _made(self, topic: Topic, index: int) -> Partition:
        keys = self._namespace.transaction_log(topic.name, index)
        self.store.judge(keys)
        return Partition(topic, index, keys)

    def find_run_id(self, partition: Partition) -> str:
        """The run id of a partition's server, for a call on the append connection.

        It is cached with the replication id, unless reads come from another run: a reader would take the former run's
        epoch for the current one.

        :raises LostTier, StoreUnavailable: as `TierGuard.admit`, for the first use at a server.
        """
        if self.guard is not None and not partition.run_id:
            self.guard.admit(partition)
        run_id = self.store.run_id(partition.keys.log)
        if self.store.reads_where_it_appends(partition.keys.log):
            partition.run_id, partition.replid = run_id, self.store.replid(partition.keys.log)
        return run_id

    def limits(self, partition: Partition) -> TopicLimits:
        """The limits of a partition's topic."""
        limits = partition.limits
        if limits is None or limits.generation != self._catalog.generation:
            limits = partition.limits = limits_of(self._catalog, partition.topic)
        return limits

    def forget(self) -> None:
        """Drop every cache, because another server, perhaps with another history, answers."""
        self.cache.clear()
        for partitions in self._partitions.values():
            for partition in partitions:
                partition.forget()

    def next_token(self) -> str:
        """A name for a temporary key, unique among all processes."""
        self._tokens += 1
        return f"{self._token_prefix}-{self._tokens}"

    async def keeps_unarchived(self, partition: Partition) -> bool:
        """True if a partition's topic keeps unarchived records, after a read of the catalog.

        :raises StoreUnavailable, StoreError:
        """
        await self._catalog.refresh()
        topic = self._catalog.topic_by_id(partition.topic.id)
        return topic is not None and keeps_unarchived(self._catalog, topic)

    async def in_thread(self, work: Callable[[], T], *, is_abandoned_on_cancel: bool = False) -> T:
        """As `FairThreads.run`, in the namespace's turn."""
        return await self._decoders.run(self._namespace.name, work, is_abandoned_on_cancel=is_abandoned_on_cancel)

    # ------------------------------------------------------------------ keys

    async def restore(self, partition: Partition) -> bool:
        """Make the partition's keys after GONE, if the catalog still has its topic; else false.

        :raises LostTier: there may be segments of it, and nothing else is left.
        :raises StoreUnavailable, StoreFull, StoreError:
        """
        await self._catalog.refresh()
        topic = self._catalog.topic_by_id(partition.topic.id)
        if topic is None or partition.index >= topic.partitions:
            return False
        # The tier may hold records of a partition of which Redis has lost everything.
        may_begin = not is_tiered(topic.configs) or (self.tier is not None and not await self.tier.holds(partition))
        # Clients may have seen the lost keys' epoch. Without a run id the next use begins a new one.
        await self._create([partition], run_id="", may_begin=may_begin)
        await self._catalog.refresh()
        if self._catalog.topic_by_id(partition.topic.id) is None:
            await self._delete(partition, partition.topic_id)
            return False
        return True

    async def take_over(self, partition: Partition) -> None:
        """Begin a leader epoch if the log's history may have gone back since the last one began.

        :raises StoreUnavailable, StoreError:
        """
        _, _, replid = await self.store.call_function(
            Purpose.APPEND,
            "korvet_log_take_over",
            partition.keys,
            topic_id=partition.topic_id,
            run_id=self.find_run_id(partition),
        )
        # The server's own reply is newer than the link's.
        partition.replid = replid.decode()

    async def create_partitions(self, topic: Topic, first: int = 0) -> None:
        """Make the keys of a topic's new partitions, from one on; repeatable.

        :raises StoreUnavailable, StoreFull, StoreError:
        """
        for some in _slices(self._all_partitions(topic)[first:]):
            await self._create(some)
        # A front-end that deleted the topic meanwhile may have passed before these keys existed.
        await self._catalog.refresh()
        if self._catalog.topic_by_id(topic.id) is None:
            await self.delete_partitions(topic)

    async def _create(
        self, partitions: Sequence[Partition], run_id: str | None = None, *, may_begin: bool = True
    ) -> None:
        questions = [self._ask_to_create(partition, run_id, may_begin) for partition in partitions]
        for partition, question in zip(partitions, questions, strict=True):
            (code,) = await question
            if code == GONE and await self._clear_former(partition):
                (code,) = await self._ask_to_create(partition, run_id, may_begin)
            if code == LOST:
                raise LostTier(
                    f"{partition.keys.log} is gone, and the tier may hold its records: run korvet tier recover"
                )
        ruled = [(partition, rules_of(self._catalog, partition.topic)) for partition in partitions]
        for configuring in [self.configure_records(*pair) for pair in ruled if pair[1]]:
            await configuring

    def tier_of(self, partition: Partition) -> TierSource:
        """The segments, for what Redis no longer holds of a partition.

        :raises LostTier: this front-end has no tier.
        """
        if self.tier is None:
            raise LostTier(
                f"the first records of {partition.keys.log} are only in a tier, and this front-end has none: "
                "start it with the --tier of the others"
            )
        return self.tier

    def tier_keys(self, partition: Partition) -> TierKeys:
        """The keys for functions of a partition's segments."""
        return self._namespace.tier(partition.topic.name, partition.index)

    def configure_records(self, partition: Partition, rules: str) -> asyncio.Future[Sequence[int]]:
        """Set the rules from `rules_of` for records that Redis users add to a partition.

        :raises StoreUnavailable, StoreFull, StoreError: when awaited.
        """
        keys = self._namespace.inlet(partition.topic.name, partition.index)
        return self.store.call_function(
            Purpose.APPEND, "korvet_record_configure", keys, topic_id=partition.topic_id, rules=rules
        )

    def _ask_to_create(
        self, partition: Partition, run_id: str | None, may_begin: bool
    ) -> asyncio.Future[Sequence[int]]:
        if run_id is None:
            run_id = self.store.run_id(partition.keys.log)
        keys = partition.transaction_keys
        return self.store.call_function(
            Purpose.APPEND,
            "korvet_log_create",
            keys,
            topic_id=partition.topic_id,
            run_id=run_id,
            kept=None if may_begin else 1,
        )

    async def _clear_former(self, partition: Partition) -> bool:
        """Delete keys that a former topic of this name left; false if they belong to a topic that exists.

        This reads the catalog after the keys, because a topic that it no longer lists never comes back. The deletion of
        keys without an owner names none, so keys that another front-end makes meanwhile stay.
        """
        meta = partition.keys.meta
        topic_id, deleting = await self.store.call(Purpose.APPEND, meta, "HMGET", meta, "topic_id", "deleting")
        if topic_id == partition.topic_id.encode():
            return False
        owner = (topic_id or deleting or b"").decode()
        await self._catalog.refresh()
        if owner not in ("", partition.topic_id) and self._catalog.topic_by_id(UUID(hex=owner)) is not None:
            return False
        await self._delete(partition, owner)
        return True

    async def delete_partitions(self, topic: Topic) -> None:
        """Delete all data of a topic; repeatable. Continues after a partition's failure.

        :raises StoreError: at the end, if keys of a partition cannot be removed.
        :raises StoreUnavailable: at the end, if only some servers failed to answer.
        """
        failures: list[KorvetError] = []
        for some in _slices(self._all_partitions(topic)):
            outcomes = await settled(self._ask_to_delete(partition, partition.topic_id) for partition in some)
            for partition, outcome in zip(some, outcomes, strict=True):
                if not isinstance(outcome, KorvetError) and outcome[1]:
                    (outcome,) = await settled([self._delete(partition, partition.topic_id)])
                if isinstance(outcome, KorvetError):
                    failures.append(outcome)
        if failures:
            raise next((failure for failure in failures if isinstance(failure, StoreError)), failures[0])
        known = self._partitions.get(topic.name)
        if known is not None and known[0].topic.id == topic.id:
            del self._partitions[topic.name]

    async def _delete(self, partition: Partition, topic_id: str) -> None:
        while (await self._ask_to_delete(partition, topic_id))[1]:
            pass

    def _ask_to_delete(self, partition: Partition, topic_id: str) -> asyncio.Future[Sequence[int]]:
        keys = partition.transaction_keys
        return self.store.call_function(Purpose.APPEND, "korvet_log_delete", keys, topic_id=topic_id)

    def _all_partitions(self, topic: Topic) -> list[Partition]:
        return [
            Partition(topic, index, self._namespace.transaction_log(topic.name, index))
            for index in range(topic.partitions)
        ]


def _slices(partitions: Sequence[Partition]) -> Iterable[Sequence[Partition]]:
    return (partitions[at : at + _PIPELINED] for at in range(0, len(partitions), _PIPELINED))
