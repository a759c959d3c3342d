"""Batches just appended, or read at the end of a log, to serve its followers from memory.

A batch is immutable once it has an offset in an epoch. A reader trusts it only together with an end that Redis
announced for the very same epoch (`korvet.store.log.latest`), so the stream stays the authority.
"""

from __future__ import annotations

from collections import deque

from korvet.store.log.partition import Partition, RecentBatch

_ENTRY_BYTES = 200  # of the objects around a batch


class RecentBatches:
    """All recent batches of a front-end; beyond the budget the oldest are dropped first."""

    def __init__(self, budget_bytes: int) -> None:
        self.size_bytes = 0
        self._budget_bytes = budget_bytes
        self._order: deque[tuple[Partition, int, RecentBatch]] = deque()

    def add(self, partition: Partition, base_offset: int, batch: RecentBatch) -> None:
        """Keep a batch, unless one of this offset is kept already."""
        if partition.recent.setdefault(base_offset, batch) is not batch:
            return
        self._order.append((partition, base_offset, batch))
        self.size_bytes += len(batch.data) + _ENTRY_BYTES
        while self.size_bytes > self._budget_bytes:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        partition, base_offset, batch = self._order.popleft()
        self.size_bytes -= len(batch.data) + _ENTRY_BYTES
        if partition.recent.get(base_offset) is batch:
            del partition.recent[base_offset]

    def clear(self) -> None:
        """Forget everything."""
        for partition, _, _ in self._order:
            partition.recent.clear()
        self._order.clear()
        self.size_bytes = 0
