"""A replay's tasks in Spark: the driver starts, watches and stops them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, TimeoutError
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog
from pyspark import SparkContext, inheritable_thread_target
from pyspark.sql import DataFrame, Row

from korvet.pipeline.broker import Broker
from korvet.pipeline.errors import BrokerUnreachable, PipelineError
from korvet.pipeline.failures import failure
from korvet.pipeline.replay import task
from korvet.pipeline.replay.config import ReplayProgress
from korvet.pipeline.replay.handing import Batches
from korvet.pipeline.replay.positions import Positions, Progress
from korvet.pipeline.replay.stopping import request_stop
from korvet.pipeline.replay.table import SPARK_ERRORS
from korvet.pipeline.replay.task import End

log = structlog.get_logger()

EVERY_S: Final = 0.5
STOP_WITHIN_S: Final = 60.0
"""The time for tasks to end their transactions. Then Spark kills the tasks, and the broker aborts the transactions."""
_FAILED_WITHIN_S: Final = 5.0
"""The same after a failure of the driver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The work of a run.

    :param rows: the rows still to write, in the session of the batches.
    :param only_small: the tasks get no large rows.
    :param partitions: the partitions that may have such rows, in order.
    :param total: the number of records in the range, including those of earlier runs.
    :param before: where former runs ended.
    """

    rows: DataFrame
    batches: Batches
    only_small: bool
    plan: task.Plan
    partitions: Sequence[int]
    total: int
    before: Mapping[int, Progress]

    @property
    def context(self) -> SparkContext:
        return self.batches.session.sparkContext

    @property
    def all_partitions(self) -> Collection[int]:
        """The partitions of this run and of former ones."""
        return {*self.partitions, *self.before}


def records(found: Mapping[int, Progress]) -> int:
    """How many records are in the topic."""
    return sum(progress.note.records for progress in found.values())


def carry_out(
    job: Job,
    broker: Broker,
    positions: Positions,
    stop: threading.Event,
    progress: Callable[[ReplayProgress], None],
) -> End:
    """Run the tasks until they end, or until ``stop`` ends them.

    :returns: the end of all tasks: stopped if one was, else large if one met a large row.
    :raises PipelineError:
    """
    tag = f"replay-{job.plan.target.note.run}"
    running, began = _start(job, tag), time.monotonic()
    try:
        try:
            while not stop.is_set() and not _is_done(running):
                _report(job, positions, began, progress)
            if not running.done():
                log.info("stopping after the transactions that are open", name=job.plan.target.name)
                _stop(job, broker, running, tag, STOP_WITHIN_S)
            _report(job, positions, began, progress)
        except Exception:
            _stop(job, broker, running, tag, _FAILED_WITHIN_S)
            raise
    except BaseException:
        _kill(job, running, tag)
        raise
    return _end(running, was_stopped=stop.is_set())


def _start(job: Job, tag: str) -> Future[list[Row]]:
    """Begin the tasks from a thread of their own."""
    running: Future[list[Row]] = Future()
    rows = job.batches.hand_over(job.rows, job.partitions, job.plan.starts, only_small=job.only_small)
    outcomes = rows.mapInArrow(partial(task.run, job.plan), task.OUTCOME)

    def collect() -> list[Row]:
        # A session's own tags are known to the thread alone that added them.
        job.context.addJobTag(tag)
        return outcomes.collect()

    inherits = inheritable_thread_target(job.batches.session)(collect)

    def work() -> None:
        try:
            running.set_result(inherits())
        except BaseException as error:
            running.set_exception(error)

    threading.Thread(target=work, name=tag, daemon=True).start()
    return running


def _is_done(running: Future[list[Row]]) -> bool:
    with suppress(TimeoutError):
        running.exception(EVERY_S)
    return running.done()


def _report(job: Job, positions: Positions, began: float, progress: Callable[[ReplayProgress], None]) -> None:
    note = job.plan.target.note
    try:
        now = records(positions.read(job.all_partitions, note.topic_id, timeout_s=2.0))
    except BrokerUnreachable:
        return
    state = ReplayProgress(
        name=job.plan.target.name,
        records=now,
        total=job.total,
        records_per_s=(now - records(job.before)) / max(time.monotonic() - began, EVERY_S),
    )
    progress(state)


def _stop(job: Job, broker: Broker, running: Future[list[Row]], tag: str, within_s: float) -> None:
    """Request the tasks to end after their transactions, and kill those still running after ``within_s``."""
    deadline = time.monotonic() + within_s
    is_requested = False
    while not running.done() and time.monotonic() < deadline:
        if not is_requested and (is_requested := request_stop(broker, job.plan.target)):
            deadline = time.monotonic() + within_s
        _is_done(running)
    if running.done():
        return
    log.warning("tasks did not end in time, and are killed", name=job.plan.target.name)
    deadline = time.monotonic() + STOP_WITHIN_S
    while not running.done() and time.monotonic() < deadline:
        # Spark cancels no job that it still plans.
        _kill(job, running, tag)
        _is_done(running)


def _kill(job: Job, running: Future[list[Row]], tag: str) -> None:
    """Kill the tasks that run now; if Spark itself has ended, none do."""
    if not running.done():
        with suppress(*SPARK_ERRORS, AttributeError):
            job.context.cancelJobsWithTag(tag)


def _end(running: Future[list[Row]], *, was_stopped: bool) -> End:
    """The end of all tasks. Raises the first failure; tasks killed after a stop are none."""
    try:
        outcomes = running.result(0)
    except (*SPARK_ERRORS, TimeoutError) as error:
        if was_stopped:
            return End.STOPPED
        raise failure(error) from None
    for outcome in outcomes:
        if outcome["failure"] is not None:
            raise PipelineError(outcome["failure"])
    ends = {outcome["end"] for outcome in outcomes}
    return next((end for end in (End.STOPPED, End.LARGE) if end in ends), End.COMPLETE)
