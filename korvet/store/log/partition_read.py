"""The outcome of a Fetch in one partition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class EpochEnd(NamedTuple):
    """The end of a leader epoch, to which a fetcher must truncate (KIP-595)."""

    epoch: int
    end_offset: int


@dataclass(slots=True)
class PartitionRead:
    """The outcome of a Fetch in one partition; offsets are -1 if the partition could not be read.

    ``records`` are buffers of whole batches, and ``size_bytes`` is their sum. ``diverging`` is sent from version
    12 on. ``aborted`` holds aborted transactions as producer id and first offset; None is a null list. Kafka sends a
    list, perhaps an empty one, to readers of committed records, and for partitions that it did not read. ``is_cut``
    says that the partition has more, within the reader's own limits.
    """

    partition: int
    code: int
    high_watermark: int = -1
    log_start: int = -1
    last_stable: int = -1
    records: list[bytes | memoryview] = field(default_factory=list)
    size_bytes: int = 0
    diverging: EpochEnd | None = None
    aborted: Sequence[tuple[int, int]] | None = None
    is_cut: bool = False
