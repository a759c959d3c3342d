"""Offset ranges, one for each task. Source: Spark's KafkaOffsetRangeCalculator."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, NamedTuple

from pyspark.sql.datasource import InputPartition

from korvet.tier.manifest import Member

TASK_BYTES: Final = 64 << 20
"""About the bytes of segments that one task of a batch query reads, before decompression."""
REMEDY: Final = "set failOnDataLoss to false"
"""The advice for a query that should continue without lost records: the end of every message about them."""


class Sealed(NamedTuple):
    """The offsets of a partition that segments hold, none of them deleted: from ``start`` up to but without ``end``.

    ``members`` follow each other, and ``folder`` is where their objects are.
    """

    start: int
    end: int
    folder: str
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class OffsetRange(InputPartition):
    """Offsets from ``start`` up to but without ``end``; markers and compaction leave fewer records.

    A task reads from ``sealed`` what that has from ``start`` on, and the rest from the broker.
    """

    topic: str
    partition: int
    start: int
    end: int
    sealed: Sealed | None = None

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
        found.append(replace(whole, start=start, end=end))
        start = end
    return found


def with_segments(wanted: OffsetRange, sealed: Sealed | None) -> OffsetRange:
    """The range with the segments that it needs; as it is if segments do not hold its start."""
    if sealed is None or not sealed.start <= wanted.start < sealed.end:
        return wanted
    needed = [one for one in sealed.members if wanted.start < one.next_offset and one.first_offset < wanted.end]
    return replace(wanted, sealed=sealed._replace(members=tuple(needed)))


def by_segments(wanted: OffsetRange, sealed: Sealed | None) -> list[OffsetRange]:
    """The range in parts of about `TASK_BYTES` of segments, and what is before and after them."""
    if sealed is None:
        return [wanted]
    cuts, size_bytes = {wanted.start, wanted.end, sealed.start, sealed.end}, 0
    for one in sealed.members:
        pieces = -(-one.size_bytes // TASK_BYTES)
        size_bytes += one.size_bytes
        if size_bytes >= TASK_BYTES:
            offsets = one.next_offset - one.first_offset
            cuts |= {one.first_offset + offsets * piece // pieces for piece in range(1, pieces + 1)}
            size_bytes = 0
    inside = sorted(cut for cut in cuts if wanted.start <= cut <= wanted.end)
    return [with_segments(replace(wanted, start=start, end=end), sealed) for start, end in pairwise(inside)]
