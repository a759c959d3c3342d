"""The driver of a replay."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Final

import structlog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from korvet.pipeline.broker import Broker, Topic
from korvet.pipeline.client_settings import client_settings
from korvet.pipeline.errors import PipelineError
from korvet.pipeline.failures import failure
from korvet.pipeline.lake import Lake
from korvet.pipeline.replay import task
from korvet.pipeline.replay.carrying import Job, carry_out, records
from korvet.pipeline.replay.config import ReplayConfig, ReplayProgress, ReplayResult
from korvet.pipeline.replay.handing import LARGE_BYTES, seem_small, session_of_replay
from korvet.pipeline.replay.judging import Judged, judge, told_by_files
from korvet.pipeline.replay.positions import Note, Positions, Progress
from korvet.pipeline.replay.sending import Target
from korvet.pipeline.replay.table import SPARK_ERRORS, Table, behind, chosen, open_table, read
from korvet.pipeline.replay.target import (
    create_target,
    find_target,
    refuse_loop,
    refuse_missing_partitions,
    refuse_new_topic,
    refuse_other_target,
    refuse_refused,
    warn,
)
from korvet.pipeline.replay.task import End

log = structlog.get_logger()

_TRANSACTION_TIMEOUT_MS: Final = "60000"
# Digits of the nanoseconds since 1970 at the beginning of a run's name.
_TIME_DIGITS: Final = 16
# Any transaction fits, also above buffer.memory: the task bounds its size. No messages are no limit.
_BUFFER: Final = {"queue.buffering.max.kbytes": "2147483647", "queue.buffering.max.messages": "0"}


def replay(
    spark: SparkSession,
    config: ReplayConfig,
    *,
    stop: threading.Event | None = None,
    progress: Callable[[ReplayProgress], None] | None = None,
) -> ReplayResult:
    """Write the rows of a topic's raw table into a topic, each exactly once, however often the replay begins anew.

    Keys, values, headers and timestamps stay, and so do the partition and the order; offsets are new. Consumers with
    ``isolation.level=read_committed`` see each record once.

    :param stop: once it is set, the replay ends after its open transactions; the same call goes on later.
    :param progress: the replay calls it every half a second.
    :raises PipelineError: if something cannot be read or written. Committed records stay, and count.
    """
    stop, progress = stop or threading.Event(), progress or (lambda told: None)
    settings, session = _settings(config), session_of_replay(spark)
    with Broker(settings) as broker:
        job = _prepare(session, config, broker, settings, may_be_small=True)
        before, began = records(job.before), time.monotonic()
        end, now = _carry(job, broker, stop, progress)
        if end is End.LARGE and not stop.is_set():
            log.info("from here on Spark bounds batches by their bytes, because a row is large", bytes=LARGE_BYTES)
            job = _prepare(session, config, broker, settings, may_be_small=False)
            end, now = _carry(job, broker, stop, progress)
        target = job.plan.target
        refuse_new_topic(broker, target.topic, target.note.topic_id)
    is_complete = end is End.COMPLETE
    if is_complete and now < job.total:
        is_complete = False
        log.error(
            "Spark read fewer rows than the table has; look for files that it passed over, and start the replay again",
            name=target.name, records=now, total=job.total,
        )  # fmt: skip
    result = ReplayResult(
        name=target.name,
        target=target.topic,
        version=target.note.version,
        records=now - before,
        total=job.total,
        complete=is_complete,
        seconds=time.monotonic() - began,
    )
    log.info("replay ended", name=result.name, records=result.records, total=result.total, complete=result.complete)
    return result


def _carry(
    job: Job, broker: Broker, stop: threading.Event, progress: Callable[[ReplayProgress], None]
) -> tuple[End, int]:
    """Carry the job out, if there is anything to do. Returns its end, and how many records are in the topic now."""
    target, end = job.plan.target, End.COMPLETE
    with Positions(target.settings, target.name, target.topic) as positions:
        if job.partitions:
            end = carry_out(job, broker, positions, stop, progress)
        else:
            log.info("nothing is left to replay; a replay of another name replays it again", name=target.name)
        return end, records(positions.read(job.all_partitions, target.note.topic_id))


def _settings(config: ReplayConfig) -> dict[str, str]:
    """librdkafka's settings for all clients; each ignores settings that it does not use."""
    java = {f"kafka.{name}": value for name, value in config.client.items()}
    given = client_settings({**java, "kafka.bootstrap.servers": config.bootstrap_servers})
    return {"transaction.timeout.ms": _TRANSACTION_TIMEOUT_MS, **given}


def _prepare(
    spark: SparkSession, config: ReplayConfig, broker: Broker, settings: dict[str, str], *, may_be_small: bool
) -> Job:
    table = open_table(spark, Lake(config.lake).raw(config.topic), config.topic)
    refuse_loop(broker, config)
    digest = config.digest(table.id)
    name = config.name or f"{config.topic}-{digest}"
    refuse_other_target(broker, name, config.target)
    topic = find_target(broker, config) or _create(spark, config, broker, table)
    with Positions(settings, name, topic.name) as positions:
        before = positions.read(topic.partitions, topic.id)
    version = _version(config, table, name, digest, before)
    starts = {partition: progress.offset for partition, progress in before.items()}
    rows = behind(chosen(read(spark, table, version), config), starts)
    # The second time the rows themselves tell. A row without a time, which statistics hid, had passed for a large one.
    is_told = may_be_small and config.is_whole and config.rate is None and not starts and version == table.newest
    judged = _judged(table, rows, is_told=is_told)
    if judged is None and not before:
        raise _nothing(table)
    if judged is not None:
        _refuse(broker, topic, judged)
    partitions = judged.partitions if judged is not None else ()
    target = Target(
        settings=settings,
        producer={"message.max.bytes": str(_largest(broker.topic_settings(topic.name))), **_BUFFER},
        name=name,
        topic=topic.name,
        note=Note(job=digest, version=version, topic_id=topic.id, run=_new_run(before), records=0),
    )
    plan = task.Plan(
        target=target,
        starts=starts,
        ends=judged.ends if judged is not None else {},
        rate=config.rate,
        at_once=spark.sparkContext.defaultParallelism,
    )
    left = judged.records if judged is not None else 0
    log.info(
        "replay begins", name=name, table=table.path, version=version, topic=topic.name, records=left,
        partitions=len(partitions),
    )  # fmt: skip
    return Job(
        rows=rows,
        only_small=may_be_small and seem_small(left, table.size_bytes),
        plan=plan,
        partitions=partitions,
        total=records(before) + left,
        before=before,
    )


def _new_run(before: Mapping[int, Progress]) -> str:
    """A name greater than all names before, even if the clock was set back."""
    written = max((int(progress.note.run[:_TIME_DIGITS], 16) for progress in before.values()), default=0)
    return f"{max(time.time_ns(), written + 1):0{_TIME_DIGITS}x}{uuid.uuid4().hex}"


def _largest(settings: Mapping[str, str]) -> int:
    """The most bytes of a batch that both the topic and librdkafka take."""
    return min(max(int(settings["max.message.bytes"]), 1000), 1_000_000_000)


def _create(spark: SparkSession, config: ReplayConfig, broker: Broker, table: Table) -> Topic:
    """Create the target with all partitions of the table, if the range has any row.

    :raises PipelineError:
    """
    wanted = chosen(read(spark, table, table.newest if config.version is None else config.version), config)
    try:
        if wanted.isEmpty():
            raise _nothing(table)
        found = read(spark, table, table.newest).agg(f.max("partition").alias("last")).first()
    except SPARK_ERRORS as error:
        raise failure(error) from None
    assert found is not None, "an aggregate without groups is one row"
    return create_target(broker, config, 1 + (found["last"] or 0))


def _nothing(table: Table) -> PipelineError:
    return PipelineError(
        f"there is nothing to replay: {table.path} has no record in the range; choose another, or leave it out"
    )


def _version(config: ReplayConfig, table: Table, name: str, digest: str, before: Mapping[int, Progress]) -> int:
    """The version that the user named, else the version at which the replay began, else the newest.

    A later version holds the rows of an earlier one, and later offsets of each partition. So a run may change it.
    """
    if any(progress.note.job != digest for progress in before.values()):
        raise PipelineError(
            f"replay {name} was begun with another table, range or topic; give the same ones, or choose another name"
        )
    if config.version is not None:
        return config.version
    return max((progress.note.version for progress in before.values()), default=table.newest)


def _judged(table: Table, rows: DataFrame, *, is_told: bool) -> Judged | None:
    """Figures of the rows still to write; None if there are none.

    :param is_told: whether the statistics of the table's files may tell them.
    """
    try:
        told = told_by_files(table.files) if is_told else None
        return judge(rows) if told is None else told
    except SPARK_ERRORS as error:
        raise PipelineError(
            f"{table.path} cannot be read ({failure(error)}); restore it, or name another version: the newest is "
            f"{table.newest}"
        ) from None


def _refuse(broker: Broker, topic: Topic, judged: Judged) -> None:
    """Refuse rows that the topic does not take, and warn of rows that it will keep otherwise than the lake.

    :raises PipelineError:
    """
    settings = broker.topic_settings(topic.name)
    refuse_missing_partitions(topic, judged.partitions)
    refuse_refused(topic.name, settings, judged)
    warn(topic.name, settings, judged)
