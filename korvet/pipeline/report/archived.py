"""Figures from the lake: records and bytes over time, and the size of each day."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from korvet.pipeline.errors import PipelineError
from korvet.pipeline.failures import SPARK_ERRORS, failure
from korvet.pipeline.lake import files
from korvet.pipeline.lake.files import newest_snapshot
from korvet.pipeline.lake.layout import ARCHIVED
from korvet.pipeline.lake.proofs import is_archived, read_proven
from korvet.pipeline.plan.layout import Lake
from korvet.pipeline.plan.proofs import Unproven
from korvet.pipeline.report.figures import Day, Interval, TopicLoss

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROS_PER_S: Final = 1_000_000


def archived_topics(spark: SparkSession, lake: str) -> list[str]:
    """Topics with a raw table, sorted.

    :raises PipelineError: if the lake cannot be listed, or has no table at all.
    """
    logs = {topic: f"{Lake(lake).raw(topic)}/_delta_log" for topic in files.directories(spark, lake)}
    topics = sorted(topic for topic, log in logs.items() if files.kind(spark, log) == "directory")
    if not topics:
        raise PipelineError(f"lake {lake}: there is no archived topic in it; archive one, or name another lake")
    return topics


def intervals(
    spark: SparkSession, tables: Mapping[str, str], since: datetime, until: datetime, interval_s: float
) -> list[Interval]:
    """Records and bytes of each topic's intervals that have records, in order. Intervals begin at multiples since 1970.

    Spark reads only files with records of that time, and only the lengths of keys and values.

    :param tables: paths of raw tables by topic.
    :raises PipelineError: if a table cannot be read.
    """
    length = round(interval_s * _MICROS_PER_S)
    slot = F.floor(F.unix_micros("timestamp") / F.lit(length))
    parts = [
        _table(spark, path)
        .where(F.col("date").between(F.lit(since.date()), F.lit(until.date())))
        .where((F.col("timestamp") >= _at(since)) & (F.col("timestamp") < _at(until)))
        .select(F.lit(topic).alias("topic"), slot.alias("slot"), _size().alias("size"))
        for topic, path in tables.items()
    ]
    if not parts:
        return []
    rows = reduce(DataFrame.unionAll, parts).groupBy("topic", "slot").agg(F.count("*").alias("n"), F.sum("size"))
    return [
        Interval(topic=topic, start=_EPOCH + timedelta(microseconds=slot * length), records=records, bytes=size)
        for topic, slot, records, size in rows.orderBy("topic", "slot").collect()
    ]


def days(spark: SparkSession, lake: Lake, topics: Iterable[str]) -> list[Day]:
    """Each topic's records, and the size of all its tables, by the day of archiving.

    Delta's logs hold them all: Spark reads none of the files.

    :raises PipelineError: if a table cannot be read.
    """
    parts = []
    for topic in topics:
        parts.append(_files_of(spark, topic, lake.raw(topic)))
        others = (lake.typed(topic), lake.dead_letters(topic), lake.latest(topic))
        # The raw table has all records.
        parts += [
            _files_of(spark, topic, path).withColumn("records", F.lit(0).cast("long"))
            for path in others
            if is_archived(spark, path)
        ]
    if not parts:
        return []
    rows = (
        reduce(DataFrame.unionAll, parts)
        .groupBy("topic", "date")
        .agg(
            F.when(F.count("records") == F.count("*"), F.sum("records")),
            F.sum("size"),
            F.count("*"),
        )
        .orderBy("topic", "date")
    )
    return [
        Day(topic=topic, date=date, records=records, bytes=size, files=files)
        for topic, date, records, size, files in rows.collect()
        if date is not None
    ]


def losses(spark: SparkSession, tables: Mapping[str, str]) -> list[TopicLoss]:
    """The offsets that each topic's archive went on without.

    :raises PipelineError: if a table's log cannot be read.
    """
    found = []
    for topic, path in sorted(tables.items()):
        # If a table's proof is gone, its archive ends, and says what to do.
        with suppress(Unproven):
            proven = read_proven(spark, path)
            found += [TopicLoss(topic=topic, loss=loss) for loss in (() if proven is None else proven.losses)]
    return found


def _at(time: datetime) -> Column:
    # Some versions of Spark take a literal datetime in the session's time zone.
    return F.timestamp_micros(F.lit(round((time - _EPOCH) / timedelta(microseconds=1))))


def _size() -> Column:
    headers = F.aggregate(
        "headers",
        F.lit(0),
        lambda sum_, header: (
            sum_ + F.octet_length(header["key"]) + F.coalesce(F.octet_length(header["value"]), F.lit(0))
        ),
    )
    parts: Iterable[Column] = (F.octet_length("key"), F.octet_length("value"), headers)
    return reduce(lambda left, right: left + right, (F.coalesce(part, F.lit(0)) for part in parts)).cast("long")


def _table(spark: SparkSession, path: str) -> DataFrame:
    try:
        return spark.read.format("delta").load(path)
    except SPARK_ERRORS as error:
        raise PipelineError(f"{path}: it cannot be read: {failure(error)}") from None


def _files_of(spark: SparkSession, topic: str, path: str) -> DataFrame:
    """A row for each file of the table's newest version. Delta's public interface has only the total."""
    rows = DataFrame(newest_snapshot(spark, path).allFiles().toDF(), spark)
    return rows.select(
        F.lit(topic).alias("topic"),
        # The tables of earlier versions are partitioned by the records' own days.
        F.coalesce(
            *(F.col("partitionValues")[name].cast("date") for name in (ARCHIVED, "date")),
            # The table of newest records has no partitions, and its files are written by merges of the day.
            F.when(F.size("partitionValues") == 0, F.timestamp_millis("modificationTime").cast("date")),
        ).alias("date"),
        F.get_json_object("stats", "$.numRecords").cast("long").alias("records"),
        "size",
    )
