"""The records of one batch, from either source.

``format("korvet")`` has Spark plan each query in two Python processes. The archive knows its ranges and needs none: the
tasks' Python processes are the only ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from korvet.pipeline.archive.config import ArchiveConfig
from korvet.pipeline.plan.batch import Batch
from korvet.pipeline.plan.losses import UnreadableRange
from korvet.pipeline.plan.positions import Partition
from korvet.pipeline.source.options import ReadOptions, batch_options
from korvet.pipeline.source.ranges import OffsetRange, Sealed, by_segments
from korvet.pipeline.source.readers import read_range
from korvet.pipeline.source.rows import row_schema
from korvet.pipeline.typed import JsonVerdicts

# Spark tries a task four times, so a broker has two minutes to come back.
_POLL_TIMEOUT_MS: Final = "30000"
_MANY_TASKS: Final = 32


def read(
    spark: SparkSession,
    config: ArchiveConfig,
    topic: str,
    batch: Batch,
    verdicts: JsonVerdicts | None,
    sealed: Mapping[Partition, Sealed],
) -> DataFrame:
    """The records of a batch, of which at least one partition has some.

    :param verdicts: adds the records' verdicts as a column.
    :param sealed: what segments hold. Only korvet's source reads it, and only it leaves out what is unreadable.
    """
    begins, new = batch.begins, {number: end for number, end in batch.ends.items() if end > batch.begins[number]}
    options = {
        **config.kafka_options,
        "assign": json.dumps({topic: sorted(new)}),
        "includeHeaders": "true",
        "failOnDataLoss": str(config.fail_on_data_loss).lower(),
        "kafkaConsumer.pollTimeoutMs": _POLL_TIMEOUT_MS,
    }
    if batch.source == "korvet":
        wanted = [OffsetRange(topic, number, begins[number], end) for number, end in sorted(new.items())]
        ranges = [part for each in wanted for part in _readable(each, batch.unreadable)]
        ranges = [part for each in ranges for part in by_segments(each, sealed.get((topic, each.partition)))]
        return read_ranges(spark, ranges, options, verdicts)
    options["startingOffsets"] = json.dumps({topic: {str(number): begins[number] for number in new}})
    options["endingOffsets"] = json.dumps({topic: {str(number): end for number, end in new.items()}})
    records = spark.read.format(batch.source).options(**options).load()
    return records if verdicts is None else verdicts.on(records)


def _readable(wanted: OffsetRange, unreadable: Iterable[UnreadableRange]) -> list[OffsetRange]:
    """The parts of a range without the unreadable ones, which are in order."""
    parts, start = [], wanted.start
    for gap in unreadable:
        if gap.partition == wanted.partition:
            parts.append(OffsetRange(wanted.topic, wanted.partition, start, gap.start))
            start = gap.end
    parts.append(OffsetRange(wanted.topic, wanted.partition, start, wanted.end))
    return [part for part in parts if part.size > 0]


def read_ranges(
    spark: SparkSession, ranges: Sequence[OffsetRange], options: Mapping[str, str], verdicts: JsonVerdicts | None = None
) -> DataFrame:
    """The records of the ranges, as ``format("korvet")`` has their columns; many ranges share a task.

    :param options: as for ``format("korvet")``; the ranges stand for its offsets.
    :param verdicts: one more column, made by the process that reads the values, so they need not move to another one.
    An unreadable batch ends the query, whatever the options say of lost data (`place_in` finds it in the error).

    :raises PipelineError: for options that cannot be followed.
    """
    chosen = batch_options(options)
    # A task of a few records takes longer to start than to read.
    tasks = max(1, min(len(ranges), max(_MANY_TASKS, 2 * spark.sparkContext.defaultParallelism)))
    numbers = spark.range(0, len(ranges), 1, tasks)
    columns = row_schema(include_headers=chosen.include_headers)
    if verdicts is not None:
        columns = StructType([*columns, verdicts.field])
    return numbers.mapInArrow(partial(_read, tuple(ranges), chosen, verdicts), columns)


def _read(
    ranges: Sequence[OffsetRange],
    options: ReadOptions,
    verdicts: JsonVerdicts | None,
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            for rows in read_range(ranges[number], options, skip_unreadable=False):
                if verdicts is not None:
                    rows = rows.append_column(verdicts.field.name, verdicts.of(rows.column("value")))
                yield rows
