"""An archive's figures for Prometheus."""

from __future__ import annotations

import threading
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry
from pyspark.sql import SparkSession
from structlog.testing import capture_logs

from korvet.pipeline.archive import ArchiveConfig, ArchiveProgress, archive
from korvet.pipeline.lake import Lake
from tests.pipeline.sourcing import create, produce
from tests.support.broker import KorvetServer

VALUES = [b"%d" % number for number in range(6)]


class Figures(CollectorRegistry):
    """The figures of a topic; None for those that the archive does not tell."""

    def told(self, topic: str) -> tuple[float | None, ...]:
        """Records, batches, offsets behind, and whether the last try failed."""
        names = ("archived_records_total", "archived_batches_total", "archive_behind", "archive_failing")
        return tuple(self.get_sample_value(f"korvet_{name}", {"topic": topic}) for name in names)


def test_figures_follow_each_batch_until_the_archive_ends(
    spark: SparkSession, broker: KorvetServer, tmp_path: Path
) -> None:
    create(broker, "figures")
    produce(broker, "figures", VALUES)
    figures, seen = Figures(), list[tuple[float | None, ...]]()
    config = ArchiveConfig(
        bootstrap_servers=broker.bootstrap, lake=str(tmp_path), topics=("figures",), max_offsets_per_trigger=2
    )

    def look(_batch: ArchiveProgress) -> None:
        seen.append(figures.told("figures"))

    assert not archive(spark, config, progress=look, metrics=figures).failed
    # A batch is counted before the archive looks how much is left.
    assert seen == [(2, 1, None, 0), (4, 2, 4, 0), (6, 3, 2, 0)]
    assert figures.told("figures") == (None, None, None, None)


def test_failing_topic_is_exported_until_it_goes_on(spark: SparkSession, broker: KorvetServer, tmp_path: Path) -> None:
    create(broker, "figures-failing")
    produce(broker, "figures-failing", VALUES)
    in_the_way = Path(Lake(str(tmp_path)).raw("figures-failing"))
    in_the_way.parent.mkdir(parents=True)
    in_the_way.touch()
    stop, figures, seen = threading.Event(), Figures(), list[tuple[float | None, ...]]()

    def make_way(_logger: object, _method: str, told: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        if told["event"] == "archive failed":
            seen.append(figures.told("figures-failing"))
            in_the_way.unlink(missing_ok=True)
        return told

    def look(_batch: ArchiveProgress) -> None:
        if not stop.is_set() and figures.told("figures-failing")[3] == 0:
            seen.append(figures.told("figures-failing"))
            stop.set()
        produce(broker, "figures-failing", VALUES[:1])

    config = ArchiveConfig(
        bootstrap_servers=broker.bootstrap, lake=str(tmp_path), topics=(), pattern="figures-failing", every_s=0.2
    )
    with capture_logs(processors=[make_way]):
        archive(spark, config, stop=stop, progress=look, metrics=figures)
    # The second batch has the record that the first one's progress sent.
    assert seen == [(0, 0, None, 1), (7, 2, 1, 0)]
