"""The rounds of a rival: each claims the table, as an archive with a checkpoint of its own does, and adds one row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from pyspark.sql import SparkSession

from korvet.pipeline.lake import RAW_COLUMNS
from korvet.pipeline.lake.table import Table
from korvet.pipeline.plan.proofs import Proven
from korvet.pipeline.plan.table import Overtaken

TOPIC, TOPIC_ID = "t", "id"
TIME = datetime(2026, 1, 2, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    """A row that the table took: a rival would report to the broker that it is archived."""

    offset: int
    value: str


def play(spark: SparkSession, path: str, rival: str, rounds: int) -> Iterator[Acknowledged | None]:
    """Play rounds: the row of each, or None for a round in which another rival overtook this one.

    :raises PipelineError: if Delta fails in another way.
    """
    for number in range(rounds):
        value = f"{rival}-{number}"
        try:
            yield _add(spark, path, value)
        except Overtaken:
            yield None


def _add(spark: SparkSession, path: str, value: str) -> Acknowledged:
    table = Table(spark, path, {})
    table.claim(TOPIC, TOPIC_ID, value)
    offset = table.next_offset(0)
    row = (b"k", value.encode(), None, TOPIC, 0, offset, TIME, 0, TIME.date())
    rows = spark.createDataFrame([row], RAW_COLUMNS).coalesce(1)
    proven = Proven(topic=TOPIC, topic_id=TOPIC_ID, generation=1, batch_id=0, offsets={0: offset + 1}, checkpoint=value)
    table.append(rows, proven)
    return Acknowledged(offset=offset, value=value)


def differences(spark: SparkSession, path: str, acknowledged: list[Acknowledged]) -> list[str]:
    """The faults of the table: acknowledged rows that it lacks, and offsets that it has twice or not at all."""
    rows = spark.read.format("delta").load(path).select("offset", "value").collect()
    found = {(row.offset, bytes(row.value).decode()) for row in rows}
    times = Counter(row.offset for row in rows)
    lost = [f"lost: {each}" for each in acknowledged if (each.offset, each.value) not in found]
    doubled = [f"offset {offset} is there {count} times" for offset, count in sorted(times.items()) if count > 1]
    missing = [f"offset {offset} is not there" for offset in range(max(times, default=-1)) if not times[offset]]
    return lost + doubled + missing


def compactions(spark: SparkSession, path: str) -> int:
    """The number of commits with files joined by maintenance."""
    return spark.sql(f"DESCRIBE HISTORY delta.`{path}`").where("operation = 'OPTIMIZE'").count()
