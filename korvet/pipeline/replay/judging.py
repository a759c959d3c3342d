"""A look of Spark at a replay's rows: the statistics of Delta's files, or a pass over the rows still to write.

A range, a rate, an older version or a replay that goes on takes the pass, and so does a table whose files do not say.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from korvet.pipeline.errors import PipelineError
from korvet.pipeline.plan.judged import MOST_FILES, File, Judged, statistics
from korvet.pipeline.replay.table import Table

_FIGURES: Final = ("partition", "offset", "timestamp")


def listed(table: Table) -> list[File]:
    """The files of the table's newest version, or one more than `MOST_FILES` of them."""
    files = table.files.select("size", "stats", f.col("deletionVector").isNull().alias("is_whole"))
    return [
        File(size_bytes=file["size"], is_whole=file["is_whole"], statistics=statistics(file["stats"]))
        for file in files.limit(MOST_FILES + 1).collect()
    ]


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
