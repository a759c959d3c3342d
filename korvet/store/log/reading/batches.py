"""The bytes of batches, for the entries of a log's stream."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from korvet.redis.client import Buffer, Purpose
from korvet.store.log.memory.budget import SMALL_BYTES
from korvet.store.log.memory.cache import Batch
from korvet.store.log.memory.fair_queue import Reader, passed_on
from korvet.store.log.partitions.partitions import Partitions
from korvet.store.log.state.entries import FOREIGN, CorruptEntry, Entry, in_batches, parsed_entries
from korvet.store.log.state.partition import Partition
from korvet.wire.batch import HEADER_BYTES

_PIECE_BYTES = 128 << 10
_UNJOINABLE = (ValueError, IndexError, OverflowError, struct.error)


class _Missing(NamedTuple):
    """A batch that is not in memory, and its position in `korvet.store.log.memory.cache`."""

    position: int
    entry: Entry


class Fetched(NamedTuple):
    """The batches before a gap, with their entries, and the entry whose batch is missing."""

    entries: Sequence[Entry]
    batches: list[Buffer]
    missing: CorruptEntry | None = None
    """The entry whose batch a trim or compaction removed a moment ago, or that is lost."""


async def fetch_until_gap(
    log: Partitions,
    partition: Partition,
    entries: Sequence[Entry],
    reader: Reader,
    *,
    offset: int | None = None,
    may_join: bool = False,
) -> Fetched:
    """The bytes of the entries' batches, up to a missing or unreadable one. Large reads take turns.

    :param offset: the reader's offset, if the entries are the next ones from there on.
    :raises CorruptEntry: the first cannot be read.
    :raises StoreUnavailable, StoreError:
    """
    log_key = partition.keys.log
    batched = _batched(log_key, entries, may_join=may_join)
    found = await _found(log, partition, batched, reader, offset)
    batches: list[Buffer] = []
    for entry, one in zip(batched, found, strict=True):
        data = await one if isinstance(one, asyncio.Future) else one
        if data is None:
            missing = CorruptEntry(log_key, f"{entry.next_offset}-0", "has a batch that is missing")
            return Fetched(batched[: len(batches)], batches, missing)
        if len(data) != entry.size_bytes or len(data) < HEADER_BYTES:
            if not batches:
                raise CorruptEntry(log_key, f"{entry.next_offset}-0", "does not have the size that its index says")
            return Fetched(batched[: len(batches)], batches)
        batches.append(data)
    return Fetched(batched, batches)


async def _found(
    log: Partitions, partition: Partition, entries: Sequence[Entry], reader: Reader, offset: int | None
) -> Sequence[Batch]:
    """The batches in memory, and futures of the others."""
    inline = [entry.data for entry in entries if entry.data is not None]
    if len(inline) == len(entries):
        return inline
    first = entries[0].next_offset - entries[0].records
    position = first if offset is None else min(offset, first)
    is_shared = log.cache.is_shared(partition, reader)
    found: list[Batch | None] = []
    missing: list[_Missing] = []
    for entry in entries:
        one = log.cache.get(partition, position, entry, is_shared=is_shared) if entry.data is None else entry.data
        found.append(one)
        if one is None:
            missing.append(_Missing(position, entry))
        position = entry.next_offset
    coming = iter(await _requested(log, partition, missing, reader, is_shared=is_shared))
    return [next(coming) if one is None else one for one in found]


async def _requested(
    log: Partitions, partition: Partition, missing: Sequence[_Missing], reader: Reader, *, is_shared: bool
) -> list[Batch]:
    if sum([entry.size_bytes for _, entry in missing]) <= SMALL_BYTES:
        return [_request(log, partition, one, is_shared=is_shared) for one in missing]
    requested: list[Batch] = []
    queue = log.source.queue(partition)
    for some, size_bytes in _pieces(missing):
        await queue.acquire(reader, size_bytes)
        requested += [_request(log, partition, one, is_shared=is_shared) for one in some]
        # One server sends all of them, in order.
        last = requested[-1]
        if isinstance(last, asyncio.Future):
            requested[-1] = queue.under_way(last, size_bytes)
        else:
            queue.arrived(size_bytes)
    return requested


def _request(log: Partitions, partition: Partition, missing: _Missing, *, is_shared: bool) -> Batch:
    """A batch, perhaps already requested by another reader while this one waited for its turn."""
    position, entry = missing
    if not is_shared:
        return log.source.batch(partition, entry)
    if (kept := log.cache.get(partition, position, entry, is_shared=True)) is not None:
        return kept
    requested = log.source.batch(partition, entry)
    log.cache.share(partition, position, entry, requested)
    return passed_on(requested)


def _pieces(missing: Sequence[_Missing]) -> Iterator[tuple[Sequence[_Missing], int]]:
    """The batches in groups, one for each turn, with their bytes: a turn costs as much as a small batch."""
    begin = size_bytes = 0
    for at, (_, entry) in enumerate(missing):
        if at > begin and size_bytes + entry.size_bytes > _PIECE_BYTES:
            yield missing[begin:at], size_bytes
            begin, size_bytes = at, 0
        size_bytes += entry.size_bytes
    yield missing[begin:], size_bytes


def _batched(log_key: str, entries: Sequence[Entry], *, may_join: bool) -> Sequence[Entry]:
    """The entries, with single records joined into batches, up to an unreadable one.

    :raises CorruptEntry: the first is unreadable.
    """
    try:
        return in_batches(entries, may_join=may_join)
    except _UNJOINABLE:
        pass
    for at, entry in enumerate(entries):
        try:
            in_batches([entry])
        except _UNJOINABLE:
            if at == 0:
                raise CorruptEntry(log_key, f"{entry.next_offset}-0", FOREIGN) from None
            return in_batches(entries[:at], may_join=may_join)
    raise CorruptEntry(log_key, f"{entries[0].next_offset}-0", "cannot be joined with the entries after it")


async def fetch_batches(
    log: Partitions, partition: Partition, entries: Sequence[Entry], reader: Reader
) -> list[Buffer] | None:
    """The bytes of each entry's batch; None if a placed batch is gone.

    :raises CorruptEntry: one cannot be read.
    :raises StoreUnavailable, StoreError:
    """
    batches: list[Buffer] = []
    while len(batches) < len(entries):
        fetched = await fetch_until_gap(log, partition, entries[len(batches) :], reader)
        if fetched.missing is not None:
            return None
        batches += fetched.batches
    return batches


async def lost_batch(
    log: Partitions, partition: Partition, entries: Sequence[Entry], reader: Reader
) -> CorruptEntry | None:
    """The first entry that the stream still lists although its batch is missing. None if a trim or compaction removed
    the batch meanwhile, because these remove the entry in the same step.

    :raises StoreUnavailable, StoreError:
    """
    missing = (await fetch_until_gap(log, partition, entries, reader)).missing
    if missing is None:
        return None
    name = partition.keys.log
    listed, _ = parsed_entries(
        name, await log.store.call(Purpose.READ, name, "XRANGE", name, missing.entry, missing.entry)
    )
    places = {entry.next_offset: entry.place for entry in entries}
    return missing if listed and places.get(listed[0].next_offset) == listed[0].place else None


async def read_entry(log: Partitions, partition: Partition, next_offset: int) -> tuple[Entry, bytes] | None:
    """The entry that ends at an offset, and its batch; None if it is gone.

    :raises CorruptEntry: the entry cannot be read.
    """
    name, log_key = f"{next_offset}-0", partition.keys.log
    entries, corrupt = parsed_entries(
        log_key, await log.store.call(Purpose.READ, log_key, "XRANGE", log_key, name, name)
    )
    if corrupt is not None:
        raise corrupt
    batches = await fetch_batches(log, partition, entries, log.answers.share()) if entries else None
    return (entries[0], bytes(batches[0])) if batches else None
