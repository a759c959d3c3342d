"""A report from the figures of broker and lake."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Final

from pyspark.sql import SparkSession

from korvet.pipeline.broker import Broker
from korvet.pipeline.client_settings import client_settings
from korvet.pipeline.errors import PipelineError
from korvet.pipeline.plan.layout import Lake
from korvet.pipeline.report.archived import archived_topics, days, intervals, losses
from korvet.pipeline.report.broker_figures import lags, unarchived
from korvet.pipeline.report.figures import Lag, Report, ReportConfig, Unarchived, UnreadableGroup

_INTERVALS_S: Final = (1, 5, 10, 30, 60, 300, 600, 1800, 3600, 10800, 21600, 43200, 86400, 604800)
_MAX_INTERVALS: Final = 150
"""The most intervals that a report chooses: a reader can see them at a glance."""
_MOST_INTERVALS: Final = 10_000
"""The most intervals that a user may choose."""


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
