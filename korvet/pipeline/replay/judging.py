"""Facts about a replay's rows, found before it writes any: their number, partitions, and first and last times.

The statistics of Delta's files give them for a whole table, unless a file lacks them, has deleted rows, or has rows
without a partition, offset or time. Then, and for a range, a rate, an older version or a replay that goes on, one pass
reads these columns of the rows still to write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce
from operator import or_
from typing import Annotated, Final

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from korvet.configs.json_values import UNREADABLE
from korvet.pipeline.errors import PipelineError
from korvet.pipeline.replay.table import Table

_FIGURES: Final = ("partition", "offset", "timestamp")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MOST_FILES: Final = 10_000
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


def listed(table: Table) -> list[File]:
    """The files of the table's newest version, or one more than `_MOST_FILES` of them."""
    files = table.files.select("size", "stats", f.col("deletionVector").isNull().alias("is_whole"))
    return [
        File(size_bytes=file["size"], is_whole=file["is_whole"], statistics=statistics(file["stats"]))
        for file in files.limit(_MOST_FILES + 1).collect()
    ]


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

    None if the statistics do not say: no files or more than `_MOST_FILES`, files without statistics, with deleted rows
    or with rows that lack a figure, or times that may be 0.

    Source: Delta's protocol, per-file statistics. Times in it are cut to ms, as those of records are.
    """
    known = [file.statistics for file in files if file.is_whole and file.statistics is not None]
    if not files or len(files) > _MOST_FILES or len(known) < len(files):
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


def judge(rows: DataFrame) -> Judged | None:
    """Figures of rows by one pass over partition, offset and timestamp; None if there are no rows.

    No limit that depends on the present time is in the query: Spark would compile it anew for each replay.

    :raises PipelineError: a row lacks one of the three.
    """
    ms = f.unix_millis("timestamp")
    found = rows.groupBy("partition").agg(
        f.count("*").alias("records"),
        (f.max("offset") + 1).alias("end"),
        f.min(ms).alias("oldest_ms"),
        f.max(ms).alias("newest_ms"),
        f.count_if(ms == 0).alias("timeless"),
        f.count_if(reduce(or_, [f.col(name).isNull() for name in _FIGURES])).alias("lacking"),
    )
    of_partitions = found.collect()
    if not of_partitions:
        return None
    if lacking := sum(row["lacking"] for row in of_partitions):
        raise PipelineError(
            f"{lacking} rows have no {', '.join(_FIGURES[:-1])} or {_FIGURES[-1]}, which no archive writes; choose a "
            "range without them, or restore the table"
        )
    ends = {row["partition"]: row["end"] for row in of_partitions}
    return Judged(
        records=sum(row["records"] for row in of_partitions),
        partitions=sorted(ends),
        oldest_ms=min(row["oldest_ms"] for row in of_partitions),
        newest_ms=max(row["newest_ms"] for row in of_partitions),
        timeless=sum(row["timeless"] for row in of_partitions),
        ends=ends,
    )
