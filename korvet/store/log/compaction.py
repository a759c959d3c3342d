"""Compaction of one partition: the last record of each key stays.

A run takes the partition's lease, looks at the keys of what was appended since the last one (`compaction_plan`), goes
through the log from its start up to there, and has Redis build the stream that is left beside the log's and put it in
its place (lua/29_log_compaction.lua). What is decided is only good for the log that was looked at: where its epoch, its
start or its server is another by then, the run is given up. A run that is broken off anywhere leaves a stream that the
next one or `clear_leftover` removes, and placed batches that the stream names, or that expire.

The log's last batch is never touched, so that the log's end is always there. Bounded are the keys that are looked at
and what is kept in memory of new batches: what is behind them is for the next run.

Source: LogCleaner, LogCleanerManager, Cleaner
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
import anyio.to_thread
import structlog
from kio.schema.errors import ErrorCode

from korvet.errors import KorvetError, StoreError
from korvet.store.catalog import Catalog, Topic
from korvet.store.client import Buffer, Purpose
from korvet.store.configs import split
from korvet.store.keys import placed_batch, spare_stream
from korvet.store.log.append import INLINE_LIMIT_BYTES
from korvet.store.log.archived import keeps_unarchived
from korvet.store.log.compaction_plan import MOST_KEYS, Aborted, Chunk, Cleaner, Keys, Rules, Stored, Transactions
from korvet.store.log.compaction_room import check_room, count_new_bytes
from korvet.store.log.partition import Partition
from korvet.store.log.read import Entry, fetch_batches, parsed_entries
from korvet.wire.batch import CONTROL, HEADER, Batch
from korvet.wire.compacted import opened
from korvet.wire.records import UndecodableRecords

if TYPE_CHECKING:
    from korvet.store.log import Log

logger = structlog.get_logger()

STEP = 100
"""Entries of one call; the functions take no more."""
ABORTED_STEP = 1000
"""Aborted transactions of one call."""
MOST_MARKERS = 5000
"""Markers of aborted transactions that go in one run: the call that swaps the streams has to name each."""
LEASE_MS = 30_000
_RENEW_S = 5.0
_PLACED_MS = 600_000
_MOST_CALLS = 1_000_000
MOST_PLAN_BYTES = 64 << 20
"""Of new batches, kept until all of the log was gone through."""
_CHANGE_BYTES = 400
_FETCHED_BYTES = 4 << 20
_LONG_BYTES = 16384
_TURN_S = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """A topic's settings for compaction."""

    min_lag_ms: int
    max_lag_ms: int
    min_dirty_ratio: float
    delete_retention_ms: int
    most_keys: int = MOST_KEYS
    most_plan_bytes: int = MOST_PLAN_BYTES


def compaction_of(catalog: Catalog, topic: Topic) -> Compaction | None:
    """A topic's settings, or None where it is not compacted.

    That is also where it may lose only what is archived: what newer records replace may not be.
    """
    if "compact" not in split(catalog.setting(topic, "cleanup.policy")) or keeps_unarchived(catalog, topic):
        return None
    return Compaction(
        min_lag_ms=int(catalog.setting(topic, "min.compaction.lag.ms")),
        max_lag_ms=int(catalog.setting(topic, "max.compaction.lag.ms")),
        min_dirty_ratio=float(catalog.setting(topic, "min.cleanable.dirty.ratio")),
        delete_retention_ms=int(catalog.setting(topic, "delete.retention.ms")),
    )


class _Lost(Exception):
    """The partition or the lease is not what it was: what was decided is worth nothing any more."""


class _Dirty(NamedTuple):
    """The part of the log whose keys are to be looked at, and what the log was when that was found."""

    run_id: str
    epoch: int
    start: int
    first: int
    until: int


async def compact(log: Log, partition: Partition, settings: Compaction, now_ms: int) -> bool:
    """Compact a partition where it is due; false where it is not, or somebody else is at it, or it changed meanwhile.

    :param now_ms: the time by Redis.
    :raises StoreFull: also where it would take more memory than there is, before it takes any.
    :raises StoreUnavailable, StoreError:
    """
    dirty = await _due(log, partition, settings, now_ms)
    if dirty is None:
        return False
    run = _Run(log, partition, settings, dirty, now_ms)
    if not await run.begin():
        return False
    try:
        return await run.work()
    except _Lost:
        await run.end()
        return False
    except KorvetError:
        # What cannot be tidied up now is found by the next run.
        await run.end()
        raise


async def clear_leftover(log: Log, partition: Partition, now_ms: int) -> None:
    """Remove what a run left beside a log, where its front-end died: its lease is over and was not given back.

    The next run would do so as well, but may be long in coming.

    :param now_ms: the time by Redis.
    :raises StoreUnavailable, StoreError:
    """
    meta = partition.keys.meta
    lease: bytes | None = await log.store.call(Purpose.READ, meta, "HGET", meta, "compaction")
    if lease is None or int(lease.split()[1]) > now_ms:
        return
    mine = _Lease(log, partition)
    if await mine.begin():
        await mine.end()


async def _due(log: Log, partition: Partition, settings: Compaction, now_ms: int) -> _Dirty | None:
    """What is to be looked at, where it is enough or old enough. Source: LogCleanerManager.grabFilthiestCompactedLog"""
    if (await log.metas([partition]))[0] is None:
        return None
    name, meta = partition.keys.log, partition.keys.meta
    asked = log.store.call(
        Purpose.READ, meta, "HMGET", meta, "run_id", "epoch", "start", "end", "first_open", "cleaned"
    )
    ends = [
        log.store.call(Purpose.READ, name, *command, "COUNT", 1)
        for command in (("XRANGE", name, "-", "+"), ("XREVRANGE", name, "+", "-"))
    ]
    run_id, epoch, start, end, first_open, cleaned = await asked
    (first, last) = [await one for one in ends]
    if run_id is None or not first or not last:
        return None
    first_dirty = int(cleaned or 0) if int(start) <= int(cleaned or 0) <= int(end) else int(start)
    next_offset, records, _ = _totals(last[0])
    until = min(next_offset - records, int(first_open or end))
    if settings.min_lag_ms > 0:
        until = min(until, await _first_younger(log, partition, now_ms - settings.min_lag_ms, until))
    if until <= first_dirty:
        return None
    before = _totals(first[0])[2] - _size(first[0])
    dirty_at, until_at = [await _bytes_below(log, name, offset, before) for offset in (first_dirty, until)]
    ratio = (until_at - dirty_at) / max(1, until_at - before)
    is_due = ratio > settings.min_dirty_ratio or await _is_overdue(log, name, first_dirty, now_ms, settings.max_lag_ms)
    if until_at <= dirty_at or not is_due:
        return None
    return _Dirty(run_id.decode(), int(epoch), int(start), first_dirty, until)


def _totals(entry: Any) -> tuple[int, int, int]:
    """Of an entry: the offset just past it, its span of offsets, the running bytes."""
    index = entry[1][1].split()
    return int(entry[0].split(b"-")[0]), int(index[0]), int(index[4])


def _size(entry: Any) -> int:
    return int(entry[1][1].split()[1])


async def _bytes_below(log: Log, name: str, offset: int, before: int) -> int:
    found = await log.store.call(Purpose.READ, name, "XREVRANGE", name, f"{offset}-0", "-", "COUNT", 1)
    return _totals(found[0])[2] if found else before


async def _is_overdue(log: Log, name: str, first_dirty: int, now_ms: int, max_lag_ms: int) -> bool:
    """Whether the first batch that was not looked at is older than it may be."""
    found = await log.store.call(Purpose.READ, name, "XRANGE", name, f"{first_dirty + 1}-0", "+", "COUNT", 1)
    timestamp = int(found[0][1][1].split()[2]) if found else -1
    return 0 < timestamp < now_ms - max_lag_ms


async def _first_younger(log: Log, partition: Partition, oldest_ms: int, until: int) -> int:
    """The offset of the first batch that is younger than ``oldest_ms``, if that is below ``until``."""
    cursor: int | bytes = -1
    for _ in range(_MOST_CALLS):
        code, status, cursor, index, _ = await log.store.fcall(
            Purpose.READ,
            "korvet_log_offset_for_time",
            (partition.keys.log, partition.keys.meta),
            partition.topic_id,
            oldest_ms + 1,
            cursor,
            1,
        )
        if code != ErrorCode.none or status == b"none":
            break
        if status == b"found":
            return int(cursor) - int(index.split()[0])
    return until


class _Lease:
    """The right to compact a partition, under a token."""

    def __init__(self, log: Log, partition: Partition) -> None:
        self._log = log
        self._partition = partition
        self._token = log.next_token()
        self._keys = (*partition.keys, spare_stream(partition.keys.log))
        self._renew_at = 0.0

    async def begin(self, *, is_kept: bool = False) -> bool:
        """Take the lease, or keep it; false where it is somebody else's, or is to be kept and was lost meanwhile."""
        self._renew_at = self._log.now() + _RENEW_S
        for _ in range(_MOST_CALLS):
            code, status = await self._call("korvet_log_compaction_begin", LEASE_MS, *((1,) if is_kept else ()))
            if code != ErrorCode.none or status == b"busy":
                return False
            if status == b"ready":
                return True
        return False

    async def end(self, *cleaned: str | int) -> None:
        """Remove what is left over, and give the lease back."""
        for _ in range(_MOST_CALLS):
            _, more = await self._call("korvet_log_compaction_end", *cleaned)
            if not more:
                return

    async def _keep(self) -> None:
        if self._log.now() >= self._renew_at and not await self.begin(is_kept=True):
            raise _Lost

    async def _call(self, function: str, *args: str | int | bytes) -> Any:
        return await self._log.store.fcall(
            Purpose.APPEND, function, self._keys, self._partition.topic_id, self._token, *args
        )


class _Run(_Lease):
    """One compaction of one partition."""

    def __init__(self, log: Log, partition: Partition, settings: Compaction, dirty: _Dirty, now_ms: int) -> None:
        super().__init__(log, partition)
        self._settings = settings
        self._dirty = dirty
        self._rules = Rules(now_ms=now_ms, delete_retention_ms=settings.delete_retention_ms)
        self._copied = 0
        self._yield_at = 0.0

    async def work(self) -> bool:
        """Look at keys, decide, copy and swap."""
        aborted = await self._aborted()
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
            await self.end(self._dirty.run_id, self._dirty.epoch, cleaned)
            return cleaned > self._dirty.first
        await check_room(self._log, self._partition, chunks)
        removed_bytes = sum(chunk.removed_bytes for chunk in chunks)
        grown_bytes = max(0, -removed_bytes)
        await self._copy(chunks, removed_bytes + grown_bytes)
        await self._swap(until, grown_bytes, cleaned, cleaner.markers)
        await self.end()
        return True

    async def _aborted(self) -> list[Aborted]:
        name = self._partition.transaction_keys.aborted
        aborted: list[Aborted] = []
        since = str(self._dirty.start)
        for _ in range(_MOST_CALLS):
            members: list[bytes] = await self._log.store.call(
                Purpose.READ, name, "ZRANGEBYSCORE", name, since, "+inf", "LIMIT", 0, ABORTED_STEP
            )
            aborted += [Aborted(*map(int, member.split()[:3])) for member in members if member]
            if len(members) < ABORTED_STEP:
                break
            since = f"({aborted[-1].last}"
        return aborted

    async def _map(self, transactions: Transactions) -> Keys:
        """The last offsets of the keys from the first dirty offset on."""
        keys = Keys(self._dirty.first, self._settings.most_keys)
        async for _, group in self._batches(self._dirty.first, self._dirty.until):
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
        """What is to be done with the entries from the log start up to an offset, as far as memory allows."""
        chunks: list[Chunk] = []
        held_bytes = 0
        async for entries, group in self._batches(self._dirty.start, until):
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
        """Do what may take long beside the loop, and let others have their turn of it."""
        if len(stored.data) >= _LONG_BYTES:
            return await anyio.to_thread.run_sync(work, *args, limiter=self._log.decoders)
        if self._log.now() >= self._yield_at:
            await anyio.lowlevel.checkpoint()
            self._yield_at = self._log.now() + _TURN_S
        return work(*args)

    async def _batches(self, offset: int, until: int) -> AsyncIterator[tuple[Sequence[Entry], Sequence[Stored]]]:
        """The batches from an offset on that end at or below another, a bounded number at a time."""
        log, partition = self._log, self._partition
        name = partition.keys.log
        while offset < until:
            await self._keep()
            reply = await log.store.call(
                Purpose.READ, name, "XRANGE", name, f"{offset + 1}-0", f"{until}-0", "COUNT", STEP
            )
            if not reply:
                return
            for entries in _slices(parsed_entries(reply)):
                batches = await fetch_batches(log, partition, entries)
                if batches is None:
                    # Trimmed meanwhile, for one.
                    raise _Lost
                yield entries, [_stored(*pair) for pair in zip(entries, batches, strict=True)]
                offset = entries[-1].next_offset

    # ------------------------------------------------------------------ the new stream

    def _as_seen(self) -> tuple[str | int, ...]:
        """What the functions hold the partition against, and first of all the server that is behind the connection."""
        dirty = self._dirty
        if self._log.find_run_id(self._partition) != dirty.run_id:
            raise _Lost
        return (self._partition.topic_id, dirty.run_id, dirty.epoch, dirty.start, self._token, self._copied)

    async def _copy(self, chunks: Sequence[Chunk], removed_bytes: int) -> None:
        removed_batches = sum(len(chunk.dropped) for chunk in chunks)
        for chunk in chunks:
            await self._keep()
            dropped = " ".join(map(str, chunk.dropped))
            changes = [argument for pair in chunk.rewritten.items() for argument in await self._change(*pair)]
            _, status, self._copied = await self._log.store.fcall(
                Purpose.APPEND, "korvet_log_compaction_copy", self._keys,
                *self._as_seen(), chunk.cursor, chunk.until, removed_bytes, removed_batches, dropped, *changes,
            )  # fmt: skip
            if status != b"ready":
                raise _Lost
            removed_bytes -= chunk.removed_bytes
            removed_batches -= len(chunk.dropped)

    async def _change(self, next_offset: int, rewritten: tuple[Batch, bytes]) -> tuple[int, str, bytes]:
        """The arguments for a batch that is another one now; a large one is sent ahead, to where it will stay."""
        batch, data = rewritten
        index = f"{len(data)} {batch.max_timestamp} {batch.crc}"
        if len(data) < INLINE_LIMIT_BYTES:
            return next_offset, index, data
        key = placed_batch(self._partition.keys.log, f"{next_offset}.{self._token}")
        await self._log.store.call(Purpose.APPEND, key, "SET", key, data, "PX", _PLACED_MS)
        return next_offset, index, b""

    async def _swap(self, cursor: int | str, grown_bytes: int, cleaned: int, markers: Sequence[int]) -> None:
        if await self._log.keeps_unarchived(self._partition):
            # Set since the run began.
            raise _Lost
        keys = (*self._keys, self._partition.transaction_keys.aborted)
        for _ in range(_MOST_CALLS):
            await self._keep()
            _, status, self._copied, following = await self._log.store.fcall(
                Purpose.APPEND, "korvet_log_compaction_swap", keys,
                *self._as_seen(), cursor, grown_bytes, cleaned, *markers,
            )  # fmt: skip
            if status == b"done":
                return
            if status != b"more":
                raise _Lost
            cursor = following.decode()
        raise StoreError(f"{self._partition.keys.log} grows faster than it can be copied")


def _slices(entries: Sequence[Entry]) -> list[Sequence[Entry]]:
    """The entries in parts, each of which may be in memory at once."""
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
