"""Rows of a raw table become records: the same ones, each once, in their order, and only those of the range."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from korvet.pipeline.replay import ReplayConfig, ReplayProgress, replay
from tests.pipeline.replaying import numbered, read_topic, record, write
from tests.support.broker import KorvetServer


def test_records_come_as_they_were_and_once(spark: SparkSession, broker: KorvetServer, tmp_path: Path) -> None:
    write(numbered(spark, 900, 3), tmp_path, "replay-all")
    config = ReplayConfig(
        bootstrap_servers=broker.bootstrap, lake=str(tmp_path), topic="replay-all", to="replayed-all", create=True
    )
    told: list[ReplayProgress] = []
    result = replay(spark, config, progress=told.append)
    assert (result.records, result.total, result.complete, result.version) == (900, 900, True, 0)
    expected = {partition: [record(number) for number in range(partition, 900, 3)] for partition in range(3)}
    assert read_topic(broker.bootstrap, "replayed-all", 3) == expected
    assert told[-1].records == told[-1].total == 900

    write(numbered(spark, 90, 3, first=900), tmp_path, "replay-all")
    again = replay(spark, config)
    assert (again.records, again.complete, again.version) == (0, True, 0)
    assert read_topic(broker.bootstrap, "replayed-all", 3) == expected
