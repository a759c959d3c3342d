"""Fetches below a log's local start: the same batches, from segments.

**No Fetch waits for the store.** A read answers at once what is in memory. Else it starts a task and answers without
records; `PartitionRead.pending` says when to read again. So a Fetch waits for a slow store at most its own time, and
not at all while another of its partitions has records, as in Kafka's DelayedRemoteFetch. Tasks belong to the process:
one goes on after its Fetch left, and the next Fetch finds what it brought.

**Reading ahead.** A reader that goes on where an answer ended gets the following blocks requested before it asks for
them, up to a window that doubles with each answer. All windows together fill at most a quarter of the blocks' budget.

**Failures** last for `FAILED_S`, then another task tries. A store that is away is KAFKA_STORAGE_ERROR, damage is
CORRUPT_MESSAGE for that range only, and a missing object is UNKNOWN_SERVER_ERROR.

Source: ReplicaManager.readFromLog, DelayedRemoteFetch, RemoteLogReader, RemoteLogManager.read
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple, TypeVar

import anyio
import structlog
from anyio.abc import TaskGroup

from korvet.codes import CORRUPT_MESSAGE, KAFKA_STORAGE_ERROR, UNKNOWN_SERVER_ERROR
from korvet.errors import DamagedLog, KorvetError, LostTier, forget_frames
from korvet.rate_limited_log import LineBudget
from korvet.redis.reply import in_task
from korvet.store.catalog.catalog import Catalog
from korvet.store.log import tier
from korvet.store.log.memory.room import FetchRoom, PartitionRead, Want
from korvet.store.log.partitions.partitions import Partitions
from korvet.store.log.partitions.source import Timed
from korvet.store.log.reading.times import found_in_batch
from korvet.store.log.state.entries import Entry
from korvet.store.log.state.partition import Meta, Partition
from korvet.tier.blocks import DEADLINE_S, Blocks, Damaged, Found, Gets, Stored, again
from korvet.tier.identity import checked_identity
from korvet.tier.manifest import Manifest, Member, folder_of
from korvet.tier.objects import ObjectMissing, OtherTier, TierAway
from korvet.tier.segment import BLOCK_BYTES, INDEX_BYTES, Selected, batches
from korvet.tier.series import Series
from korvet.tier.snapshot import Snapshot

log = structlog.get_logger()
T = TypeVar("T")

MOST_READ_BYTES: Final = 2 * BLOCK_BYTES
"""The most bytes that one answer takes of a partition's segments, beside a first batch that is larger."""
MOST_AHEAD_BYTES: Final = 16 * BLOCK_BYTES
FAILED_S: Final = 2.0
_LISTED_WITHIN_S: Final = 5.0
_FULL_S: Final = 10.0
_FIRST_AHEAD_BYTES: Final = 2 * BLOCK_BYTES
_MOST_SEARCHES: Final = 16
_MOST_LARGE: Final = 2
_MOST_READS: Final = 128
"""Reads that run, or whose outcome nobody has taken yet."""
_TAKEN_WITHIN_S: Final = 2.0
"""The seconds for which what a read found is kept for its readers. Later ones look into the blocks."""
_LEFT_S: Final = 5.0
"""The seconds after which a running read that nobody asks for any more makes room."""
_AHEAD_S: Final = 10.0
"""The seconds for which a reader's place is remembered."""
_MOST_PLACES: Final = 10_000
_AT_ONCE: Final = 512
_MOST_MEMBERS: Final = 50_000
"""The segments in all lists that are remembered, about 500 bytes each."""


class _Key(NamedTuple):
    """A place in a log, and the list of segments by which it is looked for."""

    folder: str
    token: bytes
    epoch: int
    offset: int


class _Cold(NamedTuple):
    """What a segment has at an offset."""

    member: Member
    found: Found
    offset: int

    def select(self, limit: int) -> Selected | None:
        """The batches that fit into a limit, at least one; None if the segment has none from the offset on."""
        footer, start, data, _ = self.found
        return footer.select(data, start, self.offset, min(limit, MOST_READ_BYTES))


@dataclass(slots=True)
class _Read:
    """A cold read. After its end it has one of ``cold`` and ``error``, unless it was given up."""

    asked_at: float
    done: asyncio.Future[None]
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    cold: _Cold | None = None
    error: KorvetError | None = None


class _Place(NamedTuple):
    """Where a reader will go on."""

    at: float
    window_bytes: int
    until: tuple[int, int]
    """How far blocks were requested: a segment's first offset, and a position in it."""


class _Listed(NamedTuple):
    token: bytes
    epoch: int
    manifest: Manifest


class ColdReads:
    """The cold reads of a process.

    :param tasks: the tasks of reads run there.
    """

    def __init__(self, gets: Gets, blocks: Blocks, tasks: TaskGroup) -> None:
        self.gets, self.blocks = gets, blocks
        self.failures = self.read_bytes = 0
        """Failed reads, and the bytes of the batches in answers."""
        self.searches = anyio.Semaphore(_MOST_SEARCHES)
        """The searches for a time, which hold some batches each."""
        self._large = anyio.Semaphore(_MOST_LARGE)
        self._tasks = tasks
        self._reads: OrderedDict[_Key, _Read] = OrderedDict()
        """The last one that was asked for comes last."""
        self._places: OrderedDict[tuple[str, int], _Place] = OrderedDict()
        self._lists: OrderedDict[str, _Listed] = OrderedDict()
        self._listed_members = 0
        self._full_until: dict[str, float] = {}
        self._lines = LineBudget(1, 60.0)

    def of(self, namespace: str, catalog: Catalog, logs: Partitions) -> Source:
        """The segments of a namespace's logs."""
        return Source(self, namespace, catalog, logs)

    # ------------------------------------------------------------------ reads

    def look(self, source: Source, want: Want, meta: Meta, most_bytes: int) -> _Read | _Cold | None:
        """What memory has at an offset, or the read that looks for it; None if no more can run now."""
        now, key = source.logs.now(), source.key(want, meta)
        read = self._reads.get(key)
        if read is None:
            if (cold := self._held(key.folder, meta, want.offset, most_bytes)) is not None:
                return cold
            if not self._has_room(key.folder, now):
                return None
            read = self._reads[key] = _Read(now, asyncio.get_running_loop().create_future())
            self._tasks.start_soon(self._run, key, read, source, want.partition, meta, most_bytes)
        elif not read.done.done():
            read.asked_at = now
            self._reads.move_to_end(key)
        return read

    def took(self, key: _Key) -> None:
        """Forget what a read found, because a reader has it. The blocks have it for others."""
        if (read := self._reads.get(key)) is not None and read.cold is not None:
            del self._reads[key]

    def _held(self, folder: str, meta: Meta, offset: int, most_bytes: int) -> _Cold | None:
        member = self._held_member(folder, meta.tier, meta.epoch, offset)
        found = None if member is None else self.blocks.held(self.stored(folder, member), offset, most_bytes)
        cold = None if member is None or found is None else _Cold(member, found, offset)
        return cold if cold is not None and cold.select(0) is not None else None

    def _held_member(self, folder: str, token: bytes, epoch: int, offset: int) -> Member | None:
        """As `member`; None if memory does not have it."""
        listed = self._lists.get(folder)
        if listed is None or (listed.token, listed.epoch) != (token, epoch):
            return None
        member = listed.manifest.at(offset)
        if member is not None and member.kind == "shelf":
            shelf = self.blocks.held_shelf(self.stored(folder, member))
            member = None if shelf is None else shelf.at(offset)
        return member

    def _has_room(self, folder: str, now: float) -> bool:
        """True if a partition may have one more read. Outcomes that nobody took make room, then reads that nobody waits
        for, then those of the partition that has the most."""
        if len(self._reads) < _MOST_READS:
            return True
        for key in [key for key, read in self._reads.items() if read.done.done()]:
            del self._reads[key]
        if len(self._reads) < _MOST_READS:
            return True
        given_up = next(iter(self._reads))
        if now - self._reads[given_up].asked_at <= _LEFT_S:
            counts = Counter(key.folder for key in self._reads)
            ((largest, most),) = counts.most_common(1)
            if most <= counts[folder] + 1:
                return False
            given_up = next(key for key in self._reads if key.folder == largest)
        self._reads.pop(given_up).scope.cancel()
        return True

    async def _run(
        self, key: _Key, read: _Read, source: Source, partition: Partition, meta: Meta, most_bytes: int
    ) -> None:
        try:
            with read.scope:
                find = partial(self._find, source, partition, meta, key.offset, most_bytes)
                read.cold = await self.found(source, partition, find)
        except KorvetError as error:
            forget_frames(error)
            read.error = error
            self._note(partition, key, error)
        except Exception as error:
            # A defect in one read must not end the tasks of all others.
            log.exception("a read of the tier failed", topic=partition.topic.name, partition=partition.index)
            read.error = KorvetError(str(error))
        finally:
            if not read.done.done():
                read.done.set_result(None)
            kept_s = FAILED_S if read.error is not None else _TAKEN_WITHIN_S if read.cold is not None else 0.0
            asyncio.get_running_loop().call_later(kept_s, self._drop, key, read)

    def _drop(self, key: _Key, read: _Read) -> None:
        if self._reads.get(key) is read:
            del self._reads[key]

    async def found(self, source: Source, partition: Partition, find: Callable[[], Awaitable[T]]) -> T:
        """What a function finds by the list of a partition. If an object is missing, it is called once more with the
        present list: the one in memory may name segments that were merged since, or are below the log start.

        :raises KorvetError:
        """
        try:
            return await find()
        except ObjectMissing:
            self._forget(source.folder(partition))
        try:
            return await find()
        except ObjectMissing:
            await source.check_identity()
            raise

    async def _find(self, source: Source, partition: Partition, meta: Meta, offset: int, most_bytes: int) -> _Cold:
        """The bytes of the first batch from an offset on and of those after it."""
        while True:
            member = await self.member(source, partition, meta, offset)
            found = await self._find_in(self.stored(source.folder(partition), member), offset, most_bytes)
            if (cold := _Cold(member, found, offset)).select(0) is not None:
                return cold
            if found.error is not None:
                raise found.error
            offset = member.next_offset

    async def _find_in(self, stored: Stored, offset: int, most_bytes: int) -> Found:
        start, end = (await self.blocks.footer(stored)).span(offset, most_bytes)
        if end - start <= 2 * MOST_READ_BYTES:
            return await self.blocks.find(stored, offset, most_bytes)
        # A batch that is very large.
        async with self._large:
            return await self.blocks.find(stored, offset, most_bytes)

    def _note(self, partition: Partition, key: _Key, error: KorvetError) -> None:
        """Count a failure, and log it if it is the tier's: once a minute."""
        self.failures += 1
        if not isinstance(error, (TierAway, ObjectMissing, *Damaged)):
            return
        # A store that is away fails the reads of all partitions.
        kind = () if isinstance(error, TierAway) else (partition.topic_id, partition.index, str(error))
        if (left_out := self._lines.take(kind)) is not None:
            log.error(
                "records of a partition cannot be read from the tier",
                topic=partition.topic.name, partition=partition.index, offset=key.offset, reason=str(error),
                repair=_repair(partition, error, self._held_member(*key)),
                **({"left_out": left_out} if left_out else {}),
            )  # fmt: skip

    # ------------------------------------------------------------------ lists

    def stored(self, folder: str, member: Member) -> Stored:
        """A segment or shelf of a partition."""
        return Stored(self.gets, member.path(folder), member)

    async def member(self, source: Source, partition: Partition, meta: Meta, offset: int) -> Member:
        """The segment that holds an offset.

        :raises LostTier: no one has it.
        :raises KorvetError:
        """
        folder = source.folder(partition)
        member = (await self.manifest(source, partition, meta, offset)).at(offset)
        if member is not None and member.kind == "shelf":
            member = (await self.blocks.shelf(self.stored(folder, member))).at(offset)
        if member is None:
            raise LostTier(f"no segment has offset {offset} of {partition.keys.log}")
        return member

    async def from_time(self, folder: str, manifest: Manifest, timestamp: int) -> AsyncIterator[Member]:
        """The segments that have a batch with a timestamp not earlier. A shelf is read when its turn comes.

        :raises KorvetError:
        """
        for member in manifest.from_time(timestamp):
            if member.kind == "shelf":
                for inner in (await self.blocks.shelf(self.stored(folder, member))).from_time(timestamp):
                    yield inner
            else:
                yield member

    async def manifest(self, source: Source, partition: Partition, meta: Meta, offset: int) -> Manifest:
        """The list of a partition's segments, at least up to the one that holds an offset.

        :raises LostTier: there is no whole list.
        :raises KorvetError: the topic is gone, or the list is another one by now.
        """
        folder = source.folder(partition)
        known = self._lists.get(folder)
        if known is None or (known.token, known.epoch) != (meta.tier, meta.epoch):
            known = None
        if known is not None and known.manifest.at(offset) is not None:
            self._lists.move_to_end(folder)
            return known.manifest
        # In one epoch the list grows at its end.
        manifest, has_more = known.manifest if known is not None else Manifest(()), True
        while has_more:
            at = manifest.members[-1].next_offset if manifest.members else meta.start
            page = await tier.listed(source.logs, partition, at, _AT_ONCE)
            if page is None or (page.token, page.epoch) != (meta.tier, meta.epoch):
                raise _Moved(f"the segments of {partition.keys.log} are another history's by now")
            manifest, has_more = manifest.extended(page.segments), page.has_more
        self._forget(folder)
        self._lists[folder] = _Listed(meta.tier, meta.epoch, manifest)
        self._listed_members += len(manifest.members)
        while self._listed_members > _MOST_MEMBERS and len(self._lists) > 1:
            self._forget(next(iter(self._lists)))
        return manifest

    def _forget(self, folder: str) -> None:
        if (listed := self._lists.pop(folder, None)) is not None:
            self._listed_members -= len(listed.manifest.members)

    async def holds(self, folder: str, now: float) -> bool:
        """True if there may be objects in a folder; also if the store does not say so soon. Clients of a lost partition
        ask again and again, so that is remembered for a while."""
        if now < self._full_until.get(folder, now):
            return True
        with anyio.move_on_after(_LISTED_WITHIN_S), suppress(TierAway):
            # A listing may lack what is there. Alone it finds a segment that has no snapshot yet.
            objects = self.gets.objects
            if not await Series(objects, folder, Snapshot.decoded).exists() and not await objects.names(folder):
                return False
        self._full_until = {one: until for one, until in self._full_until.items() if now < until}
        self._full_until[folder] = now + _FULL_S
        return True

    # ------------------------------------------------------------------ reading ahead

    def read_ahead(self, now: float, folder: str, member: Member, offset: int, selected: Selected) -> None:
        """Request blocks after an answer, if its reader came from the end of another one."""
        end = member.first_offset, selected.position + len(selected.batches)
        former = self._places.pop((folder, offset), None)
        while self._places and (len(self._places) >= _MOST_PLACES or self._oldest_place().at < now - _AHEAD_S):
            self._places.popitem(last=False)
        window_bytes, until = 0, end
        if former is not None:
            most_bytes = min(MOST_AHEAD_BYTES, self.blocks.budget_bytes // 4 // (len(self._places) + 1))
            window_bytes = min(most_bytes, max(_FIRST_AHEAD_BYTES, 2 * former.window_bytes))
            until = self._ask_ahead(folder, member, end, max(end, former.until), window_bytes)
        self._places[folder, selected.next_offset] = _Place(now, window_bytes, until)

    def _oldest_place(self) -> _Place:
        return next(iter(self._places.values()))

    def _ask_ahead(
        self, folder: str, member: Member, end: tuple[int, int], until: tuple[int, int], window_bytes: int
    ) -> tuple[int, int]:
        """Request blocks until a window is full of which less than half is left. Returns how far they reach."""
        listed = self._lists.get(folder)
        spans: list[tuple[Member, int, int]] = []
        left_bytes, ahead_bytes, at = window_bytes, 0, end
        one: Member | None = member
        while one is not None and left_bytes > 0:
            begin = end[1] if one is member else 0
            stop = min(one.size_bytes, begin + left_bytes)
            left_bytes -= stop - begin
            if (one.first_offset, stop) > until:
                start = until[1] if until[0] == one.first_offset else begin
                spans.append((one, start, stop))
                ahead_bytes += start - begin
            else:
                ahead_bytes += stop - begin
            at = one.first_offset, stop
            is_whole = listed is not None and stop == one.size_bytes
            one = (
                self._held_member(folder, listed.token, listed.epoch, one.next_offset) if listed and is_whole else None
            )
        if not spans or 2 * ahead_bytes > window_bytes:
            return until
        self._tasks.start_soon(self._fetch_ahead, folder, spans)
        return at

    async def _fetch_ahead(self, folder: str, spans: Sequence[tuple[Member, int, int]]) -> None:
        try:
            for member, start, stop in spans:
                await self.blocks.fetch(self.stored(folder, member), start, stop)
        except KorvetError as error:
            # The reader finds it when it gets there.
            forget_frames(error)
        except Exception:
            log.exception("reading ahead in the tier failed", folder=folder)


class Source:
    """The segments of a namespace's logs: `korvet.store.log.source.TierSource`."""

    def __init__(self, cold: ColdReads, namespace: str, catalog: Catalog, logs: Partitions) -> None:
        self.logs = logs
        self._cold, self._namespace, self._catalog = cold, namespace, catalog

    def folder(self, partition: Partition) -> str:
        """The path of a partition's objects."""
        return folder_of(self._namespace, partition.topic.name, partition.topic_id, partition.index)

    def key(self, want: Want, meta: Meta) -> _Key:
        """The place of a read."""
        return _Key(self.folder(want.partition), meta.tier, meta.epoch, want.offset)

    async def read(self, want: Want, meta: Meta, room: FetchRoom) -> PartitionRead:
        """As `TierSource.read`."""
        found = PartitionRead(want.partition.index, 0, meta.end, meta.start, meta.stable)
        if room.limit(want.max_bytes) <= 0 and not room.is_empty:
            return found
        fitting_bytes = room.covered_bytes
        while isinstance(looked := self._look(want, meta, room), _Cold):
            selected = looked.select(room.limit(want.max_bytes))
            assert selected is not None
            if selected.first_bytes > room.limit(want.max_bytes) and not room.is_empty:
                return found
            if len(selected.batches) <= fitting_bytes:
                self._take(want, meta, found, looked, selected, room)
                return found
            sizes = [selected.first_bytes, len(selected.batches) - selected.first_bytes]
            # Many readers may wait for room, and the bytes that they wait for must not fill the memory meanwhile.
            del looked, selected
            fitting = await room.fit([size for size in sizes if size])
            if not fitting:
                return found
            fitting_bytes = max(sum(sizes[:fitting]), room.covered_bytes)
        if isinstance(looked, _Read):
            if looked.error is not None:
                return self._failed(want, looked.error)
            found.pending = looked.done
        return found

    def _look(self, want: Want, meta: Meta, room: FetchRoom) -> _Read | _Cold | None:
        looked = self._cold.look(self, want, meta, min(room.limit(want.max_bytes), MOST_READ_BYTES))
        return looked.cold if isinstance(looked, _Read) and looked.cold is not None else looked

    def _take(
        self, want: Want, meta: Meta, found: PartitionRead, cold: _Cold, selected: Selected, room: FetchRoom
    ) -> None:
        """Put batches into the answer."""
        # A small part of a block would keep all of it in memory while it is sent.
        is_small = 2 * len(selected.batches) < len(cold.found.data)
        found.records.append(bytes(selected.batches) if is_small else selected.batches)
        found.size_bytes = len(selected.batches)
        room.take(found.size_bytes)
        # As in Kafka, a Fetch that has records of a tier does not wait for more.
        found.is_cut = True
        if want.is_committed:
            within = cold.found.footer.aborted_within(want.offset, selected.next_offset)
            found.aborted = [(one.producer_id, one.first_offset) for one in within]
        self.logs.reads.tier += 1
        self._cold.read_bytes += found.size_bytes
        key = self.key(want, meta)
        self._cold.took(key)
        self._cold.read_ahead(self.logs.now(), key.folder, cold.member, want.offset, selected)

    async def holds(self, partition: Partition) -> bool:
        """As `TierSource.holds`."""
        await in_task()
        if await self._cold.holds(self.folder(partition), self.logs.now()):
            return True
        with suppress(TierAway):
            await self.check_identity()
            return False
        return True

    async def check_identity(self) -> None:
        """See whether it is this tier's own fault that it lacks an object.

        :raises OtherTier: it is another one, or was emptied.
        :raises TierAway, StoreUnavailable, StoreError:
        """
        await checked_identity(self._cold.gets.objects, self._namespace, self._catalog)

    async def offset_for_time(self, partition: Partition, meta: Meta, timestamp: int) -> Timed | None:
        """As `TierSource.offset_for_time`."""
        await in_task()
        try:
            with anyio.fail_after(DEADLINE_S):
                async with self._cold.searches:
                    find = partial(self._find_time, partition, meta, timestamp)
                    return await self._cold.found(self, partition, find)
        except TimeoutError:
            raise LostTier(f"{self._cold.gets.objects.name}: no time found within {DEADLINE_S:g} s") from None
        except TierAway as error:
            raise LostTier(str(error)) from None
        except (ObjectMissing, *Damaged) as error:
            raise DamagedLog(str(error)) from None

    async def _find_time(self, partition: Partition, meta: Meta, timestamp: int) -> Timed | None:
        manifest = await self._cold.manifest(self, partition, meta, meta.local_start - 1)
        async for member in self._cold.from_time(self.folder(partition), manifest, timestamp):
            if member.first_offset >= meta.local_start:
                break
            found = await self._first_at(partition, meta, member, timestamp)
            if found is not None:
                return found
        return None

    async def _first_at(self, partition: Partition, meta: Meta, member: Member, timestamp: int) -> Timed | None:
        """The first record of a segment from the log start on that is not older than a time."""
        stored = self._cold.stored(self.folder(partition), member)
        footer = await self._cold.blocks.footer(stored)
        position = footer.position_of_time(timestamp)
        if member.next_offset <= meta.start or position is None:
            return None
        offset = max(meta.start, footer.index[bisect_left(footer.index, position, key=lambda one: one.position)].offset)
        while (selected := await self._some(stored, offset)) is not None:
            for batch, whole in batches(selected.batches):
                if batch.max_timestamp >= timestamp:
                    next_offset, records = batch.base_offset + batch.last_offset_delta + 1, batch.last_offset_delta + 1
                    entry = Entry(next_offset, records, batch.size_bytes, batch.leader_epoch, None, 0)
                    found = await found_in_batch(self.logs, entry, bytes(whole), timestamp, meta.start)
                    if found is not None:
                        return found
            offset = selected.next_offset
            await asyncio.sleep(0)
        return None

    async def _some(self, stored: Stored, offset: int) -> Selected | None:
        """Some batches of a segment, few enough to look at in one go; None if it has no more."""
        found = await self._cold.blocks.find(stored, offset, INDEX_BYTES)
        selected = found.footer.select(found.data, found.start, offset, INDEX_BYTES)
        if selected is None and found.error is not None:
            raise found.error
        return selected

    def _failed(self, want: Want, error: KorvetError) -> PartitionRead:
        if isinstance(error, TierAway):
            return PartitionRead(want.partition.index, KAFKA_STORAGE_ERROR)
        if isinstance(error, Damaged):
            return PartitionRead(want.partition.index, CORRUPT_MESSAGE)
        if isinstance(error, ObjectMissing):
            return PartitionRead(want.partition.index, UNKNOWN_SERVER_ERROR)
        raise again(error)


class _Moved(KorvetError):
    """Another history began during a read."""


def _repair(partition: Partition, error: KorvetError, member: Member | None) -> str:
    """What an operator can do."""
    if isinstance(error, OtherTier):
        return "start this front-end with the tier of the others; readers try again until then"
    if isinstance(error, TierAway):
        return "readers try again until the store answers: see its address, credentials and network"
    copy = "put the object back from a copy of the bucket"
    if member is None:
        return copy
    at = f"{partition.topic.name} --partition {partition.index} --before {member.next_offset} --execute"
    return f"{copy}, or give up all records before it and in it: korvet topics trim {at}"
