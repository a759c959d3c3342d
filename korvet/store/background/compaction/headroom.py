"""The memory that a compaction needs before it frees any, and the check that a server has it.

The new stream holds a copy of every kept batch below 8 KiB and of every kept record, and all rewritten batches. If it
filled the server, Redis would refuse producers until the run gave up, at every run. So a run estimates its memory
first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from korvet.errors import StoreFull
from korvet.redis.client import Purpose
from korvet.store.background.compaction.plan import Chunk
from korvet.store.capacity import memory_at
from korvet.store.log.state.entries import INLINE_LIMIT_BYTES, Entry, index_of
from korvet.store.log.state.partition import Partition
from korvet.store.memory import UNLIMITED

if TYPE_CHECKING:
    from korvet.store.log.log import Log

_ENTRY_BYTES = 100
"""The approximate bytes of an entry's id, index and place in the stream."""
_SHARE = 0.75
"""The share of the free memory that a compaction may take; the rest is for producers meanwhile."""


MOST_GROUPS = 1000
"""The most Redis groups of a compacted log: the call that swaps the streams reads all of them."""
CROWDED = f"more than {MOST_GROUPS} Redis groups read it, or more than 500 consumers in one of them"


class NoRoom(StoreFull):
    """A compaction would take too much memory, or block Redis for too long."""


def count_new_bytes(entries: Sequence[Entry], chunk: Chunk) -> None:
    """Add to a chunk the bytes of these entries in the new stream and beside it."""
    gone = set(chunk.dropped)
    for entry in entries:
        if entry.next_offset not in gone:
            anew = chunk.rewritten.get(entry.next_offset)
            chunk.new_bytes += _ENTRY_BYTES + (len(anew.data) if anew else _inline_bytes(entry))


def _inline_bytes(entry: Entry) -> int:
    """The bytes of an entry's batch or record inside the stream."""
    return entry.size_bytes if entry.record is not None else len(entry.data or b"")


async def check_room(log: Log, partition: Partition, chunks: Sequence[Chunk]) -> None:
    """Check that the server has room for the chunks, and for the entries after them.

    :raises NoRoom: the server has no room; the text has the remedy.
    :raises StoreUnavailable, StoreError:
    """
    memory = await memory_at(log.store, partition.keys.log)
    if memory.total_bytes == UNLIMITED:
        return
    needed = sum(chunk.new_bytes for chunk in chunks) + await _bytes_behind(log, partition, chunks[-1].until)
    if needed > memory.usable_bytes * _SHARE:
        raise NoRoom(
            f"compaction takes {needed} bytes while it runs, and Redis has {memory.usable_bytes} left, of which it may"
            f" take {int(memory.usable_bytes * _SHARE)}: raise maxmemory, or add the policy delete with a retention"
        )


async def _bytes_behind(log: Log, partition: Partition, offset: int) -> int:
    """An upper bound on the bytes of the entries from an offset on."""
    name = partition.keys.log
    ends = [
        log.store.call(Purpose.READ, name, "XREVRANGE", name, last, "-", "COUNT", 1) for last in ("+", f"{offset}-0")
    ]
    (end, here) = [_totals(name, await found) for found in ends]
    size, batches = end[0] - here[0], end[1] - here[1]
    # Records are in the stream, whatever their length.
    inline = size if log.limits(partition).is_record else min(size, batches * INLINE_LIMIT_BYTES)
    return inline + batches * _ENTRY_BYTES


def _totals(name: str, found: Any) -> tuple[int, int]:
    """The running totals of bytes and batches at the entry in a reply; zeros without an entry."""
    if not found:
        return 0, 0
    index = index_of(name, found[0])
    return index.running_bytes, index.running_batches


async def check_groups(log: Log, partition: Partition) -> None:
    """Check the number of the log's Redis groups.

    :raises NoRoom: there are too many.
    :raises StoreUnavailable, StoreError:
    """
    name = partition.keys.log
    flat = await log.store.call(Purpose.READ, name, "XINFO", "STREAM", name)
    if dict(zip(flat[::2], flat[1::2], strict=True))[b"groups"] > MOST_GROUPS:
        raise NoRoom(CROWDED)
