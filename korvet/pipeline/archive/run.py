"""Archive topics: a query for each, side by side, until all are through or ``stop`` is set."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from typing import Final

from pyspark.sql import SparkSession

from korvet.pipeline.archive.config import ArchiveConfig, ArchiveProgress, ArchiveResult
from korvet.pipeline.archive.query import TopicArchive
from korvet.pipeline.broker import Broker
from korvet.pipeline.client_settings import client_settings
from korvet.pipeline.errors import BrokerUnreachable, PipelineError

_POLL_S: Final = 0.1
_NEW_TOPICS_EVERY_S: Final = 30.0
# A group's offsets expire if no client commits: by default after a week, and hardly sooner than this.
_REPORT_EVERY_S: Final = 1800.0


def archive(
    spark: SparkSession,
    config: ArchiveConfig,
    *,
    stop: threading.Event | None = None,
    progress: Callable[[ArchiveProgress], None] | None = None,
) -> ArchiveResult:
    """Move topics into Delta tables, every record once, however often the process is killed.

    A topic whose archive fails does not end the others; the result says why.

    :param stop: once it is set, the archive finishes the running batches, and begins no others.
    :param progress: called from other threads, after each batch.
    :raises UnknownTopic, BrokerUnreachable: before it begins anything.
    :raises PipelineError: if the configuration makes no sense.
    """
    stop = threading.Event() if stop is None else stop
    archives: dict[str, TopicArchive] = {}
    found = _Topics(config)
    running: list[TopicArchive] = []
    clock = _Clock()
    try:
        while True:
            for name in found.new() if clock.is_due("topics", _NEW_TOPICS_EVERY_S) else []:
                archives[name] = TopicArchive(spark, config, name, stop, progress)
                archives[name].start()
                running.append(archives[name])
            if not archives and config.every_s is None:
                raise PipelineError(f"no topic matches the pattern {config.pattern!r}")
            running = [each for each in running if each.poll()]
            if not running and (stop.is_set() or config.every_s is None or config.pattern is None):
                return ArchiveResult(topics={name: each.result for name, each in archives.items()})
            if clock.is_due("report", _REPORT_EVERY_S):
                for each in running:
                    each.report()
            time.sleep(_POLL_S)
    finally:
        for each in running:
            each.abandon()


class _Topics:
    """The topics to archive; a pattern may bring new ones."""

    def __init__(self, config: ArchiveConfig) -> None:
        if not config.topics and config.pattern is None:
            raise PipelineError("no topics to archive: name some, or give a pattern")
        try:
            self._pattern = None if config.pattern is None else re.compile(config.pattern)
        except re.error as error:
            raise PipelineError(f"pattern {config.pattern!r}: it is no regular expression: {error}") from None
        self._settings, self._named = client_settings(config.kafka_options), config.topics
        self._known: set[str] = set()

    def new(self) -> list[str]:
        """Topics that the last call did not have.

        :raises UnknownTopic, BrokerUnreachable: by the first call; a later one returns none instead.
        """
        if self._known and self._pattern is None:
            return []
        try:
            with Broker(self._settings) as broker:
                broker.topics(self._named if not self._known else ())
                names = broker.topic_names() if self._pattern is not None else []
        except BrokerUnreachable:
            if not self._known:
                raise
            return []
        matching = [name for name in names if self._pattern is not None and self._pattern.fullmatch(name)]
        fresh = [name for name in dict.fromkeys((*self._named, *matching)) if name not in self._known]
        self._known.update(fresh)
        return fresh


class _Clock:
    """Tells when something is due again; everything is due at first."""

    def __init__(self) -> None:
        self._done: dict[str, float] = {}

    def is_due(self, what: str, every_s: float) -> bool:
        now = time.monotonic()
        if now - self._done.get(what, -every_s - now) < every_s:
            return False
        self._done[what] = now
        return True
