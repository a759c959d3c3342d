"""A front-end's cache of a partition. It can be dropped at any time: Redis is the authority."""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

from korvet.store.catalog.topic import Topic
from korvet.store.keys import PartitionKeys, TransactionLogKeys
from korvet.store.log.state.in_flight import InFlight
from korvet.store.log.state.limits import TopicLimits

GUESSED_BATCH_BYTES = 1024
_MOST_PAGES = 10_000


class Meta(NamedTuple):
    """A partition's meta hash, as far as readers need it.

    ``stable`` is the last stable offset. It is never below the start, even if a transaction that began there is open.
    ``last_aborted`` is the last offset of the last aborted transaction, ``cleaned`` the offset up to which compaction
    has read keys, ``tier_end`` the offset after the last segment; each is -1 if there is none. Redis holds the offsets
    from ``local_start`` on, which is never below the start; segments hold those below it. ``tier`` names their list.
    """

    start: int
    end: int
    epoch: int
    epochs: bytes
    stable: int
    last_aborted: int
    cleaned: int
    local_start: int = 0
    tier_end: int = -1
    tier: bytes = b""


class Page(NamedTuple):
    """Transactions that end at or below an offset, and their lowest first offset."""

    until: int
    first: int


class AbortedPages:
    """Consecutive pages of a partition's aborted transactions, from the lowest end, ``since``; see
    `korvet.store.log.reading.aborted`."""

    __slots__ = ("_epoch", "_pages", "_since")

    def __init__(self) -> None:
        self._epoch = -1
        self._since = 0
        self._pages: list[Page] = []

    def begin(self, epoch: int) -> None:
        """Forget the pages of another history."""
        if epoch != self._epoch:
            self._epoch = epoch
            self._pages.clear()

    def at(self, end: int) -> Page | None:
        """The page for transactions with this end."""
        if not self._pages or not self._since <= end <= self._pages[-1].until:
            return None
        return self._pages[bisect_left(self._pages, end, key=lambda page: page.until)]

    def add(self, since: int, page: Page) -> None:
        """Keep a page of the transactions from an end on; a page that begins before all others replaces them."""
        if not self._pages or since < self._since:
            self._since, self._pages = since, [page]
        elif since == self._pages[-1].until + 1 and len(self._pages) < _MOST_PAGES:
            self._pages.append(page)


class Ends(NamedTuple):
    """A log's end and its last stable offset; -1 if unknown."""

    end: int
    stable: int


class Partition:
    """A partition of one topic id.

    ``epoch``, ``end`` and ``start`` are the last known values, -1 if unknown. ``end`` and ``start`` never decrease
    within an epoch.
    """

    __slots__ = (
        "aborted_pages", "channel", "end", "epoch", "holds_records", "in_flight", "index", "keys", "last_epoch",
        "limits", "local_start", "marked_end", "mean_bytes", "message", "message_ends", "read_at", "reader",
        "repairing", "repairs", "replid", "run_id", "shared_at", "since", "start", "topic", "topic_id",
        "transaction_keys", "watched_at",
    )  # fmt: skip

    def __init__(self, topic: Topic, index: int, keys: TransactionLogKeys) -> None:
        self.topic = topic
        self.index = index
        self.keys = PartitionKeys(keys.log, keys.meta, keys.producers)
        self.transaction_keys = keys
        self.channel = keys.log
        """The channel on which Redis announces appends."""
        self.topic_id = topic.id.hex
        self.epoch = self.end = self.start = self.marked_end = -1
        """``marked_end`` is the offset after the last marker that this front-end wrote in the epoch."""
        self.local_start = 0
        """The last read one. Below it the log need not be looked at."""
        self.last_epoch = 0
        """The last known epoch, trusted or not; at first 0, the lowest of a log."""
        self.since = 0
        """`Wakeups.since` of the channel at the read of the known values."""
        self.message: bytes | None = None
        """The channel's message that was read last, and what it says: an epoch and the ends."""
        self.message_ends = -1, Ends(-1, -1)
        self.run_id = ""
        """The run id of the partition's server; empty if unknown."""
        self.replid = ""
        """That server's replication id."""
        self.limits: TopicLimits | None = None
        self.mean_bytes = GUESSED_BATCH_BYTES
        self.holds_records = False
        """True after a reader found an entry of one record."""
        self.reader: object = None
        """The last reader of placed batches."""
        self.read_at = -1e9
        """The loop's time of that read."""
        self.shared_at = -1e9
        """The loop's time of the last change of readers."""
        self.aborted_pages = AbortedPages()
        self.in_flight = InFlight()
        self.watched_at = -1e9
        """The loop's time at which a reader last waited at the end."""
        self.repairs = 0
        """The number of repeated appends."""
        self.repairing = 0
        """The number of appends in repair."""

    def note(self, epoch: int, end: int, start: int) -> bool:
        """Take over a reply's values; false if they are of an older epoch."""
        if epoch != self.epoch:
            if epoch < self.epoch:
                return False
            self.epoch, self.end, self.start, self.marked_end = epoch, end, start, -1
            self.last_epoch = epoch
            return True
        if end > self.end:
            self.end = end
        if start > self.start:
            self.start = start
        return True

    def note_marker(self, epoch: int, end: int, start: int) -> None:
        """Take over the reply to a marker, which may have moved the last stable offset."""
        if self.note(epoch, end, start):
            self.marked_end = max(self.marked_end, end)

    def trimmed(self, start: int) -> None:
        """Take over the log's start after a trim."""
        if 0 <= self.start < start:
            self.start = start

    def forget(self) -> None:
        """Forget everything that depends on the log's history."""
        self.epoch = self.end = self.start = self.marked_end = -1
        self.since = 0
        self.run_id = ""
