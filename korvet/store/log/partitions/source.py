"""Where a log's entries and batches are read: the partition's stream in Redis, and the keys of placed batches.

`korvet.store.log.reading.read` uses only this for batches that are not in memory, so a further source (older segments
elsewhere) needs these four methods. A partition's offsets and epochs are no part of it: they are always those of Redis
(`korvet.store.log.partitions.meta`).

**Single records.** An entry of a batch is small, or its batch is placed and read by itself. An entry of a record holds
the record, however large, and the mean size of past records says nothing about the next thousand. Each entry's index
has the running sum of bytes. So the last entry of a span gives the span's bytes, and `last_id` halves the span until
they are few.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from korvet.errors import KorvetError
from korvet.redis.client import Purpose, Store
from korvet.store.keys import placed_batch
from korvet.store.log.memory.fair_queue import FairQueue, FairQueues
from korvet.store.log.state.entries import CorruptEntry, Entry, index_of
from korvet.store.log.state.partition import Partition


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
