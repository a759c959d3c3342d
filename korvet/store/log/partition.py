"""What one front-end remembers of a partition. All of it can be forgotten at any time: the truth is in Redis."""

from __future__ import annotations

from typing import NamedTuple

from korvet.store.catalog import Topic
from korvet.store.keys import PartitionKeys, TransactionLogKeys
from korvet.store.log.in_flight import InFlight
from korvet.store.log.limits import Limits

GUESSED_BATCH_BYTES = 1024


class RecentBatch(NamedTuple):
    """A stored batch that is kept in memory; ``next_offset`` is the offset just past it."""

    next_offset: int
    leader_epoch: int
    data: bytes | memoryview


class Partition:
    """A partition of one topic id.

    ``epoch``, ``end`` and ``start`` are what was last heard of it, -1 where nothing was; ``end`` and ``start`` never go
    back within an epoch.
    """

    __slots__ = (
        "end", "epoch", "in_flight", "index", "keys", "limits", "mean_bytes", "recent", "repairing",
        "repairs", "run_id", "since", "start", "topic", "topic_id", "transaction_keys", "watched_at",
    )  # fmt: skip

    def __init__(self, topic: Topic, index: int, keys: TransactionLogKeys) -> None:
        self.topic = topic
        self.index = index
        self.keys = PartitionKeys(keys.log, keys.meta, keys.producers)
        self.transaction_keys = keys
        self.topic_id = topic.id.hex
        self.epoch = self.end = self.start = -1
        self.since = 0
        """`Wakeups.since` of the channel when what is known was asked for."""
        self.run_id = ""
        """Of the server that holds the partition; empty where it must be asked for."""
        self.limits: Limits | None = None
        self.mean_bytes = GUESSED_BATCH_BYTES
        self.recent: dict[int, RecentBatch] = {}
        """By base offset."""
        self.in_flight = InFlight()
        self.watched_at = -1e9
        """When somebody last stood at the end and waited, by the loop's clock."""
        self.repairs = 0
        """How often an append was sent again."""
        self.repairing = 0
        """How many appends are being sent again now."""

    @property
    def channel(self) -> str:
        """Where appends are announced."""
        return self.keys.log

    def note(self, epoch: int, end: int, start: int) -> bool:
        """Take over what a reply told; false when it told of an older epoch than is known."""
        if epoch != self.epoch:
            if epoch < self.epoch:
                return False
            self.epoch, self.end, self.start = epoch, end, start
            return True
        if end > self.end:
            self.end = end
        if start > self.start:
            self.start = start
        return True

    def trimmed(self, start: int) -> None:
        """Take over where the log starts after a trim."""
        if 0 <= self.start < start:
            self.start = start

    def forget(self) -> None:
        """Distrust everything that depends on the log's history."""
        self.epoch = self.end = self.start = -1
        self.run_id = ""
