"""A replay goes on exactly if a kill comes between a commit and its task's end; the control doubles records."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from scripts.chaosrun.pipeline.replay import TOPIC, Fault, replay_under_fire
from tests.pipeline.replaying import numbered, write

COUNT = 30_000


@pytest.mark.parametrize(
    ("faults", "forgets"),
    [(["driver after a commit", "workers after a commit"], False), (["driver after a commit"], True)],
    ids=["replay", "control"],
)
def test_killed_replay_goes_on(
    spark: SparkSession, spark_jars: str, tmp_path: Path, faults: list[Fault], forgets: bool
) -> None:
    write(numbered(spark, COUNT, 4), tmp_path, TOPIC)
    verdict = replay_under_fire(
        jars=spark_jars, lake=str(tmp_path), spark=spark, count=COUNT, size_bytes=0, faults=faults, forgets=forgets,
    )  # fmt: skip
    assert verdict.starts == 2
    assert verdict.faults == faults
    assert verdict.holds, verdict
