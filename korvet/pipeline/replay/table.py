"""The rows of a raw table, for a replay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce
from operator import and_, or_
from typing import Final

from delta.tables import DeltaTable
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from korvet.pipeline.errors import PipelineError
from korvet.pipeline.failures import failure
from korvet.pipeline.lake.java import newest_snapshot
from korvet.pipeline.replay.config import Offsets, ReplayConfig

SPARK_ERRORS: Final = (PySparkException, Py4JError)
_COLUMNS: Final = ("key", "value", "headers", "partition", "offset", "timestamp", "date")
_FIGURES: Final = ("partition", "offset", "timestamp")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A raw table: its newest version and that version's files, and its id, which differs for a new table there."""

    path: str
    id: str
    newest: int
    files: DataFrame


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


def open_table(spark: SparkSession, path: str, topic: str) -> Table:
    """The raw table at that path.

    :raises PipelineError: if there is no such table, or it cannot be read.
    """
    try:
        columns = DeltaTable.forPath(spark, path).toDF().columns
        snapshot = newest_snapshot(spark, path)
        table = Table(
            path=path,
            id=str(snapshot.metadata().id()),
            newest=int(snapshot.version()),
            files=DataFrame(snapshot.allFiles().toDF(), spark),
        )
    except AnalysisException as error:
        if error.getCondition() in ("DELTA_MISSING_DELTA_TABLE", "DELTA_TABLE_NOT_FOUND", "PATH_NOT_FOUND"):
            raise PipelineError(
                f"the lake has no topic {topic}: {path} is no Delta table; archive the topic, or name another lake"
            ) from None
        raise _unreadable(path, error) from None
    except SPARK_ERRORS as error:
        raise _unreadable(path, error) from None
    missing = [name for name in _COLUMNS if name not in columns]
    if missing:
        raise PipelineError(f"{path} is no raw table: it has no column {', '.join(missing)}; name another lake")
    return table


def read(spark: SparkSession, table: Table, version: int) -> DataFrame:
    """All rows of a version.

    :raises PipelineError: if the version does not exist, or not any more.
    """
    try:
        return spark.read.format("delta").option("versionAsOf", version).load(table.path)
    except SPARK_ERRORS as error:
        raise PipelineError(
            f"version {version} of {table.path} cannot be read ({failure(error)}); "
            f"to go on with a later one, name it: the newest is {table.newest}"
        ) from None


def chosen(rows: DataFrame, config: ReplayConfig) -> DataFrame:
    """The rows of the range. By date and partition Spark skips files without such rows."""
    if config.partitions is not None:
        rows = rows.where(f.col("partition").isin(sorted(set(config.partitions))))
    if config.from_offset is not None:
        rows = rows.where(_from(config.from_offset))
    if config.to_offset is not None:
        rows = rows.where(f.coalesce(f.col("offset") < _each(config.to_offset), f.lit(True)))
    if config.from_time is not None:
        rows = rows.where((f.col("timestamp") >= _time(config.from_time)) & (f.col("date") >= _date(config.from_time)))
    if config.to_time is not None:
        rows = rows.where((f.col("timestamp") < _time(config.to_time)) & (f.col("date") <= _date(config.to_time)))
    return rows


def behind(rows: DataFrame, starts: Mapping[int, int]) -> DataFrame:
    """The rows from the offset on where each begun partition goes on, and all rows of other partitions."""
    if not starts:
        return rows
    return rows.where(f.coalesce(f.col("offset") >= _of_partition(starts), f.lit(True)))


def told_by_files(files: DataFrame) -> Judged | None:
    """Figures of all rows of some files by the files' statistics, without reading any row.

    None if they do not tell: files without statistics, with deleted rows or with rows that lack a figure, no files, or
    times that may be 0.

    Source: Delta's protocol, per-file statistics. Times in it are cut to ms, as those of records are.
    """
    least, greatest = (_statistics(f"{bound}Values") for bound in ("min", "max"))
    count = _statistic("numRecords").try_cast("long")
    is_told = [each.isNotNull() for each in (count, *least, *greatest)]
    is_told += [_statistic(f"nullCount.{name}") == "0" for name in _FIGURES]
    found = files.agg(
        f.every(f.coalesce(reduce(and_, is_told, f.col("deletionVector").isNull()), f.lit(False))).alias("is_told"),
        f.sum(count).alias("records"),
        f.min(least[0]).alias("first"),
        f.max(greatest[0]).alias("last"),
        f.min(least[1]).alias("oldest_ms"),
        f.max(greatest[1]).alias("newest_ms"),
    ).first()
    assert found is not None, "an aggregate without groups is one row"
    if not found["is_told"] or found["oldest_ms"] <= 0:
        return None
    return Judged(
        records=found["records"],
        partitions=range(found["first"], found["last"] + 1),
        oldest_ms=found["oldest_ms"],
        newest_ms=found["newest_ms"],
        timeless=0,
        ends={},
    )


def _statistics(bounds: str) -> tuple[Column, Column]:
    """The bound of a file's partitions, and that of its times in ms since 1970; null where it has none."""
    return (
        _statistic(f"{bounds}.partition").try_cast("int"),
        f.unix_millis(_statistic(f"{bounds}.timestamp").try_cast("timestamp_ltz")),
    )


def _statistic(path: str) -> Column:
    return f.get_json_object("stats", f"$.{path}")


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


def by_partition(rows: DataFrame, partitions: Sequence[int], starts: Mapping[int, int]) -> DataFrame:
    """Rows `behind` starts, for Python. One task of Spark has all rows of a partition, in order.

    :param partitions: the partitions of all rows.
    :returns: with columns partition, offset, key, value, headers as JSON and ms, the timestamp.
    """
    if starts:
        # By these two, files and parts of files are skipped.
        rows = rows.where(f.col("partition").isin(list(partitions)))
        rows = rows.where(f.col("offset") >= min(starts.get(partition, 0) for partition in partitions))
    number = {partition: task for task, partition in enumerate(partitions)}
    return (
        rows.select(
            "partition",
            "offset",
            "key",
            "value",
            # Handing a list of structs to Python, even a null one, takes Spark longer than all else together.
            f.to_json("headers").alias("headers"),
            f.unix_millis("timestamp").alias("ms"),
        )
        .repartitionById(len(partitions), _of_partition(number).cast("int"))
        # A task has one partition, and Spark sorts by one number without comparing rows.
        .sortWithinPartitions("offset")
    )


def _of_partition(numbers: Mapping[int, int]) -> Column:
    """The number that belongs to a row's partition; null if none does. The partitions are those of a topic.

    Spark finds it by its index. In a map it would look, for each row, at one partition after the other.
    """
    if not numbers:
        return f.lit(None).cast("long")
    by_index = f.array(*(f.lit(numbers.get(each)) for each in range(max(numbers) + 1))).cast("array<bigint>")
    return f.get(by_index, "partition")


def _from(offsets: Offsets) -> Column:
    return f.coalesce(f.col("offset") >= _each(offsets), f.lit(True))


def _each(offsets: Offsets) -> Column:
    """The number that belongs to a row's partition; null if none does."""
    if isinstance(offsets, int):
        return f.lit(offsets)
    if not offsets:
        return f.lit(None).cast("long")
    pairs = [f.lit(number) for pair in offsets.items() for number in pair]
    return f.element_at(f.create_map(*pairs), f.col("partition")).cast("long")


def _time(time: datetime) -> Column:
    return f.timestamp_micros(f.lit((time - _EPOCH) // timedelta(microseconds=1)))


def _date(time: datetime) -> Column:
    return f.lit(time.astimezone(UTC).date())


def _unreadable(path: str, error: Exception) -> PipelineError:
    return PipelineError(f"the table at {path} cannot be read ({failure(error)}); restore it, or name another lake")
