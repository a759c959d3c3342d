"""A short run of the archive's kill matrix: see scripts/chaos --archive."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from scripts.chaosrun.pipeline.archive import CONTROL, SHORT, run_archive


def test_archive_writes_every_record_once_over_kills_of_driver_and_workers(
    spark: SparkSession, spark_jars: str, tmp_path: Path
) -> None:
    run = run_archive(
        source="korvet", records=40_000, faults=SHORT, jars=spark_jars, directory=tmp_path, spark=lambda: spark,
        most_offsets=4000,
    )  # fmt: skip
    assert (run.violations, run.duplicates) == ([], 0)
    assert run.happened["Python processes killed"]
    assert run.happened["driver killed"] == run.happened["driver killed between write and report"] == 1


def test_archive_without_application_transactions_writes_duplicates(
    spark: SparkSession, spark_jars: str, tmp_path: Path
) -> None:
    run = run_archive(
        source="kafka", records=10_000, faults=CONTROL, jars=spark_jars, directory=tmp_path, spark=lambda: spark,
        most_offsets=1000, is_control=True,
    )  # fmt: skip
    assert run.duplicates > 0
    assert any("in the lake more than once" in violation for violation in run.violations)
    assert run.holds
