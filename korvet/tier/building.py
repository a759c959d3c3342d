"""The building of a segment: sealed batches of a partition out of Redis, unopened.

Each batch is the one that its entry's index describes: it has the size and the checksum there. Records of a topic with
``korvet.storage=record`` are joined here once and for all, as a Fetch joins them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial as bound
from typing import Any, Final, NamedTuple

from korvet.errors import KorvetError
from korvet.redis.client import Buffer, Purpose
from korvet.store.log.log import Log
from korvet.store.log.reading.batches import fetch_until_gap
from korvet.store.log.state.entries import CorruptEntry, Entry, Index, index_of, parsed_entries
from korvet.store.log.state.partition import Meta, Partition
from korvet.tier.segment import Aborted, Bytes, Footer, FooterTooLarge, Writer
from korvet.wire.batch import placed_in_log

MOST_PAGES: Final = 100_000
_ENTRIES: Final = 200
_PAGE_BYTES: Final = 4 << 20
_ABORTED: Final = 1000
_CRC: Final = slice(17, 21)
"""The checksum in a batch's header."""


class Gone(KorvetError):
    """The batches left Redis meanwhile: records were deleted, or another tierer trimmed them."""


class Built(NamedTuple):
    """A segment's bytes, and what `korvet_tier_add` compares with the log."""

    parts: Sequence[Bytes]
    footer: Footer
    first_index: bytes
    last_index: bytes


class _Page(NamedTuple):
    """Batches, with the times that count for retention, and the index texts of the first and last entry."""

    batches: Sequence[tuple[Entry, Buffer, int]]
    first_index: bytes
    last_index: bytes


async def first_entry(log: Log, partition: Partition, offset: int) -> Index | None:
    """The entry that holds an offset, or the next one.

    :raises CorruptEntry, StoreUnavailable, StoreError:
    """
    return await _entry(log, partition, "XRANGE", f"{offset + 1}-0", "+")


async def last_entry(log: Log, partition: Partition, until: int) -> Index | None:
    """The last entry that ends at or below an offset.

    :raises CorruptEntry, StoreUnavailable, StoreError:
    """
    return await _entry(log, partition, "XREVRANGE", f"{until}-0", "-")


async def _entry(log: Log, partition: Partition, command: str, start: str, end: str) -> Index | None:
    name = partition.keys.log
    found: Sequence[Any] = await log.store.call(Purpose.READ, name, command, name, start, end, "COUNT", 1)
    return index_of(name, found[0]) if found else None


async def build(
    log: Log, partition: Partition, meta: Meta, first: int, target_bytes: int, former: Footer | None
) -> Built:
    """A segment of the batches from an offset up to the last stable offset of ``meta``, of about a size at most.

    :param former: the footer of the segment that ends where this one begins; None if there is none.
    :raises Gone:
    :raises CorruptEntry: the first batch cannot be read.
    :raises StoreUnavailable, StoreError:
    """
    writer = _writer(partition, first, former)
    first_index = last_index = b""
    share = log.answers.share()
    for _ in range(MOST_PAGES):
        if writer.size_bytes >= target_bytes or writer.next_offset >= meta.stable:
            break
        try:
            page = await _page(log, partition, writer.next_offset, meta.stable, target_bytes - writer.size_bytes, share)
        except CorruptEntry:
            if not first_index:
                raise
            # What comes before it is sealed; the next segment begins there.
            break
        if page is None:
            break
        await log.in_thread(bound(_add, partition.keys.log, writer, page.batches))
        first_index, last_index = first_index or page.first_index, page.last_index
    if not first_index:
        raise Gone(f"no batches from offset {first} on")
    aborted = await _aborted(log, partition, first, writer.next_offset)
    try:
        parts, footer = await log.in_thread(bound(writer.finish, aborted))
    except FooterTooLarge:
        if target_bytes <= 1:
            raise
        return await build(log, partition, meta, first, min(target_bytes, writer.size_bytes) // 2, former)
    return Built(parts, footer, first_index, last_index)


def _writer(partition: Partition, first: int, former: Footer | None) -> Writer:
    if former is None:
        return Writer(partition.topic.id, partition.index, first)
    # After deleted records a new chain begins, but no producer id is ever forgotten.
    chain = former.chain if former.next_offset == first else 0
    return Writer(partition.topic.id, partition.index, first, chain=chain, max_producer_id=former.max_producer_id)


def _add(name: str, writer: Writer, batches: Sequence[tuple[Entry, Buffer, int]]) -> None:
    for entry, data, timestamp in batches:
        try:
            writer.add(placed_in_log(data, entry.next_offset - entry.records, entry.leader_epoch), timestamp)
        except ValueError as error:
            raise CorruptEntry(name, f"{entry.next_offset}-0", f"cannot be sealed: {error}") from None
        if writer.next_offset != entry.next_offset:
            raise CorruptEntry(name, f"{entry.next_offset}-0", f"has a batch that ends at {writer.next_offset}")


async def _page(log: Log, partition: Partition, offset: int, until: int, most_bytes: int, share: Any) -> _Page | None:
    """Some batches from an offset on, at least one; None if there is none.

    :raises Gone, CorruptEntry, StoreUnavailable, StoreError:
    """
    name, last_id = partition.keys.log, f"{until}-0"
    most_bytes = min(most_bytes, _PAGE_BYTES)
    if log.limits(partition).is_record or partition.holds_records:
        reached = await log.source.last_id(partition, offset, _ENTRIES, most_bytes)
        last_id = reached if reached != "+" and int(reached.partition("-")[0]) < until else last_id
    asked = log.store.call(Purpose.READ, name, "XRANGE", name, f"{offset + 1}-0", last_id, "COUNT", _ENTRIES)
    reply: Sequence[Any] = await asked
    if not reply:
        return None
    entries, corrupt = parsed_entries(name, reply)
    if corrupt is not None and not entries:
        raise corrupt
    partition.holds_records = partition.holds_records or entries[0].record is not None
    chosen = _within(entries, most_bytes)
    fetched = await fetch_until_gap(log, partition, chosen, share, may_join=True)
    if not fetched.batches:
        # The next look finds out whether the entry is still there.
        raise Gone(f"entry {chosen[0].next_offset}-0 of {name} has no batch any more")
    indexes = [fields[1] for _, fields in reply]
    at, found = 0, []
    for entry, data in zip(fetched.entries, fetched.batches, strict=True):
        begin = at
        while entries[at].next_offset < entry.next_offset:
            at += 1
        at += 1
        numbers = [tuple(map(int, index.split())) for index in indexes[begin:at]]
        if at - begin == 1 and entry.record is None and entries[begin].record is None:
            _check(name, entry, data, numbers[0][7])
        # A batch without timestamps has the age of its append, as far as the index tells it.
        found.append((entry, data, max(own if own >= 0 else running for _, _, own, running, *_ in numbers)))
    return _Page(found, indexes[0], indexes[at - 1])


def _within(entries: Sequence[Entry], most_bytes: int) -> Sequence[Entry]:
    size_bytes = 0
    for at, entry in enumerate(entries):
        size_bytes += entry.size_bytes
        if at and size_bytes > most_bytes:
            return entries[:at]
    return entries


def _check(name: str, entry: Entry, data: Buffer, crc: int) -> None:
    if int.from_bytes(data[_CRC]) != crc:
        raise CorruptEntry(name, f"{entry.next_offset}-0", "has another batch than its index says")


async def _aborted(log: Log, partition: Partition, first: int, next_offset: int) -> Sequence[Aborted]:
    """The aborted transactions that overlap a range below the last stable offset. All of these have their markers.

    :raises StoreUnavailable, StoreError:
    """
    name, since, found = partition.transaction_keys.aborted, str(first), []
    for _ in range(MOST_PAGES):
        members: Sequence[bytes] = await log.store.call(
            Purpose.READ, name, "ZRANGEBYSCORE", name, since, "+inf", "LIMIT", 0, _ABORTED
        )
        rows = [tuple(map(int, member.split())) for member in members if member]
        found += [
            Aborted(producer_id, begin, last, stable)
            for begin, last, producer_id, stable in rows
            if begin < next_offset
        ]
        if len(members) < _ABORTED or any(stable >= next_offset for *_, stable in rows):
            break
        since = f"({rows[-1][1]}"
    return found
