"""A line of the log for each batch of a streaming query, with how far its topics are behind."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import structlog
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

log = structlog.get_logger()


class QueryLog(StreamingQueryListener):
    """For ``spark.streams.addListener``. It logs all queries of the session: their start, batches and end."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        log.info("query started", query=event.name or str(event.id))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        for source in progress.sources:
            log.info(
                "query's batch",
                query=progress.name or str(progress.id),
                batch_id=progress.batchId,
                source=source.description,
                rows=source.numInputRows,
                rows_per_s=round(source.processedRowsPerSecond, 1),
                **behind(source.endOffset, source.latestOffset),
            )

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        if event.exception is None:
            log.info("query ended", query=str(event.id))
        else:
            log.error("query failed", query=str(event.id), reason=event.exception.partition("\n")[0])


def behind(end: str | None, latest: str | None) -> dict[str, float]:
    """The fewest, most and mean offsets between a batch's end and the log ends; nothing if the texts tell no topics.

    :param end: offsets by topic and partition as JSON, as Spark's progress has them.
    :param latest: the log ends when the batch was planned.
    Source: Spark's KafkaMicroBatchStream.metrics, whose names these are.
    """
    ends, lasts = _offsets(end), _offsets(latest)
    waiting = [max(0, lasts[each] - offset) for each, offset in ends.items() if each in lasts]
    if not waiting:
        return {}
    return {
        "minOffsetsBehindLatest": min(waiting),
        "maxOffsetsBehindLatest": max(waiting),
        "avgOffsetsBehindLatest": sum(waiting) / len(waiting),
    }


def _offsets(text: str | None) -> Mapping[tuple[str, str], int]:
    try:
        told: Any = json.loads(text or "null")
        return {(topic, number): int(at) for topic, each in told.items() for number, at in each.items()}
    except (AttributeError, TypeError, ValueError):
        return {}
