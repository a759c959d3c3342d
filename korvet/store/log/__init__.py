"""The log of every partition: append, read, offsets by time, trim, create, delete.

Decisions are made by the Lua functions of ``lua/2x_log*``; here are the calls in their right order, and what a
front-end may remember between them. A `Partition` is such a memory. Appends are in `korvet.store.log.append`, reads
in `korvet.store.log.read`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from uuid import UUID

import anyio
import structlog
from kio.schema.errors import ErrorCode
from ulid import ULID

from korvet.errors import StoreError
from korvet.store.catalog import Catalog, Topic
from korvet.store.client import Argument, Purpose, Store
from korvet.store.contract import GONE, RESEND, VERIFY
from korvet.store.keys import Namespace
from korvet.store.log.ahead import ReadAhead
from korvet.store.log.append import Appended, Appending, Ending, Membership
from korvet.store.log.archived import keeps_unarchived
from korvet.store.log.budget import ReplyBudget
from korvet.store.log.limits import Limits, limits_of
from korvet.store.log.partition import Partition
from korvet.store.log.read import Meta, Unreadable, Want, ask_meta, meta_of, read, stands_at_end
from korvet.store.log.recent import RecentBatches
from korvet.store.log.replicas import Replicas
from korvet.store.log.rules import rules_of
from korvet.store.log.times import Timed, offset_for_time
from korvet.store.memory import Reserve
from korvet.store.wakeup import Wakeups
from korvet.wire.batch import Batch
from korvet.wire.fetch_response import PartitionRead
from korvet.wire.markers import marker

__all__ = [
    "GONE",
    "RESEND",
    "VERIFY",
    "Appended",
    "Appending",
    "Ending",
    "Limits",
    "Log",
    "Membership",
    "Meta",
    "Partition",
    "Want",
]

logger = structlog.get_logger()

_PIPELINED = 500
"""Calls that are under way at once where a topic has thousands of partitions."""
_META_ATTEMPTS = 4
_MARK_ATTEMPTS = 2
_PRODUCER_CALLS = 10_000
CONCURRENT_TRANSACTIONS = int(ErrorCode.concurrent_transactions)
_DECODERS = 2
"""Batches that are opened at once; each may take `korvet.wire.records.MOST_BYTES`, for a moment twice."""


class Producer(NamedTuple):
    """What a partition remembers of a producer; what is not known is -1 or empty.

    ``first_open`` is where its open transaction begins, ``ordinal`` is that one's.
    """

    producer_id: int
    epoch: int
    last_sequence: int
    last_timestamp: int
    first_open: int
    ordinal: int
    transactional_id: str


class Log:
    """All logs of a namespace, as one front-end sees them.

    :param beside: another namespace's in this process: what bounds memory is one bound for both.
    """

    def __init__(
        self, namespace: Namespace, store: Store, catalog: Catalog, wakeups: Wakeups, *, beside: Log | None = None
    ) -> None:
        self.store = store
        self.wakeups = wakeups
        self.recent: RecentBatches = beside.recent if beside else RecentBatches()
        self.ahead: ReadAhead = beside.ahead if beside else ReadAhead()
        self.reply_budget: ReplyBudget = beside.reply_budget if beside else ReplyBudget()
        self.decoders: anyio.CapacityLimiter = beside.decoders if beside else anyio.CapacityLimiter(_DECODERS)
        self.replicas: Replicas = beside.replicas if beside else Replicas(store)
        self.reserve: Reserve = beside.reserve if beside else Reserve(store)
        self.now = asyncio.get_running_loop().time
        self._namespace = namespace
        self._catalog = catalog
        self._partitions: dict[str, list[Partition]] = {}
        self._token_prefix = str(ULID())
        self._tokens = 0
        store.on_history_change(self.forget)

    # ------------------------------------------------------------------ what is remembered

    def partition(self, topic: Topic, index: int) -> Partition:
        """What is remembered of a partition; made anew for another topic id.

        :raises IndexError: when the topic has no such partition.
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
            keys = self._namespace.transaction_log(topic.name, index)
            partition = kept.get(index) or Partition(topic, index, keys)
            partition.topic = topic
            renewed.append(partition)
        if len(self._partitions) > 2 * len(self._catalog.topics()) + 100:
            self._partitions = {name: own for name, own in self._partitions.items() if self._catalog.topic(name)}
        self._partitions[topic.name] = renewed
        return renewed

    def find_run_id(self, partition: Partition) -> str:
        """The run id of the server that holds a partition, remembered with it."""
        partition.run_id = self.store.run_id(partition.keys.log)
        return partition.run_id

    def limits(self, partition: Partition) -> Limits:
        """What a partition's topic takes."""
        limits = partition.limits
        if limits is None or limits.generation != self._catalog.generation:
            limits = partition.limits = limits_of(self._catalog, partition.topic)
        return limits

    def forget(self) -> None:
        """Drop every cache: another server answers, and its history may be another."""
        self.recent.clear()
        self.ahead.clear()
        for partitions in self._partitions.values():
            for partition in partitions:
                partition.forget()

    def next_token(self) -> str:
        """A name for a temporary key, unique among all processes."""
        self._tokens += 1
        return f"{self._token_prefix}-{self._tokens}"

    async def keeps_unarchived(self, partition: Partition) -> bool:
        """Whether a partition's topic may lose only what is archived, by what the catalog says now.

        :raises StoreUnavailable, StoreError:
        """
        await self._catalog.refresh()
        topic = self._catalog.topic_by_id(partition.topic.id)
        return topic is not None and keeps_unarchived(self._catalog, topic)

    # ------------------------------------------------------------------ data

    def append(
        self,
        partition: Partition,
        batch: Batch,
        data: bytes | memoryview,
        membership: Membership | None = None,
        entries: Sequence[Argument] | None = None,
    ) -> Appending:
        """Append a batch: its commands are queued before this returns, its outcome is awaited. See `Appending`.

        :param membership: of a batch that belongs to a transaction.
        :param entries: of a batch whose records are stored one by one, as `korvet.wire.record_entries.arguments` says.
        """
        return Appending(self, partition, batch, data, membership, entries)

    async def mark(self, partition: Partition, ending: Ending) -> int:
        """End a transaction in a partition; a code, GONE where there is no such topic any more. May be repeated.

        Where an older one is open there, of which its coordinator does not know any more, that one is aborted first.

        :raises StoreUnavailable, StoreFull, StoreError:
        """
        code = await self._mark(partition, ending)
        if code == CONCURRENT_TRANSACTIONS:
            await self.abort_older(partition, ending)
            code = await self._mark(partition, ending)
        return code

    async def abort_older(self, partition: Partition, than: Ending) -> None:
        """Abort what is open of a producer in a partition and older than a transaction.

        :raises StoreUnavailable, StoreFull, StoreError:
        """
        await self._mark(partition, than._replace(ordinal=than.ordinal - 1, is_commit=False))

    async def _mark(self, partition: Partition, ending: Ending) -> int:
        batch, data = marker(
            ending.producer_id,
            ending.producer_epoch,
            is_commit=ending.is_commit,
            timestamp_ms=time.time_ns() // 1_000_000,
        )
        for _ in range(_MARK_ATTEMPTS):
            reply = await self.store.fcall(
                Purpose.APPEND,
                "korvet_log_mark",
                partition.transaction_keys,
                partition.topic_id,
                partition.run_id or self.find_run_id(partition),
                ending.producer_id,
                ending.producer_epoch,
                ending.ordinal,
                "commit" if ending.is_commit else "abort",
                len(data),
                batch.max_timestamp,
                batch.crc,
                data,
            )
            code = int(reply.split()[0])
            if code != GONE or not await self.restore(partition):
                return code
        return GONE

    async def read(self, wants: Sequence[Want], max_bytes: int) -> list[PartitionRead]:
        """Read partitions; see `korvet.store.log.read.read`."""
        return await read(self, wants, max_bytes)

    def stands_at_end(self, want: Want) -> bool:
        """Whether a reader is at an end that is known for certain, so that it may wait without reading."""
        return stands_at_end(self, want)

    async def metas(self, partitions: Sequence[Partition]) -> list[Meta | None]:
        """Offsets and epochs of partitions, in one pipelined read; None where the topic is gone.

        :raises StoreUnavailable, StoreError:
        """
        questions = [ask_meta(self, partition) for partition in partitions]
        return [await self._meta(*pair) for pair in zip(partitions, questions, strict=True)]

    async def _meta(self, partition: Partition, question: asyncio.Future[Sequence[object]]) -> Meta | None:
        for _ in range(_META_ATTEMPTS):
            meta = await meta_of(self, partition, await question)
            if isinstance(meta, Meta):
                return meta
            if meta is Unreadable.NO_TOPIC:
                return None
            question = ask_meta(self, partition)
        raise StoreError(f"{partition.keys.meta} does not come to rest")

    async def offset_for_time(self, partition: Partition, timestamp: int) -> Timed | None:
        """The first record that is not older than a time; see `korvet.store.log.times.offset_for_time`."""
        return await offset_for_time(self, partition, timestamp)

    async def producers(self, partition: Partition) -> list[Producer] | None:
        """The producers that a partition remembers; None where the topic is gone.

        :raises StoreUnavailable, StoreError:
        """
        found: dict[int, Producer] = {}
        cursor = b"0"
        for _ in range(_PRODUCER_CALLS):
            code, cursor, some = await self.store.fcall(
                Purpose.READ, "korvet_log_producers", partition.transaction_keys, partition.topic_id, cursor
            )
            if code == GONE:
                return None
            for *known, transactional_id in some:
                found[known[0]] = Producer._make((*known, transactional_id.decode()))
            if cursor == b"0":
                break
        return list(found.values())

    async def trim(self, partition: Partition, offset: int, epoch: int | None = None) -> tuple[int, int]:
        """Drop what is below an offset, -1 for all. Returns a Kafka error code, or GONE, and the log start then.

        :param epoch: the leader epoch in which the offset was chosen; in another one the code is FENCED_LEADER_EPOCH.
        :raises StoreUnavailable, StoreError:
        """
        may_restore = True
        chosen_in = () if epoch is None else (epoch,)
        while True:
            code, start, more = await self.store.fcall(
                Purpose.APPEND,
                "korvet_log_trim",
                partition.transaction_keys,
                partition.topic_id,
                offset,
                *chosen_in,
            )
            if code == GONE and may_restore and await self.restore(partition):
                may_restore = False
            elif code != 0 or not more:
                if code == 0:
                    partition.trimmed(start)
                return code, start

    # ------------------------------------------------------------------ partitions come and go

    async def restore(self, partition: Partition) -> bool:
        """After GONE: make the partition's keys if the catalog still has its topic; false when it has not.

        :raises StoreUnavailable, StoreFull, StoreError:
        """
        await self._catalog.refresh()
        topic = self._catalog.topic_by_id(partition.topic.id)
        if topic is None or partition.index >= topic.partitions:
            return False
        # Where keys were lost, clients have seen an epoch of theirs: without a run id the next use begins a new one.
        await self._create([partition], run_id="")
        await self._catalog.refresh()
        if self._catalog.topic_by_id(partition.topic.id) is None:
            await self._delete(partition, partition.topic_id)
            return False
        return True

    async def take_over(self, partition: Partition) -> None:
        """Begin a leader epoch where another server than before holds the log.

        :raises StoreUnavailable, StoreError:
        """
        await self.store.fcall(
            Purpose.APPEND,
            "korvet_log_take_over",
            partition.keys,
            partition.topic_id,
            self.find_run_id(partition),
        )

    async def create_partitions(self, topic: Topic) -> None:
        """Make the keys of all partitions of a topic; may be repeated, and after partitions were added.

        :raises StoreUnavailable, StoreFull, StoreError:
        """
        for some in _slices(self._all_partitions(topic)):
            await self._create(some)
        # Who deleted the topic meanwhile may have been here before these keys were.
        await self._catalog.refresh()
        if self._catalog.topic_by_id(topic.id) is None:
            await self.delete_partitions(topic)

    async def _create(self, partitions: Sequence[Partition], run_id: str | None = None) -> None:
        questions = [self._ask_to_create(partition, run_id) for partition in partitions]
        for partition, question in zip(partitions, questions, strict=True):
            if (await question)[0] == GONE and await self._clear_former(partition):
                await self._ask_to_create(partition, run_id)
        ruled = [(partition, rules_of(self._catalog, partition.topic)) for partition in partitions]
        for configuring in [self.configure_records(*pair) for pair in ruled if pair[1]]:
            await configuring

    def configure_records(self, partition: Partition, rules: str) -> asyncio.Future[Sequence[int]]:
        """Say in Redis what may be added to a partition from there, as `rules_of` tells; not to a former topic's.

        :raises StoreUnavailable, StoreFull, StoreError: when awaited.
        """
        keys = self._namespace.inlet(partition.topic.name, partition.index)
        return self.store.fcall(Purpose.APPEND, "korvet_record_configure", keys, partition.topic_id, rules)

    def _ask_to_create(self, partition: Partition, run_id: str | None) -> asyncio.Future[Sequence[int]]:
        if run_id is None:
            run_id = self.find_run_id(partition)
        keys = partition.transaction_keys
        return self.store.fcall(Purpose.APPEND, "korvet_log_create", keys, partition.topic_id, run_id)

    async def _clear_former(self, partition: Partition) -> bool:
        """Delete what a former topic of this name left behind; false when the keys are those of a topic that exists.

        The catalog is read after the keys: a topic that is in it no more then will never be again. Keys that nobody
        owns are deleted in nobody's name, so that those which another front-end makes meanwhile stay.
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
        """Delete all data of a topic; may be repeated.

        :raises StoreUnavailable, StoreError:
        """
        for some in _slices(self._all_partitions(topic)):
            questions = [self._ask_to_delete(partition, partition.topic_id) for partition in some]
            for partition, question in zip(some, questions, strict=True):
                _, more = await question
                if more:
                    await self._delete(partition, partition.topic_id)
        known = self._partitions.get(topic.name)
        if known is not None and known[0].topic.id == topic.id:
            del self._partitions[topic.name]

    async def _delete(self, partition: Partition, topic_id: str) -> None:
        while (await self._ask_to_delete(partition, topic_id))[1]:
            pass

    def _ask_to_delete(self, partition: Partition, topic_id: str) -> asyncio.Future[Sequence[int]]:
        return self.store.fcall(Purpose.APPEND, "korvet_log_delete", partition.transaction_keys, topic_id)

    def _all_partitions(self, topic: Topic) -> list[Partition]:
        return [
            Partition(topic, index, self._namespace.transaction_log(topic.name, index))
            for index in range(topic.partitions)
        ]

    def report_damage(self, partition: Partition, offset: int) -> None:
        """Say in the log that a batch is missing which its stream lists."""
        logger.error("a stored batch is missing", log=partition.keys.log, offset=offset)


def _slices(partitions: Sequence[Partition]) -> Iterable[Sequence[Partition]]:
    return (partitions[at : at + _PIPELINED] for at in range(0, len(partitions), _PIPELINED))
