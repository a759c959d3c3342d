"""Traces of requests at a real receiver (OTLP), and a receiver that is slow or away."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import confluent_kafka
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from korvet.errors import ConfigError
from korvet.server.ground.tracing import endpoint
from tests.api.raw import ask, created, unique
from tests.support.broker import KorvetServer, running_broker
from tests.support.otlp import Receiver, receiver, values

WITHIN_S = 60.0
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{SPAN}-01"
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


@pytest.fixture(scope="module")
def receiving() -> Iterator[Receiver]:
    with receiver() as found:
        yield found


@pytest.fixture(scope="module")
def server(receiving: Receiver) -> Iterator[KorvetServer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ENDPOINT, f"http://127.0.0.1:{receiving.port}")
        patch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_on")
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        patch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
        with running_broker() as broker:
            yield broker


def produce(server: KorvetServer, topic: str, headers: dict[str, str | bytes | None], **settings: str) -> None:
    # One request, whatever the pauses between the two records: flush ends the linger.
    own = {"bootstrap.servers": server.bootstrap, "client.id": "traced", "linger.ms": "60000"}
    producer = confluent_kafka.Producer({**own, **settings})
    producer.produce(topic, b"value", b"key", 0, headers=headers)
    producer.produce(topic, b"second" * 100, partition=0)
    assert producer.flush(WITHIN_S) == 0


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_produce_belongs_to_the_trace_of_its_first_record(
    server: KorvetServer, receiving: Receiver, codec: str
) -> None:
    topic = created(server.port)
    produce(server, topic, {"other": "x", "traceparent": TRACEPARENT}, **{"compression.type": codec})
    span = receiving.span_until(lambda one: one.name == f"produce {topic}", "the span came")
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, SPAN)
    assert span.kind == Span.SPAN_KIND_SERVER
    assert 0 < span.start_time_unix_nano < span.end_time_unix_nano
    told = values(span)
    assert told.pop("korvet.api.version")
    assert told == {
        "messaging.system": "kafka",
        "messaging.operation.name": "produce",
        "messaging.operation.type": "send",
        "messaging.destination.name": topic,
        "messaging.client.id": "traced",
        "client.address": "127.0.0.1",
        "korvet.namespace": "default",
        "messaging.destination.partition.id": "0",
    }
    assert receiving.services == {"korvet"}


def test_fetch_and_refusals_have_traces_of_their_own(server: KorvetServer, receiving: Receiver) -> None:
    topic = created(server.port)
    produce(server, topic, {})
    settings = {"bootstrap.servers": server.bootstrap, "group.id": unique("g"), "auto.offset.reset": "earliest"}
    consumer = confluent_kafka.Consumer(settings)
    consumer.subscribe([topic])
    assert consumer.consume(1, WITHIN_S)
    consumer.close()
    span = receiving.span_until(lambda one: one.name == f"fetch {topic}", "the span came")
    told = values(span)
    assert (told["messaging.operation.type"], told["messaging.destination.partition.id"]) == ("receive", "0")
    assert span.parent_span_id == b""
    assert ask(server.port, "heartbeat", 3, group_id="g" * 1000, member_id="m")["error_code"] == "UNKNOWN_MEMBER_ID"
    refused = receiving.span_until(
        lambda one: one.name == "heartbeat" and values(one).get("error.type") == "UNKNOWN_MEMBER_ID", "the span came"
    )
    assert refused.status.code == Status.STATUS_CODE_ERROR
    assert values(refused)["messaging.consumer.group.name"] == "g" * 256


def test_parent_that_is_not_sampled_or_no_parent_is_not_exported(server: KorvetServer, receiving: Receiver) -> None:
    unsampled, wrong = created(server.port), created(server.port)
    produce(server, unsampled, {"traceparent": TRACEPARENT[:-1] + "0"})
    produce(server, wrong, {"traceparent": "00-no-such-thing"})
    span = receiving.span_until(lambda one: one.name == f"produce {wrong}", "the span came")
    assert span.parent_span_id == b""
    assert not [one for one in receiving.spans if one.name == f"produce {unsampled}"]


def test_receiver_that_hangs_holds_up_nobody(server: KorvetServer, receiving: Receiver) -> None:
    receiving.answers.clear()
    receiving.asked.clear()
    topic = created(server.port)
    produce(server, topic, {})
    assert receiving.asked.wait(WITHIN_S)
    deadline = time.monotonic() + WITHIN_S
    while "traces cannot be sent" not in server.log:
        produce(server, topic, {})
        assert time.monotonic() < deadline, "the log says so"
    receiving.answers.set()
    produce(server, topic, {})
    receiving.span_until(lambda one: one.name == f"produce {topic}", "spans come again")


@pytest.mark.parametrize(
    "environ, where",
    [
        ({}, None),
        ({ENDPOINT: ""}, None),
        ({ENDPOINT: "http://a:1"}, "http://a:1"),
        ({ENDPOINT: "http://a:1", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://b:1/t"}, "http://b:1/t"),
        ({ENDPOINT: "http://a:1", "OTEL_SDK_DISABLED": "true"}, None),
        ({ENDPOINT: "http://a:1", "OTEL_TRACES_EXPORTER": "none"}, None),
    ],
)
def test_variables_switch_traces_on(environ: dict[str, str], where: str | None) -> None:
    assert endpoint(environ) == where


def test_what_korvet_cannot_do_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="http/protobuf"):
        endpoint({ENDPOINT: "http://a:1", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ConfigError, match=r"korvet\[otel\]"):
        endpoint({ENDPOINT: "http://a:1"})
