"""Figures as Prometheus reads them: its text format, or OpenMetrics if the scraper accepts that.

prometheus-client writes both, and escapes names that clients chose.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from math import inf
from typing import Final

from prometheus_client import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector, CollectorRegistry

from korvet.metrics.clients import Pushed
from korvet.metrics.families import FAMILIES, Family, Kind
from korvet.metrics.samples import Samples, Value

_PUSHED: Final = "A metric that clients push."


def render(samples: Samples, pushed: Pushed, accept: str) -> tuple[bytes, str]:
    """The figures and clients' own metrics as text, and its content type, for a request's Accept header."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(samples, pushed))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class _Collector(Collector):
    def __init__(self, samples: Samples, pushed: Pushed) -> None:
        self._samples = samples
        self._pushed = pushed

    def collect(self) -> Iterable[Metric]:
        for name, family in FAMILIES.items():
            values = self._samples.values.get(name)
            if values:
                yield _metric(family, values)
        for name, series in self._pushed.items():
            # Clients of several versions need not agree on a type.
            metric = Metric(name, _PUSHED, "unknown")
            for labels, value in series:
                metric.add_sample(name, dict(labels), value)
            yield metric


def _metric(family: Family, values: Mapping[tuple[str, ...], Value]) -> Metric:
    name = family.name.removesuffix("_total") if family.kind is Kind.COUNTER else family.name
    metric = Metric(name, family.text, family.kind.value)
    for labels, value in values.items():
        named = dict(zip(family.labels, labels, strict=True))
        for suffix, more, one in _parts(family, value):
            metric.add_sample(name + suffix, {**named, **more}, one)
    return metric


def _parts(family: Family, value: Value) -> Iterator[tuple[str, Mapping[str, str], float]]:
    """The samples of a value: the suffix of the name, further labels, and the number."""
    if not isinstance(value, list):
        yield "_total" if family.kind is Kind.COUNTER else "", {}, value
        return
    *counts, total = value
    for bound, count in zip((*family.bounds_s, inf), accumulate(counts), strict=True):
        yield "_bucket", {"le": "+Inf" if bound == inf else str(bound)}, count
    yield "_count", {}, sum(counts)
    yield "_sum", {}, total
