"""The rows of a replay on their way from Spark to Python, in batches of Arrow.

After each row Spark asks how many bytes the batch has, which can take longer than writing a small row to it. So rows
come without that question, in batches of few rows, as long as they are small. Of a large row only its place comes: the
task ends before it, and the replay goes on there with batches that Spark bounds by their bytes. If the rows take much
room in the table's files, or the replay has a rate, all batches are of that kind. So at worst Spark reads the rows
twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from korvet.pipeline.replay.table import of_partition
from korvet.pipeline.session import session_like

_MOST_ROWS: Final = 1000
_MOST_BYTES: Final = 64 * 1024 * 1024
_UNBOUNDED: Final = 2**31 - 1
"""With this bound on a batch's bytes Spark does not compute them."""
_ROWS_SETTING: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
_BYTES_SETTING: Final = "spark.sql.execution.arrow.maxBytesPerBatch"
_SMALL_BYTES: Final = 4096
_CONTENTS: Final = ("key", "value", "headers", "ms")


class Batches:
    """The batches of a replay, in a session of its own.

    Lower bounds of the caller's session hold here, too.

    :ivar session: the session, like the caller's.
    :ivar large_bytes: a row with more bytes in key, value and headers is large: a batch of such rows could exceed its
    most bytes.
    """

    def __init__(self, spark: SparkSession) -> None:
        self.session = session_like(spark)
        settings: Any = spark._jsparkSession.sessionState().conf()
        rows = int(settings.arrowMaxRecordsPerBatch())
        rows = min(rows, _MOST_ROWS) if rows > 0 else _MOST_ROWS
        self._most_bytes = min(int(settings.arrowMaxBytesPerBatch()), _MOST_BYTES)
        self.large_bytes = self._most_bytes // rows
        self.session.conf.set(_ROWS_SETTING, rows)

    def hand_over(
        self, rows: DataFrame, partitions: Sequence[int], starts: Mapping[int, int], *, only_small: bool
    ) -> DataFrame:
        """Rows of this session, `by_partition`, and the session's bound of bytes for their query, the next one."""
        self.session.conf.set(_BYTES_SETTING, _UNBOUNDED if only_small else self._most_bytes)
        return by_partition(rows, partitions, starts, self.large_bytes if only_small else None)

    def seem_small(self, row_bytes: float | None) -> bool:
        """True if rows of this size in files are usually small; also for rows of an unknown size.

        Else there may be large ones among them, and they take so long anyway that Spark's question hardly counts.
        """
        return row_bytes is None or row_bytes <= min(_SMALL_BYTES, self.large_bytes)


def by_partition(
    rows: DataFrame, partitions: Sequence[int], starts: Mapping[int, int], large_bytes: int | None
) -> DataFrame:
    """The rows after these starts, for Python. One task of Spark has all rows of a partition, in order.

    :param partitions: the partitions of all rows.
    :param large_bytes: larger rows come with their partition and offset alone; their ms is null.
    :returns: with columns partition, offset, key, value, headers as JSON and ms, the timestamp.
    """
    if starts:
        # By these two, files and parts of files are skipped.
        rows = rows.where(f.col("partition").isin(list(partitions)))
        rows = rows.where(f.col("offset") >= min(starts.get(partition, 0) for partition in partitions))
    # Handing a list of structs to Python, even a null one, can take Spark longer than all else together.
    headers, ms = f.to_json("headers").alias("headers"), f.unix_millis("timestamp").alias("ms")
    rows = rows.select("partition", "offset", "key", "value", headers, ms)
    if large_bytes is not None:
        is_small = _size() <= large_bytes
        rows = rows.select("partition", "offset", *(f.when(is_small, f.col(name)).alias(name) for name in _CONTENTS))
    number = {partition: task for task, partition in enumerate(partitions)}
    rows = rows.repartitionById(len(partitions), of_partition(number).cast("int"))
    # A task has one partition, and Spark sorts by one number without comparing rows.
    return rows.sortWithinPartitions("offset")


def _size() -> Column:
    """The bytes of key, value and headers."""
    return reduce(
        add, (f.coalesce(f.octet_length(name), f.lit(0)).cast("long") for name in ("key", "value", "headers"))
    )
