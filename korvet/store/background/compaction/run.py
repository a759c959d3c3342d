"""One compaction of one partition: the last record of each key stays.

A run takes the partition's lease (`lease`), and reads the keys of the records appended since the last run (`plan`).
Then it goes through the log from its start up to the last of these (`batches`). Redis builds the resulting stream
beside the log's and swaps the two (`new_stream`, lua/2-log/2-compaction.lua). A decision is valid only for the same
log: if its epoch, start or server has changed, the run gives up. An interrupted run leaves a stream, which the next run
or `clear_leftover` removes. That stream names its placed batches; others expire.

The log's last batch is never touched, so that the log's end stays known. A run reads a bounded number of keys and holds
a bounded size of new batches; the next run continues after them.

Source: LogCleaner, LogCleanerManager, Cleaner
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import structlog

from korvet.errors import KorvetError
from korvet.redis.client import Purpose
from korvet.store.background.compaction.batches import Batches, aborted_transactions
from korvet.store.background.compaction.due import Compaction, Dirty, due_of
from korvet.store.background.compaction.headroom import check_groups, check_room, count_new_bytes
from korvet.store.background.compaction.lease import LEASE_MS, Lease, Lost
from korvet.store.background.compaction.new_stream import NewStream
from korvet.store.background.compaction.plan import Chunk, Cleaner, Keys, Rules, Stored, Transactions
from korvet.store.log.state.partition import Partition
from korvet.wire.batch import CONTROL
from korvet.wire.compacted import opened
from korvet.wire.records import UndecodableRecords

if TYPE_CHECKING:
    from korvet.store.log.log import Log

logger = structlog.get_logger()

MOST_MARKERS = 5000
"""The most markers of aborted transactions that one run removes: the call that swaps the streams names each."""
_CHANGE_BYTES = 400
_LONG_BYTES = 16384
_TURN_S = 0.001


async def compact(log: Log, partition: Partition, settings: Compaction, now_ms: int) -> bool:
    """Compact a partition if it is due. False if it is not, if another front-end does it, or if the log changed.

    :param now_ms: Redis's time.
    :raises StoreFull: also if it would need too much memory; it has then taken none.
    :raises StoreUnavailable, StoreError:
    """
    dirty = await due_of(log, partition, settings, now_ms)
    if dirty is None:
        return False
    run = _Run(log, partition, settings, dirty, now_ms)
    if not await run.lease.acquire():
        return False
    try:
        return await run.work()
    except Lost:
        await run.lease.end()
        return False
    except KorvetError:
        # The next run removes the leftovers if this fails.
        await run.lease.end()
        raise


async def clear_leftover(log: Log, partition: Partition, now_ms: int) -> None:
    """Remove the leftovers of a run after its front-end died, that is, its lease expired.

    The next run would do so too, but may come late.

    :param now_ms: Redis's time.
    :raises StoreUnavailable, StoreError:
    """
    meta = partition.keys.meta
    held: bytes | None = await log.store.call(Purpose.READ, meta, "HGET", meta, "compaction")
    if held is None or now_ms < int(held.split()[1]) <= now_ms + LEASE_MS:
        return
    lease = Lease(log, partition)
    if await lease.acquire():
        await lease.end()


class _Run:
    """One compaction of one partition."""

    def __init__(self, log: Log, partition: Partition, settings: Compaction, dirty: Dirty, now_ms: int) -> None:
        self._log = log
        self._partition = partition
        self._settings = settings
        self._dirty = dirty
        self._rules = Rules(now_ms=now_ms, delete_retention_ms=settings.delete_retention_ms)
        self.lease = Lease(log, partition)
        self._batches = Batches(log, partition, self.lease)
        self._yield_at = 0.0

    async def work(self) -> bool:
        """Read keys, decide, copy and swap."""
        aborted = await aborted_transactions(self._log, self._partition, self._dirty.start)
        keys = await self._map(Transactions(one for one in aborted if one.last >= self._dirty.first))
        cleaner = Cleaner(keys, Transactions(aborted), self._rules)
        chunks = await self._plan(cleaner, keys.end)
        until = chunks[-1].until if chunks else self._dirty.start
        cleaned = max(self._dirty.first, min(keys.end, until))
        if cleaner.bad:
            logger.error(
                "batches cannot be read and stay as they are",
                log=self._partition.keys.log, batches=len(cleaner.bad), offsets=cleaner.bad[:10],
            )  # fmt: skip
        if not any(chunk.dropped or chunk.rewritten for chunk in chunks):
            await self.lease.end(run_id=self._dirty.run_id, epoch=self._dirty.epoch, cleaned=cleaned)
            return cleaned > self._dirty.first
        await check_room(self._log, self._partition, chunks)
        await check_groups(self._log, self._partition)
        removed_bytes = sum(chunk.removed_bytes for chunk in chunks)
        grown_bytes = max(0, -removed_bytes)
        stream = NewStream(self._log, self._partition, self.lease, self._dirty)
        await stream.copy(chunks, removed_bytes + grown_bytes)
        await stream.swap(until, grown_bytes, cleaned, cleaner.markers)
        await self.lease.end()
        return True

    async def _map(self, transactions: Transactions) -> Keys:
        """The last offsets of the keys from the first dirty offset on."""
        keys = Keys(self._dirty.first, self._settings.most_keys)
        async for _, group in self._batches.between(self._dirty.first, self._dirty.until):
            for stored in group:
                try:
                    if stored.batch.attributes & CONTROL:
                        transactions.ends_empty(stored)
                        keys.skip(stored)
                    elif transactions.is_aborted(stored):
                        keys.skip(stored)
                    else:
                        keys.add(stored, (await self._beside(stored, opened, stored.batch, stored.data))[1])
                except UndecodableRecords:
                    keys.skip(stored)
                if keys.is_full:
                    return keys
        return keys

    async def _plan(self, cleaner: Cleaner, until: int) -> list[Chunk]:
        """Decide about the entries from the log start up to an offset, within the bound on memory."""
        chunks: list[Chunk] = []
        held_bytes = 0
        async for entries, group in self._batches.between(self._dirty.start, until):
            cursor = chunks[-1].until if chunks else self._dirty.start
            chunk = Chunk(cursor, entries[-1].next_offset)
            for stored in group:
                await self._beside(stored, cleaner.clean, stored, chunk)
            count_new_bytes(entries, chunk)
            chunks.append(chunk)
            held_bytes += chunk.dropped.itemsize * len(chunk.dropped)
            held_bytes += sum(len(one.data) + _CHANGE_BYTES for one in chunk.rewritten.values())
            if held_bytes > self._settings.most_plan_bytes or len(cleaner.markers) >= MOST_MARKERS:
                break
        return chunks

    async def _beside(self, stored: Stored, work: Any, *args: Any) -> Any:
        """Do long work in a thread, short work on the loop, and yield in between."""
        if len(stored.data) >= _LONG_BYTES:
            return await self._log.in_thread(partial(work, *args))
        if self._log.now() >= self._yield_at:
            await anyio.lowlevel.checkpoint()
            self._yield_at = self._log.now() + _TURN_S
        return work(*args)
