"""Where a log's entries and batches are read: the partition's stream in Redis, and the keys of placed batches.

`korvet.store.log.reading.read` uses only this for batches that are not in memory, and a `TierSource` below the local
start. A partition's offsets and epochs are no part of it: they are always those of Redis
(`korvet.store.log.partitions.meta`).

**Single records.** An entry of a batch is small, or its batch is placed and read by itself. An entry of a record holds
the record, however large, and the mean size of past records says nothing about the next thousand. Each entry's index
has the running sum of bytes. So the last entry of a span gives the span's bytes, and `last_id` halves the span until
they are few.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from korvet.errors import KorvetError
from korvet.redis.client import Purpose, Store
from korvet.store.keys import placed_batch
from korvet.store.log.memory.fair_queue import FairQueue, FairQueues
from korvet.store.log.memory.room import FetchRoom, PartitionRead, Want
from korvet.store.log.state.entries import CorruptEntry, Entry, index_of
from korvet.store.log.state.partition import Meta, Partition


class Timed(NamedTuple):
    """A record found by time: its offset, its timestamp in milliseconds and its batch's leader epoch."""

    offset: int
    timestamp: int
    leader_epoch: int


class TierSource(Protocol):
    """The segments of a store's logs."""

    async def read(self, want: Want, meta: Meta, room: FetchRoom) -> PartitionRead:
        """Read batches from an offset on that lies at or above the log start and below the local start.

        The answer has the offsets of ``meta``, and whole batches within `FetchRoom.limit`; the first of an empty room
        always fits. What it takes of the room is taken. It waits for no store: see `PartitionRead.pending`. A failure
        of the tier is the answer's code.

        :raises KorvetError: as code NOT_LEADER_OR_FOLLOWER.
        """

    async def holds(self, partition: Partition) -> bool:
        """True if there may be objects of a partition; also if the store does not say so soon."""

    async def offset_for_time(self, partition: Partition, meta: Meta, timestamp: int) -> Timed | None:
        """The first record from the log start on, and below the local start, that is not older than ``timestamp``.

        None if there is none.

        :raises KorvetError:
        """


class TierGuard(Protocol):
    """What the tier knows of a namespace that Redis may have lost. It is asked before a log goes on or a topic
    begins."""

    def admit(self, partition: Partition) -> None:
        """Let a log go on at this server, if the tier holds no later offsets; without waiting.

        :raises LostTier: it does, or it cannot be asked.
        :raises StoreUnavailable: that is being found out.
        """

    async def tier(self) -> str:
        """The id of the namespace's tier. It waits some seconds after the front-end's start for the first owner, who
        names it.

        :raises LostTier: the tier could not be used since then.
        :raises StoreUnavailable, StoreError:
        """

    async def check_name(self, name: str) -> None:
        """
        :raises LostTier: the tier has a topic of this name that Redis does not know, or it cannot be asked.
        """


class RedisSource:
    """The logs of a store. The futures that it returns fail with StoreUnavailable or StoreError."""

    def __init__(self, store: Store, queues: FairQueues) -> None:
        self._store = store
        self._queues = queues

    def queue(self, partition: Partition) -> FairQueue:
        """The queue of the connection by which a partition is read."""
        return self._queues.at(self._store.link(Purpose.READ, partition.keys.log))

    def entries(self, partition: Partition, offset: int, last_id: str, count: int) -> asyncio.Future[Any]:
        """Queue the read of entries after an offset, for `korvet.store.log.state.entries.parsed_entries`."""
        return self._range(partition, "XRANGE", f"{offset + 1}-0", last_id, count)

    def batch(self, partition: Partition, entry: Entry) -> asyncio.Future[Any]:
        """Queue the read of an entry's batch; None if it is gone."""
        # Not MGET, which a cluster refuses while some of the keys have moved.
        key = placed_batch(partition.keys.log, entry.place)
        return self._store.call(Purpose.READ, key, "GET", key)

    async def last_id(self, partition: Partition, offset: int, count: int, most_bytes: int) -> str:
        """The last id of the entries to read: ``count`` offsets on, or fewer if these exceed ``most_bytes``.

        The first entry is always included. The read itself finds and names an unreadable entry.
        """
        log_key = partition.keys.log
        try:
            reply: Sequence[Any] = await self.entries(partition, offset, "+", 1)
            if not reply:
                return "+"
            first, until = index_of(log_key, reply[0]), offset + count
            before_bytes = first.running_bytes - first.size_bytes
            while until > first.next_offset:
                reply = await self._range(partition, "XREVRANGE", f"{until}-0", f"{first.next_offset}-0", 1)
                try:
                    if not reply or index_of(log_key, reply[0]).running_bytes - before_bytes <= most_bytes:
                        return f"{until}-0"
                except CorruptEntry:
                    # The reader finds it when it gets there.
                    break
                until = first.next_offset + (until - first.next_offset) // 2
        except KorvetError:
            return "+"
        return f"{first.next_offset}-0"

    def _range(self, partition: Partition, command: str, first: str, last: str, count: int) -> asyncio.Future[Any]:
        key = partition.keys.log
        return self._store.call(Purpose.READ, key, command, key, first, last, "COUNT", count)
