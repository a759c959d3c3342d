"""The rows of a raw table, for a replay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
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
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A raw table: its newest version and that version's files, and its id, which differs for a new table there."""

    path: str
    id: str
    newest: int
    files: DataFrame


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


def after_positions(rows: DataFrame, starts: Mapping[int, int]) -> DataFrame:
    """The rows from each begun partition's next offset on, and all rows of other partitions."""
    if not starts:
        return rows
    return rows.where(f.coalesce(f.col("offset") >= of_partition(starts), f.lit(True)))


def of_partition(numbers: Mapping[int, int]) -> Column:
    """The number of a row's partition; null for a partition without one. The keys are a topic's partitions.

    Spark indexes an array. In a map it would try one partition after the other, for each row.
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
