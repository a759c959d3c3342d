"""A replay killed between a commit and the end of its task goes on exactly; the control doubles records."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from scripts.chaosrun.pipeline.replay import TOPIC, replay_under_fire
from tests.pipeline.replaying import numbered, write

COUNT = 30_000


@pytest.mark.parametrize("forgets", [False, True], ids=["replay", "control"])
def test_killed_replay_goes_on(spark: SparkSession, spark_jars: str, tmp_path: Path, forgets: bool) -> None:
    write(numbered(spark, COUNT, 4), tmp_path, TOPIC)
    verdict = replay_under_fire(
        jars=spark_jars, lake=str(tmp_path), spark=spark, count=COUNT, size_bytes=0,
        faults=["driver after a commit"], forgets=forgets,
    )  # fmt: skip
    assert verdict.starts == 2
    assert verdict.holds, verdict
