"""One batch of one topic, written to the lake.

One commit writes the raw records of a batch (`korvet.pipeline.plan.batch`), with the proof after them. The other tables
follow the raw one, and get all that they lack of it (`TypedTables`, `LatestTable`).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from functools import cached_property
from typing import Final

import structlog
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from korvet.pipeline.archive.config import ArchiveConfig, ArchiveProgress
from korvet.pipeline.archive.following import TypedTables, in_few_files
from korvet.pipeline.archive.reading import read
from korvet.pipeline.archive.unreadable import found_by, letters
from korvet.pipeline.broker import Broker, Position, Topic
from korvet.pipeline.client_settings import client_settings
from korvet.pipeline.errors import PipelineError
from korvet.pipeline.failures import SPARK_ERRORS, failure
from korvet.pipeline.lake import RAW_COLUMNS, Lake
from korvet.pipeline.lake.latest import LatestTable
from korvet.pipeline.lake.proofs import is_archived, keep_proven
from korvet.pipeline.lake.table import Table
from korvet.pipeline.plan.batch import Batch, Ends, capped, planned, position
from korvet.pipeline.plan.history import REMEDY, DataLost, describe, describe_trimmed, other_topic, skipped
from korvet.pipeline.plan.losses import Loss, UnreadableRange
from korvet.pipeline.plan.proofs import Proven
from korvet.pipeline.reported import report
from korvet.pipeline.source import history
from korvet.pipeline.source.cluster import tier_of
from korvet.pipeline.source.ranges import OffsetRange
from korvet.pipeline.source.unreadable import is_refused_by_java
from korvet.pipeline.typed import TABLE_PROPERTIES, UNREADABLE

log = structlog.get_logger()

VALUE_SCHEMA: Final = "korvet.value.schema"
# Statistics of keys and values would be useless: queries do not select ranges of them.
_RAW_PROPERTIES: Final = {"delta.dataSkippingStatsColumns": "partition,offset,timestamp"}
_DAY_US: Final = 86_400_000_000


class Tables:
    """The topic's tables, as this archive writes them. Only an archive that keeps ``latest`` looks at it."""

    def __init__(self, spark: SparkSession, lake: Lake, topic: str) -> None:
        self.raw = Table(spark, lake.raw(topic), _RAW_PROPERTIES)
        self.typed = Table(spark, lake.typed(topic), {**TABLE_PROPERTIES, "delta.dataSkippingNumIndexedCols": "8"})
        self.dead_letters = Table(spark, lake.dead_letters(topic), _RAW_PROPERTIES)
        self._spark, self._latest = spark, lake.latest(topic)

    @cached_property
    def latest(self) -> LatestTable:
        """The table of newest records.

        :raises PipelineError: if something else is there.
        """
        return LatestTable(self._spark, self._latest)

    @property
    def has_latest(self) -> bool:
        """True if an archive has written that table."""
        return is_archived(self._spark, self._latest)

    def keep_proofs(self) -> None:
        """Have tables without new rows keep their proofs beyond the commits of their logs."""
        for table in (*self.all, *([self.latest] if "latest" in self.__dict__ else [])):
            if table.proven is not None:
                keep_proven(self._spark, table.path)

    @property
    def all(self) -> tuple[Table, ...]:
        """The tables that a batch is written to."""
        return self.raw, self.typed, self.dead_letters


class TopicWriter:
    """Writes one topic's batches, and nothing after a failure.

    :param topic: as the broker knew it at the start; another id means another topic.
    :param broker: the archive's connection.
    """

    def __init__(
        self,
        spark: SparkSession,
        config: ArchiveConfig,
        topic: Topic,
        tables: Tables,
        broker: Broker,
    ) -> None:
        self._spark, self._config, self._topic, self._tables = spark, config, topic, tables
        self._broker = broker
        self._settings = client_settings(config.kafka_options)
        self._id = uuid.uuid4().hex
        self._is_claimed = False
        self._is_bound: bool | None = None
        """True if the topic's retention counts this lake; None before the first request to the broker."""
        self.typed = TypedTables(config, topic.name, tables.raw, tables.typed, tables.dead_letters)
        self._tier = tier_of(config.tier, config.tier_namespace)
        self._firsts: dict[int, int] = {}

    def has(self, ends: Ends) -> bool:
        """True if the lake ends exactly at these offsets, in all tables that can be there by now."""
        has_latest = self._config.table != "latest" or self._tables.latest.has(self.proven)
        return (
            has_latest and not self.typed.is_due and all(self._position(number) == end for number, end in ends.items())
        )

    def write(self, wanted: Ends) -> ArchiveProgress | None:
        """Archive a batch of what is below ``wanted``; None if the raw table has all of it.

        :raises PipelineError: also, as all of Spark's errors, if the batch is not written. Another writer may go on.
        """
        began = time.monotonic()
        ends = self._fetch_ends()
        self._check_history(ends)
        batch = self._batch(wanted, ends)
        if batch is None:
            if self.typed.is_due:
                self._claim()
            self.typed.follow(self._id)
            return None
        while True:
            try:
                count = self._write(batch)
                break
            except SPARK_ERRORS as error:
                batch = self._without_unreadable(batch, error)
        return self._progress(batch, count, time.monotonic() - began, ends)

    def _write(self, batch: Batch) -> int:
        """Write the raw records of a batch, and what the other tables then lack; returns the number of records."""
        verdicts = self.typed.verdicts(batch.begins)
        name = self._topic.name
        wanted = [OffsetRange(name, number, batch.begins[number], end) for number, end in batch.ends.items()]
        sealed = {} if self._tier is None else self._tier.sealed(self._broker, self._settings, wanted)
        records = read(self._spark, self._config, name, batch, verdicts, sealed)
        columns = [*RAW_COLUMNS.names, *([] if verdicts is None else [verdicts.field.name])]
        records = records.withColumn("date", _date()).select(*columns)
        by_registry = self.typed.schema is None and self._config.schema_registry is not None
        if verdicts is not None or by_registry or not self._config.fail_on_data_loss:
            # It is read more than once.
            records.persist()
        try:
            batch = replace(batch, losses=self._losses(records, batch))
            proven = batch.proven(self._topic, self.proven, self._id)
            found = self.typed.by_registry(records, batch.begins) if verdicts is None else (verdicts.table, records)
            if found is not None:
                self.typed.begin(found[0], proven, batch.begins)
            count = self._tables.raw.append(in_few_files(records.select(*RAW_COLUMNS.names)), proven)
            self.report()
            self.typed.follow(self._id, None if self.typed.error is not None else found)
        finally:
            records.unpersist()
        return count

    def _without_unreadable(self, batch: Batch, error: Exception) -> Batch:
        """The batch without what cannot be read, with a dead letter for each range of it.

        :raises Py4JJavaError, PySparkException: the error, if it is another one.
        """
        name = self._topic.name
        if batch.source == "kafka" and is_refused_by_java(str(error)):
            log.warning("Spark's connector cannot read a batch: korvet's source reads it instead", topic=name)
            return replace(batch, source="korvet")
        found, ends = found_by(
            str(failure(error)),
            name,
            batch.ends,
            self._settings,
            read_committed=self._config.isolation == "read_committed",
        )
        if not found:
            raise error
        for each in found:
            log.error("records cannot be read: they are dead letters", topic=name, **asdict(each))
        self._write_letters(found, batch)
        return batch.without(found, ends)

    def _write_letters(self, found: Iterable[UnreadableRange], batch: Batch) -> None:
        """Write the dead letters that are not there since a batch that was cut off."""
        table = self._tables.dead_letters
        there: set[tuple[int, ...]] = set()
        if table.rows is not None:
            rows = table.rows.where(UNREADABLE).where(F.col("offset") >= min(batch.begins.values()))
            there = {tuple(row) for row in rows.select("partition", "offset").collect()}
        new = [each for each in found if (each.partition, each.start) not in there]
        if new:
            nothing = replace(batch, ends=batch.begins, unreadable=())
            begins = table.proven or nothing.proven(self._topic, self.proven, self._id)
            table.append(letters(self._spark, self._topic.name, new), replace(begins, checkpoint=self._id))

    def write_latest(self) -> None:
        """Merge what the raw table has into the table of newest records, if the archive keeps one.

        :raises PipelineError: as well as all of Spark's errors. Another writer may go on.
        """
        if self._config.table == "latest":
            self._tables.latest.follow(self._tables.raw, self._id)

    @property
    def proven(self) -> Proven | None:
        """The raw table's proof."""
        return self._tables.raw.proven

    def report(self) -> None:
        """Commit the proof at the broker. A failure is logged: the next report repeats it all."""
        proven = self._tables.raw.proven
        if proven is None or not proven.offsets:
            return
        try:
            # A report names the topic only: offsets of a deleted topic would count for its successor.
            topic = self._same_topic()
            if self._is_bound is not False:
                take_over = self._config.take_over and self._is_bound is None
                lake = self._tables.raw.id
                self._is_bound = report(self._broker, proven, lake, topic.partitions, take_over=take_over)
        except PipelineError as error:
            log.warning("the archive cannot commit its offsets", topic=self._topic.name, reason=str(error))

    def keep(self) -> None:
        """Repeat the report, and have the tables keep their proofs. A failure is logged: the next time repeats all."""
        self.report()
        try:
            self._tables.keep_proofs()
        except PipelineError as error:
            log.warning("the archive cannot keep the proof of a table", topic=self._topic.name, reason=str(error))

    def _fetch_ends(self) -> dict[int, Position]:
        """The topic's log ends, after a check that it is the same topic still. Asks for its schema, too."""
        self._topic = self._same_topic()
        self.typed.schema = self._schema()
        return history.latest(self._broker, self._topic.name, self._topic.partitions)

    def _same_topic(self) -> Topic:
        """The topic as it is now.

        :raises PipelineError: if it was deleted, or deleted and created again.
        """
        name = self._topic.name
        found = self._broker.topics([name])[name]
        if found.id != self._topic.id:
            raise other_topic(name)
        return found

    def _check_history(self, ends: Mapping[int, Position]) -> None:
        proven = self._tables.raw.proven
        if proven is None:
            return
        parted = history.lost(self._settings, self._broker, proven, ends)
        if parted:
            raise DataLost(f"{describe(self._topic.name, proven.offsets, parted)}; {REMEDY}")

    def _schema(self) -> str | None:
        if self._topic.name in self._config.schemas:
            return self._config.schemas[self._topic.name] or None
        return self._broker.topic_settings(self._topic.name).get(VALUE_SCHEMA) or None

    def _batch(self, wanted: Ends, ends: Mapping[int, Position]) -> Batch | None:
        """The next batch; None if the tables have all that is wanted. The archive claims the tables for it."""
        wanted = capped(wanted, ends)
        self._find_firsts(wanted)
        if self._planned(wanted, ends) is None:
            return None
        self._claim()
        return self._planned(wanted, ends)

    def _planned(self, wanted: Ends, ends: Mapping[int, Position]) -> Batch | None:
        begins = {number: self._position(number) for number in wanted}
        batch = planned(begins, wanted, ends, self.proven, self._config.max_offsets_per_trigger)
        return None if batch is None else replace(batch, source=self._config.source)

    def _position(self, number: int) -> int:
        return position(self.proven, self._firsts, number)

    def _find_firsts(self, numbers: Iterable[int]) -> None:
        """Find where the logs begin, for partitions that the lake has nothing of.

        :raises DataLost: if a partition is new to a lake that has others, and some of its records are already gone.
        """
        new = [(self._topic.name, number) for number in numbers if self._position(number) < 0]
        found = {number: position.offset for (_, number), position in self._broker.earliest(new).items()}
        gone = {number: first for number, first in found.items() if first and self.proven is not None}
        if gone:
            reason = describe_trimmed(self._topic.name, dict.fromkeys(gone, 0), gone)
            if self._config.fail_on_data_loss:
                raise DataLost(f"{reason}; {REMEDY}")
            log.warning("data loss", reason=reason)
        self._firsts |= found

    def _claim(self) -> None:
        """Claim the tables, once: from then on only this archive writes to them. Their proofs may grow by it."""
        if self._is_claimed:
            return
        for table in self._tables.all:
            if table.proven is not None:
                table.claim(self._topic.name, self._topic.id, self._id)
        self._is_claimed = True

    def _losses(self, records: DataFrame, batch: Batch) -> tuple[Loss, ...]:
        """The batch's offsets that the source skipped because the broker has trimmed them.

        The records are persisted: the broker may have trimmed more before Spark reads them again.
        """
        proven = self._tables.raw.proven
        if self._config.fail_on_data_loss or proven is None:
            return ()
        first = records.groupBy("partition").agg(F.min("offset").alias("first")).collect()
        earliest = self._broker.earliest([(self._topic.name, number) for number in batch.ends])
        starts = {number: position.offset for (_, number), position in earliest.items()}
        # A partition that is new to the table may have lost records before this batch.
        begins = {number: proven.offsets.get(number, 0) for number in batch.ends}
        losses = skipped(begins, batch.ends, starts, {row["partition"]: row["first"] for row in first})
        if losses:
            log.warning(
                "data loss: records were trimmed before they were archived", losses=[str(each) for each in losses]
            )
        return losses

    def _progress(self, batch: Batch, rows: int, seconds: float, ends: Mapping[int, Position]) -> ArchiveProgress:
        return ArchiveProgress(
            topic=self._topic.name,
            batch_id=batch.id,
            rows=rows,
            rows_per_s=rows / max(seconds, 1e-3),
            behind=batch.behind(ends),
        )


def _date() -> Column:
    """The timestamp's day in UTC, in any time zone of the session."""
    return F.expr(f"date_from_unix_date(CAST(floor(unix_micros(timestamp) / {_DAY_US}) AS INT))")
