"""The rows of a raw table, for a replay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce
from operator import or_
from typing import Final, NamedTuple

from delta.tables import DeltaTable
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from korvet.pipeline.errors import PipelineError
from korvet.pipeline.failures import failure
from korvet.pipeline.lake.files import newest_snapshot
from korvet.pipeline.replay.config import Offsets, ReplayConfig

SPARK_ERRORS: Final = (PySparkException, Py4JError)
_COLUMNS: Final = ("key", "value", "headers", "partition", "offset", "timestamp", "date")
_FIGURES: Final = ("partition", "offset", "timestamp")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A raw table: its newest version, and its id, which differs for a new table there."""

    path: str
    id: str
    newest: int


class Span(NamedTuple):
    """A partition's rows: from ``begin`` up to but without ``end``, and their first time."""

    records: int
    begin: int
    end: int
    oldest_ms: int


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

    :raises PipelineError: if the version does not exist, or no longer does.
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


def after_places(rows: DataFrame, starts: Mapping[int, int]) -> DataFrame:
    """The rows from each begun partition's next offset on, and all rows of other partitions."""
    if not starts:
        return rows
    return rows.where(f.coalesce(f.col("offset") >= _of_partition(starts), f.lit(True)))


def spans(rows: DataFrame) -> dict[int, Span]:
    """The rows of each partition, by one pass over partition, offset and timestamp; none without rows.

    :raises PipelineError: a row lacks one of the three.
    """
    lacking = reduce(or_, [f.col(name).isNull() for name in _FIGURES])
    found = rows.groupBy("partition").agg(
        f.count("*").alias("records"),
        f.min("offset").alias("begin"),
        (f.max("offset") + 1).alias("end"),
        f.min(f.unix_millis("timestamp")).alias("oldest_ms"),
        f.count_if(lacking).alias("lacking"),
    )
    of_partitions = found.collect()
    if lacking := sum(row["lacking"] for row in of_partitions):
        raise PipelineError(
            f"{lacking} rows have no {', '.join(_FIGURES[:-1])} or {_FIGURES[-1]}, which no archive writes; choose a "
            "range without them, or restore the table"
        )
    return {row["partition"]: Span(*(row[name] for name in Span._fields)) for row in of_partitions}


def window(rows: DataFrame, begins: Mapping[int, int], ends: Mapping[int, int]) -> DataFrame:
    """The rows of these partitions between two offsets, for Python. A task of Spark has a partition's, in order.

    :returns: with columns partition, offset, key, value, headers as JSON and ms, the timestamp.
    """
    # By these, files and parts of files are skipped.
    rows = rows.where(f.col("partition").isin(sorted(begins)))
    rows = rows.where((f.col("offset") >= min(begins.values())) & (f.col("offset") < max(ends.values())))
    rows = rows.where((f.col("offset") >= _of_partition(begins)) & (f.col("offset") < _of_partition(ends)))
    # Handing a list of structs to Python, even a null one, can take Spark longer than all else together.
    headers, ms = f.to_json("headers").alias("headers"), f.unix_millis("timestamp").alias("ms")
    number = {partition: task for task, partition in enumerate(sorted(begins))}
    rows = rows.select("partition", "offset", "key", "value", headers, ms)
    # A task has one partition, and Spark sorts by one number without comparing rows.
    return rows.repartitionById(len(number), _of_partition(number).cast("int")).sortWithinPartitions("offset")


def _of_partition(numbers: Mapping[int, int]) -> Column:
    """The number of a row's partition; null for a partition without one. The keys are a topic's partitions.

    Spark indexes an array. In a map it would try one partition after the other, for each row.
    """
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
