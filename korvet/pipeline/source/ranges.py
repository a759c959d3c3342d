"""Offset ranges, one for each task. Source: Spark's KafkaOffsetRangeCalculator."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql.datasource import InputPartition

REMEDY: Final = "set failOnDataLoss to false"
"""The advice for a query that should continue without lost records: the end of every message about them."""


@dataclass(frozen=True, slots=True)
class OffsetRange(InputPartition):
    """Offsets from ``start`` up to but without ``end``; markers and compaction leave fewer records."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


def split(
    ranges: Iterable[OffsetRange], min_partitions: int | None, max_records_per_partition: int | None = None
) -> list[OffsetRange]:
    """One range for each task. No range is empty or above the most records; about as many as the least number."""
    found = [each for each in ranges if each.size > 0]
    if max_records_per_partition is not None:
        most = max_records_per_partition
        found = [part for each in found for part in _divide(each, math.ceil(each.size / most))]
    if min_partitions is not None and min_partitions > len(found):
        found = _split_large(found, min_partitions)
    return found


def _split_large(ranges: Sequence[OffsetRange], min_partitions: int) -> list[OffsetRange]:
    """Give each small range a task, and share the other tasks among the large ranges."""
    total = sum(each.size for each in ranges)
    small = {each for each in ranges if _parts(each.size, total, min_partitions) == 1}
    total -= sum(each.size for each in small)
    left = max(min_partitions - len(small), 1)
    return [
        part
        for each in ranges
        for part in _divide(each, 1 if each in small else _parts(each.size, total, left))
        if part.size > 0
    ]


def _parts(size: int, total: int, min_partitions: int) -> int:
    # Halves are rounded up, as Java's Math.round does.
    return max(math.floor(size / total * min_partitions + 0.5), 1)


def _divide(whole: OffsetRange, parts: int) -> list[OffsetRange]:
    found, start = [], whole.start
    for part in range(parts):
        end = start + (whole.end - start) // (parts - part)
        found.append(OffsetRange(whole.topic, whole.partition, start, end))
        start = end
    return found
