"""The bench measures a value for every line of the pipeline, and its day finds lost and doubled records."""

import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from korvet.pipeline.lake import Lake
from scripts.benchmark import cold, day, pipeline, targets, topics, typed
from scripts.benchmark.measures import PIPELINE, PIPELINE_WAYS, START, TYPED, TYPED_WAYS
from tests.support.broker import KorvetServer

RECORDS = 400


@pytest.fixture
def target(broker: KorvetServer) -> targets.Target:
    create, delete = targets.admin_topics(broker.bootstrap)
    return targets.Target(
        name="korvet", address=broker.bootstrap, pids=(), ready_s=0, create_topic=create, delete_topic=delete
    )


def test_bench_measures_every_warm_step_in_both_ways(
    spark: SparkSession, target: targets.Target, tmp_path: Path
) -> None:
    topic = f"bench-{time.monotonic_ns()}"
    pipeline.fill(target, topic, pipeline.Sender(target.address, topic, 200), RECORDS)
    bench = pipeline.Bench(spark=spark, target=target, topic=topic, records=RECORDS, directory=tmp_path)
    steps = bench.steps()
    assert list(steps) == [line.key for line in PIPELINE[0].lines]
    del steps["cold"]
    # Each step checks by itself that all records came through.
    assert all(measured(way) > 0 for measured in steps.values() for way in PIPELINE_WAYS)


def test_bench_measures_typed_tables_beside_raw_ones(
    spark: SparkSession, target: targets.Target, tmp_path: Path
) -> None:
    found = typed.run(spark, target, tmp_path, RECORDS, 1, 0, lambda _: None)
    assert {(key, way) for (_, key), ways in found.items() for way in ways} == {
        (line.key, way) for line in TYPED.lines for way in TYPED_WAYS
    }


def test_bench_measures_the_parts_of_an_archive_in_a_process_of_its_own(
    spark: SparkSession, target: targets.Target, tmp_path: Path
) -> None:
    topic = f"bench-{time.monotonic_ns()}"
    pipeline.fill(target, topic, pipeline.Sender(target.address, topic, 200), RECORDS)
    parts = cold.archived(target.address, topic, tmp_path / "cold")
    assert list(parts) == [line.key for line in START.lines]
    assert spark.read.format("delta").load(Lake(str(tmp_path / "cold")).raw(topic)).count() == RECORDS


def written(spark: SparkSession, path: Path, records: Iterable[tuple[int, int]]) -> str:
    """A table of one partition with records of these numbers and offsets."""
    rows = [(bytearray(number.to_bytes(8) + b"..."), 0, offset) for number, offset in records]
    table = spark.createDataFrame(rows, "value binary, partition int, offset long")
    table.coalesce(1).write.format("delta").save(str(path))
    return str(path)


def test_day_without_loss_passes(spark: SparkSession, tmp_path: Path) -> None:
    table = written(spark, tmp_path / "t", [(0, 0), (1, 1), (2, 2)])
    assert day.records_in(tmp_path / "t") == 3
    day.check_once(spark, table, 3)


@pytest.mark.parametrize(
    ("records", "sent"),
    [
        pytest.param([(0, 0), (2, 2)], 3, id="lost"),
        pytest.param([(0, 0), (1, 1), (1, 1)], 2, id="doubled"),
        pytest.param([(0, 0), (1, 1), (1, 1)], 3, id="one lost and one doubled"),
        pytest.param([(0, 0), (1, 2)], 2, id="an offset left out"),
    ],
)
def test_day_with_records_lost_or_doubled_fails(
    spark: SparkSession, tmp_path: Path, records: list[tuple[int, int]], sent: int
) -> None:
    with pytest.raises(cold.PipelineFailed):
        day.check_once(spark, written(spark, tmp_path / "t", records), sent)


def test_summary_of_a_day_has_memory_early_and_late() -> None:
    moments = [
        day.Moment(seconds=n * 10, used_bytes=used * 1_000_000, sent=n, behind=0, in_lake=n)
        for n, used in enumerate([10, 100, 100, 100, 150, 0])
    ]
    assert day.summary(moments) == (
        "every one of 5 records is in the lake once; Redis held 100 MB early and 150 MB late (1.50 times as much)"
    )


def test_memory_of_an_archive_of_several_topics_is_measured(spark_jars: str, tmp_path: Path) -> None:
    cost = topics.run(tmp_path, 2, "512m", lambda _phase: None, rests_s=0.5, every="500ms")
    assert (cost.topics, cost.heap) == (2, "512m")
    assert min(cost.first_mb, cost.rest_mb, cost.later_mb) > 100
