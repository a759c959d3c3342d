"""Share partitions: acquire, acknowledge, release, and a group's partitions as a whole.

The Lua functions of ``lua/7-shares`` decide, each call alone. A caller that waits for records listens to the log's
channel (`Partition.channel`) and to `Shares.channel`, before it acquires; the latter's messages are the ids of groups
for which something became available, or which can take further offsets in flight.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Literal

from korvet.codes import GROUP_ID_NOT_FOUND, UNKNOWN_TOPIC_OR_PARTITION
from korvet.redis.client import Named
from korvet.store.calls import Calls
from korvet.store.contract import GONE, RETRY
from korvet.store.keys import share_partition
from korvet.store.log.partitions.partitions import Partitions
from korvet.store.log.state.partition import Partition
from korvet.store.shares.types import (
    Acknowledgement,
    Acquired,
    AcquiredRange,
    Acquirer,
    DeadLetters,
    InFlight,
    Isolation,
    Limits,
    Mode,
    Reset,
    SharePartition,
)

MOST_ACKNOWLEDGEMENTS: Final = 1000
"""The acknowledgements of one call."""
_MOST_PAGES: Final = 100
_MOST_LEASED: Final = 100
"""Dead letters that are copied before Redis finishes them."""
_LEASE_MS: Final = 60_000


class Shares:
    """The share partitions of a namespace. All methods raise StoreUnavailable, StoreFull and StoreError."""

    def __init__(self, log: Partitions, calls: Calls) -> None:
        self._log = log
        self._calls = calls
        self.group_uid: Callable[[str, Partition], Awaitable[str]] | None = None
        """Finds the own id of a group that has begun a partition, else an empty text. `ShareGroups` has it."""
        self.on_dead_letters: Callable[[Partition, str], None] | None = None
        """Called when a share partition turns out to have dead letters."""

    def channel(self, partition: Partition) -> str:
        """The channel of a partition's share groups; a message is the id of the group that may acquire more."""
        return share_partition(partition.keys, "").shares

    async def acquire(
        self,
        partition: Partition,
        group_id: str,
        acquirer: Acquirer,
        limits: Limits,
        max_records: int,
        *,
        max_bytes: int = -1,
        mode: Mode = "batches",
        isolation: Isolation = "uncommitted",
        reset: Reset = "",
        has_times: bool = False,
        acknowledgements: Sequence[Acknowledgement] = (),
        is_awaited: bool = True,
    ) -> Acquired:
        """Acquire records for a member, after ending the locks that are over.

        Available records come first. An acquisition is written before this returns: what is not sent has to be given
        back as `AcknowledgeType.UNDELIVERED`, or stays locked.

        :param max_records: at least 1; see `Mode`.
        :param max_bytes: of batches that were never acquired, the first of which always fits; -1 for any number.
        :param has_times: true if records may wait for times ahead: then only unfinished ones count in the window.
        :param acknowledgements: at most `MOST_ACKNOWLEDGEMENTS`, which the call makes first.
        :param is_awaited: see `Calls.call`: a client that has left acquires nothing.
        """
        for is_last in (False, True):
            code, start, next_offset, flat, wait_ms, expired, archiving, now_ms, acknowledged = await self._call(
                "korvet_share_acquire",
                partition,
                group_id,
                is_awaited=is_awaited,
                member=acquirer.member_id,
                nonce=acquirer.nonce,
                max_records=max_records,
                max_bytes=max_bytes,
                mode=mode,
                isolation=isolation,
                lock_ms=limits.lock_ms,
                limit=limits.deliveries,
                window=limits.window,
                backoff_ms=limits.backoff_ms,
                backoff_most_ms=limits.backoff_most_ms,
                dead_letters=int(limits.dead_letters),
                reset=reset,
                times=int(has_times),
                acknowledgements=_flat(acknowledgements),
            )
            if code != GROUP_ID_NOT_FOUND or is_last or not await self._begin_again(partition, group_id):
                break
        self._noted(partition, group_id, archiving)
        ranges = [AcquiredRange(*flat[at : at + 3]) for at in range(0, len(flat), 3)]
        wait = None if wait_ms < 0 else wait_ms
        return Acquired(code, start, next_offset, ranges, wait, expired, now_ms, code or acknowledged)

    async def _begin_again(self, partition: Partition, group_id: str) -> bool:
        """Begin a share partition whose keys were lost. False if the group has not begun it, or does not exist."""
        group_uid = "" if self.group_uid is None else await self.group_uid(group_id, partition)
        return bool(group_uid) and await self.begin(partition, group_id, group_uid) == 0

    async def acknowledge(
        self,
        partition: Partition,
        group_id: str,
        acquirer: Acquirer,
        acknowledgements: Sequence[Acknowledgement],
        limits: Limits,
        *,
        is_awaited: bool = False,
    ) -> int:
        """Acknowledge records, all or none of them. Returns a Kafka error code.

        INVALID_RECORD_STATE: the member does not hold one of them by this connection, or its lock is over.
        INVALID_REQUEST: one was never acquired, or the acknowledgements overlap or go backwards.
        GROUP_ID_NOT_FOUND, UNKNOWN_TOPIC_OR_PARTITION: as for `acquire`.

        More than 1000 acknowledgements or ranges are first checked and then carried out in several calls. If a lock
        ends between the two, those before it stay acknowledged.
        """
        if len(acknowledgements) <= MOST_ACKNOWLEDGEMENTS:
            code, _ = await self._acknowledge(
                partition, group_id, acquirer, acknowledgements, limits, "all", is_awaited=is_awaited
            )
            if code != RETRY:
                return code
        parts: tuple[Literal["check", "apply"], ...] = ("check", "apply")
        for part in parts:
            for at in range(0, len(acknowledgements), MOST_ACKNOWLEDGEMENTS):
                left = acknowledgements[at : at + MOST_ACKNOWLEDGEMENTS]
                while left:
                    code, further = await self._acknowledge(
                        partition, group_id, acquirer, left, limits, part, is_awaited=is_awaited
                    )
                    if code != 0:
                        return code
                    left = [one._replace(first=max(one.first, further)) for one in left if 0 <= further <= one.last]
        return 0

    async def _acknowledge(
        self,
        partition: Partition,
        group_id: str,
        acquirer: Acquirer,
        acknowledgements: Sequence[Acknowledgement],
        limits: Limits,
        part: Literal["all", "check", "apply"],
        *,
        is_awaited: bool,
    ) -> tuple[int, int]:
        code, _, further, archiving = await self._call(
            "korvet_share_acknowledge",
            partition,
            group_id,
            is_awaited=is_awaited,
            member=acquirer.member_id,
            nonce=acquirer.nonce,
            lock_ms=limits.lock_ms,
            limit=limits.deliveries,
            backoff_ms=limits.backoff_ms,
            backoff_most_ms=limits.backoff_most_ms,
            dead_letters=int(limits.dead_letters),
            part=part,
            acknowledgements=_flat(acknowledgements),
        )
        self._noted(partition, group_id, archiving)
        return code, further

    async def release(
        self,
        partition: Partition,
        group_id: str,
        acquirer: Acquirer,
        limits: Limits,
        which: Literal["own", "others", "any"] = "own",
    ) -> int:
        """Release what a member acquired: when its session or connection ends. Returns the number of records.

        :param acquirer: an empty member id is every member.
        :param which: ``own`` is what this connection acquired, ``others`` what the member acquired by other
            connections, before it came by this one.
        """
        released = further = 0
        while further >= 0:
            _, count, further, archiving = await self._call(
                "korvet_share_release",
                partition,
                group_id,
                member=acquirer.member_id,
                nonce=acquirer.nonce,
                limit=limits.deliveries,
                backoff_ms=limits.backoff_ms,
                backoff_most_ms=limits.backoff_most_ms,
                dead_letters=int(limits.dead_letters),
                which=which,
                offset=further,
            )
            self._noted(partition, group_id, archiving)
            released += count
        return released

    async def dead_letters(self, partition: Partition, group_id: str, owner: str) -> Sequence[DeadLetters]:
        """Lease some dead letters of a share partition; empty without any that nobody else leases."""
        _, flat = await self._call(
            "korvet_share_dead_letters", partition, group_id, owner=owner, lease_ms=_LEASE_MS, most=_MOST_LEASED
        )
        return [DeadLetters(*flat[at : at + 4]) for at in range(0, len(flat), 4)]

    async def finish_copied(
        self, partition: Partition, group_id: str, owner: str, letters: Sequence[DeadLetters]
    ) -> None:
        """Finish leased dead letters."""
        spans = [offset for one in letters for offset in (one.first, one.last)]
        await self._call("korvet_share_copied", partition, group_id, owner=owner, spans=spans)

    def _noted(self, partition: Partition, group_id: str, archiving: int) -> None:
        if archiving and self.on_dead_letters is not None:
            self.on_dead_letters(partition, group_id)

    async def begin(self, partition: Partition, group_id: str, group_uid: str) -> int:
        """Begin a share partition, whose start the first acquisition finds; one that has begun stays as it is.

        Returns a Kafka error code; GROUP_ID_NOT_FOUND if a newer group of this id has begun.

        :param group_uid: the group's own id, such as ``cgp_`` with a ULID: greater for a group that is made anew.
        """
        code, _ = await self._call("korvet_share_set", partition, group_id, id=group_uid, start=-1, mode="begin")
        return int(code)

    async def move(self, partition: Partition, group_id: str, group_uid: str, start: int) -> int:
        """Set the start of a share partition of a group without members, which forgets locks and counts; -1 to have the
        first acquisition find it. Returns a Kafka error code."""
        code, _ = await self._call("korvet_share_set", partition, group_id, id=group_uid, start=start, mode="move")
        return int(code)

    async def delete(self, partition: Partition, group_id: str, group_uid: str = "") -> bool:
        """Remove a share partition, unless it is of another group than ``group_uid``. True if there was one."""
        code, deleted = await self._call("korvet_share_delete", partition, group_id, id=group_uid)
        return code == 0 and bool(deleted)

    async def describe(self, partition: Partition, group_id: str, *, has_ranges: bool = True) -> SharePartition | None:
        """Describe a share partition; None if there is none, or the topic is gone.

        :param has_ranges: false to leave out the ranges in flight, which may be thousands.
        """
        texts: list[bytes] = []
        cursor = 0 if has_ranges else -1
        for _ in range(_MOST_PAGES):
            code, uid, start, next_offset, lag, now_ms, page, cursor = await self._call(
                "korvet_share_describe", partition, group_id, cursor=cursor
            )
            if code != 0:
                return None
            texts += page
            if cursor < 0:
                break
        in_flight = sorted((_in_flight(text.decode(), now_ms) for text in texts), key=lambda one: one.first)
        return SharePartition(group_uid=uid.decode(), start=start, next=next_offset, lag=lag, in_flight=in_flight)

    async def _call(
        self, function: str, partition: Partition, group_id: str, *, is_awaited: bool = False, **named: Named
    ) -> Any:
        keys = share_partition(partition.keys, group_id)
        named |= {"topic_id": partition.topic_id, "group": group_id}
        reply = await self._calls.call(function, keys, named, is_awaited=is_awaited)
        if reply[0] == GONE and await self._log.restore(partition):
            reply = await self._calls.call(function, keys, named, is_awaited=is_awaited)
        if reply[0] == GONE:
            reply[0] = UNKNOWN_TOPIC_OR_PARTITION
        return reply


def _flat(acknowledgements: Sequence[Acknowledgement]) -> list[int]:
    return [int(number) for one in acknowledgements for number in one]


def _in_flight(text: str, now_ms: int) -> InFlight:
    state, first, last, count, _, *lock = text.split(" ", 8)
    if not lock:
        return InFlight(state, int(first), int(last), int(count))
    ends, _, _, member_id = lock
    return InFlight(state, int(first), int(last), int(count), max(int(ends) - now_ms, 0), member_id)
