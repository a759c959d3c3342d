"""An archive's figures for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from korvet.pipeline.archive.lane import Lane

_LABELS: Final = ("topic",)


@contextmanager
def exported(registry: CollectorRegistry | None, lanes: Callable[[], Iterable[Lane]]) -> Iterator[None]:
    """Let a registry report the topics' metrics until the block ends; without a registry do nothing.

    :param lanes: returns the topics of the moment; the registry's own thread calls it.
    """
    if registry is None:
        yield
        return
    figures = _Figures(lanes)
    registry.register(figures)
    try:
        yield
    finally:
        registry.unregister(figures)


class _Figures(Collector):
    def __init__(self, lanes: Callable[[], Iterable[Lane]]) -> None:
        self._lanes = lanes

    def collect(self) -> Iterable[Metric]:
        records = CounterMetricFamily("korvet_archived_records", "Records that this archive wrote.", labels=_LABELS)
        batches = CounterMetricFamily("korvet_archived_batches", "Batches that this archive wrote.", labels=_LABELS)
        behind = GaugeMetricFamily(
            "korvet_archive_behind", "Offsets below the topic's ends that the lake lacks.", labels=_LABELS
        )
        failing = GaugeMetricFamily(
            "korvet_archive_failing", "Whether the archive's last try of the topic failed.", labels=_LABELS
        )
        for lane in self._lanes():
            result = lane.archive.result(lane.error)
            records.add_metric([lane.topic], result.rows)
            batches.add_metric([lane.topic], result.batches)
            failing.add_metric([lane.topic], result.error is not None)
            if lane.behind is not None:
                behind.add_metric([lane.topic], lane.behind)
        return records, batches, behind, failing
