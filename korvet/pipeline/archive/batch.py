"""One batch of one topic, written to the lake.

A batch begins where the raw table's proof ends. The archive writes the tables in turn: dead letters, typed rows, raw
records. Each commit carries its table's proof, and no table gets rows that it has. So an archive may repeat a batch
that was cut off anywhere, and the repeated batch may end elsewhere:

- The raw table is the last: the other tables hold all that it holds.
- Dead letters come before typed rows: the dead letters of every batch in the typed table are written.
- If dead letters are ahead of the typed table, they stay; the archive judges the other records anew.

The table of newest records follows the raw table, and gets all that it lacks of it (`LatestTable`).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import structlog
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from korvet.pipeline.archive import history
from korvet.pipeline.archive.config import ArchiveConfig, ArchiveProgress
from korvet.pipeline.archive.reading import Ends, limited, read
from korvet.pipeline.broker import Broker, Position, Topic
from korvet.pipeline.client_settings import client_settings
from korvet.pipeline.errors import PipelineError
from korvet.pipeline.lake import RAW_COLUMNS, Lake, Loss, Proven, read_proven
from korvet.pipeline.lake.latest import LatestTable
from korvet.pipeline.lake.losses import joined
from korvet.pipeline.lake.table import Table
from korvet.pipeline.reported import report
from korvet.pipeline.typed import TABLE_PROPERTIES, JsonVerdicts, dead_letters, table_type, typed_rows, widened
from korvet.pipeline.typed import judged as judge

log = structlog.get_logger()

VALUE_SCHEMA: Final = "korvet.value.schema"
# Statistics of keys and values would be of no use: queries do not ask for ranges of them.
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
        """Whether an archive has written that table."""
        return read_proven(self._spark, self._latest) is not None

    @property
    def all(self) -> tuple[Table, ...]:
        """The tables that a batch is written to."""
        return self.raw, self.typed, self.dead_letters


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Where a batch begins and ends. ``losses`` lie within."""

    id: int
    begins: Ends
    ends: Ends
    leader_epochs: Mapping[int, int]
    losses: tuple[Loss, ...] = ()


class TopicWriter:
    """Writes one topic's batches, and nothing any more after a failure.

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
        self._firsts: dict[int, int] = {}

    def has(self, ends: Ends) -> bool:
        """Whether the lake has just what is below these ends, in all tables."""
        has_latest = self._config.table != "latest" or self._tables.latest.has(self.proven)
        return has_latest and all(self._position(number) == end for number, end in ends.items())

    def write(self, wanted: Ends) -> ArchiveProgress | None:
        """Archive a batch of what is below ``wanted``; None if the lake has all of it.

        :raises PipelineError: also, as all of Spark's errors, if only a part is written. Another writer may go on.
        """
        began = time.monotonic()
        ends, schema = self._ask()
        self._check_history(ends)
        batch = self._batch(wanted, ends)
        if batch is None:
            return None
        verdicts = self._verdicts(schema, batch)
        records = read(self._spark, self._config, self._topic.name, batch.begins, batch.ends, verdicts)
        columns = [*RAW_COLUMNS.names, *([] if verdicts is None else [verdicts.field.name])]
        records = records.withColumn("date", _date()).select(*columns)
        if not self._config.fail_on_data_loss or (schema is None and self._config.schema_registry is not None):
            # It is read more than once.
            records.persist()
        try:
            batch = replace(batch, losses=self._losses(records, batch))
            with self._typed(records, verdicts, batch) as judged:
                rows = self._in_few_files(_beyond(judged, self._tables.raw, batch))
                count = self._tables.raw.append(rows, self._proven(batch, self._tables.raw))
        finally:
            records.unpersist()
        self.report()
        return self._progress(batch, count, time.monotonic() - began, ends)

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
        if proven is None:
            return
        try:
            # A report names the topic only: offsets of a deleted topic would count for its successor.
            self._same_topic()
            report(self._broker, proven)
        except PipelineError as error:
            log.warning("the archive cannot commit its offsets", topic=self._topic.name, reason=str(error))

    def _ask(self) -> tuple[dict[int, Position], str | None]:
        """The topic's log ends and its schema, after a check that it is the same topic still."""
        self._topic = self._same_topic()
        return history.latest(self._broker, self._topic.name, self._topic.partitions), self._schema()

    def _same_topic(self) -> Topic:
        """The topic as it is now.

        :raises PipelineError: if somebody deleted it, or created it anew.
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
            raise history.DataLost(f"{history.describe(self._topic.name, proven.offsets, parted)}; {history.REMEDY}")

    def _schema(self) -> str | None:
        if self._topic.name in self._config.schemas:
            return self._config.schemas[self._topic.name] or None
        return self._broker.topic_settings(self._topic.name).get(VALUE_SCHEMA) or None

    def _batch(self, wanted: Ends, ends: Mapping[int, Position]) -> Batch | None:
        """The next batch; None if the tables have all that is wanted.

        Leader epochs are from before Spark reads it: its records are of these epochs, or newer.
        """
        wanted = {number: min(end, ends[number].offset) for number, end in wanted.items() if number in ends}
        self._find_firsts(wanted)
        if all(end <= self._position(number) for number, end in wanted.items()):
            return None
        self._claim()
        begins = {number: self._position(number) for number in wanted}
        batch = Batch(
            id=0 if self.proven is None else self.proven.batch_id + 1,
            begins=begins,
            ends=limited(begins, wanted, self._config.max_offsets_per_trigger),
            leader_epochs={number: at.leader_epoch for number, at in ends.items() if at.leader_epoch is not None},
        )
        return None if batch.ends == begins else batch

    def _position(self, number: int) -> int:
        """Where the lake ends in a partition, else where the partition's log began; -1 if that was not asked yet."""
        has = {} if self.proven is None else self.proven.offsets
        return has.get(number, self._firsts.get(number, -1))

    def _find_firsts(self, numbers: Iterable[int]) -> None:
        """Ask where the logs of partitions begin of which the lake has nothing.

        :raises DataLost: if a partition is new to a lake that has others, and records of it are gone already.
        """
        new = [(self._topic.name, number) for number in numbers if self._position(number) < 0]
        found = {number: position.offset for (_, number), position in self._broker.earliest(new).items()}
        gone = {number: first for number, first in found.items() if first and self.proven is not None}
        if gone:
            told = history.describe_trimmed(self._topic.name, dict.fromkeys(gone, 0), gone)
            if self._config.fail_on_data_loss:
                raise history.DataLost(f"{told}; {history.REMEDY}")
            log.warning("data loss", reason=told)
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
        losses = history.skipped(begins, batch.ends, starts, {row["partition"]: row["first"] for row in first})
        if losses:
            log.warning(
                "data loss: records were trimmed before they were archived", losses=[str(each) for each in losses]
            )
        return losses

    def _verdicts(self, schema: str | None, batch: Batch) -> JsonVerdicts | None:
        """The verdicts by the JSON Schema; None if there is none, or if the typed table has the batch."""
        if schema is None or self._has_typed(batch):
            return None
        return JsonVerdicts(schema, table_type(schema, self._typed_table))

    def _has_typed(self, batch: Batch) -> bool:
        typed = self._tables.typed
        return typed.proven is not None and all(typed.next_offset(each) >= end for each, end in batch.ends.items())

    @property
    def _typed_table(self) -> StructType | None:
        rows = self._tables.typed.rows
        return None if rows is None else rows.schema

    @contextmanager
    def _typed(self, records: DataFrame, verdicts: JsonVerdicts | None, batch: Batch) -> Iterator[DataFrame]:
        """Write the records' typed rows and dead letters; within the block the same records need no further reading.

        :param verdicts: those that the records have.
        """
        found = (verdicts.table, records) if verdicts is not None else self._avro(records, batch)
        if found is None:
            yield records
            return
        typed = self._tables.typed
        self._widen(typed, found[0])
        judged = found[1].persist()
        try:
            missing = self._missing(_beyond(judged, typed, batch))
            self._write_dead_letters(dead_letters(missing), batch)
            typed.append(self._in_few_files(typed_rows(missing)), self._proven(batch, typed))
            yield judged.select(*RAW_COLUMNS.names)
        finally:
            judged.unpersist()

    def _avro(self, records: DataFrame, batch: Batch) -> tuple[StructType, DataFrame] | None:
        """As `judged`, by the schema registry; None also if the typed table has the batch."""
        if self._has_typed(batch):
            return None
        return judge(records, None, self._config.schema_registry, self._typed_table)

    def _widen(self, typed: Table, wanted: StructType) -> None:
        """Write the typed table anew if a column of integers becomes one of numbers."""
        rows = None if typed.rows is None else widened(typed.rows, wanted)
        if rows is not None:
            assert typed.proven is not None
            log.info("integers become numbers: the archive writes the typed table anew", table=typed.path)
            typed.replace(rows, typed.proven)

    def _missing(self, judged: DataFrame) -> DataFrame:
        """The records that are not among the dead letters, which may be ahead of the typed rows."""
        dead = self._tables.dead_letters
        if not _is_ahead(dead, self._tables.typed):
            return judged
        dead.claim(self._topic.name, self._topic.id, self._id)
        assert dead.rows is not None
        # After a loss the table may have a letter of a record whose offset another record took.
        record = ["partition", "offset", "timestamp"]
        same = F.expr(" and ".join(f"judged.{name} <=> dead.{name}" for name in (*record, "value")))
        return judged.alias("judged").join(dead.rows.alias("dead"), same, "left_anti")

    def _write_dead_letters(self, found: DataFrame, batch: Batch) -> None:
        table = self._tables.dead_letters
        # The count has all records judged, by tasks side by side.
        if found.count():
            table.append(self._in_few_files(found), self._proven(batch, table))

    def _in_few_files(self, rows: DataFrame) -> DataFrame:
        """One file for each task that runs at once, however many partitions there are."""
        return rows.coalesce(self._spark.sparkContext.defaultParallelism)

    def _proven(self, batch: Batch, table: Table) -> Proven:
        """The table's proof with the batch: no lower than before, also if this batch ends below it."""
        offsets, epochs = dict(batch.ends), dict(batch.leader_epochs)
        if table.proven is not None:
            ahead = {
                number: offset for number, offset in table.proven.offsets.items() if offset > offsets.get(number, -1)
            }
            offsets |= ahead
            epochs = {number: epoch for number, epoch in epochs.items() if number not in ahead}
            epochs |= {number: epoch for number, epoch in table.proven.leader_epochs.items() if number in ahead}
        return Proven(
            topic=self._topic.name,
            topic_id=self._topic.id,
            generation=0,
            batch_id=batch.id,
            offsets=offsets,
            leader_epochs={number: epoch for number, epoch in epochs.items() if number in offsets},
            checkpoint=self._id,
            losses=joined([*(table.proven.losses if table.proven is not None else ()), *batch.losses]),
        )

    def _progress(self, batch: Batch, rows: int, seconds: float, ends: Mapping[int, Position]) -> ArchiveProgress:
        behind = sum(max(0, end.offset - batch.ends.get(number, 0)) for number, end in ends.items())
        return ArchiveProgress(
            topic=self._topic.name, batch_id=batch.id, rows=rows, rows_per_s=rows / max(seconds, 1e-3), behind=behind
        )


def other_topic(name: str) -> PipelineError:
    """The error for a topic that somebody deleted and created anew."""
    return PipelineError(
        f"topic {name}: it was deleted and created anew, and the lake has the records of the old one; archive it to "
        "another lake, or move the old one's tables away"
    )


def _date() -> Column:
    """The timestamp's day in UTC, in any time zone of the session."""
    return F.expr(f"date_from_unix_date(CAST(floor(unix_micros(timestamp) / {_DAY_US}) AS INT))")


def _is_ahead(table: Table, other: Table) -> bool:
    """Whether the table holds more of some partition than the other."""
    if table.proven is None:
        return False
    return any(offset > other.next_offset(number) for number, offset in table.proven.offsets.items())


def _beyond(records: DataFrame, table: Table, batch: Batch) -> DataFrame:
    """The records that the table does not have. Rows are not filtered if the batch begins where the table ends."""
    has = {} if table.proven is None else table.proven.offsets
    for number, offset in has.items():
        if number in batch.ends and batch.begins.get(number, -1) < offset:
            records = records.where((F.col("partition") != number) | (F.col("offset") >= offset))
    return records
