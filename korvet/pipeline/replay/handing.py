"""The rows of a replay on their way from Spark to Python.

Spark hands them over in batches of Arrow. After each row it asks how many bytes the batch has, which takes longer than
writing a small row to it. So small rows come without that question, in batches of few rows, and large rows do not come:
a task ends before the first one, and the replay goes on there with batches that Spark bounds by their bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import add
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from korvet.pipeline.replay.table import of_partition
from korvet.pipeline.session import session_like

_MOST_ROWS: Final = 1000
_MOST_BYTES: Final = 64 * 1024 * 1024
_ROWS_SETTING: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
_BYTES_SETTING: Final = "spark.sql.execution.arrow.maxBytesPerBatch"
_NO_QUESTION: Final = 2**31 - 1
LARGE_BYTES: Final = _MOST_BYTES // _MOST_ROWS
"""A row with more bytes in key, value and headers is large."""
_SMALL_BYTES: Final = 4096
_CONTENTS: Final = ("key", "value", "headers", "ms")


def session_of_replay(spark: SparkSession) -> SparkSession:
    """A session like the caller's, for a replay alone, with few rows in a batch."""
    session = session_like(spark)
    most = int(session.conf.get(_ROWS_SETTING) or 0)
    session.conf.set(_ROWS_SETTING, most if 0 < most < _MOST_ROWS else _MOST_ROWS)
    return session


def seem_small(rows: int, size_bytes: int) -> bool:
    """Whether so many rows in files of so many bytes are small as a rule.

    If not, large ones may be among them, and they take so long anyway that Spark's question hardly counts.
    """
    return size_bytes <= rows * _SMALL_BYTES


def bound_batches(session: SparkSession, *, only_small: bool) -> None:
    """Let the number of rows alone bound batches of a `session_of_replay` if all rows are small, else bytes, too."""
    session.conf.set(_BYTES_SETTING, _NO_QUESTION if only_small else _MOST_BYTES)


def by_partition(
    rows: DataFrame, partitions: Sequence[int], starts: Mapping[int, int], *, only_small: bool
) -> DataFrame:
    """Rows `behind` starts, for Python. One task of Spark has all rows of a partition, in order.

    :param partitions: the partitions of all rows.
    :param only_small: leave a large row with its partition and offset alone.
    :returns: with columns partition, offset, key, value, headers as JSON and ms, the timestamp.
    """
    if starts:
        # By these two, files and parts of files are skipped.
        rows = rows.where(f.col("partition").isin(list(partitions)))
        rows = rows.where(f.col("offset") >= min(starts.get(partition, 0) for partition in partitions))
    # Handing a list of structs to Python, even a null one, takes Spark longer than all else together.
    headers, ms = f.to_json("headers").alias("headers"), f.unix_millis("timestamp").alias("ms")
    rows = rows.select("partition", "offset", "key", "value", headers, ms)
    if only_small:
        rows = rows.select("partition", "offset", *(_if_small(name) for name in _CONTENTS))
    number = {partition: task for task, partition in enumerate(partitions)}
    rows = rows.repartitionById(len(partitions), of_partition(number).cast("int"))
    # A task has one partition, and Spark sorts by one number without comparing rows.
    return rows.sortWithinPartitions("offset")


def _if_small(name: str) -> Column:
    sizes = [f.coalesce(f.octet_length(each), f.lit(0)).cast("long") for each in ("key", "value", "headers")]
    return f.when(reduce(add, sizes) <= LARGE_BYTES, f.col(name)).alias(name)
