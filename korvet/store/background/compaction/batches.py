"""The batches and the aborted transactions of a log that is being compacted, read a bounded number at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

from korvet.redis.client import Buffer, Purpose
from korvet.store.background.compaction.lease import Lease, Lost
from korvet.store.background.compaction.plan import Aborted, Stored
from korvet.store.log.reading.batches import fetch_batches, lost_batch
from korvet.store.log.state.entries import Entry, parsed_entries
from korvet.store.log.state.partition import Partition
from korvet.wire.batch import HEADER, Batch

if TYPE_CHECKING:
    from korvet.store.log.log import Log

STEP = 100
"""The most entries of one call; the functions take no more."""
ABORTED_STEP = 1000
"""The most aborted transactions of one call."""
_MOST_CALLS = 1_000_000
_FETCHED_BYTES = 4 << 20


async def aborted_transactions(log: Log, partition: Partition, start: int) -> list[Aborted]:
    """The aborted transactions that ended at or above an offset.

    :raises StoreUnavailable, StoreError:
    """
    name = partition.transaction_keys.aborted
    aborted: list[Aborted] = []
    since = str(start)
    for _ in range(_MOST_CALLS):
        members: list[bytes] = await log.store.call(
            Purpose.READ, name, "ZRANGEBYSCORE", name, since, "+inf", "LIMIT", 0, ABORTED_STEP
        )
        aborted += [Aborted(*map(int, member.split()[:3])) for member in members if member]
        if len(members) < ABORTED_STEP:
            break
        since = f"({aborted[-1].last}"
    return aborted


class Batches:
    """The batches of a partition, read under a lease."""

    def __init__(self, log: Log, partition: Partition, lease: Lease) -> None:
        self._log = log
        self._partition = partition
        self._lease = lease
        self._share = log.answers.share()

    async def between(self, offset: int, until: int) -> AsyncIterator[tuple[Sequence[Entry], Sequence[Stored]]]:
        """The batches from ``offset`` on that end at or below ``until``, with their entries.

        :raises Lost: the lease is lost, or an entry was trimmed meanwhile.
        :raises StoreUnavailable, StoreError:
        """
        log, partition = self._log, self._partition
        name = partition.keys.log
        while offset < until:
            await self._lease.renew()
            reply = await log.store.call(
                Purpose.READ, name, "XRANGE", name, f"{offset + 1}-0", f"{until}-0", "COUNT", STEP
            )
            if not reply:
                return
            parsed, corrupt = parsed_entries(name, reply)
            if corrupt is not None:
                raise corrupt
            for entries in _slices(parsed):
                batches = await fetch_batches(log, partition, entries, self._share)
                if batches is None:
                    # For example, trimmed meanwhile.
                    raise await lost_batch(log, partition, entries, self._share) or Lost
                yield entries, [_stored(*pair) for pair in zip(entries, batches, strict=True)]
                offset = entries[-1].next_offset


def _slices(entries: Sequence[Entry]) -> list[Sequence[Entry]]:
    """The entries in slices, each small enough for memory."""
    parts: list[list[Entry]] = [[]]
    size_bytes = 0
    for entry in entries:
        size_bytes += entry.size_bytes
        if parts[-1] and size_bytes > _FETCHED_BYTES:
            parts.append([])
            size_bytes = entry.size_bytes
        parts[-1].append(entry)
    return [part for part in parts if part]


def _stored(entry: Entry, data: Buffer) -> Stored:
    batch = Batch._make(HEADER.unpack_from(data))
    return Stored(entry.next_offset - entry.records, entry.next_offset, batch, bytes(data))
