"""A raw table of numbered records, and the records of a topic."""

from __future__ import annotations

import time
from collections import defaultdict
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, TopicPartition
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from korvet.pipeline.lake import RAW_COLUMNS, Lake
from korvet.pipeline.lake.table import COMPRESSION

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


def read_topic(bootstrap: str, topic: str, partitions: int) -> dict[int, list[Record]]:
    """All committed records, by partition, in order."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "readers", "isolation.level": "read_committed"}
    reader = Consumer({**settings, "enable.partition.eof": "true", "enable.auto.commit": "false"})
    reader.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
    found: dict[int, list[Record]] = defaultdict(list)
    ended: set[int | None] = set()
    deadline = time.monotonic() + 120
    try:
        while len(ended) < partitions:
            assert time.monotonic() < deadline, f"{topic} is not read to its end"
            for message in reader.consume(1000, 0.5):
                error = message.error()
                if error is not None:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    ended.add(message.partition())
                    continue
                partition = message.partition()
                assert partition is not None
                headers = message.headers()
                # The library's types allow text for keys, values and headers, though it reads bytes.
                found[partition].append((message.key(), message.value(), headers, message.timestamp()[1]))  # type: ignore[arg-type]
    finally:
        reader.close()
    return dict(found)
