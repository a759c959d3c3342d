"""Lines of the log and figures for each batch of a streaming query, with the lag of its topics."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from uuid import UUID

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from korvet.pipeline.failures import failure

log = structlog.get_logger()


class QueryLog(StreamingQueryListener):
    """For ``spark.streams.addListener``. It logs all queries of the session: their start, batches and end.

    :param metrics: a registry of prometheus-client that gets the queries' figures.
    """

    def __init__(self, metrics: CollectorRegistry | None = None) -> None:
        self._names: dict[UUID, str] = {}
        self._rows = Counter("korvet_query_rows", "Rows that a query read.", ["query"], registry=metrics)
        self._failures = Counter("korvet_query_failures", "Times that a query failed.", ["query"], registry=metrics)
        self._behind = Gauge(
            "korvet_query_max_offsets_behind",
            "The most offsets of a partition that a query's last batch left.",
            ["query"],
            registry=metrics,
        )

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        log.info("query started", query=self._name(event.id, event.name))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        query = self._name(progress.id, progress.name)
        most = []
        for source in progress.sources:
            waiting = behind(source.endOffset, source.latestOffset)
            log.info(
                "query's batch",
                query=query,
                batch_id=progress.batchId,
                source=source.description,
                rows=source.numInputRows,
                rows_per_s=round(source.processedRowsPerSecond, 1),
                **waiting,
            )
            self._rows.labels(query).inc(source.numInputRows)
            if waiting:
                most.append(waiting["maxOffsetsBehindLatest"])
        if most:
            self._behind.labels(query).set(max(most))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        query = self._names.pop(event.id, str(event.id))
        with suppress(KeyError):
            self._behind.remove(query)
        if event.exception is None:
            log.info("query ended", query=query)
        else:
            self._failures.labels(query).inc()
            log.error("query failed", query=query, reason=str(failure(RuntimeError(event.exception))))

    def _name(self, number: UUID, name: str | None) -> str:
        """The query's name, else its id; the event of its end has no name."""
        return self._names.setdefault(number, name or str(number))


def behind(end: str | None, latest: str | None) -> dict[str, float]:
    """The least, greatest and mean lag of a batch's end, in offsets; empty if the texts name no topics.

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
        offsets: Any = json.loads(text or "null")
        return {(topic, number): int(at) for topic, each in offsets.items() for number, at in each.items()}
    except (AttributeError, TypeError, ValueError):
        return {}
