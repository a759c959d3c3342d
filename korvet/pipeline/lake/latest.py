"""The table of each key's newest record, which an archive merges of its raw table.

One commit merges all records from the table's proof up to the raw table's, with the proof after them. So a merge that
was cut off is done again from the same place, and one that is repeated changes nothing.

Kafka orders records within a partition only. So each partition gives its last record of a key, at the highest offset,
as Kafka's compaction keeps it. The newest of these has the latest timestamp, then the highest partition. It may be a
tombstone. So the table's rows depend only on the records below its proof, however they came in batches.

A batch lacks the last records of partitions that have the key only in earlier batches. Such a record wins only if it
is later than the newest record of the batch. Spark looks for such records alone: it skips files by the statistics of
timestamps, then of offsets.
Source: org.apache.kafka.storage.internals.log.Cleaner.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

import structlog
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession, Window, WindowSpec
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, StructField, StructType

from korvet.pipeline.lake.layout import ARCHIVED, RAW_COLUMNS
from korvet.pipeline.lake.table import COMPRESSION, Table, conflicts
from korvet.pipeline.plan.proofs import APPLICATION, Proven, followed, had, lacking, within
from korvet.pipeline.plan.table import How
from korvet.pipeline.session import session_like

log = structlog.get_logger()

_PROPERTIES: Final = {
    "delta.dataSkippingStatsColumns": "partition,offset,timestamp",
    # A merge marks rows as deleted instead of rewriting all files that have one.
    "delta.enableDeletionVectors": "true",
}
_COLUMNS: Final = StructType([*RAW_COLUMNS.fields, StructField(ARCHIVED, DateType())])
_WRITE: Final = "spark.databricks.delta.write"


class LatestTable(Table):
    """The newest record of each key, as one archive writes it."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        # A row moves to another day whenever its key gets a record.
        super().__init__(spark, path, _PROPERTIES, partitioned_by=())
        self._is_claimed = False

    def has(self, raw: Proven | None) -> bool:
        """True if the table has everything of the raw table."""
        return raw is None or (self.proven is not None and not lacking(self.proven, raw))

    def follow(self, raw_table: Table, writer: str) -> None:
        """Merge all that the raw table has and this one lacks.

        :param writer: the archive's id.
        :raises Overtaken: if another archive claimed the table; this one then writes nothing.
        :raises PipelineError, PySparkException, Py4JJavaError: also if conflicts with other jobs do not end.
        """
        raw = raw_table.proven
        if raw is None or self.has(raw):
            return
        self._claim_once(raw, writer)
        if not self.has(raw):
            self._merge(raw_table.path, raw, writer)

    def _claim_once(self, raw: Proven, writer: str) -> None:
        """Make the table, or claim it, once. Its proof may grow by it."""
        if self._is_claimed:
            return
        if self.proven is None:
            start = replace(raw, generation=1, batch_id=-1, offsets={}, leader_epochs={}, checkpoint=writer)
            self.begin(_COLUMNS, start)
        else:
            self.claim(raw.topic, raw.topic_id, writer)
        self._is_claimed = True

    def _merge(self, raw_path: str, raw: Proven, writer: str) -> None:
        """Commit the merge of all that the raw table has and this one lacks, with the proof after it."""
        assert self.proven is not None
        proven = followed(self.proven, raw, writer)
        session = self._session(self.next_proof(proven))
        rows = session.read.format("delta").load(raw_path)
        records = rows.where(within(lacking(self.proven, raw))).select(*RAW_COLUMNS.names)
        left_out = records.where("key is null").count()
        if left_out:
            log.warning("records without a key are not in the table of newest records", table=self.path, n=left_out)
        lasts = last_records(records.where("key is not null")).persist()
        try:
            newest = self._newest(session, lasts, rows, raw)
            self._add(newest.withColumn(ARCHIVED, F.lit(datetime.now(UTC).date())), proven, "merge")
        finally:
            lasts.unpersist()

    def _newest(self, session: SparkSession, lasts: DataFrame, rows: DataFrame, raw: Proven) -> DataFrame:
        """The newest record of each key of a batch.

        :param lasts: the batch's last records.
        :param rows: the raw table's.
        """
        assert self.proven is not None
        before = had(self.proven, raw)
        if not before or len(raw.offsets) == 1:
            return newest_records(lasts)
        # The raw table's rows may have expired. Rows at or above a range's begin are of a history that the broker lost.
        own = session.read.format("delta").load(self.path)
        older = [each.where(within(before)).select(*RAW_COLUMNS.names) for each in (rows, own)]
        return newest_with(lasts, older[0].unionAll(older[1]))

    def _save(self, rows: DataFrame | None, proven: Proven, how: How) -> None:
        if rows is None or how != "merge":
            return super()._save(rows, proven, how)
        with conflicts():
            self._commit(rows.sparkSession, rows)

    def _commit(self, session: SparkSession, newest: DataFrame) -> None:
        is_tombstone = F.col("new.value").isNull()
        merge = DeltaTable.forPath(session, self.path).alias("old").merge(newest.alias("new"), "old.key = new.key")
        merge = merge.whenMatchedDelete(is_tombstone).whenMatchedUpdateAll()
        merge.whenNotMatchedInsertAll(~is_tombstone).execute()

    def _session(self, proven: Proven) -> SparkSession:
        """A session whose commits carry the proof. A merge takes it only from its session."""
        session = session_like(self._spark)
        session.conf.set(f"{_WRITE}.txnAppId", APPLICATION + proven.topic_id)
        session.conf.set(f"{_WRITE}.txnVersion", proven.transaction_version)
        session.conf.set("spark.databricks.delta.commitInfo.userMetadata", proven.to_json())
        session.conf.set("spark.sql.parquet.compression.codec", COMPRESSION)
        return session


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
