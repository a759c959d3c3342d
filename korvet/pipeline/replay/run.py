"""The driver of a replay of rows: what it writes where, and the jobs of Spark that do it, one window after the other.

A window has the next rows of each partition, by their offsets. So a stop, a rate and a retry need no word to running
tasks. All that a retry has to know is in the topic and its group.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Final

import structlog
from pyspark.sql import DataFrame, SparkSession

from korvet.pipeline.broker import Broker, Topic
from korvet.pipeline.client_settings import client_settings
from korvet.pipeline.errors import BrokerUnreachable, Passing, PipelineError, UnknownTopic
from korvet.pipeline.failures import failure
from korvet.pipeline.lake import Lake
from korvet.pipeline.replay import task
from korvet.pipeline.replay.config import (
    GROUP_PREFIX,
    Note,
    ReplayConfig,
    ReplayProgress,
    ReplayResult,
    check_name,
    check_target,
    made_anew,
)
from korvet.pipeline.replay.table import (
    SPARK_ERRORS,
    Span,
    Table,
    after_places,
    chosen,
    open_table,
    read,
    spans,
    window,
)
from korvet.pipeline.reported import ARCHIVE_GROUP
from korvet.pipeline.session import session_like
from korvet.pipeline.tries import Tries

log = structlog.get_logger()

FIRST_STEP: Final = 100_000
"""The offsets of a partition in the first window."""
_LONG_S: Final = 15.0
"""The time of a window after which further ones do not grow."""
_TRANSACTION_TIMEOUT_MS: Final = "60000"
_MOST_ROWS: Final = 1000
_MOST_BYTES: Final = 64 * 1024 * 1024
_TIME_DIGITS: Final = 16
"""Digits of the nanoseconds since 1970 at the beginning of a run's name."""
_LATEST: Final = "~"
"""A name greater than those of all runs."""


def replay(
    spark: SparkSession,
    config: ReplayConfig,
    *,
    stop: threading.Event | None = None,
    progress: Callable[[ReplayProgress], None] | None = None,
) -> ReplayResult:
    """Write the rows of a topic's raw table into a topic, each exactly once, however often the replay is restarted.

    Keys, values, headers and timestamps stay, and so do the partition and the order; offsets are new. Consumers with
    ``isolation.level=read_committed`` see each record once.

    :param stop: once it is set, the replay ends after the running jobs of Spark; the same call resumes it later.
    :param progress: the replay calls it after each job.
    :raises PipelineError: if something cannot be read or written. Committed records stay, and count.
    """
    began, stop = time.monotonic(), stop or threading.Event()
    if config.lake is None:
        raise PipelineError("a tier is replayed by the command `korvet pipeline replay`, without Spark; give a lake")
    settings, session = _settings(config), _session(spark)
    with Broker(settings) as broker:
        table = open_table(session, Lake(config.lake).raw(config.topic), config.topic)
        version = table.newest if config.version is None else config.version
        rows = chosen(read(session, table, version), config)
        digest = config.digest(table.id)
        name = config.name or f"{config.topic}-{digest}"

        def partitions() -> int:
            if not _spans(rows, table):
                raise _nothing(table)
            return 1 + max(_spans(read(session, table, version), table))

        topic = _find_target(broker, config, name, partitions)
        plan = _plan(settings, broker, name, topic, digest)
        places = plan.places(broker)
        before = sum(note.records for _, note in places.values())
        rows = after_places(rows, {number: offset for number, (offset, _) in places.items()})
        left = _spans(rows, table)
        if not left and not places:
            raise _nothing(table)
        total = before + sum(one.records for one in left.values())
        oldest_ms = {number: span.oldest_ms for number, span in left.items()}
        check_target(topic.name, len(topic.partitions), broker.topic_settings(topic.name), oldest_ms)
        log.info(
            "replay begins", name=name, table=table.path, version=version, topic=topic.name, records=total - before,
            partitions=len(left),
        )  # fmt: skip

        now = before

        def report() -> int:
            nonlocal now
            with suppress(BrokerUnreachable):
                now = sum(note.records for _, note in plan.places(broker).values())
            if progress is not None:
                rate = (now - before) / max(time.monotonic() - began, 1.0)
                progress(ReplayProgress(name=plan.name, records=now, total=total, records_per_s=rate))
            return now

        is_over = _write(plan, rows, left, config.rate, stop, report)
        if broker.topics([topic.name])[topic.name].id != topic.id:
            raise made_anew(topic.name)
    if is_over and now < total:
        is_over = False
        log.error(
            "Spark read fewer rows than the table has; look for files that it passed over, and start the replay again",
            name=plan.name, records=now, total=total,
        )  # fmt: skip
    result = ReplayResult(
        name=plan.name,
        target=topic.name,
        version=version,
        records=now - before,
        total=total,
        complete=is_over,
        seconds=time.monotonic() - began,
    )
    log.info("replay ended", name=result.name, records=result.records, total=result.total, complete=result.complete)
    return result


def _write(
    plan: task.Plan,
    rows: DataFrame,
    left: Mapping[int, Span],
    rate: float | None,
    stop: threading.Event,
    report: Callable[[], int],
) -> bool:
    """Write the rows, window after window, and a window again after a failure that may pass. Returns false at a stop.

    :raises PipelineError:
    """
    at = {number: span.begin for number, span in left.items()}
    # At a rate a window takes that time, and all windows are alike.
    step, growth = (FIRST_STEP, 4) if rate is None else (max(1, int(rate * _LONG_S / max(1, len(at)))), 1)
    due, tries, done = time.monotonic(), Tries(), report()
    while at and not stop.wait(max(0.0, due - time.monotonic())):
        ends = {number: min(begin + step, left[number].end) for number, begin in at.items()}
        began = time.monotonic()
        try:
            _run(plan, window(rows, at, ends))
        except Passing as error:
            wait_s = tries.fail()
            if tries.are_used_up:
                raise
            log.error("replay failed", name=plan.name, reason=str(error), again_in_s=wait_s)
            due = time.monotonic() + wait_s
        else:
            at = {number: end for number, end in ends.items() if end < left[number].end}
            step *= growth if time.monotonic() - began < _LONG_S else 1
        former, done = done, report()
        if done > former:
            tries.succeed()
        if rate is not None:
            due = max(due, began + (done - former) / rate)
    return not at


def _run(plan: task.Plan, rows: DataFrame) -> None:
    """
    :raises Passing, PipelineError:
    """
    try:
        failures = rows.mapInArrow(partial(task.run, plan), task.OUTCOME).collect()
    except SPARK_ERRORS as error:
        raise failure(error) from None
    for one in failures:
        raise (BrokerUnreachable if one["passes"] else PipelineError)(one["failure"])


def _plan(settings: Mapping[str, str], broker: Broker, name: str, topic: Topic, digest: str) -> task.Plan:
    """The plan for all tasks.

    :raises PipelineError:
    """
    largest = min(max(int(broker.topic_settings(topic.name)["max.message.bytes"]), 1000), 1_000_000_000)

    def of_run(run: str) -> task.Plan:
        note = Note(job=digest, topic_id=topic.id, records=0, run=run)
        return task.Plan(
            settings={**settings, "message.max.bytes": str(largest)}, name=name, topic=topic.name, note=note
        )

    return of_run(new_run(note.run for _, note in of_run(_LATEST).places(broker).values()))


def new_run(former: Iterable[str]) -> str:
    """A name greater than all names before, even if the clock was set back."""
    last = max((int(run[:_TIME_DIGITS], 16) for run in former), default=0)
    return f"{max(time.time_ns(), last + 1):0{_TIME_DIGITS}x}{uuid.uuid4().hex}"


def _nothing(table: Table) -> PipelineError:
    return PipelineError(
        f"there is nothing to replay: {table.path} has no record in the range; choose another, or leave it out"
    )


def _spans(rows: DataFrame, table: Table) -> Mapping[int, Span]:
    try:
        return spans(rows)
    except SPARK_ERRORS as error:
        raise PipelineError(
            f"{table.path} cannot be read ({failure(error)}); restore it, or name another version: the newest is "
            f"{table.newest}"
        ) from None


def _session(spark: SparkSession) -> SparkSession:
    """A session like the caller's, whose batches of Arrow are small. Lower bounds of the caller's hold here, too."""
    session = session_like(spark)
    conf = spark._jsparkSession.sessionState().conf()
    most_rows, most_bytes = int(conf.arrowMaxRecordsPerBatch()), int(conf.arrowMaxBytesPerBatch())
    most_rows = min(most_rows, _MOST_ROWS) if most_rows > 0 else _MOST_ROWS
    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", most_rows)
    session.conf.set("spark.sql.execution.arrow.maxBytesPerBatch", min(most_bytes, _MOST_BYTES))
    return session


def _settings(config: ReplayConfig) -> dict[str, str]:
    """librdkafka's settings for all clients; each ignores settings that it does not use."""
    java = {f"kafka.{name}": value for name, value in config.client.items()}
    given = client_settings({**java, "kafka.bootstrap.servers": config.bootstrap_servers})
    return {"transaction.timeout.ms": _TRANSACTION_TIMEOUT_MS, **given}


def _find_target(broker: Broker, config: ReplayConfig, name: str, partitions: Callable[[], int]) -> Topic:
    """The topic, created if necessary.

    :param name: the replay's.
    :param partitions: the number of partitions of a new topic.
    :raises UnknownTopic: it is missing.
    :raises PipelineError: its archive is the source: that would then hold the records twice. Or as `check_name`.
    """
    target = config.target
    is_source = target == config.topic and not config.into_archived
    if is_source and any(topic == target for topic, _ in broker.committed(ARCHIVE_GROUP)):
        raise PipelineError(
            f"topic {target} is archived: its lake would hold these records a second time, under new offsets; name "
            "another topic to replay to, or allow this one (into archived)"
        )
    check_name(name, target, (topic for topic, _ in broker.committed(GROUP_PREFIX + name)))
    try:
        return broker.topics([target])[target]
    except UnknownTopic:
        if not config.create:
            raise UnknownTopic(
                f"topic {target} does not exist at {config.bootstrap_servers}; create it, or let the replay do so "
                "(create)"
            ) from None
    # Old records would vanish at once.
    broker.create_topic(target, count := partitions(), {"retention.ms": "-1"})
    log.info("topic created", topic=target, partitions=count, retention_ms=-1)
    return broker.topics([target])[target]
