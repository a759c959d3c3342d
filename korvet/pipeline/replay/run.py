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
from korvet.pipeline.replay.positions import Note, Positions, Progress
from korvet.pipeline.replay.sending import Target
from korvet.pipeline.replay.table import (
    SPARK_ERRORS,
    Judged,
    Table,
    behind,
    chosen,
    judge,
    open_table,
    read,
    told_by_files,
)
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
    settings = _settings(config)
    with Broker(settings) as broker:
        job = _prepare(spark, config, broker, settings)
        target = job.plan.target
        with Positions(settings, target.name, target.topic) as positions:
            began, is_complete = time.monotonic(), True
            if job.partitions:
                is_complete = carry_out(
                    spark, job, broker, positions, stop or threading.Event(), progress or (lambda told: None)
                )
            else:
                log.info("nothing is left to replay; a replay of another name replays it again", name=target.name)
            now = positions.read(job.all_partitions, target.note.topic_id)
        refuse_new_topic(broker, target.topic, target.note.topic_id)
    if is_complete and records(now) < job.total:
        is_complete = False
        log.error(
            "Spark read fewer rows than the table has; look for files that it passed over, and start the replay again",
            name=target.name, records=records(now), total=job.total,
        )  # fmt: skip
    result = ReplayResult(
        name=target.name,
        target=target.topic,
        version=target.note.version,
        records=records(now) - records(job.before),
        total=job.total,
        complete=is_complete,
        seconds=time.monotonic() - began,
    )
    log.info("replay ended", name=result.name, records=result.records, total=result.total, complete=result.complete)
    return result


def _settings(config: ReplayConfig) -> dict[str, str]:
    """librdkafka's settings for all clients; each ignores settings that it does not use."""
    java = {f"kafka.{name}": value for name, value in config.client.items()}
    given = client_settings({**java, "kafka.bootstrap.servers": config.bootstrap_servers})
    return {"transaction.timeout.ms": _TRANSACTION_TIMEOUT_MS, **given}


def _prepare(spark: SparkSession, config: ReplayConfig, broker: Broker, settings: dict[str, str]) -> Job:
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
    judged = _judged(config, table, version, rows, starts)
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
    return Job(rows=rows, plan=plan, partitions=partitions, total=records(before) + left, before=before)


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


def _judged(
    config: ReplayConfig, table: Table, version: int, rows: DataFrame, starts: Mapping[int, int]
) -> Judged | None:
    """Figures of the rows still to write; None if there are none.

    Statistics of files tell of all rows of the newest version alone, and not where each partition ends.
    """
    try:
        if config.is_whole and config.rate is None and not starts and version == table.newest:
            told = told_by_files(table.files)
            if told is not None:
                return told
        return judge(rows)
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
