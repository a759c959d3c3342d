"""The stream that a compaction builds beside the log's, and the swap that puts it in the log's place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from korvet.errors import StoreError
from korvet.redis.client import Purpose
from korvet.store.background.compaction.due import Dirty
from korvet.store.background.compaction.headroom import CROWDED, NoRoom
from korvet.store.background.compaction.lease import Lease, Lost
from korvet.store.background.compaction.plan import Chunk
from korvet.store.keys import placed_batch
from korvet.store.log.state.entries import INLINE_LIMIT_BYTES
from korvet.store.log.state.partition import Partition
from korvet.wire.batch import Batch

if TYPE_CHECKING:
    from korvet.store.log.log import Log

_PLACED_MS = 600_000
_MOST_CALLS = 1_000_000
_MOST_GROUP_CALLS = 1000
"""The most swaps in a row that only copy Redis groups: these may change all the time."""


class NewStream:
    """The stream of the kept records of a ``dirty`` log."""

    def __init__(self, log: Log, partition: Partition, lease: Lease, dirty: Dirty) -> None:
        self._log = log
        self._partition = partition
        self._lease = lease
        self._dirty = dirty
        self._copied = 0

    def _as_seen(self) -> dict[str, str | int]:
        """The arguments for the functions' check of the partition. Also checks the connection's server.

        :raises Lost: another server answers.
        """
        dirty = self._dirty
        if self._log.find_run_id(self._partition) != dirty.run_id:
            raise Lost
        return {
            "topic_id": self._partition.topic_id,
            "run_id": dirty.run_id,
            "epoch": dirty.epoch,
            "start": dirty.start,
            "token": self._lease.token,
            "copied": self._copied,
        }

    async def copy(self, chunks: Sequence[Chunk], removed_bytes: int) -> None:
        """Copy the kept and the rewritten entries.

        :param removed_bytes: the bytes by which the log will shrink.
        :raises Lost: the log or the lease has changed.
        :raises StoreUnavailable, StoreFull, StoreError:
        """
        removed_batches = sum(len(chunk.dropped) for chunk in chunks)
        for chunk in chunks:
            await self._lease.renew()
            dropped = " ".join(map(str, chunk.dropped))
            changes = [argument for pair in chunk.rewritten.items() for argument in await self._change(*pair)]
            _, status, self._copied = await self._log.store.call_function(
                Purpose.APPEND,
                "korvet_log_compaction_copy",
                self._lease.keys,
                **self._as_seen(),
                cursor=chunk.cursor,
                up_to=chunk.until,
                removed_bytes=removed_bytes,
                removed_batches=removed_batches,
                dropped=dropped,
                changes=changes,
            )
            if status != b"ready":
                raise Lost
            removed_bytes -= chunk.removed_bytes
            removed_batches -= len(chunk.dropped)

    async def _change(self, next_offset: int, rewritten: tuple[Batch, bytes]) -> tuple[int, str, bytes]:
        """The arguments for a rewritten batch; a large one is stored first, under its final key."""
        batch, data = rewritten
        index = f"{len(data)} {batch.max_timestamp} {batch.crc}"
        if len(data) < INLINE_LIMIT_BYTES:
            return next_offset, index, data
        key = placed_batch(self._partition.keys.log, f"{next_offset}.{self._lease.token}")
        await self._log.store.call(Purpose.APPEND, key, "SET", key, data, "PX", _PLACED_MS)
        return next_offset, index, b""

    async def swap(self, cursor: int | str, grown_bytes: int, cleaned: int, markers: Sequence[int]) -> None:
        """Copy the entries appended since, and put the stream in the log's place.

        :param cursor: the offset just past the last entry that was copied or dropped.
        :param grown_bytes: the bytes by which the log will grow.
        :param cleaned: the offset below which the run read each key.
        :param markers: offsets of the removed markers of aborted transactions.
        :raises Lost: the log or the lease has changed, or the topic now keeps unarchived records.
        :raises NoRoom: its Redis groups are too many, or change too fast.
        :raises StoreUnavailable, StoreFull, StoreError:
        """
        if await self._log.keeps_unarchived(self._partition):
            # Set since the run began.
            raise Lost
        keys = (*self._lease.keys, self._partition.transaction_keys.aborted)
        idle = 0
        for _ in range(_MOST_CALLS):
            await self._lease.renew()
            _, status, self._copied, following = await self._log.store.call_function(
                Purpose.APPEND,
                "korvet_log_compaction_swap",
                keys,
                **self._as_seen(),
                cursor=cursor,
                grown_bytes=grown_bytes,
                cleaned=cleaned,
                markers=markers,
            )
            if status == b"done":
                return
            if status == b"crowded":
                raise NoRoom(CROWDED)
            if status != b"more":
                raise Lost
            idle = idle + 1 if following.decode() == str(cursor) else 0
            if idle == _MOST_GROUP_CALLS:
                raise NoRoom("its Redis groups change faster than they can be copied")
            cursor = following.decode()
        raise StoreError(f"{self._partition.keys.log} grows faster than it can be copied")
