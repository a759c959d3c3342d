"""Reading a log: whole batches from an offset on, out of memory if that is safe, else from the log's source.

**The way of a Fetch.** `korvet.api.fetch` parks it until there is enough. `read` answers each partition out of memory,
if the log's known ends (`ends`) and entries (`cache`) allow it. Else one pipeline asks for entries (`source`) and then
for the meta hash (`meta`), so the end is never below the entries. Both ways lead to `_collect`, which gets the batches
of the entries that fit (`batches`), and reads ahead for the next Fetch. If a batch is gone by then, a trim removed it
or its history ended, and the read starts again.

An append of another front-end wakes all followers of a log at once. Those that ask the same share one reply, if nothing
was heard of the log in between: a reply is as current then as the known ends are.

**Committed records.** A read_committed reader reads up to the last stable offset, the start of the oldest open
transaction, and gets the aborted transactions among the batches. Their list is read after the meta hash, and only if
one of them ended at or above the offset. The list may lose members meanwhile, so the meta hash is read once more after
it. Entries out of memory have no aborted transactions (`Kept.is_settled`) and need no list.

**Segments.** Redis holds a partition's offsets from `Meta.local_start` on. `_take` passes a read below it on to
`Partitions.tier_of`, and asks Redis for no entries if the local start that it read last is above the offset. The meta
hash is read after the entries, so it tells of each local trim that they show. Entries in memory stay what they were
after one; if their batches are gone from Redis, the read comes to `_take`.

**Bounds.** A read reserves the bytes of its answer (`room`). Large replies take turns on the connection that all
readers share (`fair_queue`): entries in slices, placed batches in pieces.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Any, NamedTuple

from korvet.codes import (
    CORRUPT_MESSAGE,
    KAFKA_STORAGE_ERROR,
    NOT_LEADER_OR_FOLLOWER,
    OFFSET_OUT_OF_RANGE,
    UNKNOWN_SERVER_ERROR,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from korvet.errors import KorvetError, LostTier, StoreError, StoreFull
from korvet.store.log.memory.budget import SLICE_BYTES, SMALL_BYTES, Share
from korvet.store.log.memory.cache import MOST_LEARNED, Run, is_settled
from korvet.store.log.memory.fair_queue import passed_on
from korvet.store.log.memory.room import MOST_ENTRIES, Expected, FetchRoom, PartitionRead, Want, expected
from korvet.store.log.partitions.ends import known_ends, learn_ends
from korvet.store.log.partitions.meta import Unreadable, meta_of, request_meta
from korvet.store.log.partitions.partitions import Partitions
from korvet.store.log.reading.aborted import aborted_within
from korvet.store.log.reading.batches import Fetched, fetch_until_gap
from korvet.store.log.state.entries import FOREIGN, INLINE_LIMIT_BYTES, CorruptEntry, Entry, parsed_entries
from korvet.store.log.state.epochs import check_leader_epoch, end_of_epoch, parse_epochs
from korvet.store.log.state.partition import Meta, Partition
from korvet.wire.batch import TRANSACTIONAL, placed_in_log

_ATTEMPTS = 4
_ATTRIBUTES_AT = 22  # the lower byte of a batch's attributes
_FEW_ENTRIES = 8
"""The most records to read without measuring: at 1 MiB each, as much as entries of batches may be."""
_MOST_AHEAD = 128
"""The most small entries that a bound read takes beyond its bound, for the next ones."""
_TURNS_TO_WRITE = 2
"""Turns of the loop until commands are written: a connection passes them to the transport in the next turn."""


class _Question(NamedTuple):
    want: Want
    expected: Expected


class _Sent(NamedTuple):
    """Requests to the source. Their results are None if another reader made them, and left."""

    entries: asyncio.Future[Any] | None
    meta: asyncio.Future[Any]
    since: int
    last_id: str
    tail: asyncio.Future[Any] | None = None
    """Of a bound read: the first entry that ends after the bound, and perhaps further ones."""
    most: int = 0
    """The most entries of a bound read before that one."""


class _Known(NamedTuple):
    """The entries of an answer and perhaps further ones, and the meta hash that was as current at ``since``."""

    entries: Sequence[Entry]
    meta: Meta
    since: int


async def read(
    log: Partitions,
    wants: Sequence[Want],
    max_bytes: int,
    share: Share,
    *,
    is_first: bool = True,
    waits: bool = True,
) -> list[PartitionRead]:
    """Read each partition, in order, up to ``max_bytes`` in all; later partitions are answered without records.

    ``share`` holds the bytes until its owner releases them. ``is_first`` is true if the answer holds nothing yet.
    ``waits`` is false for all but one of an answer's concurrent reads: answers would wait for each other's bytes.

    Codes of the answers: OFFSET_OUT_OF_RANGE, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH; UNKNOWN_TOPIC_OR_PARTITION
    if the topic is gone; CORRUPT_MESSAGE if the next entry cannot be read or its batch is missing; UNKNOWN_SERVER_ERROR
    for other damage; NOT_LEADER_OR_FOLLOWER if the partition's server is away.
    """
    room, is_read = FetchRoom(max_bytes, share, is_empty=is_first, waits=waits), False
    try:
        reads = _read_latest(log, wants, room)
        questions = [_question(log, want, room) for want in wants[len(reads) :]]
        if questions:
            await room.reserve(min(max_bytes, sum(question.expected.size_bytes for question in questions)))
        while questions:
            turn = _turn(log, questions, room)
            reads += await _read_turn(log, turn, room)
            del questions[: len(turn)]
            if questions:
                # Memory answers without a wait, and other connections have their turn.
                await asyncio.sleep(0)
        if room.asks_ahead:
            await _let_leave()
        is_read = True
    finally:
        room.settle(is_read=is_read)
    return reads


def _read_latest(log: Partitions, wants: Sequence[Want], room: FetchRoom) -> list[PartitionRead]:
    """The first partitions that memory answers with so few bytes that none are reserved."""
    reads: list[PartitionRead] = []
    for want in wants:
        if not isinstance(found := _remembered(log, want, room), PartitionRead):
            break
        reads.append(found)
    log.reads.memory += len(reads)
    return reads


def _remembered(log: Partitions, want: Want, room: FetchRoom, *, is_next: bool = True) -> PartitionRead | _Known | None:
    """The answer from memory, or its entries if batches are missing, bytes must be reserved or an earlier partition
    has yet to take its room. None if the source must be read.

    An answer from memory is as long as one from the source: it fills the limit, or reaches the end. Otherwise a reader
    that waits for more bytes than memory has would wait for ever.
    """
    partition, offset = want.partition, want.offset
    end, stable = known_ends(log, partition)
    if not max(0, partition.start) <= offset <= end or want.last_fetched_epoch >= 0 or end < want.until:
        return None
    if want.leader_epoch not in (-1, partition.epoch):
        return PartitionRead(partition.index, check_leader_epoch(want.leader_epoch, partition.epoch))
    stable = max(stable, partition.start)
    found = PartitionRead(partition.index, 0, end, partition.start, stable)
    until = _until(want, stable, end)
    if offset >= until:
        # The message of an append or marker that Redis has already answered may still be in flight.
        if end < (partition.end if until == end else partition.marked_end):
            return None
        partition.watched_at = log.now()
        return found
    limit = room.limit(want.max_bytes)
    run = log.cache.run(partition, offset, until, limit, must=room.is_empty, is_committed=want.is_committed)
    return None if run is None else _of_run(log, want, run, found, room, is_next=is_next)


def _of_run(
    log: Partitions, want: Want, run: Run, found: PartitionRead, room: FetchRoom, *, is_next: bool
) -> PartitionRead | _Known:
    """The answer, if its batches are in memory and within the reserved bytes; else the entries for it."""
    partition, (kept, size_bytes, beyond) = want.partition, run
    is_here = is_next and size_bytes <= room.covered_bytes
    for one in kept:
        entry, batch = one.entry, one.batch
        if not is_here or not isinstance(batch, bytes | memoryview):
            is_here = False
            break
        found.records += placed_in_log(batch, entry.next_offset - entry.records, entry.leader_epoch)
    if not is_here:
        entries = [one.entry for one in (*kept, beyond) if one is not None]
        unlisted_until = -1 if want.is_committed else found.high_watermark
        ends = found.log_start, found.high_watermark, partition.epoch, b"", found.last_stable
        return _Known(entries, Meta(*ends, unlisted_until, -1), partition.since)
    if beyond is None:
        partition.watched_at = log.now()
    else:
        found.is_cut = room.is_cut or len(kept) == MOST_ENTRIES
    found.size_bytes = size_bytes
    room.take(size_bytes)
    return found


def _until(want: Want, stable: int, end: int) -> int:
    """The offset at which a read ends."""
    until = stable if want.is_committed else end
    return until if want.until < 0 else min(until, want.until)


def _question(log: Partitions, want: Want, room: FetchRoom) -> _Question:
    partition, end = want.partition, want.partition.end
    if 0 <= end <= want.offset:
        end = max(end, known_ends(log, partition).end)
    is_bound = want.until >= 0
    end = want.until if is_bound else end
    return _Question(want, expected(partition, want.offset, room.limit(want.max_bytes), end, is_bound=is_bound))


def _turn(log: Partitions, questions: Sequence[_Question], room: FetchRoom) -> Sequence[_Question]:
    """The reads of one pipeline: as many as could fill the room or a slice, at least one; all without room."""
    turn: list[_Question] = []
    size_bytes = entries_bytes = 0
    for question in questions:
        if room.left_bytes < question.want.max_bytes:
            # The room is smaller than at the time of the estimate.
            question = _question(log, question.want, room)
        turn.append(question)
        size_bytes += question.expected.size_bytes
        entries_bytes += question.expected.entries_bytes
        if room.left_bytes > 0 and (size_bytes >= room.left_bytes or entries_bytes >= SLICE_BYTES):
            break
    return turn


async def _read_turn(log: Partitions, turn: Sequence[_Question], room: FetchRoom) -> list[PartitionRead]:
    """Read some partitions, with one pipeline for all that memory cannot answer."""
    remembered: list[PartitionRead | _Known | None] = []
    is_next = True
    for question in turn:
        remembered.append(found := _remembered(log, question.want, room, is_next=is_next))
        # Else a partition with news in memory could starve one before it of its room, at each Fetch.
        is_next = is_next and isinstance(found, PartitionRead)
    questions = [question for question, found in zip(turn, remembered, strict=True) if found is None]
    from_memory = sum(isinstance(found, PartitionRead) for found in remembered)
    log.reads.memory += from_memory
    log.reads.redis += sum(question.expected.entries > 0 for question in questions)
    log.reads.entries += len(turn) - len(questions) - from_memory
    sent = iter(await _send_all(log, questions, room)) if questions else iter(())
    return [
        found if isinstance(found, PartitionRead) else await _taken(log, question.want, found or next(sent), room)
        for question, found in zip(turn, remembered, strict=True)
    ]


async def _send_all(log: Partitions, questions: Sequence[_Question], room: FetchRoom) -> Sequence[_Sent]:
    """The reads in flight to Redis, in a turn if their replies are large."""
    last_ids = await _last_ids(log, questions)
    size_bytes = sum(question.expected.entries_bytes for question in questions)
    if size_bytes > SMALL_BYTES:
        # The turn belongs to the last read's server, whose reply ends it.
        queue = log.source.queue(questions[-1].want.partition)
        await queue.acquire(room.share, size_bytes)
    sent = [_send(log, question, room, last_id) for question, last_id in zip(questions, last_ids, strict=True)]
    if size_bytes > SMALL_BYTES:
        sent[-1] = sent[-1]._replace(meta=queue.under_way(sent[-1].meta, size_bytes))
    return sent


async def _last_ids(log: Partitions, questions: Sequence[_Question]) -> Sequence[str]:
    """The last ids of the entries to read; ``+`` if a count bounds them enough."""
    most_bytes = max(SLICE_BYTES // len(questions), SMALL_BYTES)
    long = {
        at: log.source.last_id(want.partition, want.offset, some.entries, most_bytes)
        for at, (want, some) in enumerate(questions)
        if want.offset >= 0 and some.entries > _FEW_ENTRIES and _may_be_long(log, want.partition)
    }
    found = dict(zip(long, await asyncio.gather(*long.values()), strict=True)) if long else {}
    return [found.get(at, "+") for at in range(len(questions))]


def _may_be_long(log: Partitions, partition: Partition) -> bool:
    """True if an entry may be as long as a record."""
    return partition.holds_records or log.limits(partition).is_record


def _send(log: Partitions, question: _Question, room: FetchRoom, last_id: str) -> _Sent:
    """The requests of a read; those of another reader, if nothing has been heard of the log since it made the same."""
    (want, some), partition = question, question.want.partition
    message, since = log.wakeups.heard(partition.channel)
    has_entries = want.offset >= 0 and (room.is_empty or (want.max_bytes > 0 and room.left_bytes > 0))
    has_entries = has_entries and some.entries > 0
    if want.until >= 0:
        return _send_bound(log, question, last_id, since, has_entries=has_entries)
    # What Redis answered this front-end may be newer than the last message.
    known = partition.epoch, partition.start, partition.end, partition.marked_end
    key = partition, want.offset if has_entries else None, last_id, some.entries, message, since, known
    if (former := log.reads_in_flight.get(key)) is not None:
        entries, meta = former
        return _Sent(entries and passed_on(entries), passed_on(meta), since, last_id)
    entries = log.source.entries(partition, want.offset, last_id, some.entries) if has_entries else None
    meta = request_meta(log, partition)
    if message is not None:
        log.reads_in_flight[key] = entries, meta
        meta.add_done_callback(lambda _: log.reads_in_flight.pop(key))
    return _Sent(entries, meta, since, last_id)


def _send_bound(log: Partitions, question: _Question, last_id: str, since: int, *, has_entries: bool) -> _Sent:
    """As `_send`, of a bound read: its entries end at or before the bound, but for one, or some for the next read."""
    (want, some), partition = question, question.want.partition
    if not has_entries:
        return _Sent(None, request_meta(log, partition), since, last_id)
    is_whole = last_id == "+"
    last_id = f"{want.until}-0" if is_whole else last_id
    entries = log.source.entries(partition, want.offset, last_id, some.entries)
    ahead = 1
    # Of the members that get there at the same time, one reads ahead for all.
    if want.goes_on and partition not in log.read_ahead and not _may_be_long(log, partition):
        is_placed = partition.mean_bytes >= INLINE_LIMIT_BYTES
        ahead = MOST_LEARNED if is_placed else min(_MOST_AHEAD, SMALL_BYTES // max(64, partition.mean_bytes))
    tail = log.source.entries(partition, want.until, "+", ahead) if is_whole else None
    if tail is not None and ahead > 1:
        log.read_ahead.add(partition)
        tail.add_done_callback(lambda _: log.read_ahead.discard(partition))
    return _Sent(entries, request_meta(log, partition), since, last_id, tail, some.entries)


async def _entries(want: Want, sent: _Sent) -> Any:
    """The entries that the source returned; None if another reader requested them, and left."""
    reply: Any = await sent.entries if sent.entries is not None else ()
    if reply is None or sent.tail is None:
        return reply
    tail = await sent.tail
    is_reached = bool(reply) and reply[-1][0] == b"%d-0" % want.until
    if is_reached and want.goes_on:
        return [*reply, *tail]
    # After a cut reply the tail would hide the entries between them.
    return reply if is_reached or len(reply) >= sent.most else [*reply, *tail]


async def _taken(log: Partitions, want: Want, sent: _Sent | _Known, room: FetchRoom) -> PartitionRead:
    """As `_take`, with a failure as this partition's code."""
    try:
        if isinstance(sent, _Known):
            if (found := await _taken_of_known(log, want, sent, room)) is not None:
                return found
            (sent,) = await _send_all(log, [_question(log, want, room)], room)
        return await _take(log, want, sent, room)
    except StoreError as error:
        damaged = await log.damage.report(want.partition, error)
        code = CORRUPT_MESSAGE if isinstance(damaged, CorruptEntry) else UNKNOWN_SERVER_ERROR
        code = KAFKA_STORAGE_ERROR if isinstance(damaged, LostTier) else code
    except KorvetError as error:
        code = KAFKA_STORAGE_ERROR if isinstance(error, StoreFull) else NOT_LEADER_OR_FOLLOWER
    return PartitionRead(want.partition.index, code)


async def _taken_of_known(log: Partitions, want: Want, known: _Known, room: FetchRoom) -> PartitionRead | None:
    """The answer with entries from memory; None if these are no longer valid, or a batch is gone.

    Other partitions of the Fetch may have waited since the lookup of the entries.
    """
    partition, found = want.partition, None
    is_current = known.since == log.wakeups.since(partition.channel) and known.meta.epoch == partition.epoch
    if is_current and partition.start <= want.offset:
        with suppress(CorruptEntry):
            found = await _collect(log, want, known, room)
    return found if isinstance(found, PartitionRead) else None


async def _take(log: Partitions, want: Want, sent: _Sent, room: FetchRoom) -> PartitionRead:
    partition = want.partition
    missing: StoreError | None = None
    is_certain = False
    for _ in range(_ATTEMPTS):
        reply = await _entries(want, sent)
        meta_reply = await sent.meta
        meta = None if reply is None or meta_reply is None else await meta_of(log, partition, meta_reply)
        if isinstance(meta, Meta) and want.offset > meta.end and not is_certain:
            # The server may have been demoted and promoted a moment ago, before this front-end knows.
            await log.take_over(partition)
            is_certain = True
        elif isinstance(meta, Meta):
            partition.since = sent.since
            learn_ends(log, partition, meta, sent.since)
            found: PartitionRead | StoreError | None = _judge(want, meta)
            if found is None and want.offset < meta.local_start:
                found = await log.tier_of(partition).read(want, meta, room)
            found = found or _lost(want, meta, sent, reply)
            if found is None:
                entries = _readable(want, reply, meta.stable if want.is_committed else meta.end, meta.end)
                found = await _collect(log, want, _Known(entries, meta, sent.since), room)
            if isinstance(found, PartitionRead):
                return found
            missing = found
        elif meta is Unreadable.NO_TOPIC:
            return PartitionRead(partition.index, UNKNOWN_TOPIC_OR_PARTITION)
        sent = _send(log, _question(log, want, room), room, "+" if sent.tail is not None else sent.last_id)
    if missing is not None:
        raise missing
    return PartitionRead(partition.index, KAFKA_STORAGE_ERROR)


def _judge(want: Want, meta: Meta) -> PartitionRead | None:
    """The answer if nothing can be read: an error, or the offset at which the reader's history diverges."""
    index = want.partition.index
    if (code := check_leader_epoch(want.leader_epoch, meta.epoch)) != 0:
        return PartitionRead(index, code)
    if want.last_fetched_epoch >= 0:
        epoch_end = end_of_epoch(parse_epochs(meta.epochs), want.last_fetched_epoch, meta.end)
        if epoch_end.epoch < 0:
            return PartitionRead(index, OFFSET_OUT_OF_RANGE)
        if epoch_end.epoch < want.last_fetched_epoch or epoch_end.end_offset < want.offset:
            return PartitionRead(index, 0, meta.end, meta.start, meta.stable, diverging=epoch_end)
    if not meta.start <= want.offset <= meta.end:
        return PartitionRead(index, OFFSET_OUT_OF_RANGE)
    return None


def _lost(want: Want, meta: Meta, sent: _Sent, reply: Sequence[Any]) -> StoreError | None:
    """The error if the log has no entry after the offset. A second read excludes an append meanwhile."""
    if sent.entries is None or sent.last_id != "+" or reply or want.offset >= meta.end:
        return None
    return StoreError(f"{want.partition.keys.log} has lost its entries from offset {want.offset} to {meta.end}")


async def _collect(log: Partitions, want: Want, known: _Known, room: FetchRoom) -> PartitionRead | CorruptEntry | None:
    """The batches that fit, up to an unreadable one; or the first entry if its batch is gone. None if the list of
    aborted transactions may be incomplete.

    :raises CorruptEntry: if the first cannot be read.
    """
    partition, meta = want.partition, known.meta
    found = PartitionRead(partition.index, 0, meta.end, meta.start, meta.stable)
    until = _until(want, meta.stable, meta.end)
    entries = known.entries
    within = entries
    if want.goes_on:
        # The first one shows what is missing before it.
        within = [one for at, one in enumerate(entries) if at == 0 or one.next_offset - one.records < want.until]
    chosen = _fitting(within, room.limit(want.max_bytes), must=room.is_empty)
    if not chosen and want.offset >= until:
        partition.watched_at = log.now()
    sizes = [entry.size_bytes for entry in chosen]
    fitting = await room.fit(sizes)
    chosen, sizes = chosen[:fitting], sizes[:fitting]
    if not chosen:
        return found
    if want.is_committed and meta.last_aborted >= want.offset:
        found.aborted = await aborted_within(log, partition, meta, want.offset, chosen[-1].next_offset)
        if found.aborted is None:
            return None
    partition.mean_bytes = max(1, sum(sizes) // len(sizes))
    partition.holds_records = partition.holds_records or chosen[0].record is not None
    fetched = await fetch_until_gap(log, partition, chosen, room.share, offset=want.offset, may_join=True)
    if not fetched.batches:
        return fetched.missing
    for entry, data in zip(fetched.entries, fetched.batches, strict=True):
        found.records += placed_in_log(data, entry.next_offset - entry.records, entry.leader_epoch)
        found.size_bytes += entry.size_bytes
    room.take(found.size_bytes)
    last = fetched.entries[-1].next_offset
    found.is_cut = last < until and (room.is_cut or len(chosen) == len(within))
    if last == meta.end:
        _remember(log, want, known, fetched)
    elif last == chosen[-1].next_offset:
        room.asks_ahead = _read_ahead(log, want, known, last, entries[len(chosen) :]) or room.asks_ahead
    return found


def _readable(want: Want, reply: Sequence[Any], until: int, end: int) -> Sequence[Entry]:
    """The entries up to an offset, and before a foreign one.

    :raises CorruptEntry: if that is the first.
    """
    log_key = want.partition.keys.log
    entries, corrupt = parsed_entries(log_key, reply)
    within = [entry for entry in entries if entry.next_offset <= until]
    if len(within) < len(entries):
        # The entries were read before the end, so none of the log's can be above it.
        beyond = entries[len(within)].next_offset
        corrupt = CorruptEntry(log_key, f"{beyond}-0", FOREIGN) if beyond > end else None
    if corrupt is not None and not within and (want.offset < until or until == end):
        raise corrupt
    return within


def _remember(log: Partitions, want: Want, known: _Known, fetched: Fetched) -> None:
    """Keep the batches at the log's end for other readers. This reader will wait at the end next."""
    partition, meta, position = want.partition, known.meta, want.offset
    partition.watched_at = log.now()
    for entry, data in zip(fetched.entries, fetched.batches, strict=True):
        position = min(position, entry.next_offset - entry.records)
        settled = not data[_ATTRIBUTES_AT] & TRANSACTIONAL or is_settled(meta, position, entry)
        log.cache.add(partition, position, entry, data, since=known.since, epoch=meta.epoch, is_settled=settled)
        position = entry.next_offset


def _read_ahead(log: Partitions, want: Want, known: _Known, position: int, rest: Sequence[Entry]) -> bool:
    """Keep entries for the reader's next Fetches, and read their placed batches ahead; true if there were any."""
    if not rest or rest[0].record is not None or (rest[0].data is not None and not want.goes_on):
        return False
    partition, size_bytes, reads_ahead = want.partition, 0, False
    log.wakeups.keep(partition.channel)
    log.cache.learn(partition, position, rest, known.meta, known.since)
    queue = log.source.queue(partition)
    while (kept := log.cache.next(partition, position)) is not None:
        entry = kept.entry
        if size_bytes and size_bytes + entry.size_bytes > (SMALL_BYTES if want.goes_on else want.max_bytes):
            break
        if kept.batch is None:
            if not log.cache.may_read_ahead(kept) or not queue.try_acquire(entry.size_bytes):
                break
            reads_ahead = True
            batch = log.source.batch(partition, entry)
            queue.end_with(batch, entry.size_bytes)
            log.cache.read_ahead(kept, batch)
        size_bytes += entry.size_bytes
        position = entry.next_offset
    return reads_ahead


async def _let_leave() -> None:
    """Let the loop write the queued commands before the answer, which wakes a client that may take this processor."""
    for _ in range(_TURNS_TO_WRITE):
        await asyncio.sleep(0)


def _fitting(entries: Sequence[Entry], limit: int, *, must: bool) -> Sequence[Entry]:
    """The first entries whose bytes do not exceed a limit; with ``must`` at least one."""
    until = bisect_right(list(accumulate([entry.size_bytes for entry in entries])), limit)
    return entries[: max(until, must)]
