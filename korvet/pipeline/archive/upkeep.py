"""Maintenance of the archived topics' tables beside their archive, in a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor

import structlog
from pyspark.sql import SparkSession

from korvet.pipeline.archive.config import ArchiveConfig
from korvet.pipeline.errors import PipelineError
from korvet.pipeline.lake import Lake, files
from korvet.pipeline.lake.maintain import MaintainConfig, TableMaintained, check_age, maintain

log = structlog.get_logger()


class Upkeep:
    """Compacts the tables, and deletes their old rows, each time that ``maintain_every_s`` is over.

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
