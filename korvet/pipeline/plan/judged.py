"""What is known of a replay's rows before it writes any: their number, partitions, and first and last times.

The statistics of Delta's files give them for a whole table, unless a file lacks them, has deleted rows, or has rows
without a partition, offset or time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final

import msgspec

from korvet.configs.json_values import UNREADABLE

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MOST_FILES: Final = 10_000
"""The driver takes the statistics of at most so many files: some megabytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Figures of the rows still to write.

    :param records: their number.
    :param partitions: numbers of partitions, in order: of all that have rows, and perhaps of others.
    :param oldest_ms: the oldest time in ms since 1970, and ``newest_ms`` the newest one.
    :param timeless: how many have the very time 0. Librdkafka takes that time for none.
    :param ends: the offset just past each partition's last row; empty if the rows themselves were not read.
    """

    records: int
    partitions: Sequence[int]
    oldest_ms: int
    newest_ms: int
    timeless: int
    ends: Mapping[int, int]


class _Bounds(msgspec.Struct):
    """The least or the greatest figures of a file's rows."""

    partition: Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
    timestamp: Annotated[datetime, msgspec.Meta(tz=True)]


class _Nulls(msgspec.Struct):
    """How many rows of a file lack a figure."""

    partition: int
    offset: int
    timestamp: int


class _Statistics(msgspec.Struct, rename="camel"):
    """A file's statistics in Delta's protocol, as far as they are needed here."""

    num_records: Annotated[int, msgspec.Meta(ge=0)]
    min_values: _Bounds
    max_values: _Bounds
    null_count: _Nulls


_read_statistics: Final = msgspec.json.Decoder(_Statistics).decode
_NO_NULLS: Final = _Nulls(partition=0, offset=0, timestamp=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A file's entry in Delta's log.

    :param is_whole: none of its rows was deleted.
    :param statistics: None if it has none, or others than an archive's files have.
    """

    size_bytes: int
    is_whole: bool
    statistics: _Statistics | None


def statistics(text: str | None) -> _Statistics | None:
    """A file's statistics in Delta's log; None if there are none, or others than an archive's files have."""
    try:
        return _read_statistics(text or "")
    except UNREADABLE:
        return None


def row_bytes(files: Sequence[File]) -> float | None:
    """The files' bytes per row by their statistics; None if these do not say."""
    known = [(file.size_bytes, file.statistics.num_records) for file in files if file.statistics is not None]
    rows = sum(records for _, records in known)
    return sum(size for size, _ in known) / rows if rows else None


def statistics_of_files(files: Sequence[File]) -> Judged | None:
    """Figures of all rows of the files from the files' statistics, without reading any row.

    None if the statistics do not say: no files or more than `MOST_FILES`, files without statistics, with deleted rows
    or with rows that lack a figure, or times that may be 0.

    Source: Delta's protocol, per-file statistics. Times in it are cut to ms, as those of records are.
    """
    known = [file.statistics for file in files if file.is_whole and file.statistics is not None]
    if not files or len(files) > MOST_FILES or len(known) < len(files):
        return None
    oldest_ms = min(_ms(file.min_values.timestamp) for file in known)
    if oldest_ms <= 0 or any(file.null_count != _NO_NULLS for file in known):
        return None
    first, last = min(file.min_values.partition for file in known), max(file.max_values.partition for file in known)
    return Judged(
        records=sum(file.num_records for file in known),
        partitions=range(first, last + 1),
        oldest_ms=oldest_ms,
        newest_ms=max(_ms(file.max_values.timestamp) for file in known),
        timeless=0,
        ends={},
    )


def _ms(time: datetime) -> int:
    return (time - _EPOCH) // timedelta(milliseconds=1)
