"""One batch of one topic, written to the lake.

The archive writes the tables in turn: dead letters, typed rows, raw records. Each commit carries its table's proof, and
no table gets rows that it has. So an archive may repeat a batch that was cut off anywhere. It may do so with another
checkpoint, whose batches may end elsewhere:

- The raw table is the last: the other tables hold all that it holds.
- Dead letters come before typed rows: the dead letters of every batch in the typed table are written.
- If dead letters are ahead of the typed table, they stay; the archive judges the other records anew.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

import structlog
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from korvet.pipeline.archive import history
from korvet.pipeline.archive.checkpoint import Checkpoint, Ends
from korvet.pipeline.archive.config import ArchiveConfig, ArchiveProgress
from korvet.pipeline.broker import Broker, Position, Topic
from korvet.pipeline.client_settings import client_settings
from korvet.pipeline.errors import BrokerUnreachable, PipelineError
from korvet.pipeline.lake import RAW_COLUMNS, Lake, Proven
from korvet.pipeline.lake.table import Table, write_failure
from korvet.pipeline.reported import report
from korvet.pipeline.typed import TABLE_PROPERTIES, split

log = structlog.get_logger()
T = TypeVar("T")

VALUE_SCHEMA: Final = "korvet.value.schema"
# Statistics of keys and values would be of no use: queries do not ask for ranges of them.
_RAW_PROPERTIES: Final = {"delta.dataSkippingStatsColumns": "partition,offset,timestamp"}
_DAY_US: Final = 86_400_000_000
_PATIENCE_S: Final = 120.0


class Stopped(PipelineError):
    """The archive was told to stop before this batch."""


class Tables:
    """The topic's tables, as this archive writes them."""

    def __init__(self, spark: SparkSession, lake: Lake, topic: str) -> None:
        self.raw = Table(spark, lake.raw(topic), _RAW_PROPERTIES)
        self.typed = Table(spark, lake.typed(topic), {**TABLE_PROPERTIES, "delta.dataSkippingNumIndexedCols": "8"})
        self.dead_letters = Table(spark, lake.dead_letters(topic), _RAW_PROPERTIES)

    @property
    def all(self) -> tuple[Table, ...]:
        return self.raw, self.typed, self.dead_letters


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Where a batch begins and ends; ``begins`` has only partitions of the batch before."""

    id: int
    begins: Ends
    ends: Ends
    leader_epochs: Mapping[int, int]


class TopicWriter:
    """The foreachBatch function of one topic's query, and its outcome.

    :param topic: as the broker knew it at the start; another id means another topic.
    :param stop: once it is set, the writer begins no batch.
    """

    def __init__(
        self,
        spark: SparkSession,
        config: ArchiveConfig,
        topic: Topic,
        tables: Tables,
        checkpoint: Checkpoint,
        stop: threading.Event,
        progress: Callable[[ArchiveProgress], None] | None,
    ) -> None:
        self._spark, self._config, self._topic, self._tables = spark, config, topic, tables
        self._checkpoint, self._stop, self._progress = checkpoint, stop, progress
        self._settings = client_settings(config.kafka_options)
        self._broker = Broker(self._settings)
        self._query_id = ""
        self.error: PipelineError | None = None
        self.rows = self.batches = 0

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        """Archive a batch, for Spark's foreachBatch.

        :raises PipelineError: also kept in ``error``, since Spark raises another error of it.
        """
        try:
            if self._stop.is_set():
                raise Stopped(f"topic {self._topic.name}: stopped before batch {batch_id}")
            self._archive(rows, batch_id)
        except (Py4JJavaError, PySparkException) as error:
            self.error = write_failure(self._topic.name, error)
            raise self.error from None
        except PipelineError as error:
            self.error = error
            raise

    def close(self) -> None:
        """Let go of the broker, after the last batch."""
        self._broker.close()

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

    def _archive(self, rows: DataFrame, batch_id: int) -> None:
        began = time.monotonic()
        ends, schema = self._patiently(self._ask)
        self._check_history(ends)
        self._claim()
        batch = self._batch(batch_id, ends)
        if self._is_archived(batch):
            self.report()
            return
        self._check_gap(batch)
        records = rows.withColumn("date", _date()).select(*RAW_COLUMNS.names)
        if schema is not None:
            self._write_typed(records, schema, batch)
        # One file for each task that runs at once, however many partitions there are.
        records = _beyond(records, self._tables.raw, batch).coalesce(self._spark.sparkContext.defaultParallelism)
        count = self._tables.raw.append(records, self._proven(batch, self._tables.raw))
        self.report()
        self.rows += count
        self.batches += 1
        self._tell(batch, count, time.monotonic() - began, ends)

    def _patiently(self, ask: Callable[[], T]) -> T:
        """Ask again while the broker is away, as long as the readers wait for it."""
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                return ask()
            except BrokerUnreachable as error:
                if time.monotonic() > deadline or self._stop.wait(1):
                    raise
                log.info("waiting for the broker", topic=self._topic.name, reason=str(error))

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
        parted = history.lost(self._settings, proven, ends)
        if parted:
            raise history.DataLost(f"{history.describe(self._topic.name, proven.offsets, parted)}; {history.REMEDY}")

    def _schema(self) -> str | None:
        if self._topic.name in self._config.schemas:
            return self._config.schemas[self._topic.name] or None
        return self._broker.topic_settings(self._topic.name).get(VALUE_SCHEMA) or None

    def _claim(self) -> None:
        """Claim the tables, once: from then on only this archive writes to them."""
        if self._query_id:
            return
        self._query_id = self._checkpoint.query_id()
        for table in self._tables.all:
            if table.proven is None or table.proven.checkpoint != self._query_id:
                table.claim(self._topic.name, self._topic.id, self._query_id)

    def _batch(self, batch_id: int, ends: Mapping[int, Position]) -> Batch:
        """The batch, with leader epochs from before Spark reads it: its records are of these epochs, or newer."""
        epochs = {number: end.leader_epoch for number, end in ends.items() if end.leader_epoch is not None}
        begins = self._checkpoint.ends(batch_id - 1) if batch_id else {}
        return Batch(id=batch_id, begins=begins, ends=self._checkpoint.ends(batch_id), leader_epochs=epochs)

    def _is_archived(self, batch: Batch) -> bool:
        """Whether Spark repeats a batch that is in the lake, but not in the checkpoint."""
        proven = self._tables.raw.proven
        return proven is not None and proven.checkpoint == self._query_id and proven.batch_id >= batch.id

    def _check_gap(self, batch: Batch) -> None:
        raw = self._tables.raw
        missing = [number for number, offset in batch.begins.items() if offset > self._known(raw, number, offset)]
        if missing:
            raise PipelineError(
                f"{raw.path}: it ends before offset {batch.begins[missing[0]]} of partition {missing[0]}, where the "
                "checkpoint goes on: the table was deleted or restored. Delete the checkpoint "
                f"{self._checkpoint.path}; the archive then goes on from what the table has"
            )

    def _known(self, table: Table, number: int, otherwise: int) -> int:
        """The table's next offset; a partition that is new to it may begin anywhere."""
        if table.proven is None:
            return -1
        return table.proven.offsets.get(number, otherwise)

    def _write_typed(self, records: DataFrame, schema: str, batch: Batch) -> None:
        typed, dead_letters = self._tables.typed, self._tables.dead_letters
        if typed.proven is not None and all(typed.next_offset(number) >= end for number, end in batch.ends.items()):
            return
        if _is_ahead(dead_letters, typed):
            dead_letters.claim(self._topic.name, self._topic.id, self._query_id)
            assert dead_letters.rows is not None
            records = records.join(
                dead_letters.rows.select("partition", "offset"), ["partition", "offset"], "left_anti"
            )
        records = _beyond(records, typed, batch)
        parts = split(records, schema, None if typed.rows is None else typed.rows.schema)
        judged = parts.judged.persist()
        try:
            if not parts.dead_letters.isEmpty():
                dead_letters.append(parts.dead_letters, self._proven(batch, dead_letters))
            typed.append(parts.typed, self._proven(batch, typed))
        finally:
            judged.unpersist()

    def _proven(self, batch: Batch, table: Table) -> Proven:
        """The table's proof with the batch: no lower than before, also if this checkpoint's batch ends below it."""
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
            checkpoint=self._query_id,
        )

    def _tell(self, batch: Batch, rows: int, seconds: float, ends: Mapping[int, Position]) -> None:
        behind = sum(max(0, end.offset - batch.ends.get(number, 0)) for number, end in ends.items())
        told = ArchiveProgress(
            topic=self._topic.name, batch_id=batch.id, rows=rows, rows_per_s=rows / max(seconds, 1e-3), behind=behind
        )
        if self._progress is not None:
            self._progress(told)


def other_topic(name: str) -> PipelineError:
    """The error for a topic that somebody deleted and created anew."""
    return PipelineError(
        f"topic {name}: it was deleted and created anew, and the lake has the records of the old one; archive it to "
        "another lake, or move the old one's tables and checkpoint away"
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
