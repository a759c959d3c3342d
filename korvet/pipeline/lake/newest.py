"""The newest record of a key, over all partitions.

Kafka orders records within a partition only. So each partition gives its last record of the key, at the highest
offset, as Kafka's compaction keeps it. The newest of these has the latest timestamp, then the highest
partition. It may be a tombstone. This depends on the records alone, not on the batches in which they come.

A batch lacks the last records of partitions that have the key only in earlier batches. Such a record wins only if it
is later than the newest record of the batch. Spark looks for such records alone: it skips files by the statistics of
timestamps, then of offsets.
Source: org.apache.kafka.storage.internals.log.Cleaner.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame, Window, WindowSpec
from pyspark.sql import functions as F


def last_records(records: DataFrame) -> DataFrame:
    """The last record of each key in each partition.

    After a loss two records may have one offset; the later timestamp wins.
    """
    last = Window.partitionBy("key", "partition").orderBy(F.desc("offset"), F.desc("timestamp"))
    # One shuffle serves this and `newest_records`.
    return _first(records.repartition("key"), last)


def newest_records(lasts: DataFrame) -> DataFrame:
    """The newest one of each key's last records."""
    return _first(lasts, Window.partitionBy("key").orderBy(F.desc("timestamp"), F.desc("partition")))


def newest_with(lasts: DataFrame, before: DataFrame) -> DataFrame:
    """The newest record of each key of a batch, in the batch or before it.

    :param lasts: the last records of the batch; persist them.
    :param before: all records before it: each partition's lower offsets.
    """
    newest = newest_records(lasts)
    later = _later(newest, before).join(lasts.select("key", "partition"), ["key", "partition"], "left_anti")
    # A partition's last record may be earlier than its other ones here, but it comes after them.
    found = later.groupBy("partition").agg(F.min("offset").alias("first")).collect()
    firsts = {row["partition"]: row["first"] for row in found}
    if not firsts:
        return newest
    candidates = before.where(_from(firsts)).join(later, ["key", "partition"], "left_semi")
    return newest_records(newest.unionByName(last_records(candidates)))


def _later(newest: DataFrame, before: DataFrame) -> DataFrame:
    """Key, partition and offset of records before the batch that are later than its newest one of their key."""
    begin = newest.agg(F.min(F.unix_micros("timestamp")).alias("us")).first()
    assert begin is not None
    old = before.where(F.col("timestamp") >= F.timestamp_micros(F.lit(begin["us"])))
    return (
        old.select("key", "partition", "offset", "timestamp")
        .alias("old")
        .join(newest.select("key", "partition", "timestamp").alias("new"), "key")
        .where("old.partition <> new.partition")
        .where("struct(old.timestamp, old.partition) > struct(new.timestamp, new.partition)")
        .select("key", "old.partition", "old.offset")
    )


def _from(firsts: Mapping[int, int]) -> str:
    return " or ".join(f"(partition = {number} and offset >= {first})" for number, first in firsts.items())


def _first(records: DataFrame, window: WindowSpec) -> DataFrame:
    return records.withColumn("_place", F.row_number().over(window)).where("_place = 1").drop("_place")
