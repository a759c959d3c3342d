"""Reading a log: whole batches from an offset on, out of memory where that is safe, else out of Redis.

A read asks for the entries first and for the meta hash behind them, in one pipeline, so that the end is never below
what was read. Placed batches come with a second question; one that is gone by then was trimmed or belongs to a
history that is not any more, so all is asked again.

**Out of memory.** The partition's channel tells the leader epoch and the end after each append. As long as its
subscription stands, the last message is the truth of a moment ago. Where that epoch is the one this front-end knows,
a reader at that end gets an empty answer and a reader behind it gets recent batches, both without Redis. What this
front-end knows must have been asked for since the subscription stands and since the last trim or deletion
(`Wakeups.since`): the message of the next append hides theirs.

**Committed records.** Who wants only these reads up to the last stable offset, which is where the oldest open
transaction begins, and is told which transactions were aborted in what was read. The list of these is asked for after
the meta hash, and only where one of them ended at or above the offset: so what is read later is never older. Whether
some were forgotten meanwhile the meta hash tells, which is asked for once more behind the list. Out of memory come only
batches without a transaction, for which no list is needed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, NamedTuple

from kio.schema.errors import ErrorCode

from korvet.errors import StoreError
from korvet.store.client import Buffer, Purpose
from korvet.store.keys import placed_batch
from korvet.store.log.epochs import check_leader_epoch, end_of_epoch, parse_epochs
from korvet.store.log.joined import in_batches
from korvet.store.log.partition import Partition, RecentBatch
from korvet.wire.batch import TRANSACTIONAL, placed_in_log
from korvet.wire.fetch_response import EpochEnd, PartitionRead

if TYPE_CHECKING:
    from korvet.store.log import Log

META_FIELDS = ("topic_id", "start", "end", "epoch", "epochs", "run_id", "first_open", "last_aborted", "cleaned")
OFFSET_OUT_OF_RANGE = int(ErrorCode.offset_out_of_range)
KAFKA_STORAGE_ERROR = int(ErrorCode.kafka_storage_error)
UNKNOWN_TOPIC_OR_PARTITION = int(ErrorCode.unknown_topic_or_partition)
_ATTEMPTS = 4
_MOST_ENTRIES = 1000
_SMALLEST_COUNT_BYTES = 64
_ABORTED_AT_ONCE = 1000
_SPARE_ENTRIES = 4
"""Asked for beside what should fill the limit, for batches are not all of one size."""


@dataclass(slots=True)
class Want:
    """What a reader asks of a partition; epochs are -1 where it does not know or care."""

    partition: Partition
    offset: int
    max_bytes: int
    leader_epoch: int = -1
    last_fetched_epoch: int = -1
    is_committed: bool = False
    """Whether only committed records are wanted."""


class Unreadable(Enum):
    """Why a meta hash was of no use."""

    MENDED = auto()
    """It did not fit, and was made to fit: ask again."""
    NO_TOPIC = auto()


class Meta(NamedTuple):
    """A partition's meta hash, as far as readers need it.

    ``stable`` is the last stable offset, which is never below the start, though transactions that began there may be
    open. ``last_aborted`` is the last offset of the last aborted transaction, ``cleaned`` where compaction has come to,
    -1 where there is none.
    """

    start: int
    end: int
    epoch: int
    epochs: bytes
    stable: int
    last_aborted: int
    cleaned: int


class Entry(NamedTuple):
    """An entry of the stream; ``records`` is the span of its offsets. ``data`` is None where the batch is placed, at
    ``place``, and where the entry is one ``record``: its timestamp, and its fields behind the index."""

    next_offset: int
    records: int
    size_bytes: int
    leader_epoch: int
    data: bytes | None
    place: int | str
    record: tuple[int, Sequence[bytes]] | None = None


class _Asked(NamedTuple):
    entries: asyncio.Future[Any] | None
    meta: asyncio.Future[Any]
    since: int


@dataclass(slots=True)
class _Room:
    """Bytes that the answer may still take. The first batch of all is returned however large it is (KIP-74)."""

    left_bytes: int
    is_empty: bool = True

    def limit(self, want: Want) -> int:
        return max(0, min(want.max_bytes, self.left_bytes))

    def take(self, size_bytes: int) -> None:
        if size_bytes:
            self.left_bytes -= size_bytes
            self.is_empty = False


async def read(log: Log, wants: Sequence[Want], max_bytes: int) -> list[PartitionRead]:
    """Read each partition, in order, until ``max_bytes`` are there; the others are answered without records.

    Codes of the answers: OFFSET_OUT_OF_RANGE, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, UNKNOWN_TOPIC_OR_PARTITION
    where the topic is gone, KAFKA_STORAGE_ERROR where a batch is missing for good.

    :raises StoreUnavailable, StoreError:
    """
    room = _Room(max_bytes)
    reads: list[PartitionRead] = []
    while len(reads) < len(wants):
        turn = _turn(wants, len(reads), room)
        remembered = [_from_memory(log, want, room) for want in turn]
        if all(remembered):
            reads += [found for found in remembered if found]
            continue
        wanted_bytes = sum(room.limit(w) for w, found in zip(turn, remembered, strict=True) if found is None)
        async with log.reply_budget.taken(wanted_bytes):
            asked = {id(w): _ask(log, w, room) for w, found in zip(turn, remembered, strict=True) if found is None}
            for want, found in zip(turn, remembered, strict=True):
                reads.append(found or await _take(log, want, asked[id(want)], room))
    return reads


def _turn(wants: Sequence[Want], at: int, room: _Room) -> Sequence[Want]:
    """The partitions to ask in one go: as many as could fill the room, at least one; all where no room is left."""
    if room.left_bytes <= 0:
        return wants[at:]
    total = 0
    for number, want in enumerate(wants[at:], at):
        total += max(0, want.max_bytes)
        if total >= room.left_bytes:
            return wants[at : number + 1]
    return wants[at:]


# ---------------------------------------------------------------------- memory


class Ends(NamedTuple):
    """Where a log ends, and up to where its records are committed; -1 where that is not known."""

    end: int
    stable: int


_UNKNOWN_ENDS = Ends(-1, -1)
_ATTRIBUTES_AT = 22  # the lower byte of them


def stands_at_end(log: Log, want: Want) -> bool:
    """Whether nothing can be read for certain, without asking Redis."""
    end, stable = known_ends(log, want.partition)
    return (stable if want.is_committed else end) <= want.offset <= end


def known_ends(log: Log, partition: Partition) -> Ends:
    """The ends as the partition's channel last told them in the epoch this front-end knows."""
    message = log.wakeups.latest(partition.channel)
    if message is None or partition.epoch < 0 or partition.since != log.wakeups.since(partition.channel):
        return _UNKNOWN_ENDS
    epoch, end, *stable = message.split(b" ")
    if int(epoch) != partition.epoch:
        return _UNKNOWN_ENDS
    return Ends(int(end), int(stable[0] if stable else end))


def _from_memory(log: Log, want: Want, room: _Room) -> PartitionRead | None:
    partition, offset = want.partition, want.offset
    end, stable = known_ends(log, partition)
    if not max(0, partition.start) <= offset <= end or want.last_fetched_epoch >= 0:
        return None
    if (code := check_leader_epoch(want.leader_epoch, partition.epoch)) != 0:
        return PartitionRead(partition.index, code)
    stable = max(stable, partition.start)
    found = PartitionRead(partition.index, 0, end, partition.start, stable)
    until = stable if want.is_committed else end
    if offset >= until:
        partition.watched_at = log.now()
        return found
    limit = room.limit(want)
    while offset < until and (batch := partition.recent.get(offset)) is not None:
        if batch.leader_epoch != partition.epoch:
            return None
        if want.is_committed and batch.data[_ATTRIBUTES_AT] & TRANSACTIONAL:
            break
        size_bytes = len(batch.data)
        if found.size_bytes + size_bytes > limit and (found.size_bytes or not room.is_empty):
            room.take(found.size_bytes)
            return found
        found.records += placed_in_log(batch.data, offset, batch.leader_epoch)
        found.size_bytes += size_bytes
        offset = batch.next_offset
    if offset < until:
        # Not all is here, and a reader who waits for more bytes than these would wait for ever.
        return None
    partition.watched_at = log.now()
    room.take(found.size_bytes)
    return found


# ---------------------------------------------------------------------- Redis


def _ask(log: Log, want: Want, room: _Room) -> _Asked:
    keys, entries = want.partition.keys, None
    limit = room.limit(want)
    if want.offset >= 0 and (limit > 0 or room.is_empty):
        count = min(_MOST_ENTRIES, limit // max(_SMALLEST_COUNT_BYTES, want.partition.mean_bytes) + _SPARE_ENTRIES)
        entries = log.store.call(
            Purpose.READ, keys.log, "XRANGE", keys.log, f"{want.offset + 1}-0", "+", "COUNT", count
        )
    return _Asked(entries, ask_meta(log, want.partition), log.wakeups.since(want.partition.channel))


def ask_meta(log: Log, partition: Partition) -> asyncio.Future[Any]:
    """Queue the question for `meta_of`."""
    meta = partition.keys.meta
    return log.store.call(Purpose.READ, meta, "HMGET", meta, *META_FIELDS)


async def meta_of(log: Log, partition: Partition, reply: Sequence[Any]) -> Meta | Unreadable:
    """What a meta hash says.

    Missing keys are made where the catalog has the topic. Where another server took the log on, or lost keys were made
    again, an epoch is begun at once and not only by the next append, so that consumers learn of a truncation before
    they are past it.
    """
    topic_id, start, end, epoch, epochs, run_id, first_open, *rest = reply
    if topic_id is None or topic_id.decode() != partition.topic_id:
        return Unreadable.MENDED if await log.restore(partition) else Unreadable.NO_TOPIC
    holder = run_id.decode()
    if not holder or (holder != partition.run_id and holder != log.find_run_id(partition)):
        await log.take_over(partition)
        return Unreadable.MENDED
    stable = int(end) if first_open is None else max(int(start), int(first_open))
    last_aborted, cleaned = (-1 if offset is None else int(offset) for offset in rest)
    meta = Meta(int(start), int(end), int(epoch), epochs, stable, last_aborted, cleaned)
    if not partition.note(meta.epoch, meta.end, meta.start):
        # Answers of one connection come in order, so an older epoch is another history; what was known of it is void.
        partition.forget()
        partition.note(meta.epoch, meta.end, meta.start)
    return meta


async def _take(log: Log, want: Want, asked: _Asked, room: _Room) -> PartitionRead:
    partition = want.partition
    for _ in range(_ATTEMPTS):
        entries = parsed_entries(await asked.entries) if asked.entries is not None else []
        meta = await meta_of(log, partition, await asked.meta)
        if isinstance(meta, Meta):
            if partition.since != asked.since:
                # A compaction tells of itself as a trim does: batches may be others by now.
                partition.recent.clear()
                partition.since = asked.since
            found = _judge(want, meta) or await _collect(log, want, meta, entries, room)
            if found is not None:
                return found
        elif meta is Unreadable.NO_TOPIC:
            return PartitionRead(partition.index, UNKNOWN_TOPIC_OR_PARTITION)
        asked = _ask(log, want, room)
    log.report_damage(partition, want.offset)
    return PartitionRead(partition.index, KAFKA_STORAGE_ERROR)


def _judge(want: Want, meta: Meta) -> PartitionRead | None:
    """The answer, where there is nothing to read: an error, or where the reader's history parts from this one."""
    index = want.partition.index
    if (code := check_leader_epoch(want.leader_epoch, meta.epoch)) != 0:
        return PartitionRead(index, code)
    if want.last_fetched_epoch >= 0:
        epoch_end = end_of_epoch(parse_epochs(meta.epochs), want.last_fetched_epoch, meta.end)
        if epoch_end.epoch < 0:
            return PartitionRead(index, OFFSET_OUT_OF_RANGE)
        if epoch_end.epoch < want.last_fetched_epoch or epoch_end.end_offset < want.offset:
            return PartitionRead(index, 0, meta.end, meta.start, meta.stable, diverging=EpochEnd(*epoch_end))
    if not meta.start <= want.offset <= meta.end:
        return PartitionRead(index, OFFSET_OUT_OF_RANGE)
    return None


async def _collect(log: Log, want: Want, meta: Meta, entries: Sequence[Entry], room: _Room) -> PartitionRead | None:
    """The batches that fit; None where a placed one is gone, or what tells of the aborted ones among them may be."""
    partition = want.partition
    found = PartitionRead(partition.index, 0, meta.end, meta.start, meta.stable)
    until = meta.stable if want.is_committed else meta.end
    if until < meta.end:
        entries = [entry for entry in entries if entry.next_offset <= until]
    chosen: Sequence[Entry] = list(_fitting(entries, room.limit(want), must=room.is_empty))
    if not chosen:
        if want.offset >= until:
            partition.watched_at = log.now()
        return found
    if want.is_committed and meta.last_aborted >= want.offset:
        found.aborted = await _aborted(log, want, meta, chosen[-1].next_offset)
        if found.aborted is None:
            return None
    partition.mean_bytes = max(1, sum(entry.size_bytes for entry in chosen) // len(chosen))
    rest, chosen = entries[len(chosen) :], in_batches(chosen)
    batches = await fetch_batches(log, partition, chosen)
    if batches is None:
        return None
    for entry, data in zip(chosen, batches, strict=True):
        found.records += placed_in_log(data, entry.next_offset - entry.records, entry.leader_epoch)
        found.size_bytes += entry.size_bytes
    room.take(found.size_bytes)
    if chosen[-1].next_offset == meta.end:
        _remember(log, partition, chosen, batches)
    elif rest:
        _read_ahead(log, want, rest)
    return found


async def _aborted(log: Log, want: Want, meta: Meta, next_offset: int) -> list[tuple[int, int]] | None:
    """The aborted transactions with records from a reader's offset to another, as producer ids and first offsets.

    None where some may be missing: a trim forgets them with their records, compaction some time after these, and
    another history has others. But the records that they are asked for were read before.

    Source: TransactionIndex.collectAbortedTxns
    """
    partition, offset = want.partition, want.offset
    name = partition.transaction_keys.aborted
    found: list[tuple[int, int]] = []
    at, is_last = 0, False
    while not is_last:
        page = log.store.call(
            Purpose.READ, name, "ZRANGE", name, offset, "+inf", "BYSCORE", "LIMIT", at, _ABORTED_AT_ONCE
        )
        asked = ask_meta(log, partition)
        some = await page
        for member in some:
            first, _, producer_id, stable = map(int, member.split())
            if first < next_offset:
                found.append((producer_id, first))
            if is_last := stable >= next_offset:
                break
        now = await meta_of(log, partition, await asked)
        if not isinstance(now, Meta) or now.start > offset or (now.epoch, now.cleaned) != (meta.epoch, meta.cleaned):
            return None
        is_last = is_last or len(some) < _ABORTED_AT_ONCE
        at += len(some)
    return found


def _remember(log: Log, partition: Partition, entries: Sequence[Entry], batches: Sequence[Buffer]) -> None:
    """Keep what was read at the end: others will read it too. Whoever reads on from here will wait at the end."""
    partition.watched_at = log.now()
    for entry, data in zip(entries, batches, strict=True):
        batch = RecentBatch(entry.next_offset, entry.leader_epoch, data)
        log.recent.add(partition, entry.next_offset - entry.records, batch)


def _read_ahead(log: Log, want: Want, rest: Sequence[Entry]) -> None:
    """Ask for the placed batches that the reader's next Fetch will take."""
    for entry in _fitting(rest, want.max_bytes, must=True):
        if entry.record is None and log.ahead.wants(want.partition, entry):
            log.ahead.add(want.partition, entry, _ask_batch(log, want.partition, entry))


def _fitting(entries: Sequence[Entry], limit: int, *, must: bool) -> Iterator[Entry]:
    size_bytes = 0
    for entry in entries:
        size_bytes += entry.size_bytes
        if size_bytes > limit and not must:
            return
        must = False
        yield entry


def parsed_entries(reply: Sequence[Any]) -> list[Entry]:
    """What XRANGE answered."""
    entries = []
    for name, fields in reply:
        index = fields[1].split()
        next_offset = int(name[:-2])
        kind, content = fields[2:4] if len(fields) > 3 else (b"", b"")
        place = content.decode() if kind == b"p" else next_offset
        data = content if kind == b"b" else None
        record = (int(index[2]), fields[2:]) if kind == b"r" else None
        entries.append(Entry(next_offset, int(index[0]), int(index[1]), int(index[6]), data, place, record))
    return entries


async def fetch_batches(log: Log, partition: Partition, entries: Sequence[Entry]) -> list[Buffer] | None:
    """The bytes of each entry's batch; None when a placed one is gone.

    :raises StoreError: when one has not the size that the index says.
    """
    entries = in_batches(entries, may_join=False)
    asked = [
        log.ahead.take(partition, entry) or _ask_batch(log, partition, entry) if entry.data is None else entry.data
        for entry in entries
    ]
    batches = [data if isinstance(data, bytes) else await data for data in asked]
    for entry, data in zip(entries, batches, strict=True):
        if data is None:
            return None
        if len(data) != entry.size_bytes:
            raise StoreError(f"a batch of {partition.keys.log} has not the size that its index says")
    return batches


def _ask_batch(log: Log, partition: Partition, entry: Entry) -> asyncio.Future[Any]:
    # Not MGET, which a cluster refuses while some of the keys have moved.
    key = placed_batch(partition.keys.log, entry.place)
    return log.store.call(Purpose.READ, key, "GET", key)


async def read_entry(log: Log, partition: Partition, next_offset: int) -> tuple[Entry, bytes] | None:
    """One entry, known by the offset just past it, and its batch; None when it is gone."""
    name = f"{next_offset}-0"
    entries = parsed_entries(
        await log.store.call(Purpose.READ, partition.keys.log, "XRANGE", partition.keys.log, name, name)
    )
    batches = await fetch_batches(log, partition, entries) if entries else None
    return (entries[0], bytes(batches[0])) if batches else None
