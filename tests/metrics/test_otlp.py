"""What a client pushes becomes series, within bounds."""

from __future__ import annotations

import anyio
import anyio.to_thread
import pytest
from kio.schema.errors import ErrorCode
from opentelemetry.proto.metrics.v1.metrics_pb2 import Histogram, HistogramDataPoint, Metric
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from korvet.api.shared.telemetry import Push
from korvet.configs.client_metrics import Traits
from korvet.metrics.otlp import MOST_SERIES, Series, Undecodable, decode
from korvet.server.tenants.telemetry_receiver import TelemetryReceiver
from korvet.wire.batch import GZIP, LZ4, SNAPPY, ZSTD
from korvet.wire.compress import compressed
from tests.metrics.otlp import DELTA, attributes, gauge, point, pushed, total
from tests.support.memory import MEGABYTE, collector_stopped, traced_memory


def test_gauges_and_sums_become_series_with_attributes_as_labels() -> None:
    data = pushed(
        total("org.apache.kafka.producer.record.send.total", point(7)),
        gauge("org.apache.kafka.producer.node.request.latency.avg", point(0.5, attributes(node_id="1"))),
        gauge("app.of-mine", point(1, attributes(topic="a", partition="3"))),
        resource=attributes(group_id="g"),
    )
    attributes_, series, dropped = decode(data)
    assert series == [
        Series("kafka_client_producer_record_send_total", (), 7),
        Series("kafka_client_producer_node_request_latency_avg", (("node_id", "1"),), 0.5),
        Series("kafka_client_app_of_mine", (("partition", "3"), ("topic", "a")), 1),
    ]
    assert (attributes_, dict(dropped)) == ({"group_id": "g"}, {})


def test_names_become_names_of_prometheus() -> None:
    labels = attributes(**{"a-b": "x", "__name__": "y", "1st": "no", "é": "no", "": "no"})
    (series,) = decode(pushed(gauge('é"} 1\nkorvet_workers', point(1, labels)))).series
    assert series.name == "kafka_client_____1_korvet_workers"
    assert dict(series.labels) == {"a_b": "x", "name__": "y"}


def test_differences_and_histograms_are_counted_and_left_out() -> None:
    histogram = Metric(name="h", histogram=Histogram(data_points=[HistogramDataPoint(count=1)]))
    series, dropped = decode(pushed(total("t", point(1), temporality=DELTA), histogram, gauge("g", point(2))))[1:]
    assert [one.name for one in series] == ["kafka_client_g"]
    assert dropped == {"kind": 2}


def test_series_of_a_client_are_bounded() -> None:
    parts = [
        gauge(f"m{number}", *(point(1, attributes(topic=f"t{at}")) for at in range(500)))
        for number in range(MOST_SERIES // 500 + 1)
    ]
    _, series, dropped = decode(pushed(*parts))
    assert (len(series), dropped) == (MOST_SERIES, {"bound": 500})


def test_long_names_and_many_attributes_are_left_out() -> None:
    many = attributes(**{f"a{number}": "x" for number in range(33)})
    data = pushed(
        gauge("n" * 201, point(1)), gauge("many", point(1, many)), gauge("large", point(1, attributes(a="x" * 70_000)))
    )
    _, series, dropped = decode(data)
    assert (series, dropped) == ([], {"size": 3})


def test_long_values_are_cut() -> None:
    (series,) = decode(pushed(gauge("g", point(1, attributes(topic="t" * 1000))))).series
    assert series.labels == (("topic", "t" * 256),)


def nested(*numbers: int, of: bytes) -> bytes:
    """Fields in fields."""
    for number in reversed(numbers):
        size, head = len(of), bytearray([number << 3 | 2])
        while size > 127:
            head.append(size & 127 | 128)
            size >>= 7
        of = bytes([*head, size]) + of
    return of


@pytest.mark.parametrize(
    "bomb",
    [
        b"\x0a\x00" * (MEGABYTE // 2),
        nested(1, 2, of=b"\x12\x00" * (MEGABYTE // 2)),
        nested(1, 2, 2, 5, of=b"\x0a\x00" * 30_000) * 15,
        nested(1, 2, 2, 5, 1, of=b"\x3a\x00" * 30_000) * 15,
        nested(1, 1, of=b"\x0a\x00" * 30_000) * 15,
    ],
)
def test_many_objects_of_few_bytes_are_not_made(bomb: bytes) -> None:
    """The rest behind the bound is not looked at."""
    decoded = decode(bomb + pushed(gauge("g", point(1))))
    assert (decoded.series, decoded.dropped["bound"]) == ([], 1)


@pytest.mark.parametrize(
    "wrong",
    [
        b"\xff", b"\x0a", b"\x0a\x05ab", b"\x0f\x00", b"\xff" * 20, Resource().SerializeToString() + b"\x0b",
        nested(1, 2, 2, of=b"\x2a\x01\xff"), b"not a message at all",
    ],
)  # fmt: skip
def test_what_is_no_metrics_data_is_undecodable(wrong: bytes) -> None:
    with pytest.raises(Undecodable):
        decode(wrong)


def test_nothing_is_nothing() -> None:
    assert decode(b"").series == decode(pushed()).series == []


def test_labels_of_the_broker_make_no_series_twice() -> None:
    points = [point(number, attributes(client_id=str(number), topic="t")) for number in range(2)]
    assert decode(pushed(gauge("m", *points))).series == [("kafka_client_m", (("topic", "t"),), 1.0)]


def test_push_that_grows_beyond_a_line_is_too_large() -> None:
    """A supervisor hears no more of a worker that writes a longer line, whatever bytes of a push are allowed."""
    labels = [{f"l{number}_{at}": "\1" * 256 for at in range(32)} for number in range(400)]
    data = pushed(*(gauge("m", point(1, attributes(**one))) for one in labels))
    traits = Traits("i", None, "s", "v", "127.0.0.1", None)
    push = Push(namespace="n", client=traits, principal="User:a", interval_ms=1000, codec=0, data=data)
    assert anyio.run(TelemetryReceiver().receive, push, len(data)) is ErrorCode.telemetry_too_large


@pytest.mark.anyio
@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
@pytest.mark.parametrize("plain_bytes", [MEGABYTE, 2 * MEGABYTE], ids=["no metrics", "too much"])
async def test_refused_push_leaves_nothing_in_memory_before_the_collector_comes(codec: int, plain_bytes: int) -> None:
    receiver, traits = TelemetryReceiver(), Traits("i", None, "s", "v", "127.0.0.1", None)
    data = compressed(codec, b"\xff" * plain_bytes)
    push = Push(namespace="n", client=traits, principal="User:a", interval_ms=1000, codec=codec, data=data)
    await receiver.receive(push, MEGABYTE)
    with collector_stopped(), traced_memory() as held_bytes:
        for _ in range(5):
            assert await receiver.receive(push, MEGABYTE) is not ErrorCode.none
        # A thread itself lets go a moment later.
        await anyio.to_thread.run_sync(int)
        assert held_bytes() < MEGABYTE
