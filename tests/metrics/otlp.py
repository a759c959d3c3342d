"""OTLP messages for tests, as clients push them."""

from __future__ import annotations

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AggregationTemporality,
    Gauge,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

CUMULATIVE, DELTA = (
    AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE,
    AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA,
)


def attributes(**values: str) -> list[KeyValue]:
    return [KeyValue(key=name, value=AnyValue(string_value=value)) for name, value in values.items()]


def point(value: float, labels: list[KeyValue] | None = None) -> NumberDataPoint:
    return NumberDataPoint(as_double=value, attributes=labels or [])


def gauge(name: str, *points: NumberDataPoint) -> Metric:
    return Metric(name=name, gauge=Gauge(data_points=points))


def total(name: str, *points: NumberDataPoint, temporality: AggregationTemporality.ValueType = CUMULATIVE) -> Metric:
    return Metric(name=name, sum=Sum(data_points=points, aggregation_temporality=temporality, is_monotonic=True))


def pushed(*metrics: Metric, resource: list[KeyValue] | None = None) -> bytes:
    """A MetricsData with these metrics."""
    scope = ScopeMetrics(metrics=metrics)
    one = ResourceMetrics(resource=Resource(attributes=resource or []), scope_metrics=[scope])
    return bytes(MetricsData(resource_metrics=[one]).SerializeToString())
