"""The archive of one topic: its checks before the first batch, and its restart after a failure."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import structlog
from pyspark.sql import SparkSession

from korvet.pipeline.archive.batch import Tables, TopicWriter
from korvet.pipeline.archive.config import ArchiveConfig, ArchiveProgress, TopicResult
from korvet.pipeline.broker import Broker, Position, Topic
from korvet.pipeline.client_settings import client_settings
from korvet.pipeline.errors import Passing, PipelineError
from korvet.pipeline.failures import SPARK_ERRORS
from korvet.pipeline.lake import RAW_COLUMNS, Lake
from korvet.pipeline.lake.table import Table, write_failure
from korvet.pipeline.plan.batch import Ends
from korvet.pipeline.plan.history import REMEDY, DataLost, describe, describe_trimmed, moved, other_topic, trimmed
from korvet.pipeline.plan.losses import LossKind
from korvet.pipeline.plan.proofs import Proven
from korvet.pipeline.source import history
from korvet.pipeline.source.ranges import REMEDY as OPTION

log = structlog.get_logger()

_RETENTION: Final = "korvet.retention"
# The archive's flag instead of the reader's option.
_FLAG: Final = "start the archive with --no-fail-on-data-loss (fail_on_data_loss=False)"


class TopicArchive:
    """The archive of one topic; only one thread at a time may call `go_on`. An idle one has the tables' proofs alone.

    :param broker: the connection that all topics share.
    """

    def __init__(
        self,
        spark: SparkSession,
        config: ArchiveConfig,
        topic: str,
        broker: Broker,
        progress: Callable[[ArchiveProgress], None] | None,
    ) -> None:
        self._spark, self._config, self.topic, self._broker, self._progress = spark, config, topic, broker, progress
        self._settings = client_settings(config.kafka_options)
        self._rows = self._batches = 0
        self.is_kept = False
        """True if the broker, at the last check, keeps the topic's records until they are archived."""
        self.typed_error: PipelineError | None = None
        """Why the typed table does not follow the raw one, which continues."""
        self._proven: Proven | None = None
        self._writer: TopicWriter | None = None
        self._turn = threading.Lock()

    def has(self, ends: Ends) -> bool:
        """True if the lake ends exactly at these offsets, as far as this archive knows."""
        return self._writer is not None and self._writer.has(ends)

    def lacks(self, ends: Ends) -> int | None:
        """How many offsets below these ends the lake lacks; None if it has nothing, as far as this archive knows."""
        if self._proven is None:
            return None
        return sum(max(0, end - self._proven.offsets.get(number, 0)) for number, end in ends.items())

    def go_on(self, ends: Ends) -> bool:
        """Write a batch up to the ends; false if there was nothing to write.

        :raises PipelineError: the next call begins anew from what the tables have. `Passing`, if that may help.
        """
        with self._turn:
            try:
                return self._write(ends)
            except (*SPARK_ERRORS, PipelineError) as error:
                self._writer = None
                raise self._sentence(error) from None

    def report(self) -> None:
        """Repeat the report to the broker; not beside a batch, which reports itself, and may take a proof back."""
        if not self._turn.acquire(blocking=False):
            return
        try:
            if self._writer is not None:
                self._writer.keep()
        finally:
            self._turn.release()

    def result(self, error: PipelineError | None) -> TopicResult:
        """The outcome up to now."""
        offsets = {} if self._proven is None else dict(self._proven.offsets)
        error = error or self.typed_error
        return TopicResult(rows=self._rows, batches=self._batches, offsets=offsets, error=error)

    def _write(self, ends: Ends) -> bool:
        if self._writer is None:
            self._writer = self._open()
            self._writer.keep()
        done = self._writer.write(ends)
        if done is not None:
            self._report(done)
        self._writer.write_latest()
        self.typed_error = self._writer.typed.error
        if self.typed_error is not None and self._config.every_s is None:
            raise self.typed_error
        return done is not None

    def _report(self, done: ArchiveProgress) -> None:
        assert self._writer is not None
        self._proven = self._writer.proven
        self._rows += done.rows
        self._batches += 1
        if self._progress is not None:
            self._progress(done)

    def _sentence(self, error: Exception) -> PipelineError:
        if error is self.typed_error:
            return self.typed_error
        known = write_failure(self.topic, error)
        reason = str(known).replace(OPTION, _FLAG)
        reason = reason if self.topic in reason else f"topic {self.topic}: {reason}"
        goes_on = isinstance(known, DataLost) and not self._config.fail_on_data_loss
        return Passing(reason) if goes_on else type(known)(reason)

    def _open(self) -> TopicWriter:
        """Read the tables' proofs, and check that they are of this topic and of its history."""
        topic = self._broker.topics([self.topic])[self.topic]
        self.is_kept = self._broker.topic_settings(self.topic).get(_RETENTION) == "archived"
        tables = Tables(self._spark, Lake(self._config.lake), self.topic)
        _check_topic(topic, (*tables.all, tables.latest) if self._config.table == "latest" else tables.all)
        self._check_losses(topic, tables)
        if tables.raw.proven is None and self._config.starting == "latest":
            self._begin_at_the_end(topic, tables)
        self._proven = tables.raw.proven
        return TopicWriter(self._spark, self._config, topic, tables, self._broker)

    def _check_losses(self, topic: Topic, tables: Tables) -> None:
        """If the broker lost archived records, or trimmed unarchived ones, fail, or go on where its records begin."""
        if tables.raw.proven is None:
            return
        ends = history.latest(self._broker, topic.name, topic.partitions)
        parted = history.lost(self._settings, self._broker, tables.raw.proven, ends)
        if parted:
            reason = describe(topic.name, tables.raw.proven.offsets, parted)
            self._move(tables, parted, "replaced", ends, reason)
        earliest = self._broker.earliest([(topic.name, number) for number in topic.partitions])
        gone = trimmed(tables.raw.proven, {number: at.offset for (_, number), at in earliest.items()})
        if gone:
            reason = describe_trimmed(topic.name, tables.raw.proven.offsets, gone)
            self._move(tables, gone, "trimmed", ends, reason)

    def _move(
        self, tables: Tables, offsets: Mapping[int, int], kind: LossKind, ends: Mapping[int, Position], reason: str
    ) -> None:
        """Read the offsets to go on at, and the loss, from the tables' proofs.

        :raises DataLost: if the archive has to end instead.
        """
        if self._config.fail_on_data_loss:
            raise DataLost(f"{reason}; {REMEDY}")
        log.warning("data loss: the archive goes on from what the broker has", reason=reason)
        # The other tables pass trimmed records by themselves, after the raw one, and may still lag.
        following = [tables.dead_letters, tables.typed, *([tables.latest] if tables.has_latest else [])]
        # The raw table comes last, because its proof records a loss.
        for table in (*(following if kind == "replaced" else ()), tables.raw):
            if table.proven is not None:
                table.reset(moved(table.proven, offsets, kind, ends))

    def _begin_at_the_end(self, topic: Topic, tables: Tables) -> None:
        """Write the topic's end into the table: an archive that dies in its first batch then begins there again."""
        partitions = [(topic.name, number) for number in topic.partitions]
        ends = self._broker.latest(partitions, committed_only=self._config.isolation == "read_committed")
        begin = Proven(
            topic=topic.name,
            topic_id=topic.id,
            generation=1,
            batch_id=-1,
            offsets={number: end.offset for (_, number), end in ends.items()},
        )
        tables.raw.begin(RAW_COLUMNS, begin)


def _check_topic(topic: Topic, tables: Iterable[Table]) -> None:
    if not topic.partitions:
        raise PipelineError(f"topic {topic.name}: it has no partitions")
    for table in tables:
        if table.proven is not None and table.proven.topic_id != topic.id:
            raise other_topic(topic.name)
