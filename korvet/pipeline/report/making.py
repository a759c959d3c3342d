"""A report: the lags of groups and what waits for an archive, by the broker, beside the lake's figures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

from pyspark.sql import SparkSession

from korvet.pipeline.broker import Broker, Partition, Position
from korvet.pipeline.client_settings import client_settings
from korvet.pipeline.errors import BrokerUnreachable, PipelineError, UnknownTopic
from korvet.pipeline.plan.layout import Lake
from korvet.pipeline.report.archived import archived_topics, days, intervals, losses
from korvet.pipeline.report.figures import Lag, Report, ReportConfig, Unarchived, UnreadableGroup
from korvet.pipeline.reported import ARCHIVE_GROUP

_INTERVALS_S: Final = (1, 5, 10, 30, 60, 300, 600, 1800, 3600, 10800, 21600, 43200, 86400, 604800)
_MAX_INTERVALS: Final = 150
"""The most intervals that a report chooses: a reader can see them at a glance."""
_MOST_INTERVALS: Final = 10_000
"""The most intervals that a user may choose."""
_NOTES: Final = ("korvet-replay-", "korvet-sink-")
"""Prefixes of groups that keep notes of replays and of the sink's batches: their offsets are no positions."""
LATE: Final = timedelta(minutes=10)
"""An archive that has not got to records of that age seems to have stopped."""
Format = Literal["delta", "parquet"]
_SCHEMAS: Final = {
    "lags": "group string, topic string, partition int, committed long, end long, lag long",
    "intervals": "topic string, start timestamp, interval_s double, records long, bytes long",
    "days": "topic string, date date, records long, bytes long, files long",
}


def report(spark: SparkSession, config: ReportConfig) -> Report:
    """Lags of groups, and throughput and size of archived topics.

    :raises BrokerUnreachable: if no broker answers.
    :raises PipelineError: if the lake cannot be read or has no such topic, or the time is empty or cut too fine.
    """
    if config.until <= config.since:
        raise PipelineError(f"the report's time is empty: it would begin at {config.since} and end at {config.until}")
    interval_s = config.interval_s or _interval_s(config)
    count = math.ceil((config.until - config.since).total_seconds() / interval_s)
    if count > _MOST_INTERVALS:
        raise PipelineError(
            f"intervals of {interval_s:g} s: there would be {count} of them, and {_MOST_INTERVALS} are the most; "
            "take longer ones, or less time"
        )
    tables = _tables(spark, config.lake, config.topics)
    behind, unreadable, waiting = _broker_part(config)
    return Report(
        made_at=datetime.now(UTC),
        since=config.since,
        until=config.until,
        interval_s=interval_s,
        lags=tuple(behind),
        intervals=tuple(intervals(spark, tables, config.since, config.until, interval_s)),
        days=tuple(days(spark, Lake(config.lake), tables)),
        unreadable=tuple(unreadable),
        losses=tuple(losses(spark, tables)),
        unarchived=tuple(waiting),
    )


def _interval_s(config: ReportConfig) -> float:
    span_s = (config.until - config.since).total_seconds()
    return next((float(size) for size in _INTERVALS_S if span_s / size <= _MAX_INTERVALS), span_s / _MAX_INTERVALS)


def _broker_part(config: ReportConfig) -> tuple[list[Lag], list[UnreadableGroup], list[Unarchived]]:
    """The broker's part of the report."""
    if config.bootstrap_servers is None:
        return [], [], []
    options = {**config.client, "bootstrap.servers": config.bootstrap_servers}
    with Broker(client_settings({f"kafka.{name}": value for name, value in options.items()})) as broker:
        return *lags(broker, config.topics, config.groups), unarchived(broker, config.topics)


def _tables(spark: SparkSession, lake: str, topics: tuple[str, ...]) -> dict[str, str]:
    found = archived_topics(spark, lake)
    missing = sorted(set(topics) - set(found))
    if missing:
        raise PipelineError(f"topic {missing[0]}: there is no archive of it in {lake}; there is: {', '.join(found)}")
    return {topic: Lake(lake).raw(topic) for topic in topics or found}


def save(spark: SparkSession, report: Report, directory: str, form: Format) -> None:
    """Append the figures to the tables ``lags``, ``intervals`` and ``days`` of a directory, each row with ``made_at``.

    :param directory: a path or URL; the first report makes the tables.
    """
    rows: dict[str, list[dict[str, Any]]] = {
        "lags": [{**asdict(lag), "lag": lag.lag} for lag in report.lags],
        "intervals": [{**asdict(interval), "interval_s": report.interval_s} for interval in report.intervals],
        "days": [asdict(day) for day in report.days],
    }
    for name, schema in _SCHEMAS.items():
        if rows[name]:
            stamped = [{**row, "made_at": report.made_at} for row in rows[name]]
            frame = spark.createDataFrame(stamped, f"made_at timestamp, {schema}")
            frame.coalesce(1).write.format(form).mode("append").save(f"{directory.rstrip('/')}/{name}")


def lags(broker: Broker, topics: tuple[str, ...], groups: tuple[str, ...]) -> tuple[list[Lag], list[UnreadableGroup]]:
    """Lags by group, topic and partition, of the given topics and groups. None of them means all, without notes.

    Positions in a topic or partition that is gone are left out. If no group is named, the second list has the groups
    that the broker cannot read.

    :raises BrokerUnreachable:
    :raises PipelineError: if the broker cannot read a group that ``groups`` names.
    """
    committed, unreadable = _committed(broker, groups)
    known = _known(broker, {topic for partitions in committed.values() for topic, _ in partitions}, topics)
    ends = broker.latest(
        {partition for partitions in committed.values() for partition in partitions if partition in known},
        committed_only=False,
    )
    return [lag for group in sorted(committed) for lag in _lags_of(group, committed[group], ends)], unreadable


def _committed(
    broker: Broker, groups: tuple[str, ...]
) -> tuple[dict[str, Mapping[Partition, Position]], list[UnreadableGroup]]:
    """A damaged group does not cost the lags of the others, unless the user named it."""
    committed: dict[str, Mapping[Partition, Position]] = {}
    unreadable = []
    for group in groups or [group for group in broker.group_ids("") if not group.startswith(_NOTES)]:
        try:
            committed[group] = broker.committed(group)
        except PipelineError as error:
            if groups or isinstance(error, BrokerUnreachable):
                raise
            unreadable.append(UnreadableGroup(group=group, reason=str(error)))
    return committed, unreadable


def _known(broker: Broker, named: set[str], topics: tuple[str, ...]) -> set[Partition]:
    there = named & set(broker.topic_names())
    found = broker.topics(sorted(there & set(topics) if topics else there))
    return {(topic.name, partition) for topic in found.values() for partition in topic.partitions}


def _lags_of(group: str, committed: Mapping[Partition, Position], ends: Mapping[Partition, Position]) -> list[Lag]:
    return [
        Lag(
            group=group,
            topic=topic,
            partition=partition,
            committed=committed[topic, partition].offset,
            end=ends[topic, partition].offset,
        )
        for topic, partition in sorted(committed)
        if (topic, partition) in ends
    ]


def unarchived(broker: Broker, topics: Iterable[str]) -> list[Unarchived]:
    """The topics with ``korvet.retention=archived`` that have records older than `LATE` and not archived, by name.

    :param topics: none means all.
    :raises BrokerUnreachable, PipelineError:
    """
    waiting = [(topic, _late_offsets(broker, topic)) for topic in topics or broker.topic_names()]
    return [Unarchived(topic=topic, offsets=offsets) for topic, offsets in waiting if offsets]


def _late_offsets(broker: Broker, topic: str) -> int:
    with suppress(UnknownTopic):
        if broker.topic_settings(topic).get("korvet.retention") == "archived":
            return _behind(broker, [(topic, number) for number in broker.topics([topic])[topic].partitions])
    return 0


def _behind(broker: Broker, partitions: list[Partition]) -> int:
    """The offsets from the archived one to the first record that is not late, without open transactions."""
    late_ms = round((datetime.now(UTC) - LATE).timestamp() * 1000)
    recent = broker.at_times(dict.fromkeys(partitions, late_ms), committed_only=True)
    ends, starts = broker.latest(partitions, committed_only=True), broker.earliest(partitions)
    archived = broker.committed(ARCHIVE_GROUP)
    behind = 0
    for each in partitions:
        begin = max(starts[each].offset, archived[each].offset if each in archived else 0)
        end = recent[each].offset if recent[each].offset >= 0 else ends[each].offset
        behind += max(0, end - begin)
    return behind
