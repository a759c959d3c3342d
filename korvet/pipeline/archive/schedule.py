"""The topics of an archive side by side: which of them have new records, and whose turn it is.

One thread asks the broker for the ends of all topics, and compares them with the proofs in memory. A topic with news
gets a thread for one batch. An exception ends the topic's writer, and the next try reads the tables' proofs anew.
"""

from __future__ import annotations

import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, Final, Self

import structlog
from pyspark.sql import SparkSession

from korvet.pipeline.archive.config import ArchiveConfig, ArchiveResult
from korvet.pipeline.archive.lane import Lane
from korvet.pipeline.archive.topic import TopicArchive
from korvet.pipeline.broker import Broker
from korvet.pipeline.errors import BrokerUnreachable, PipelineError
from korvet.pipeline.session import driver
from korvet.pipeline.tries import Tries

log = structlog.get_logger()

_POLL_S: Final = 0.1
_LEAST_AT_ONCE: Final = 4
"""Batches at a time, also on a small machine: a batch of few records waits for the file system most of its time."""


class Schedule:
    """A context manager; leaving it by an exception ends the running batches at once."""

    def __init__(self, spark: SparkSession, config: ArchiveConfig, broker: Broker, stop: threading.Event) -> None:
        self._spark, self._config, self._broker, self._stop = spark, config, broker, stop
        self._lanes: dict[str, Lane] = {}
        self._tag = f"archive-{uuid.uuid4().hex}"
        at_once = max(_LEAST_AT_ONCE, driver(spark).defaultParallelism)
        self._pool = ThreadPoolExecutor(at_once, "archive", initializer=self._begin_thread)
        self._tries = Tries()
        self._fetched_at = -float("inf")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self._spark.sparkContext.cancelJobsWithTag(self._tag)
        self._pool.shutdown(cancel_futures=True)

    def add(self, archive: TopicArchive) -> None:
        """Archive one more topic."""
        self._lanes[archive.topic] = Lane(archive, is_endless=self._config.every_s is not None)

    def go_on(self) -> None:
        """Ask for new records if it is time, begin batches, and wait a little for the end of one."""
        if not self._stop.is_set():
            self._fetch_ends()
            others_go_on = self._config.may_grow or not self.is_over
            for lane in self._lanes.values():
                lane.begin(self._pool, others_go_on=others_go_on)
        running = [lane.running for lane in self._lanes.values() if lane.running is not None]
        if running:
            wait(running, _POLL_S, "FIRST_COMPLETED")
        elif not self.is_over:
            time.sleep(_POLL_S)
        for lane in self._lanes.values():
            lane.collect()

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """The topics; any thread may call this."""
        return tuple(self._lanes.values())

    def report(self) -> None:
        """Repeat all reports to the broker, beside the batches."""
        self._pool.submit(self._report)

    @property
    def is_over(self) -> bool:
        """True if no topic continues; failed topics are retried only while others run."""
        if self._stop.is_set():
            return not any(lane.running for lane in self._lanes.values())
        return not any(lane.is_alive for lane in self._lanes.values())

    @property
    def result(self) -> ArchiveResult:
        return ArchiveResult(topics={name: lane.archive.result(lane.error) for name, lane in self._lanes.items()})

    def _begin_thread(self) -> None:
        """Give this thread's jobs to this session, with a tag that ends them from any session."""
        classes: Any = SparkSession._get_j_spark_session_class(self._spark._jvm)
        classes.setActiveSession(self._spark._jsparkSession)
        self._spark.sparkContext.addJobTag(self._tag)

    def _fetch_ends(self) -> None:
        """Fetch the topics' ends from the broker."""
        lanes = [lane for lane in self._lanes.values() if lane.needs_ends]
        if not lanes or not self._tries.is_due or time.monotonic() < self._fetched_at + (self._config.every_s or 0):
            return
        self._fetched_at = time.monotonic()
        is_committed = self._config.isolation == "read_committed"
        try:
            ends = self._broker.log_ends([lane.topic for lane in lanes], committed_only=is_committed)
        except BrokerUnreachable as error:
            self._wait_for_the_broker(lanes, error)
            return
        self._tries.succeed()
        for lane in lanes:
            lane.want(ends[lane.topic])

    def _wait_for_the_broker(self, lanes: list[Lane], error: BrokerUnreachable) -> None:
        wait_s = self._tries.fail()
        if not self._tries.are_used_up:
            log.warning("waiting for the broker", reason=str(error), again_in_s=wait_s)
            return
        for lane in lanes:
            lane.fail(PipelineError(f"topic {lane.topic}: {error}"))

    def _report(self) -> None:
        for lane in self.lanes:
            if not self._stop.is_set():
                lane.archive.report()
