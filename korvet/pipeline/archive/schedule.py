"""The topics of an archive side by side: which of them have new records, and whose turn it is.

One thread asks the broker for the ends of all topics, and compares them with the proofs in memory. A topic with news
gets a thread for one batch. An exception ends the topic's writer, and the next try reads the tables' proofs anew.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from typing import Any, Final, Self

import structlog
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector
from pyspark.sql import SparkSession

from korvet.pipeline.archive.config import ArchiveConfig, ArchiveResult
from korvet.pipeline.archive.topic import TopicArchive
from korvet.pipeline.broker import Broker
from korvet.pipeline.errors import BrokerUnreachable, Passing, PipelineError
from korvet.pipeline.plan.batch import Ends
from korvet.pipeline.plan.table import Overtaken
from korvet.pipeline.session import driver
from korvet.pipeline.tries import Tries

log = structlog.get_logger()

_LABELS: Final = ("topic",)
_POLL_S: Final = 0.1
_LEAST_AT_ONCE: Final = 4
"""Batches at a time, also on a small machine: a batch of few records waits for the file system most of its time."""


class Lane:
    """A topic's archive, the ends that it has to reach, and its failures in a row.

    :param is_endless: the archive continues after it has reached the ends.
    """

    def __init__(self, archive: TopicArchive, *, is_endless: bool) -> None:
        self.archive, self._is_endless = archive, is_endless
        self._tries = Tries()
        self._wanted: Ends | None = None
        self._is_through = False
        self.running: Future[bool] | None = None
        self.error: PipelineError | None = None
        self.behind: int | None = None
        """Offsets from the lake's end to the broker's newest known end; None before a first batch."""

    @property
    def topic(self) -> str:
        return self.archive.topic

    @property
    def is_alive(self) -> bool:
        """True if there is work to come, without regard to failures that stay."""
        return self.running is not None or not (self._is_through or self._has_failed)

    @property
    def needs_ends(self) -> bool:
        """True if the topic's ends must be requested from the broker."""
        return not self._is_through and self._wanted is None

    def want(self, ends: Ends | PipelineError) -> None:
        """Take the broker's answer."""
        if isinstance(ends, PipelineError):
            if self._tries.is_due:
                self.fail(ends)
        elif not self.archive.has(ends):
            self._wanted, self.behind = ends, self.archive.lacks(ends)
        else:
            self.behind = 0
            self._succeed(wrote=False)

    def begin(self, pool: Executor, *, others_go_on: bool) -> None:
        """Submit the next batch, if one is due."""
        if self._is_through or self._wanted is None or self.running is not None or not self._tries.is_due:
            return
        if self._has_failed and not (others_go_on and self._may_come_back):
            return
        self.running = pool.submit(self.archive.go_on, self._wanted)

    def collect(self) -> None:
        """Take the outcome of a batch that has ended."""
        if self.running is None or not self.running.done():
            return
        running, self.running = self.running, None
        try:
            self._succeed(wrote=running.result())
        except PipelineError as error:
            self.fail(error)

    def fail(self, error: PipelineError) -> None:
        """Note a failure, and log when the next try comes."""
        self.error = error
        wait_s = self._tries.fail()
        again = {} if self._has_failed and not self._may_come_back else {"again_in_s": wait_s}
        log.error("archive failed", topic=self.topic, reason=str(error), **again)
        if self.archive.is_kept and error is not self.archive.typed_error:
            log.critical(
                "alarm: the broker keeps this topic until an archive goes on (korvet.retention=archived)",
                topic=self.topic,
            )

    def _succeed(self, *, wrote: bool) -> None:
        self._tries.succeed()
        self.error = None
        if self._wanted is not None:
            self.behind = self.archive.lacks(self._wanted)
        if self._is_endless:
            self._wanted = None
        elif not wrote or self._wanted is None or self.archive.has(self._wanted):
            self._is_through = True

    @property
    def _has_failed(self) -> bool:
        """True if the failure stays, as far as is known."""
        return self.error is not None and (not isinstance(self.error, Passing) or self._tries.are_used_up)

    @property
    def _may_come_back(self) -> bool:
        """True if the topic is tried again beside others. Two archives of one topic would take turns for ever."""
        return self._is_endless and not isinstance(self.error, Overtaken)


class Schedule(Collector):
    """A context manager; leaving it by an exception ends the running batches at once.

    :param metrics: a registry that reports the topics' figures meanwhile.
    """

    def __init__(
        self,
        spark: SparkSession,
        config: ArchiveConfig,
        broker: Broker,
        stop: threading.Event,
        metrics: CollectorRegistry | None,
    ) -> None:
        self._spark, self._config, self._broker, self._stop, self._metrics = spark, config, broker, stop, metrics
        self._lanes: dict[str, Lane] = {}
        self._tag = f"archive-{uuid.uuid4().hex}"
        at_once = max(_LEAST_AT_ONCE, driver(spark).defaultParallelism)
        self._pool = ThreadPoolExecutor(at_once, "archive", initializer=self._begin_thread)
        self._tries = Tries()
        self._fetched_at = -float("inf")

    def __enter__(self) -> Self:
        if self._metrics is not None:
            self._metrics.register(self)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._metrics is not None:
            self._metrics.unregister(self)
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

    def collect(self) -> Iterable[Metric]:
        """The topics' figures, which the registry's own thread takes."""
        records = CounterMetricFamily("korvet_archived_records", "Records that this archive wrote.", labels=_LABELS)
        batches = CounterMetricFamily("korvet_archived_batches", "Batches that this archive wrote.", labels=_LABELS)
        behind = GaugeMetricFamily(
            "korvet_archive_behind", "Offsets below the topic's ends that the lake lacks.", labels=_LABELS
        )
        failing = GaugeMetricFamily(
            "korvet_archive_failing", "Whether the archive's last try of the topic failed.", labels=_LABELS
        )
        for lane in tuple(self._lanes.values()):
            result = lane.archive.result(lane.error)
            records.add_metric([lane.topic], result.rows)
            batches.add_metric([lane.topic], result.batches)
            failing.add_metric([lane.topic], result.error is not None)
            if lane.behind is not None:
                behind.add_metric([lane.topic], lane.behind)
        return records, batches, behind, failing

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
        for lane in tuple(self._lanes.values()):
            if not self._stop.is_set():
                lane.archive.report()
