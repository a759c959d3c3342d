"""The plan of a replay: what it is about, and the job for Spark, before anything is written."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import structlog
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from korvet.pipeline.broker import Broker, Topic
from korvet.pipeline.errors import PipelineError
from korvet.pipeline.failures import failure
from korvet.pipeline.lake import Lake
from korvet.pipeline.plan.judged import Judged, row_bytes, statistics_of_files
from korvet.pipeline.replay import task
from korvet.pipeline.replay.carrying import Job, records
from korvet.pipeline.replay.config import ReplayConfig
from korvet.pipeline.replay.handing import Batches
from korvet.pipeline.replay.judging import judge, listed
from korvet.pipeline.replay.positions import Note, Positions, Progress
from korvet.pipeline.replay.sending import TakenOver, Target
from korvet.pipeline.replay.table import SPARK_ERRORS, Table, after_positions, chosen, open_table, read
from korvet.pipeline.replay.target import (
    create_target,
    find_target,
    refuse_loop,
    refuse_missing_partitions,
    refuse_other_target,
    refuse_refused,
    warn,
)

log = structlog.get_logger()

# Digits of the nanoseconds since 1970 at the beginning of a run's name.
_TIME_DIGITS: Final = 16
# Any transaction fits, also above buffer.memory: the task bounds its size. No messages are no limit.
_BUFFER: Final = {"queue.buffering.max.kbytes": "2147483647", "queue.buffering.max.messages": "0"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A replay's subject. It stays the same for all jobs of a run.

    :param settings: librdkafka's, of all clients.
    :param rows: all rows of the range, in the table's ``version``.
    :param name: the replay's name; ``digest`` is the hash of its table, range and target.
    """

    config: ReplayConfig
    settings: Mapping[str, str]
    batches: Batches
    table: Table
    version: int
    rows: DataFrame
    topic: Topic
    name: str
    digest: str

    def positions(self) -> dict[int, Progress]:
        """Where the partitions of the topic go on.

        :raises PipelineError:
        """
        with Positions(self.settings, self.name, self.topic.name) as positions:
            return positions.read(self.topic.partitions, self.topic.id)


def find(batches: Batches, config: ReplayConfig, broker: Broker, settings: Mapping[str, str]) -> Subject:
    """Plan a replay; creates its topic if necessary.

    :raises PipelineError:
    """
    if config.lake is None:
        raise PipelineError("a tier is replayed by the command `korvet pipeline replay`, without Spark; give a lake")
    table = open_table(batches.session, Lake(config.lake).raw(config.topic), config.topic)
    refuse_loop(broker, config)
    digest = config.digest(table.id)
    name = config.name or f"{config.topic}-{digest}"
    refuse_other_target(broker, name, config.target)
    topic = find_target(broker, config) or _create(batches, config, broker, table)
    with Positions(settings, name, topic.name) as positions:
        before = positions.read(topic.partitions, topic.id)
    version = _version(config, table, name, digest, before)
    return Subject(
        config=config,
        settings=settings,
        batches=batches,
        table=table,
        version=version,
        rows=chosen(read(batches.session, table, version), config),
        topic=topic,
        name=name,
        digest=digest,
    )


def plan(subject: Subject, broker: Broker, former: Job | None = None) -> Job:
    """The job that writes the rows from the positions on.

    :param former: the run's job before this one, which ended before a large row, or since a process died.
    :raises TakenOver: if another run went on since.
    :raises PipelineError: also if the topic would refuse rows.
    """
    config, table, topic = subject.config, subject.table, subject.topic
    before = subject.positions()
    if former is not None and any(progress.note.run > former.plan.target.note.run for progress in before.values()):
        raise TakenOver(f"replay {subject.name} was started a second time, which goes on; this one ends")
    starts = {partition: progress.offset for partition, progress in before.items()}
    rows = after_positions(subject.rows, starts)
    judged, only_small = _looked(subject, rows, starts, is_first=former is None)
    if judged is None and not before:
        raise _nothing(table)
    if judged is not None:
        _refuse(broker, topic, judged, is_first=former is None)
    partitions, left = (judged.partitions, judged.records) if judged is not None else ((), 0)
    target = Target(
        settings=subject.settings,
        producer={"message.max.bytes": str(_largest(broker.topic_settings(topic.name))), **_BUFFER},
        name=subject.name,
        topic=topic.name,
        note=Note(
            job=subject.digest, version=subject.version, topic_id=topic.id, run=_new_run(before, former), records=0
        ),
    )
    log.info(
        "replay begins" if former is None else "replay goes on", name=subject.name, table=table.path,
        version=subject.version, topic=topic.name, records=left, partitions=len(partitions),
    )  # fmt: skip
    return Job(
        rows=rows,
        batches=subject.batches,
        only_small=only_small,
        plan=task.Plan(
            target=target,
            starts=starts,
            ends=judged.ends if judged is not None else {},
            rate=config.rate,
            at_once=subject.batches.session.sparkContext.defaultParallelism,
        ),
        partitions=partitions,
        # Rows that Spark passed over in the former job are missing in what is left, too.
        total=max(records(before) + left, former.total if former is not None else 0),
        before=before,
    )


def _new_run(before: Mapping[int, Progress], former: Job | None = None) -> str:
    """A name greater than all names before, even if the clock was set back.

    A run keeps its place among other runs in the job after its ``former`` one.
    """
    if former is not None:
        return f"{former.plan.target.note.run}+"
    written = max((int(progress.note.run[:_TIME_DIGITS], 16) for progress in before.values()), default=0)
    return f"{max(time.time_ns(), written + 1):0{_TIME_DIGITS}x}{uuid.uuid4().hex}"


def _largest(settings: Mapping[str, str]) -> int:
    """The most bytes of a batch that both the topic and librdkafka take."""
    return min(max(int(settings["max.message.bytes"]), 1000), 1_000_000_000)


def _create(batches: Batches, config: ReplayConfig, broker: Broker, table: Table) -> Topic:
    """Create the target with all partitions of the table, if the range has any row.

    :raises PipelineError:
    """
    wanted = chosen(read(batches.session, table, table.newest if config.version is None else config.version), config)
    try:
        if wanted.isEmpty():
            raise _nothing(table)
        found = read(batches.session, table, table.newest).agg(f.max("partition").alias("last")).first()
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


def _looked(
    subject: Subject, rows: DataFrame, starts: Mapping[int, int], *, is_first: bool
) -> tuple[Judged | None, bool]:
    """Figures of the remaining rows, None without any, and whether they may come without large ones.

    Statistics of files cover all rows of the newest version alone, and not where each partition ends, as a rate needs.
    They may be wrong, and a task takes a row without a time for a large one. So a further job looks at all rows that
    are left, and refuses such a row.

    A replay at a rate has time enough, and partitions that ended before a large row would keep their shares of it.
    """
    config, table = subject.config, subject.table
    may_be_small = is_first and config.rate is None
    try:
        files = listed(table) if may_be_small else []
        reads_statistics = may_be_small and config.is_whole and not starts and subject.version == table.newest
        known = statistics_of_files(files) if reads_statistics else None
        judged = judge(rows) if known is None else known
    except SPARK_ERRORS as error:
        raise PipelineError(
            f"{table.path} cannot be read ({failure(error)}); restore it, or name another version: the newest is "
            f"{table.newest}"
        ) from None
    return judged, may_be_small and subject.batches.seem_small(row_bytes(files))


def _refuse(broker: Broker, topic: Topic, judged: Judged, *, is_first: bool) -> None:
    """Refuse rows that the topic does not take, and warn of rows that it will keep otherwise than the lake.

    :raises PipelineError:
    """
    settings = broker.topic_settings(topic.name)
    refuse_missing_partitions(topic, judged.partitions)
    refuse_refused(topic.name, settings, judged)
    if is_first:
        warn(topic.name, settings, judged)
