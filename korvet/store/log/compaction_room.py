"""Whether a server has the memory that a compaction takes before it frees any.

The stream that is built holds every batch below 8 KiB and every record that stays once more, and what is written anew.
Filling the server with it would have producers refused until it is given up, and that again and again: so what it takes
is reckoned before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from korvet.errors import StoreFull
from korvet.store.capacity import room_at
from korvet.store.client import Purpose
from korvet.store.log.append import INLINE_LIMIT_BYTES
from korvet.store.log.compaction_plan import Chunk
from korvet.store.log.partition import Partition
from korvet.store.log.read import Entry
from korvet.store.memory import UNLIMITED

if TYPE_CHECKING:
    from korvet.store.log import Log

_ENTRY_BYTES = 100
"""Of an entry's id, index and place in the stream, about."""
_SHARE = 0.75
"""Of the free memory that a compaction may take; the rest is for who writes meanwhile."""


class NoRoom(StoreFull):
    """A compaction would take more memory than there is."""


def count_new_bytes(entries: Sequence[Entry], chunk: Chunk) -> None:
    """Add to the chunk what these entries of it take in the new stream, and beside it."""
    gone = set(chunk.dropped)
    for entry in entries:
        if entry.next_offset not in gone:
            anew = chunk.rewritten.get(entry.next_offset)
            chunk.new_bytes += _ENTRY_BYTES + (len(anew.data) if anew else _inline_bytes(entry))


def _inline_bytes(entry: Entry) -> int:
    """What lies in the stream of an entry's batch, or of its record."""
    return entry.size_bytes if entry.record is not None else len(entry.data or b"")


async def check_room(log: Log, partition: Partition, chunks: Sequence[Chunk]) -> None:
    """Go on where there is room for what the chunks say, and for the entries behind them.

    :raises NoRoom: with what to do.
    :raises StoreUnavailable, StoreError:
    """
    room = await room_at(log.store, partition.keys.log)
    if room.total_bytes == UNLIMITED:
        return
    needed = sum(chunk.new_bytes for chunk in chunks) + await _bytes_behind(log, partition, chunks[-1].until)
    if needed > room.usable_bytes * _SHARE:
        raise NoRoom(
            f"compaction takes {needed} bytes while it runs, and Redis has {room.usable_bytes} left, of which it may"
            f" take {int(room.usable_bytes * _SHARE)}: raise maxmemory, or add the policy delete with a retention"
        )


async def _bytes_behind(log: Log, partition: Partition, offset: int) -> int:
    """What the entries from an offset on take at most."""
    name = partition.keys.log
    ends = [
        log.store.call(Purpose.READ, name, "XREVRANGE", name, last, "-", "COUNT", 1) for last in ("+", f"{offset}-0")
    ]
    (end, here) = [_totals(await found) for found in ends]
    size, batches = end[0] - here[0], end[1] - here[1]
    # Records lie in the stream whatever their length is.
    inline = size if log.limits(partition).is_record else min(size, batches * INLINE_LIMIT_BYTES)
    return inline + batches * _ENTRY_BYTES


def _totals(found: Any) -> tuple[int, int]:
    """Running bytes and batches at the entry that was found, if one was."""
    if not found:
        return 0, 0
    index = found[0][1][1].split()
    return int(index[4]), int(index[5])
