"""A replay goes on exactly if a kill comes between a commit and its task's end; the control doubles records."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from scripts.chaosrun.pipeline.replay import TOPIC, Fault, replay_under_fire
from tests.pipeline.replaying import numbered, write


@pytest.mark.parametrize(
    ("count", "size_bytes", "faults", "forgets"),
    [
        (30_000, 0, ["driver after a commit", "workers after a commit"], False),
        (1_000, 100_000, ["driver after a commit"], False),
        (30_000, 0, ["driver after a commit"], True),
    ],
    ids=["replay", "large rows", "control"],
)
def test_killed_replay_goes_on(
    spark: SparkSession,
    spark_jars: str,
    tmp_path: Path,
    count: int,
    size_bytes: int,
    faults: list[Fault],
    forgets: bool,
) -> None:
    write(numbered(spark, count, 4, size_bytes=size_bytes), tmp_path, TOPIC)
    verdict = replay_under_fire(
        jars=spark_jars, lake=str(tmp_path), spark=spark, count=count, size_bytes=size_bytes, faults=faults,
        forgets=forgets,
    )  # fmt: skip
    assert verdict.starts == 2
    assert verdict.faults == faults
    assert verdict.holds, verdict
