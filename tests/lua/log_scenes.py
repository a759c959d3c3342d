"""Logs as Kafka's tests of UnifiedLog and LogCleaner set them up: producers count their sequences, and compaction has a
time of its own. Source: LogTestUtils, LogCleanerTest
"""

from __future__ import annotations

from collections import defaultdict
from itertools import count

import redis

from korvet.store.background.compaction.due import Compaction
from korvet.store.background.retention import Retention, enforce
from korvet.store.log.memory.room import PartitionRead, Want
from korvet.wire.batch import CONTROL
from tests.lua.partition import Loop, OnServer
from tests.lua.partition_model import Kind, Sent
from tests.lua.transaction import NONE
from tests.store.keyed import Pair, batches, records
from tests.store.logs import EVERYTHING

NOW_MS = 1_700_000_000_000
LAST = b"last"
"""The key of the records after the compacted ones."""


class Scene(OnServer):
    """A partition; producers have epoch 0. Keys are given as numbers, and a value is the key's text."""

    def __init__(self, server: redis.Redis, loop: Loop) -> None:
        super().__init__(server, loop)
        self.loop = loop
        self.now_ms = NOW_MS
        self._sequences: dict[int, int] = defaultdict(int)
        self._ordinals = count(1)
        self._open: dict[int, int] = {}

    # ------------------------------------------------------------------ writing

    def plain(self, *keys: int, timestamp: int = 1000) -> int:
        """A batch without a producer; its base offset."""
        return self.pairs(*(_pair(key) for key in keys), timestamp=timestamp)

    def pairs(self, *pairs: Pair, timestamp: int = 1000, placed: bool = False) -> int:
        appended = self.append(Sent(records=pairs, timestamp=timestamp), placed=placed)  # type: ignore[arg-type]
        assert appended.code == NONE
        return appended.base_offset

    def produce(self, producer_id: int, *keys: int, sequence: int | None = None, timestamp: int = 1000) -> int:
        """A batch of an idempotent producer: its next one unless a sequence is given."""
        return self._produce(producer_id, keys, sequence, timestamp, is_transactional=False)

    def write(self, producer_id: int, *keys: int, timestamp: int = 1000) -> int:
        """A batch of a producer's open transaction; the transaction begins if none is open."""
        self._open.setdefault(producer_id, next(self._ordinals))
        return self._produce(producer_id, keys, None, timestamp, is_transactional=True)

    def _produce(
        self, producer_id: int, keys: tuple[int, ...], sequence: int | None, timestamp: int, *, is_transactional: bool
    ) -> int:
        first = self._sequences[producer_id] if sequence is None else sequence
        sent = Sent(
            records=tuple(_pair(key) for key in keys), timestamp=timestamp, producer_id=producer_id, epoch=0,
            first=first, is_transactional=is_transactional, ordinal=self._open.get(producer_id),
        )  # fmt: skip
        appended = self.append(sent, placed=False)
        assert appended.code == NONE, appended
        self._sequences[producer_id] = max(self._sequences[producer_id], first + len(keys))
        return appended.base_offset

    def end(self, producer_id: int, kind: Kind) -> int:
        """The marker of a producer's transaction, which may be empty; returns its offset."""
        ordinal = self._open.pop(producer_id, None) or next(self._ordinals)
        return self.mark(producer_id, 0, ordinal, kind, 1000).base_offset

    # ------------------------------------------------------------------ removal

    def clean(self, *, retention_ms: int = 0, min_lag_ms: int = 0, is_ended: bool = True) -> bool:
        """Compact the whole log: a further batch after it stays out of reach."""
        if is_ended:
            self.pairs((LAST, b"last"), timestamp=1000)
        settings = Compaction(
            min_lag_ms=min_lag_ms, max_lag_ms=2**62, min_dirty_ratio=0, delete_retention_ms=retention_ms
        )
        return self.compact(settings, self.now_ms)

    def retain(self, *, ms: int = -1, size_bytes: int = -1) -> int:
        """Apply the topic's retention; returns the log start then."""
        limits = Retention(ms=ms, bytes=size_bytes)
        self.loop.run(enforce, self.loop.reader, self.partition, limits, self.now_ms)
        return self.start

    # ------------------------------------------------------------------ content

    @property
    def start(self) -> int:
        return int(self.meta()["start"])

    @property
    def end_offset(self) -> int:
        return int(self.meta()["end"])

    def fetch(self, offset: int = 0, max_bytes: int = EVERYTHING, *, is_committed: bool = False) -> PartitionRead:
        """A read from Redis, not from this front-end's memory."""
        self.loop.reader.forget()
        want = Want(self.partition, offset, max_bytes, is_committed=is_committed)
        (found,) = self.loop.run(self.loop.reader.read, [want], EVERYTHING)
        return found

    def keys_left(self) -> list[int]:
        """The offsets of records, without the batch that `clean` appended."""
        return [int(key) for _, key, _ in records(self.fetch(self.start)) if key and key != LAST]

    def offsets_left(self) -> list[int]:
        """The offsets of records and markers, without the batch that `clean` appended."""
        found = self.fetch(self.start)
        markers = [batch.base_offset for batch, _ in batches(found) if batch.attributes & CONTROL]
        return sorted([*markers, *(offset for offset, key, _ in records(found) if key != LAST)])

    def aborted(self) -> list[tuple[int, ...]]:
        """First and last offset and producer id of the aborted transactions that readers hear of."""
        return [tuple(map(int, member.split()[:3])) for member, _ in self.members(self.keys.aborted)]


def _pair(key: int) -> tuple[bytes, bytes | None]:
    return b"%d" % key, b"%d" % key


def bases(found: PartitionRead) -> list[int]:
    """Base offsets of the batches that were read."""
    return [batch.base_offset for batch, _ in batches(found)]
