"""Ranges of offsets as a frame, without a plan of Spark's source: the tasks' Python processes are the only ones.

``format("korvet")`` has Spark plan each query in two Python processes. A driver that knows its ranges needs none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from korvet.pipeline.source.options import ReadOptions, batch_options
from korvet.pipeline.source.ranges import OffsetRange
from korvet.pipeline.source.readers import read_range
from korvet.pipeline.source.rows import row_schema

_MANY_TASKS: Final = 32


class Made(Protocol):
    """A column made of the records' values."""

    @property
    def field(self) -> StructField:
        """Its name and type."""
        ...

    def of(self, values: pa.Array) -> pa.Array:
        """The column for these values. The tasks call it: it is pickled."""
        ...


def read_ranges(
    spark: SparkSession, ranges: Sequence[OffsetRange], options: Mapping[str, str], made: Made | None = None
) -> DataFrame:
    """The records of the ranges, as ``format("korvet")`` has their columns; many ranges share a task.

    :param options: as for ``format("korvet")``; the ranges stand for its offsets.
    :param made: one more column, made by the process that reads the values, so they need not move to another one.
    An unreadable batch ends the query, whatever the options say of lost data (`place_in` finds it in the error).

    :raises PipelineError: for options that cannot be followed.
    """
    chosen = batch_options(options)
    # A task of a few records takes longer to start than to read.
    tasks = max(1, min(len(ranges), max(_MANY_TASKS, 2 * spark.sparkContext.defaultParallelism)))
    numbers = spark.range(0, len(ranges), 1, tasks)
    columns = row_schema(include_headers=chosen.include_headers)
    if made is not None:
        columns = StructType([*columns, made.field])
    return numbers.mapInArrow(partial(_read, tuple(ranges), chosen, made), columns)


def _read(
    ranges: Sequence[OffsetRange], options: ReadOptions, made: Made | None, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            for rows in read_range(ranges[number], options, skip_unreadable=False):
                yield rows if made is None else rows.append_column(made.field.name, made.of(rows.column("value")))
