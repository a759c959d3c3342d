"""The driver of a replay."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

import structlog
from pyspark.sql import SparkSession

from korvet.pipeline.broker import Broker
from korvet.pipeline.client_settings import client_settings
from korvet.pipeline.errors import ProcessDied
from korvet.pipeline.replay.carrying import Job, carry_out, records
from korvet.pipeline.replay.config import ReplayConfig, ReplayProgress, ReplayResult
from korvet.pipeline.replay.handing import Batches
from korvet.pipeline.replay.planning import Subject, find, plan
from korvet.pipeline.replay.positions import Positions
from korvet.pipeline.replay.stopping import request_stop
from korvet.pipeline.replay.target import refuse_new_topic
from korvet.pipeline.replay.task import End
from korvet.pipeline.tries import Tries

log = structlog.get_logger()

_TRANSACTION_TIMEOUT_MS: Final = "60000"


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

    :param stop: once it is set, the replay ends after its open transactions; the same call resumes it later.
    :param progress: the replay calls it every half a second.
    :raises PipelineError: if something cannot be read or written. Committed records stay, and count.
    """
    stop, progress = stop or threading.Event(), progress or (lambda _: None)
    settings, batches = _settings(config), Batches(spark)
    with Broker(settings) as broker:
        subject = find(batches, config, broker, settings)
        first, began = plan(subject, broker), time.monotonic()
        job, end, now = _carry_through(subject, first, broker, stop, progress)
        refuse_new_topic(broker, subject.topic.name, subject.topic.id)
    is_complete = end is End.COMPLETE
    if is_complete and now < job.total:
        is_complete = False
        log.error(
            "Spark read fewer rows than the table has; look for files that it passed over, and start the replay again",
            name=subject.name, records=now, total=job.total,
        )  # fmt: skip
    result = ReplayResult(
        name=subject.name,
        target=subject.topic.name,
        version=subject.version,
        records=now - records(first.before),
        total=job.total,
        complete=is_complete,
        seconds=time.monotonic() - began,
    )
    log.info("replay ended", name=result.name, records=result.records, total=result.total, complete=result.complete)
    return result


def _carry_through(
    subject: Subject, job: Job, broker: Broker, stop: threading.Event, progress: Callable[[ReplayProgress], None]
) -> tuple[Job, End, int]:
    """Carry the job out, and its rest in further jobs: after a large row, and after a death of a process of Spark.

    :returns: the last job, its end, and how many records are in the topic now.
    :raises PipelineError:
    """
    tries, before = Tries(), records(job.before)
    while True:
        try:
            end, now = _carry(job, broker, stop, progress)
        except ProcessDied as error:
            # Spark lets the other tasks of a failed job run on for seconds.
            request_stop(broker, job.plan.target)
            end, now = End.STOPPED, records(subject.positions())
            if now > before:
                tries.succeed()
            _wait(tries, subject, error, stop)
        else:
            if end is not End.LARGE:
                return job, end, now
            large_bytes = subject.batches.large_bytes
            log.info("rows are large; Spark counts the bytes of batches from here on", bytes=large_bytes)
        if stop.is_set():
            return job, end, now
        refuse_new_topic(broker, subject.topic.name, subject.topic.id)
        job, before = plan(subject, broker, former=job), now


def _wait(tries: Tries, subject: Subject, error: ProcessDied, stop: threading.Event) -> None:
    """Wait for the next try, or until the replay has to stop.

    :raises ProcessDied: the error, if there were tries enough since a transaction was written.
    """
    wait_s = tries.fail()
    if tries.are_used_up:
        raise error
    log.error("replay failed", name=subject.name, reason=str(error), again_in_s=wait_s)
    stop.wait(wait_s)


def _carry(
    job: Job, broker: Broker, stop: threading.Event, progress: Callable[[ReplayProgress], None]
) -> tuple[End, int]:
    """Carry the job out, if there is anything to do. Returns its end, and how many records are in the topic now."""
    target, end = job.plan.target, End.COMPLETE
    with Positions(target.settings, target.name, target.topic) as positions:
        if not job.partitions:
            log.info("nothing is left to replay; a replay of another name replays it again", name=target.name)
        elif stop.is_set():
            end = End.STOPPED
        else:
            end = carry_out(job, broker, positions, stop, progress)
        return end, records(positions.read(job.all_partitions, target.note.topic_id))


def _settings(config: ReplayConfig) -> dict[str, str]:
    """librdkafka's settings for all clients; each ignores settings that it does not use."""
    java = {f"kafka.{name}": value for name, value in config.client.items()}
    given = client_settings({**java, "kafka.bootstrap.servers": config.bootstrap_servers})
    return {"transaction.timeout.ms": _TRANSACTION_TIMEOUT_MS, **given}
