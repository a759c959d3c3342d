"""The query of one topic: where it begins, and how it starts, stops and ends."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

import structlog
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from korvet.pipeline.archive import history
from korvet.pipeline.archive.batch import Stopped, Tables, TopicWriter, other_topic
from korvet.pipeline.archive.checkpoint import Checkpoint
from korvet.pipeline.archive.config import ArchiveConfig, ArchiveProgress, TopicResult
from korvet.pipeline.broker import Broker, Position, Topic
from korvet.pipeline.client_settings import client_settings
from korvet.pipeline.errors import PipelineError
from korvet.pipeline.failures import failure
from korvet.pipeline.lake import RAW_COLUMNS, Lake, Proven

log = structlog.get_logger()

_EARLIEST: Final = -2
# Spark gives a Python process ten seconds to start, which no setting changes.
_BUSY: Final = "Python worker failed to connect back"
_MOST_TRIES: Final = 10


class TopicArchive:
    """The archive of one topic: `start` begins it, and `poll` tells when it is over."""

    def __init__(
        self,
        spark: SparkSession,
        config: ArchiveConfig,
        topic: str,
        stop: threading.Event,
        progress: Callable[[ArchiveProgress], None] | None,
    ) -> None:
        self._spark, self._config, self._name, self._stop, self._progress = spark, config, topic, stop, progress
        lake = Lake(config.lake, config.checkpoints)
        self._lake, self._checkpoint = lake, Checkpoint(spark, lake.checkpoint(topic), topic)
        self._settings = client_settings(config.kafka_options)
        self._rows = self._batches = self._tries = 0
        self._writer: TopicWriter | None = None
        self._query: StreamingQuery | None = None
        self._error: PipelineError | None = None

    def start(self) -> None:
        """Begin the query, or put the reason against it into the result."""
        self._error = self._try_to_begin()
        while self._error is not None and self._is_worth_another_try(self._error):
            self._error = self._try_to_begin()
        if self._error is not None:
            log.error("archive failed", topic=self._name, reason=str(self._error))

    def poll(self) -> bool:
        """Whether the archive goes on. A query that ended for a passing reason is begun again."""
        if self._query is None:
            return False
        if self._query.isActive:
            if self._stop.is_set() and not self._query.status["isTriggerActive"]:
                self._query.stop()
            return True
        error = self._end()
        if error is not None and self._is_worth_another_try(error):
            self.start()
            return self._query is not None
        self._error = error
        if error is not None:
            log.error("archive failed", topic=self._name, reason=str(error))
        return False

    def abandon(self) -> None:
        """End at once, in the middle of a batch."""
        if self._query is not None:
            self._query.stop()
            self._end()

    def report(self) -> None:
        """Repeat the report to the broker."""
        if self._writer is not None:
            self._writer.report()

    @property
    def result(self) -> TopicResult:
        """The outcome up to now."""
        proven = None if self._writer is None else self._writer.proven
        return TopicResult(
            rows=self._rows + (0 if self._writer is None else self._writer.rows),
            batches=self._batches + (0 if self._writer is None else self._writer.batches),
            offsets={} if proven is None else dict(proven.offsets),
            error=self._error,
        )

    def _is_worth_another_try(self, error: PipelineError) -> bool:
        """Whether the error is data loss that the archive goes on after, or, a few times, a Spark that was too busy."""
        if self._stop.is_set():
            return False
        if isinstance(error, history.DataLost):
            return not self._config.fail_on_data_loss
        self._tries += _BUSY in str(error)
        return _BUSY in str(error) and self._tries <= _MOST_TRIES

    def _try_to_begin(self) -> PipelineError | None:
        try:
            self._begin()
        except PipelineError as error:
            return error
        except (Py4JJavaError, PySparkException) as error:
            return failure(error)
        return None

    def _begin(self) -> None:
        tables = Tables(self._spark, self._lake, self._name)
        with Broker(self._settings) as broker:
            topic = broker.topics([self._name])[self._name]
            _check_topic(topic, tables)
            self._check_history(broker, topic, tables)
            if tables.raw.proven is None and self._config.starting == "latest":
                self._begin_at_the_end(broker, topic, tables)
            starting = self._starting(broker, topic, tables.raw.proven)
        self._writer = TopicWriter(
            self._spark, self._config, topic, tables, self._checkpoint, self._stop, self._progress
        )
        self._writer.report()
        reader = self._spark.readStream.format(self._config.source).options(**self._options(starting))
        writer = reader.load().writeStream.foreachBatch(self._writer)
        writer = writer.option("checkpointLocation", self._checkpoint.path).queryName(f"archive {self._name}")
        every_s = self._config.every_s
        if every_s is None:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{round(every_s * 1000)} milliseconds")
        self._query = writer.start()

    def _check_history(self, broker: Broker, topic: Topic, tables: Tables) -> None:
        """If the broker lost archived records, end, or delete the checkpoint and begin where the histories part."""
        proven = tables.raw.proven
        if proven is None:
            return
        ends = history.latest(broker, topic.name, topic.partitions)
        parted = history.lost(self._settings, proven, ends)
        if not parted:
            return
        told = history.describe(topic.name, proven.offsets, parted)
        if self._config.fail_on_data_loss:
            raise history.DataLost(f"{told}; {history.REMEDY}")
        log.warning("data loss: records from there on get into the lake beside the lost ones", reason=told)
        self._checkpoint.delete()
        # The raw table is the last, as in a batch: its proof tells of a loss.
        for table in reversed(tables.all):
            if table.proven is not None:
                table.reset(_back_to(table.proven, parted, ends))

    def _begin_at_the_end(self, broker: Broker, topic: Topic, tables: Tables) -> None:
        """Write the topic's end into the table: a query that dies in its first batch then begins there again."""
        partitions = [(topic.name, number) for number in topic.partitions]
        ends = broker.latest(partitions, committed_only=self._config.isolation == "read_committed")
        begin = Proven(
            topic=topic.name,
            topic_id=topic.id,
            generation=1,
            batch_id=-1,
            offsets={number: end.offset for (_, number), end in ends.items()},
        )
        tables.raw.begin(RAW_COLUMNS, begin)

    def _starting(self, broker: Broker, topic: Topic, proven: Proven | None) -> dict[str, int]:
        """Where each partition begins if there is no checkpoint: -2 is the earliest offset."""
        if proven is None:
            return {str(number): _EARLIEST for number in topic.partitions}
        earliest = broker.earliest([(topic.name, number) for number in topic.partitions])
        self._check_trimmed(proven.offsets, {number: position.offset for (_, number), position in earliest.items()})
        return {
            str(number): max(proven.offsets[number], earliest[topic.name, number].offset)
            if number in proven.offsets
            else _EARLIEST
            for number in topic.partitions
        }

    def _check_trimmed(self, has: Mapping[int, int], earliest: Mapping[int, int]) -> None:
        gone = {number: first for number, first in earliest.items() if first > has.get(number, first)}
        if not gone:
            return
        told = ", ".join(
            f"partition {number} begins at offset {first}, archived is up to {has[number]}"
            for number, first in sorted(gone.items())
        )
        told = f"topic {self._name}: records were trimmed before they were archived: {told}"
        if self._config.fail_on_data_loss:
            raise history.DataLost(
                f"{told}; {history.REMEDY}. The topic's setting korvet.retention=archived prevents it"
            )
        log.warning("data loss", reason=told)

    def _options(self, starting: Mapping[str, int]) -> dict[str, str]:
        options = {
            **self._config.kafka_options,
            "subscribe": self._name,
            "startingOffsets": json.dumps({self._name: starting}),
            "includeHeaders": "true",
            "failOnDataLoss": str(self._config.fail_on_data_loss).lower(),
        }
        if self._config.max_offsets_per_trigger is not None:
            options["maxOffsetsPerTrigger"] = str(self._config.max_offsets_per_trigger)
        return options

    def _end(self) -> PipelineError | None:
        """The reason why the query failed; None if it did not."""
        assert self._query is not None and self._writer is not None
        query, writer = self._query, self._writer
        self._query = None
        # Spark frees the query's name and checkpoint some time after it is not active any more.
        with suppress(StreamingQueryException):
            query.awaitTermination()
        self._rows, self._batches = self._rows + writer.rows, self._batches + writer.batches
        writer.rows = writer.batches = 0
        writer.close()
        if isinstance(writer.error, Stopped):
            return None
        if writer.error is not None:
            return _named(self._name, writer.error)
        error = query.exception()
        return None if error is None else _named(self._name, failure(error))


def _check_topic(topic: Topic, tables: Tables) -> None:
    if not topic.partitions:
        raise PipelineError(f"topic {topic.name}: it has no partitions")
    for table in tables.all:
        if table.proven is not None and table.proven.topic_id != topic.id:
            raise other_topic(topic.name)


def _back_to(proven: Proven, parted: Mapping[int, int], ends: Mapping[int, Position]) -> Proven:
    offsets = {number: min(offset, parted.get(number, offset)) for number, offset in proven.offsets.items()}
    epochs = {
        number: epoch for number, end in ends.items() if number in offsets and (epoch := end.leader_epoch) is not None
    }
    return Proven(
        topic=proven.topic,
        topic_id=proven.topic_id,
        generation=proven.generation,
        batch_id=-1,
        offsets=offsets,
        leader_epochs=epochs,
    )


def _named(topic: str, error: PipelineError) -> PipelineError:
    return error if topic in str(error) else PipelineError(f"topic {topic}: {error}")
