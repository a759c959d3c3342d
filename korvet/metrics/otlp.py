"""Metrics that a client pushed, as series: the parsing of an OTLP MetricsData within bounds.

A few bytes of protobuf can stand for many objects, and parsing holds up all threads of a process. So the three
messages around a metric are walked here, and `opentelemetry-proto` parses each metric for itself. Of what is too large
or too much the rest is left out and counted.

Source: opentelemetry/proto/metrics/v1/metrics.proto, KIP-714
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

MOST_SERIES: Final = 2_000
"""The series of a client."""
_MOST_ELEMENTS: Final = 20_000
"""The fields, points and attributes of a push that are looked at."""
_MOST_METRIC_BYTES: Final = 64 << 10
_MOST_ATTRIBUTES: Final = 32
MOST_NAME_CHARACTERS: Final = 200
"""The longest name of a metric or a label of a client."""
MOST_VALUE_CHARACTERS: Final = 256
"""The longest value of a label of a client."""
PREFIX: Final = "kafka_client_"
OWN_LABELS: Final = ("namespace", "client_id", "client_instance_id")
"""Labels that the broker adds: without a client's, so that no two series become the same."""
_KAFKA: Final = "org.apache.kafka."
_NO_NAME: Final = re.compile(r"[^a-zA-Z0-9_]")
_RESOURCE_METRICS, _RESOURCE, _SCOPE_METRICS, _METRIC = 1, 1, 2, 2
_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5
_CUMULATIVE: Final = 2


class Series(NamedTuple):
    """A series: its name and labels as Prometheus takes them, and its value."""

    name: str
    labels: Sequence[tuple[str, str]]
    value: float


class Decoded(NamedTuple):
    """A push: the client's own attributes, its series, and the points that are left out, by the reason."""

    attributes: Mapping[str, str]
    series: Sequence[Series]
    dropped: Mapping[str, int]


class Undecodable(ValueError):
    """The bytes are no OTLP MetricsData."""


class _Enough(Exception):
    """The bound on a push is reached."""


class _Push:
    def __init__(self) -> None:
        self.attributes: dict[str, str] = {}
        self.series: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        self.dropped: Counter[str] = Counter()
        self._left = _MOST_ELEMENTS

    def spend(self, elements: int) -> None:
        """Count elements that are looked at."""
        self._left -= elements
        if self._left < 0:
            self.dropped["bound"] += 1
            raise _Enough

    def fields(self, data: memoryview, *wanted: int) -> Iterator[tuple[int, memoryview]]:
        """The fields of a message with these numbers, which hold messages."""
        at = 0
        while at < len(data):
            self.spend(1)
            key, at = _varint(data, at)
            size, at = _size(data, at, key & 7)
            if size > len(data) - at:
                raise Undecodable("a field is longer than its message")
            if key & 7 == _BYTES and key >> 3 in wanted:
                yield key >> 3, data[at : at + size]
            at += size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """A number, and the position of its end."""
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise Undecodable("a number without an end")


def _size(data: memoryview, at: int, kind: int) -> tuple[int, int]:
    """The size of a field's value, and the position of the value; a number has been skipped already."""
    if kind == _VARINT:
        return 0, _varint(data, at)[1]
    if kind == _BYTES:
        size, at = _varint(data, at)
        return size, at
    if kind in (_EIGHT_BYTES, _FOUR_BYTES):
        return 8 if kind == _EIGHT_BYTES else 4, at
    raise Undecodable(f"a field of wire type {kind}")


def decode(data: bytes) -> Decoded:
    """The series of a MetricsData, at most `MOST_SERIES`.

    :raises Undecodable: if it is none.
    """
    # The modules take a tenth of a second, and most brokers never need them.
    from google.protobuf.message import DecodeError
    from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
    from opentelemetry.proto.resource.v1.resource_pb2 import Resource

    push = _Push()
    try:
        for _, resource in push.fields(memoryview(data), _RESOURCE_METRICS):
            for number, part in push.fields(resource, _RESOURCE, _SCOPE_METRICS):
                if number == _RESOURCE:
                    _add_attributes(push, part, Resource.FromString)
                    continue
                for _, metric in push.fields(part, _METRIC):
                    _add(push, metric, Metric.FromString)
    except _Enough:
        pass
    except (DecodeError, IndexError, ValueError) as error:
        raise Undecodable(str(error)) from error
    series = [Series(name, labels, value) for (name, labels), value in push.series.items()]
    return Decoded(push.attributes, series, push.dropped)


def _add_attributes(push: _Push, data: memoryview, parse: Callable[[bytes], Any]) -> None:
    if len(data) <= _MOST_METRIC_BYTES:
        resource = parse(bytes(data))
        push.spend(len(resource.attributes))
        push.attributes.update(_labels(resource.attributes))


def _add(push: _Push, data: memoryview, parse: Callable[[bytes], Any]) -> None:
    if len(data) > _MOST_METRIC_BYTES:
        push.dropped["size"] += 1
        return
    metric = parse(bytes(data))
    kind = metric.WhichOneof("data")
    if kind not in ("gauge", "sum") or (kind == "sum" and metric.sum.aggregation_temporality != _CUMULATIVE):
        push.dropped["kind"] += 1
        return
    points = metric.gauge.data_points if kind == "gauge" else metric.sum.data_points
    push.spend(len(points))
    name = PREFIX + _NO_NAME.sub("_", metric.name[: MOST_NAME_CHARACTERS + 1].removeprefix(_KAFKA))
    for point in points:
        _add_point(push, name, point)


def _add_point(push: _Push, name: str, point: Any) -> None:
    which = point.WhichOneof("value")
    push.spend(len(point.attributes))
    if which is None:
        push.dropped["kind"] += 1
    elif len(point.attributes) > _MOST_ATTRIBUTES or len(name) > len(PREFIX) + MOST_NAME_CHARACTERS:
        push.dropped["size"] += 1
    elif len(push.series) >= MOST_SERIES:
        push.dropped["bound"] += 1
    else:
        labels = sorted(one for one in _labels(point.attributes).items() if one[0] not in OWN_LABELS)
        push.series[name, tuple(labels)] = float(getattr(point, which))


def _labels(attributes: Any) -> dict[str, str]:
    """Attributes as labels; Prometheus keeps names with two leading underscores for itself."""
    labels = {}
    for one in attributes:
        name = _NO_NAME.sub("_", one.key[:MOST_NAME_CHARACTERS]).lstrip("_")
        if name and not name[0].isdigit():
            labels[name] = _text(one.value)
    return labels


def _text(value: Any) -> str:
    which = value.WhichOneof("value")
    if which == "string_value":
        return str(value.string_value)[:MOST_VALUE_CHARACTERS]
    return str(getattr(value, which)) if which in ("bool_value", "int_value", "double_value") else ""
