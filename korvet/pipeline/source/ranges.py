"""Offset ranges: what one task reads, and how a query's data is shared out over tasks and triggers.

Source: Spark's KafkaOffsetRangeCalculator, and KafkaMicroBatchStream.rateLimit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from korvet.pipeline.source.offsets import Offsets


@dataclass(frozen=True, slots=True)
class OffsetRange(InputPartition):
    """Offsets from ``start`` up to but without ``end``; by markers and compaction there may be fewer records."""

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
    """One range for each task: none that is empty, none over the most records, and about the least number of them."""
    found = [each for each in ranges if each.size > 0]
    if max_records_per_partition is not None:
        most = max_records_per_partition
        found = [part for each in found for part in _divide(each, math.ceil(each.size / most))]
    if min_partitions is not None and min_partitions > len(found):
        found = _split_large(found, min_partitions)
    return found


def rate_limit(limit: int, start: Offsets, latest: Offsets) -> Offsets:
    """The end of a trigger's batch of about ``limit`` offsets: each partition in proportion to what it has.

    :param start: of every partition of ``latest`` that is still there; others end at their latest.
    """
    sizes = {place: end - start[place] for place, end in latest.items() if end > start.get(place, end)}
    total = sum(sizes.values())

    def end_of(place: tuple[str, int], end: int) -> int:
        if place not in sizes:
            return end
        share = limit * (sizes[place] / total)
        # A small partition gets at least one.
        return min(end, start[place] + (math.ceil(share) if share < 1 else math.floor(share)))

    return {place: end_of(place, end) for place, end in latest.items()}


def _split_large(ranges: Sequence[OffsetRange], min_partitions: int) -> list[OffsetRange]:
    """Share the tasks out over the large ranges only, after each small one got its own."""
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
