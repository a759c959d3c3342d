"""The records of one batch, from either source."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from korvet.pipeline.archive.config import ArchiveConfig
from korvet.pipeline.archive.unreadable import readable
from korvet.pipeline.plan.batch import Ends
from korvet.pipeline.plan.losses import UnreadableRange
from korvet.pipeline.plan.positions import Partition
from korvet.pipeline.source.frame import read_ranges
from korvet.pipeline.source.ranges import OffsetRange, Sealed, by_segments
from korvet.pipeline.typed import JsonVerdicts

# Spark tries a task four times, so a broker has two minutes to come back.
_POLL_TIMEOUT_MS: Final = "30000"


def read(
    spark: SparkSession,
    config: ArchiveConfig,
    topic: str,
    begins: Ends,
    ends: Ends,
    unreadable: Sequence[UnreadableRange],
    verdicts: JsonVerdicts | None,
    sealed: Mapping[Partition, Sealed],
) -> DataFrame:
    """The records from ``begins`` up to ``ends``, exclusive. At least one partition has records.

    :param unreadable: ranges to leave out. Only korvet's source names any.
    :param verdicts: adds the records' verdicts as a column.
    :param sealed: what segments hold. Only korvet's source reads it.
    """
    new = {number: end for number, end in ends.items() if end > begins[number]}
    options = {
        **config.kafka_options,
        "assign": json.dumps({topic: sorted(new)}),
        "includeHeaders": "true",
        "failOnDataLoss": str(config.fail_on_data_loss).lower(),
        "kafkaConsumer.pollTimeoutMs": _POLL_TIMEOUT_MS,
    }
    if config.source == "korvet":
        wanted = [OffsetRange(topic, number, begins[number], end) for number, end in sorted(new.items())]
        ranges = [part for each in wanted for part in readable(each, unreadable)]
        ranges = [part for each in ranges for part in by_segments(each, sealed.get((topic, each.partition)))]
        return read_ranges(spark, ranges, options, verdicts)
    options["startingOffsets"] = json.dumps({topic: {str(number): begins[number] for number in new}})
    options["endingOffsets"] = json.dumps({topic: {str(number): end for number, end in new.items()}})
    records = spark.read.format(config.source).options(**options).load()
    return records if verdicts is None else verdicts.on(records)
