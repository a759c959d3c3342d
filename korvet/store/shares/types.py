"""Acquisitions and acknowledgements of a share partition, as values. Codes are Kafka's, 0 is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Literal, NamedTuple

Mode = Literal["batches", "records"]
"""Whole batches, also beyond the number of records (Kafka's BATCH_OPTIMIZED), or exactly so many (RECORD_LIMIT)."""
Isolation = Literal["uncommitted", "committed"]
Reset = Literal["earliest", "latest", ""] | int
"""Where a share partition begins that has no start yet: an offset, or empty if the caller has yet to find it."""


class AcknowledgeType(IntEnum):
    """KIP-932's and KIP-1222's types, and one of korvet's own. Source: AcknowledgeType"""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4
    UNDELIVERED = 5
    """The front-end acquired the records and did not send them: they are available, and this delivery does not count.
    A greater number is undelivered, too: the time in ms since 1970 before which nobody gets them. No client may send
    these."""


class Acknowledgement(NamedTuple):
    """The offsets from first to last, and one `AcknowledgeType` for all of them, or a time in ms since 1970."""

    first: int
    last: int
    type: int


ANY_CONNECTION: Final = "*"
"""The nonce for acknowledgements and releases of what a member acquired by any of its connections."""


class Acquirer(NamedTuple):
    """Who acquires: a member by one of its connections. The nonce names the connection among all front-ends'; it has
    no blanks, and may be empty for a caller without connections."""

    member_id: str
    nonce: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """A group's share.record.lock.duration.ms, share.delivery.count.limit, share.partition.max.record.locks,
    korvet.share.retry.backoff.ms and korvet.share.retry.backoff.max.ms; ``dead_letters`` is true if records that failed
    are to be copied into a topic."""

    lock_ms: int
    deliveries: int
    window: int
    backoff_ms: int = 0
    backoff_most_ms: int = 0
    dead_letters: bool = False


class AcquiredRange(NamedTuple):
    """Acquired offsets from first to last; ``deliveries`` counts this one."""

    first: int
    last: int
    deliveries: int


class Acquired(NamedTuple):
    """The outcome of an acquisition.

    ``code`` is 0; GROUP_ID_NOT_FOUND if the group has no state of this partition, UNKNOWN_TOPIC_OR_PARTITION if the
    topic is gone, or `korvet.store.contract.RETRY` if the partition has no start yet and ``reset`` was empty.

    ``ranges`` are in the order of offsets, do not overlap, and may have gaps between them. A range may hold offsets
    without a record (compaction, markers, aborted transactions): acknowledge these as gaps.
    ``start`` is the share partition's start offset, ``next`` the first offset that was never acquired.
    ``wait_ms`` is the time after which more may be available without any message: 0 for now, None if never.
    ``expired`` is the number of records whose locks this call ended. ``now_ms`` is Redis's time.
    ``acknowledged`` is what became of the acknowledgements, as `Shares.acknowledge` returns it; or
    `korvet.store.contract.RETRY` if that has to be called, for they are too many.
    """

    code: int
    start: int = -1
    next: int = -1
    ranges: Sequence[AcquiredRange] = ()
    wait_ms: int | None = None
    expired: int = 0
    now_ms: int = -1
    acknowledged: int = 0


class DeadLetters(NamedTuple):
    """Records from first to last that a group gave up; the cause is one of `korvet.wire.dead_letters.CAUSES`."""

    first: int
    last: int
    deliveries: int
    cause: bytes


class InFlight(NamedTuple):
    """A range that is not finished. ``state`` is available, acquired, delayed until it is available, or archiving;
    ``left_ms`` is left of the lock, without the outages that prolong it, or of the delay."""

    state: str
    first: int
    last: int
    deliveries: int
    left_ms: int = 0
    member_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharePartition:
    """A share partition. ``group_uid`` is its group's own id; start and lag are -1 before the first acquisition."""

    group_uid: str
    start: int
    next: int
    lag: int
    in_flight: Sequence[InFlight]
