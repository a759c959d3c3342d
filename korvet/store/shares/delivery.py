"""The records of what a member acquires: an acquisition, the read of its offsets, and the return of what was not read.

An acquisition comes before the read, because Redis decides it. So the read may find fewer records: a batch that
compaction removed, records of an aborted transaction, or more bytes than the answer may have. The first two are gaps,
acknowledged at once, for they are nobody's. The last is given back, and does not count as a delivery. So are records
with a time ahead in the group's header for it: Redis keeps the time.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Final, Literal, NamedTuple

import anyio
import structlog

from korvet.codes import NOT_LEADER_OR_FOLLOWER, OFFSET_OUT_OF_RANGE
from korvet.errors import KorvetError, forget_frames
from korvet.redis.wakeup import Wakeups
from korvet.store.contract import RETRY
from korvet.store.log.appending.judge import is_short
from korvet.store.log.log import Log
from korvet.store.log.memory.budget import SMALL_BYTES, Share
from korvet.store.log.memory.room import PartitionRead, Want
from korvet.store.log.state.partition import Partition
from korvet.store.outcomes import settled
from korvet.store.shares.delivered import Aborted, Delivered, add, delay, delivered
from korvet.store.shares.shares import Shares
from korvet.store.shares.supplies import SharedSupply, Supplies
from korvet.store.shares.supply import Waiter
from korvet.store.shares.types import (
    ANY_CONNECTION,
    Acknowledgement,
    AcknowledgeType,
    Acquired,
    AcquiredRange,
    Acquirer,
    Isolation,
    Limits,
    Mode,
    Reset,
)
from korvet.wire.batch import Batch, headers_in
from korvet.wire.contents import times_in

log = structlog.get_logger()

_NEAR: Final = 100
"""The offsets between two ranges that one read goes over."""
_MOST_READS: Final = 100
_MOST_ROUNDS: Final = 10
_RELEASES_AT_ONCE: Final = 100
_MOST_KEPT: Final = 256
_MOST_KEPT_BYTES: Final = SMALL_BYTES
_MOST_KEPT_TIMES: Final = 1000
"""The records of a read whose times are all known: a few kilobytes can hold millions."""
_QUICK_BYTES: Final = 8 << 10
"""The bytes of short batches that the loop itself opens."""
_MS: Final = timedelta(milliseconds=1)


@dataclass(slots=True)
class Joined:
    """Acknowledgements that the next acquisition makes first. ``outcome`` is None until then; then a Kafka error code,
    `korvet.store.contract.RETRY` if `Shares.acknowledge` has to make them, or the call's failure."""

    acknowledgements: Sequence[Acknowledgement]
    outcome: int | KorvetError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a member wants of a share partition.

    ``reset`` is where a share partition without a start begins: with a duration, at the first record not older.
    ``batch_size`` is the number of records after which the next batch begins a range of its own. ``time_header`` names
    the header with the time before which nobody gets a record; empty if there are no such times.
    """

    group_id: str
    acquirer: Acquirer
    limits: Limits
    mode: Mode
    isolation: Isolation
    reset: Reset | timedelta
    batch_size: int
    time_header: str = ""
    joined: Joined | None = None


@dataclass(slots=True)
class Delivery:
    """What a member got of a share partition. ``code`` is a Kafka error code."""

    code: int = 0
    acquired: list[AcquiredRange] = field(default_factory=list)
    records: list[bytes | memoryview] = field(default_factory=list)
    size_bytes: int = 0
    has_gaps: bool = False
    """True if some offsets that were acquired are nobody's, or are not yet."""
    is_given_back: bool = False
    """True if something was acquired and could not be read."""
    has_lost: bool = False
    """True if the member may hold records that it has not got, and that could not be given back."""

    @property
    def count(self) -> int:
        """The number of acquired offsets."""
        return sum(one.last - one.first + 1 for one in self.acquired)


class _Found(NamedTuple):
    """A read, the headers of its batches, and the times of its records (`times_in`)."""

    read: PartitionRead
    headers: Sequence[Batch]
    times: Mapping[int, int]


class _Kept(NamedTuple):
    """A small read: the members of a group that get few records each take them from the same batch, one after another.

    It stays valid like entries in memory (`korvet.store.log.memory.cache`): batches do not change within an epoch.
    """

    since: int
    epoch: int
    is_committed: bool
    first: int
    next: int
    found: _Found
    time_header: str

    def serves(self, want: Want, since: int, time_header: str) -> bool:
        """True if it has the batch of a read's first offset."""
        valid = since, want.partition.epoch, want.is_committed, time_header
        is_valid = (self.since, self.epoch, self.is_committed, self.time_header) == valid
        return is_valid and self.first <= want.offset < self.next and self.found.read.size_bytes <= want.max_bytes


KeptReads = OrderedDict[Partition, _Kept]
"""The small reads of all namespaces of a process, the least recent first."""


class _Release(NamedTuple):
    group_id: str
    acquirer: Acquirer
    limits: Limits
    partition: Partition


class Deliveries:
    """The deliveries of a namespace's share groups at one front-end.

    :param kept: the small reads of all namespaces; by default it has its own.
    """

    def __init__(self, logs: Log, shares: Shares, wakeups: Wakeups, kept: KeptReads | None = None) -> None:
        self.supplies = Supplies(wakeups, shares)
        self._logs = logs
        self._shares = shares
        self._wakeups = wakeups
        self._kept = OrderedDict() if kept is None else kept
        self._releases: deque[_Release] = deque()
        self._has_releases = anyio.Event()

    # ------------------------------------------------------------------ releases

    def release_later(self, group_id: str, acquirer: Acquirer, limits: Limits, partitions: Iterable[Partition]) -> None:
        """Have `run` release what a member acquired by a connection that has ended, or whose session has."""
        self._releases += (_Release(group_id, acquirer, limits, partition) for partition in partitions)
        self._has_releases.set()

    async def release_others(
        self, group_id: str, acquirer: Acquirer, limits: Limits, partitions: Iterable[Partition]
    ) -> None:
        """Release what a member acquired by other connections than this one: of those, nobody may be left to do so.

        What cannot be released now stays locked until its lock ends.
        """
        await settled(self._shares.release(one, group_id, acquirer, limits, "others") for one in partitions)

    async def run(self) -> None:
        """Make the releases that are due, until the namespace is left. What cannot be released stays locked until its
        lock ends."""
        try:
            while True:
                await self._has_releases.wait()
                self._has_releases = anyio.Event()
                while self._releases:
                    some = [self._releases.popleft() for _ in range(min(_RELEASES_AT_ONCE, len(self._releases)))]
                    await settled(map(self._release, some))
        finally:
            self.supplies.close()

    async def _release(self, one: _Release) -> None:
        """As `Shares.release`; what fails unforeseen ends no other task."""
        which: Literal["own", "any"] = "any" if one.acquirer.nonce == ANY_CONNECTION else "own"
        try:
            await self._shares.release(one.partition, one.group_id, one.acquirer, one.limits, which)
        except KorvetError as error:
            forget_frames(error)
        except Exception:
            log.exception("what a share group's member acquired could not be released", group=one.group_id)

    # ------------------------------------------------------------------ deliveries

    async def deliver(
        self,
        supply: SharedSupply,
        waiter: Waiter | None,
        wanted: Wanted,
        max_records: int,
        max_bytes: int,
        share: Share | None,
        pending_until: float,
        *,
        is_first: bool,
    ) -> Delivery:
        """Acquire records and read them; again if only gaps were acquired.

        :param waiter: the request's place in the supply's queue, if it has waited there.
        :param max_bytes: the first batch of a first delivery is returned however large it is.
        :param share: as for `Log.read`.
        :param pending_until: the loop's time until which to wait for a tier.
        :param is_first: true if the answer holds nothing yet. Only then it waits for memory for the records.
        :raises StoreUnavailable, StoreFull, StoreError: nothing was acquired.
        """
        for _ in range(_MOST_ROUNDS):
            acquired = await self._acquire(supply, waiter, wanted, max_records, max_bytes)
            if acquired.code or not acquired.ranges:
                return Delivery(acquired.code)
            found = await self._read(
                supply.partition, wanted, acquired, max_bytes, share, pending_until, is_first=is_first
            )
            if found.acquired or found.code or found.has_lost or not found.has_gaps:
                return found
            waiter = None
        return Delivery()

    async def acknowledge(self, partition: Partition, wanted: Wanted) -> None:
        """Make the acknowledgements that no acquisition can make soon."""
        joined = wanted.joined
        if joined is not None:
            try:
                joined.outcome = await self._shares.acknowledge(
                    partition, wanted.group_id, wanted.acquirer, joined.acknowledgements, wanted.limits
                )
            except KorvetError as error:
                joined.outcome = error

    async def _acquire(
        self, supply: SharedSupply, waiter: Waiter | None, wanted: Wanted, max_records: int, max_bytes: int
    ) -> Acquired:
        began, acquired = supply.begin(waiter), None
        try:
            reset = "" if isinstance(wanted.reset, timedelta) else wanted.reset
            acquired = await self._acquire_from(supply.partition, wanted, max_records, max_bytes, reset)
            if acquired.code == RETRY and isinstance(wanted.reset, timedelta):
                reset = await self._offset_of(supply.partition, wanted.reset)
                acquired = await self._acquire_from(supply.partition, wanted, max_records, max_bytes, reset)
            if not acquired.code:
                supply.learn(acquired.wait_ms or None)
            return acquired
        finally:
            is_known = acquired is not None and not acquired.code
            supply.end(began, has_more=acquired.wait_ms == 0 if acquired is not None and is_known else None)

    async def _acquire_from(
        self, partition: Partition, wanted: Wanted, max_records: int, max_bytes: int, reset: Reset
    ) -> Acquired:
        has_times, limits = bool(wanted.time_header), wanted.limits
        joined = wanted.joined if wanted.joined is not None and wanted.joined.outcome is None else None
        try:
            acquired = await self._shares.acquire(
                partition,
                wanted.group_id,
                wanted.acquirer,
                limits,
                # Each record may have a time of its own, and then is a range of its own, also in a batch of millions.
                min(max_records, limits.window) if has_times else max_records,
                max_bytes=max_bytes,
                mode="records" if has_times else wanted.mode,
                isolation=wanted.isolation,
                reset=reset,
                has_times=has_times,
                acknowledgements=() if joined is None else joined.acknowledgements,
                # What a client has acknowledged counts even if it has left since.
                is_awaited=joined is None,
            )
        except KorvetError as error:
            if joined is not None:
                joined.outcome = error
            raise
        if joined is not None:
            joined.outcome = acquired.acknowledged
        return acquired

    async def _offset_of(self, partition: Partition, age: timedelta) -> Reset:
        """The first offset with a record not older than a duration.

        Source: SharePartition.startOffsetDuringInitialization
        """
        since = int(time.time() * 1000) - age // _MS
        timed = await self._logs.offset_for_time(partition, since, await self._logs.meta(partition))
        return "latest" if timed is None or timed.offset < 0 else timed.offset

    async def _read(
        self,
        partition: Partition,
        wanted: Wanted,
        acquired: Acquired,
        max_bytes: int,
        share: Share | None,
        pending_until: float,
        *,
        is_first: bool,
    ) -> Delivery:
        """Read what was acquired, and return what was not read, or is not due."""
        found, split = Delivery(), Delivered(unread=list(acquired.ranges))
        try:
            for _ in range(_MOST_READS):
                left, left_bytes = split.unread, max_bytes - found.size_bytes
                if not left or (found.size_bytes and left_bytes <= 0):
                    break
                want = _want(partition, left, left_bytes, wanted)
                want.goes_on = acquired.wait_ms == 0 and want.until == acquired.next
                if (kept := self._kept_for(want, wanted.time_header)) is not None:
                    _take(found, split, kept.found, wanted.batch_size, acquired.now_ms)
                    continue
                since = self._wakeups.since(partition.channel)
                may_exceed = is_first and not found.size_bytes
                (read,) = await self._logs.read([want], left_bytes, share, is_first=may_exceed, waits=is_first)
                if may_exceed and not (read.records or read.code or read.pending):
                    # Compaction may have removed all that was acquired. The next batch shows it.
                    (read,) = await self._logs.read([replace(want, until=-1, max_bytes=1)], 1, share, is_first=True)
                if read.pending is not None and await _is_done(read.pending, pending_until):
                    continue
                if not read.records:
                    found.code = 0 if read.code == OFFSET_OUT_OF_RANGE else read.code
                    break
                one = await self._opened(read, left, wanted.time_header)
                _take(found, split, one, wanted.batch_size, acquired.now_ms)
                self._keep(want, since, one, wanted.time_header)
                if share is not None and found.size_bytes == max_bytes - left_bytes and read.size_bytes > SMALL_BYTES:
                    # The answer holds nothing of it, and may wait for records, or for the memory of the next read.
                    share.hold(max(0, share.held_bytes - read.size_bytes))
        except KorvetError as error:
            forget_frames(error)
            found.code = NOT_LEADER_OR_FOLLOWER
        found.acquired, found.is_given_back = split.acquired, bool(split.unread)
        found.has_gaps = bool(split.gaps or split.delayed)
        if found.acquired:
            # With an error a client would drop the records. The next request meets it again.
            found.code = 0
        found.has_lost = not await self._return(partition, wanted, split)
        return found

    async def _opened(self, read: PartitionRead, left: Sequence[AcquiredRange], time_header: str) -> _Found:
        """A read, in a thread if the times in it may take long. Of many records only those in ranges have times."""
        headers, times = list(headers_in(read.records)), dict[int, int]()
        if time_header:
            every = _offsets(headers)
            is_few = len(every) <= _MOST_KEPT_TIMES
            wanted = every if is_few else {offset for one in left for offset in range(one.first, one.last + 1)}
            work = partial(times_in, read.records, time_header.encode(), wanted)
            is_quick = read.size_bytes <= _QUICK_BYTES and all(map(is_short, headers))
            times = work() if is_quick else await self._logs.in_thread(work)
        return _Found(read, headers, times)

    def _kept_for(self, want: Want, time_header: str) -> _Kept | None:
        kept = self._kept.get(want.partition)
        if kept is None or not kept.serves(want, self._wakeups.since(want.partition.channel), time_header):
            return None
        self._kept.move_to_end(want.partition)
        return kept

    def _keep(self, want: Want, since: int, found: _Found, time_header: str) -> None:
        every, epoch = _offsets(found.headers), want.partition.epoch
        has_many = time_header and len(every) > _MOST_KEPT_TIMES
        if found.read.size_bytes > _MOST_KEPT_BYTES or has_many or not since:
            return
        self._kept[want.partition] = _Kept(since, epoch, want.is_committed, every.start, every.stop, found, time_header)
        if len(self._kept) > _MOST_KEPT:
            self._kept.popitem(last=False)

    async def _return(self, partition: Partition, wanted: Wanted, split: Delivered) -> bool:
        """Acknowledge gaps, and give back what was not read or is not due; false if that failed."""
        kinds = (split.gaps, AcknowledgeType.GAP), (split.unread, AcknowledgeType.UNDELIVERED)
        given = [Acknowledgement(one.first, one.last, type) for ranges, type in kinds for one in ranges]
        returned = sorted(given + split.delayed)
        if returned:
            try:
                await self._shares.acknowledge(partition, wanted.group_id, wanted.acquirer, returned, wanted.limits)
            except KorvetError as error:
                forget_frames(error)
                return False
        return True


def _offsets(headers: Sequence[Batch]) -> range:
    """The offsets of batches."""
    return range(headers[0].base_offset, headers[-1].base_offset + headers[-1].last_offset_delta + 1)


def _want(partition: Partition, left: Sequence[AcquiredRange], max_bytes: int, wanted: Wanted) -> Want:
    """A read of the first ranges that are near each other."""
    until = left[0].last + 1
    for one in left[1:]:
        if one.first - until > _NEAR:
            break
        until = one.last + 1
    return Want(partition, left[0].first, max_bytes, is_committed=wanted.isolation == "committed", until=until)


def _take(found: Delivery, split: Delivered, one: _Found, batch_size: int, now_ms: int) -> None:
    """Put what was read into a delivery."""
    read = one.read
    aborted = [Aborted(*each) for each in read.aborted or ()]
    part = delivered(split.unread, one.headers, aborted, batch_size)
    if one.times:
        delay(part, one.times, now_ms)
    split.gaps += part.gaps
    split.delayed += part.delayed
    split.unread = part.unread
    if part.acquired:
        for each in part.acquired:
            add(split.acquired, each, True, batch_size)
        found.records += read.records
        found.size_bytes += read.size_bytes


async def _is_done(pending: asyncio.Future[None], until: float) -> bool:
    await asyncio.wait([pending], timeout=max(0.0, until - asyncio.get_running_loop().time()))
    return pending.done()
