"""A raw table of numbered records, and the records of a topic."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from korvet.pipeline.lake import RAW_COLUMNS, Lake
from korvet.pipeline.lake.table import COMPRESSION
from tests.pipeline import written

BEGIN_MS = 1_700_000_000_000
"""The timestamp of the first record; each later record is a millisecond younger."""
Record = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]] | None, int]
"""Key, value, headers, timestamp in ms."""


def numbered(spark: SparkSession, count: int, partitions: int, *, first: int = 0, size_bytes: int = 0) -> DataFrame:
    """Rows with all columns made of their number, see `record`. Offsets have gaps, as after transactions."""
    number = f.col("id")
    text = number.cast("string")
    rows = spark.range(first, first + count).select(
        f.when(number % 7 > 0, f.encode(text, "UTF-8")).alias("key"),
        f.when(number % 11 > 0, f.encode(f.rpad(text, max(size_bytes, 12), "."), "UTF-8")).alias("value"),
        f.when(
            number % 3 == 0,
            f.array(
                f.struct(f.lit("n").alias("key"), f.encode(text, "UTF-8").alias("value")),
                f.struct(f.lit("none").alias("key"), f.lit(None).cast("binary").alias("value")),
            ),
        ).alias("headers"),
        f.lit("numbers").alias("topic"),
        (number % partitions).cast("int").alias("partition"),
        f.floor(f.floor(number / partitions) * 10 / 9).alias("offset"),
        f.timestamp_millis(number + BEGIN_MS).alias("timestamp"),
        f.lit(0).alias("timestampType"),
    )
    rows = rows.withColumn("date", f.to_date("timestamp"))
    return rows.select(*(f.col(field.name).cast(field.dataType) for field in RAW_COLUMNS))


def record(number: int, size_bytes: int = 0) -> Record:
    """The record that `numbered` makes of a number."""
    text = str(number).encode()
    return (
        text if number % 7 else None,
        text.ljust(max(size_bytes, 12), b".") if number % 11 else None,
        [("n", text), ("none", None)] if number % 3 == 0 else None,
        BEGIN_MS + number,
    )


def offset(number: int, partitions: int) -> int:
    """The record's offset in the table."""
    return number // partitions * 10 // 9


def write(rows: DataFrame, lake: Path | str, topic: str) -> str:
    """Append to the topic's raw table; returns its path."""
    path = Lake(str(lake)).raw(topic)
    rows.write.format("delta").option("compression", COMPRESSION).mode("append").partitionBy("date").save(path)
    return path


def read_topic(bootstrap: str, topic: str) -> dict[int, list[Record]]:
    """All committed records, by partition, in order."""
    found: dict[int, list[Record]] = defaultdict(list)
    for one in written.read_topic(bootstrap, topic):
        found[one.partition].append((one.key, one.value, one.headers or None, one.timestamp_ms))
    return dict(found)
