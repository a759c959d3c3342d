"""Archive topics, until all are through or ``stop`` is set.

The driver asks the broker for the ends of all topics at once. Only topics with new records get to Spark: a few threads
write a batch each. So an idle topic costs two numbers in an answer, and Spark has as many processes as tasks at a time.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import Final

import structlog
from prometheus_client import CollectorRegistry
from pyspark.sql import SparkSession

from korvet.configs.types import split
from korvet.pipeline.archive.config import ArchiveConfig, ArchiveProgress, ArchiveResult
from korvet.pipeline.archive.schedule import Schedule
from korvet.pipeline.archive.topic import TopicArchive
from korvet.pipeline.broker import Broker
from korvet.pipeline.client_settings import client_settings
from korvet.pipeline.errors import BrokerUnreachable, PipelineError
from korvet.pipeline.lake import Lake, files
from korvet.pipeline.lake.maintain import MaintainConfig, TableMaintained, check_age, maintain
from korvet.pipeline.plan.layout import LAKE_TABLES

log = structlog.get_logger()

_LOOKED_AT: Final = 500
_NEW_TOPICS_EVERY_S: Final = 30.0
# A group's offsets expire if no client commits: by default after a week, and hardly sooner than this.
_REPORT_EVERY_S: Final = 1800.0


def archive(
    spark: SparkSession,
    config: ArchiveConfig,
    *,
    stop: threading.Event | None = None,
    progress: Callable[[ArchiveProgress], None] | None = None,
    metrics: CollectorRegistry | None = None,
) -> ArchiveResult:
    """Move topics into Delta tables, every record once, however often the process is killed.

    A topic whose archive fails does not end the others. It is tried again while they go on; the result says why.

    :param stop: once it is set, the archive finishes the running batches, and begins no others.
    :param progress: called from other threads, after each batch.
    :param metrics: a registry of prometheus-client, which reports the topics' figures until the archive ends.
    :raises UnknownTopic, BrokerUnreachable: before it begins anything.
    :raises PipelineError: if the configuration makes no sense.
    """
    stop = threading.Event() if stop is None else stop
    found = _Topics(config)
    look_at, report_at = -math.inf, -math.inf
    with (
        closing(_Upkeep(spark, config, stop)) as upkeep,
        Broker(client_settings(config.kafka_options)) as broker,
        Schedule(spark, config, broker, stop, metrics) as schedule,
    ):
        while True:
            now = time.monotonic()
            if now >= look_at:
                look_at = now + _NEW_TOPICS_EVERY_S
                for name, its_config in found.new(broker):
                    schedule.add(TopicArchive(spark, its_config, name, broker, progress))
            if not found.known and config.every_s is None:
                if config.pattern is not None:
                    raise PipelineError(f"no topic matches the pattern {config.pattern!r}")
                raise PipelineError(f"no topics to archive: name some, give a pattern, or set {LAKE_TABLES} of topics")
            schedule.go_on()
            if schedule.is_over and (stop.is_set() or config.every_s is None or not config.may_grow):
                return schedule.result
            upkeep.poll(found.known)
            if now >= report_at:
                report_at = now + _REPORT_EVERY_S
                schedule.report()


class _Topics:
    """The topics to archive; a pattern or the topics' settings may bring new ones."""

    def __init__(self, config: ArchiveConfig) -> None:
        try:
            self._pattern = None if config.pattern is None else re.compile(config.pattern)
        except re.error as error:
            raise PipelineError(f"pattern {config.pattern!r}: it is no regular expression: {error}") from None
        self._config, self._named = config, config.topics
        self._has_looked = False
        self._last = ""
        self.known: set[str] = set()

    def new(self, broker: Broker) -> list[tuple[str, ArchiveConfig]]:
        """Topics that no call has returned yet, each with its configuration.

        :raises UnknownTopic, BrokerUnreachable: by the first call; a later one returns none instead.
        """
        if self._has_looked and not self._config.may_grow:
            return []
        try:
            broker.topics(() if self._has_looked else self._named)
            names = broker.topic_names() if self._config.may_grow else []
            if self._pattern is None and not self._named:
                found = self._asking(broker, [name for name in names if name not in self.known])
            else:
                matching = [name for name in names if self._pattern is not None and self._pattern.fullmatch(name)]
                fresh = [name for name in dict.fromkeys((*self._named, *matching)) if name not in self.known]
                found = [(name, self._config) for name in fresh]
        except BrokerUnreachable:
            if not self._has_looked:
                raise
            return []
        self._has_looked = True
        self.known.update(name for name, _ in found)
        return found

    def _asking(self, broker: Broker, names: Sequence[str]) -> list[tuple[str, ArchiveConfig]]:
        """The topics whose setting asks for tables. After the first call a call looks at some, in turns."""
        found = []
        while True:
            some = [name for name in names if name > self._last][:_LOOKED_AT]
            for name, settings in broker.topics_settings(some).items():
                if tables := settings.get(LAKE_TABLES):
                    found.append((name, _asked(self._config, name, split(tables))))
            self._last = some[-1] if len(some) == _LOOKED_AT else ""
            if self._has_looked or not self._last:
                return found


def _asked(config: ArchiveConfig, topic: str, tables: Sequence[str]) -> ArchiveConfig:
    """The configuration of a topic by its setting."""
    if "typed" not in tables:
        config = replace(config, schemas={**config.schemas, topic: ""}, schema_registry=None)
    return replace(config, table="latest") if "latest" in tables else config


class _Upkeep:
    """Compacts the tables beside the archive, and deletes their old rows, each time that ``maintain_every_s`` is over.

    A failure is logged, and ends neither the archive nor later maintenance.

    :param stop: once it is set, maintenance begins no other table.
    :raises PipelineError: if rows would expire within a day.
    """

    def __init__(self, spark: SparkSession, config: ArchiveConfig, stop: threading.Event) -> None:
        check_age(config.expire_hours)
        self._spark, self._config, self._stop = spark, config, stop
        self._thread = ThreadPoolExecutor(1, "korvet-upkeep")
        self._running: Future[None] | None = None
        self._last = time.monotonic()

    def poll(self, topics: Iterable[str]) -> None:
        """Begin to maintain the topics' tables if it is time, and the last time is through."""
        every_s = self._config.maintain_every_s
        if every_s is None or time.monotonic() - self._last < every_s:
            return
        if self._running is not None and not self._running.done():
            return
        self._last = time.monotonic()
        self._running = self._thread.submit(self._maintain, tuple(topics))

    def close(self) -> None:
        """Wait for the running table."""
        self._thread.shutdown(cancel_futures=True)

    def _maintain(self, topics: tuple[str, ...]) -> None:
        lake = Lake(self._config.lake)
        try:
            there = tuple(topic for topic in topics if files.kind(self._spark, lake.raw(topic)) == "directory")
            if there:
                config = MaintainConfig(lake=lake.location, topics=there, expire_hours=self._config.expire_hours)
                maintain(self._spark, config, stop=self._stop, progress=_log_progress)
        except PipelineError as error:
            log.warning("maintenance failed", reason=str(error))


def _log_progress(done: TableMaintained) -> None:
    if done.error is not None:
        log.warning("maintenance failed", table=done.table, reason=str(done.error))
        return
    log.info(
        "maintained",
        table=done.table,
        files_compacted=done.files_compacted,
        files_written=done.files_written,
        rows_expired=done.rows_expired,
    )
