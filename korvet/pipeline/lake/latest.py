"""The table of each key's newest record, which an archive merges of its raw table.

One commit merges all records from the table's proof up to the raw table's, with the proof after them. So a merge that
was cut off is done again from the same place, and one that is repeated changes nothing.

The newest record of a key: in a partition, that of the highest offset, as in Kafka's compaction. A key may have records
in several partitions, since a topic can grow. Among them the later timestamp wins, then the higher partition.
Source: org.apache.kafka.storage.internals.log.Cleaner.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

import structlog
from delta.tables import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, StructField, StructType

from korvet.pipeline.lake.layout import ARCHIVED, RAW_COLUMNS
from korvet.pipeline.lake.proofs import APPLICATION, Proven, read_proven
from korvet.pipeline.lake.table import COMPRESSION, Table

log = structlog.get_logger()

_PROPERTIES: Final = {
    "delta.dataSkippingStatsColumns": "partition,offset,timestamp",
    # A merge marks rows as deleted, instead of writing all files anew that have one.
    "delta.enableDeletionVectors": "true",
}
_COLUMNS: Final = StructType([*RAW_COLUMNS.fields, StructField(ARCHIVED, DateType())])
_TRIES: Final = 5
# Another job's commit got in the way: maintenance, or another archive, which the proof tells.
_CONFLICT: Final = "DELTA_CONCURRENT"
_WRITE: Final = "spark.databricks.delta.write"


class LatestTable(Table):
    """The newest record of each key, as one archive writes it."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        # A row moves to another day whenever its key gets a record.
        super().__init__(spark, path, _PROPERTIES, partitioned_by=())
        self._is_claimed = False

    def has(self, raw: Proven | None) -> bool:
        """Whether the table has all that the raw table has."""
        return raw is None or (self.proven is not None and not _ranges(self.proven, raw))

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
        assert self.proven is not None
        ranges = _ranges(self.proven, raw)
        if ranges:
            self._merge(raw_table.path, ranges, _followed(self.proven, raw, writer))

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

    def _merge(self, raw_path: str, ranges: Mapping[int, tuple[int, int]], proven: Proven) -> None:
        """Commit a merge, again after conflicts that changed neither the proof nor the writer."""
        session = self._session(proven)
        records = session.read.format("delta").load(raw_path).where(_within(ranges)).select(*RAW_COLUMNS.names)
        left_out = records.where("key is null").count()
        if left_out:
            log.warning("records without a key are not in the table of newest records", table=self.path, n=left_out)
        newest = _newest(records).withColumn(ARCHIVED, F.lit(datetime.now(UTC).date())).persist()
        try:
            for left in reversed(range(_TRIES)):
                try:
                    self._commit(session, newest, ranges)
                    break
                except (Py4JJavaError, PySparkException) as error:
                    if _CONFLICT not in str(error) or not left:
                        raise
                if read_proven(self._spark, self.path) != self.proven:
                    # It may be this very commit, whose answer was lost.
                    break
            self._written(proven)
        finally:
            newest.unpersist()

    def _commit(self, session: SparkSession, newest: DataFrame, ranges: Mapping[int, tuple[int, int]]) -> None:
        is_newer, is_tombstone = _is_newer(ranges), F.col("new.value").isNull()
        merge = DeltaTable.forPath(session, self.path).alias("old").merge(newest.alias("new"), "old.key = new.key")
        merge = merge.whenMatchedDelete(is_newer & is_tombstone).whenMatchedUpdateAll(is_newer)
        merge.whenNotMatchedInsertAll(~is_tombstone).execute()

    def _session(self, proven: Proven) -> SparkSession:
        """A session whose commits carry the proof. A merge takes it from its session alone."""
        session = self._spark.newSession()
        session.conf.set(f"{_WRITE}.txnAppId", APPLICATION + proven.topic_id)
        session.conf.set(f"{_WRITE}.txnVersion", proven.transaction_version)
        session.conf.set("spark.databricks.delta.commitInfo.userMetadata", proven.to_json())
        session.conf.set("spark.sql.parquet.compression.codec", COMPRESSION)
        return session


def _ranges(has: Proven, raw: Proven) -> dict[int, tuple[int, int]]:
    """The offsets that a table lacks of another: partition -> begin and end."""
    begins = {number: has.offsets.get(number, 0) for number in raw.offsets}
    return {number: (begins[number], end) for number, end in raw.offsets.items() if end > begins[number]}


def _followed(has: Proven, raw: Proven, writer: str) -> Proven:
    """The proof of the table after the merge: no lower than before, also if the raw table is lower."""
    ahead = {number: offset for number, offset in has.offsets.items() if offset > raw.offsets.get(number, -1)}
    epochs = {number: epoch for number, epoch in raw.leader_epochs.items() if number not in ahead}
    epochs |= {number: epoch for number, epoch in has.leader_epochs.items() if number in ahead}
    return replace(
        raw,
        generation=has.generation,
        batch_id=has.batch_id + 1,
        offsets={**raw.offsets, **ahead},
        leader_epochs=epochs,
        checkpoint=writer,
        is_claim=False,
    )


def _within(ranges: Mapping[int, tuple[int, int]]) -> str:
    return " or ".join(
        f"(partition = {number} and offset >= {begin} and offset < {end})" for number, (begin, end) in ranges.items()
    )


def _newest(records: DataFrame) -> DataFrame:
    """The newest record of each key.

    After a loss the raw table may have two records of one offset; the later timestamp wins.
    """
    last = Window.partitionBy("key", "partition").orderBy(F.desc("offset"), F.desc("timestamp"))
    latest = Window.partitionBy("key").orderBy(F.desc("timestamp"), F.desc("partition"))
    # One shuffle serves both windows.
    keyed = records.where("key is not null").repartition("key")
    for window in (last, latest):
        keyed = keyed.withColumn("_place", F.row_number().over(window)).where("_place = 1").drop("_place")
    return keyed


def _is_newer(ranges: Mapping[int, tuple[int, int]]) -> Column:
    """Whether the new record of a key is newer than the row that the table has.

    A row at or above the begin of its partition's range is of a history that the broker has lost: it is older.
    """
    lost = " or ".join(f"(old.partition = {number} and old.offset >= {begin})" for number, (begin, _) in ranges.items())
    return F.expr(
        "CASE WHEN old.partition = new.partition "
        f"THEN new.offset > old.offset OR {lost or 'false'} "
        "ELSE new.timestamp > old.timestamp OR (new.timestamp = old.timestamp AND new.partition > old.partition) END"
    )
