"""The log of streaming queries, with how far they are behind."""

from __future__ import annotations

import time
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from prometheus_client import CollectorRegistry
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import QueryTerminatedEvent
from structlog.testing import capture_logs

from korvet.pipeline.query_log import QueryLog, behind
from korvet.pipeline.source import KorvetDataSource
from tests.pipeline.queries import tried_again
from tests.pipeline.sourcing import create, produce
from tests.support.broker import KorvetServer

WITHIN_S = 120


@pytest.mark.parametrize(
    ("end", "latest", "told"),
    [
        ('{"t": {"0": 3, "1": 5}}', '{"t": {"0": 4, "1": 10, "2": 1}}', (1, 5, 3.0)),
        ('{"t": {"0": 3}}', '{"t": {"0": 1}}', (0, 0, 0.0)),
        ("7", "9", ()),
        (None, "null", ()),
        ("{", '{"t": 1}', ()),
    ],
)
def test_lag_is_counted_if_a_source_names_topics(end: str | None, latest: str, told: tuple[float, ...]) -> None:
    assert tuple(behind(end, latest).values()) == told


def test_log_names_the_reason_of_a_failed_query_and_not_the_first_line_of_its_stack() -> None:
    told = 'org.apache.spark.SparkException: [X] Failed: Traceback (most recent call last):\n  File "a.py", line 1\n'
    told += "korvet.pipeline.errors.PipelineError: The end of t-0 went back\n SQLSTATE: 38000\n\tat org.apache"
    with capture_logs() as logs:
        QueryLog(CollectorRegistry()).onQueryTerminated(QueryTerminatedEvent(uuid4(), uuid4(), told, None))
    assert [line["reason"] for line in logs] == ["The end of t-0 went back"]


@pytest.mark.scene
def test_listener_logs_and_counts_each_batch_with_its_lag(
    spark: SparkSession, broker: KorvetServer, tmp_path: Path
) -> None:
    create(broker, "query-log")
    produce(broker, "query-log", [b"1", b"2", b"3"])
    spark.dataSource.register(KorvetDataSource)
    registry, seen = CollectorRegistry(), list[tuple[str, float | None]]()
    listener = QueryLog(registry)

    def run() -> None:
        reader = spark.readStream.format("korvet").option("kafka.bootstrap.servers", broker.bootstrap)
        reader = reader.options(subscribe="query-log", startingOffsets="earliest", maxOffsetsPerTrigger="2")
        writer = reader.load().writeStream.format("noop").queryName("query-log")
        query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        assert query.awaitTermination(WITHIN_S)

    def figure(name: str) -> float | None:
        return registry.get_sample_value(f"korvet_query_{name}", {"query": "query-log"})

    def note(_logger: object, _method: str, told: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        seen.append((told["event"], figure("max_offsets_behind")))
        return told

    with capture_logs(processors=[note]) as logs:
        spark.streams.addListener(listener)
        try:
            tried_again(run)
            deadline = time.monotonic() + WITHIN_S
            while not any((line["event"], line.get("query")) == ("query ended", "query-log") for line in logs):
                assert time.monotonic() < deadline, logs
                time.sleep(0.05)
        finally:
            spark.streams.removeListener(listener)
    batches: list[Any] = [line for line in logs if line["event"] == "query's batch" and line["rows"]]
    assert [(line["query"], line["rows"], line["avgOffsetsBehindLatest"]) for line in batches] == [
        ("query-log", 2, 1.0), ("query-log", 1, 0.0),
    ]  # fmt: skip
    failed = [line for line in logs if line["event"] == "query failed"]
    assert (figure("rows_total"), figure("failures_total") or 0) == (3, len(failed))
    # A batch's line comes before its figures.
    assert {("query's batch", 1.0), ("query ended", None)} <= set(seen)
