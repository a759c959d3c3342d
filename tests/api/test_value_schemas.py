"""Topics with a value schema: a wrong record is refused by index and reason, with its whole batch, at every client."""

from __future__ import annotations

import importlib
import json
import subprocess
import warnings
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pytest

from tests.api.data import connected, fetch, offsets, produce, produce_request, wanted
from tests.api.raw import ask, create_topics, created, unique
from tests.oracle.batches import Batch, encode
from tests.support.broker import KorvetServer
from tests.support.kafka import KafkaUnavailable, fetch_jars
from tests.support.times import MIDNIGHT_MS
from tests.support.tools import cannot_run, find_tool

SCHEMA = json.dumps({"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]})
GOOD, BAD = b'{"id": 1}', b'{"id": "one"}'
REASON = "$.id: 'one' is not of type 'integer'"
WITHIN_S = 30.0


def with_schema(port: int, schema: str = SCHEMA) -> str:
    name = unique()
    (result,) = create_topics(port, {"name": name, "configs": [{"name": "korvet.value.schema", "value": schema}]})
    assert result["error_code"] == "NONE", result
    return name


def values(bootstrap: str, topic: str) -> list[bytes | None]:
    """All values in the topic's only partition."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
    partition = confluent_kafka.TopicPartition(topic, 0, 0)
    try:
        _, end = consumer.get_watermark_offsets(partition, WITHIN_S)
        consumer.assign([partition])
        return [message.value() for message in consumer.consume(end, WITHIN_S)] if end else []
    finally:
        consumer.close()


@pytest.mark.parametrize("attributes", [0, 1])
@pytest.mark.parametrize("count", [1, 1000])
@pytest.mark.parametrize("version", [7, 8, 9, 12])
def test_batch_is_refused_by_its_records(broker: KorvetServer, attributes: int, count: int, version: int) -> None:
    topic = with_schema(broker.port)
    good, bad = (
        encode(Batch(count=count, value=value, attributes=attributes, timestamp=MIDNIGHT_MS)) for value in (GOOD, BAD)
    )
    answer = produce(broker.port, topic, bad, version)
    assert (answer["error_code"], answer["base_offset"], answer["log_start_offset"]) == ("INVALID_RECORD", -1, 0)
    if version >= 8:
        assert (
            answer["error_message"] == f"One or more records break the topic's schema, the first at index 0: {REASON}"
        )
        assert [one["batch_index"] for one in answer["record_errors"]] == list(range(min(count, 100)))
        assert {one["batch_index_error_message"] for one in answer["record_errors"]} == {REASON}
    assert produce(broker.port, topic, good, version)["base_offset"] == 0
    (read,) = fetch(broker.port, topic, wanted(0))
    assert offsets(read) == [0]


def test_null_values_pass_and_undecodable_batches_do_not(broker: KorvetServer) -> None:
    topic = with_schema(broker.port)
    assert produce(broker.port, topic, encode(Batch(value=None, key=b"k")))["error_code"] == "NONE"
    broken = encode(Batch(count=3, value=GOOD, attributes=4))
    answer = produce(broker.port, topic, broken)
    assert (answer["error_code"], answer["record_errors"]) == ("UNKNOWN_SERVER_ERROR", [])
    assert answer["error_message"].startswith("records cannot be decompressed: ")


def test_order_of_produce_requests_on_a_connection_is_kept(broker: KorvetServer) -> None:
    """Batches that are judged beside the loop, short ones, and batches of a topic without a schema."""
    topic, free = with_schema(broker.port), created(broker.port)
    long, short, bad = (
        encode(Batch(count=count, value=value, timestamp=MIDNIGHT_MS))
        for count, value in ((500, GOOD), (1, GOOD), (1, BAD))
    )
    sent = [(topic, long), (topic, short), (free, short), (topic, bad), (topic, long), (free, short), (topic, short)]
    with connected(broker.port) as connection:
        for name, batch in sent:
            connection.send("produce", 12, **produce_request(name, batch))
        answers = [connection.receive()["responses"][0]["partition_responses"][0] for _ in sent]
    assert [one["base_offset"] for one in answers] == [0, 500, 0, -1, 501, 1, 1001]


def test_schema_may_come_change_and_go(broker: KorvetServer) -> None:
    port, topic = broker.port, created(broker.port)

    def configure(operation: int, value: str | None) -> tuple[str, str | None]:
        configs = [{"name": "korvet.value.schema", "config_operation": operation, "value": value}]
        resource = {"resource_type": 2, "resource_name": topic, "configs": configs}
        (result,) = ask(port, "incremental_alter_configs", 1, resources=[resource], validate_only=False)["responses"]
        return result["error_code"], result["error_message"]

    def outcome(value: bytes) -> str:
        return str(produce(port, topic, encode(Batch(value=value)))["error_code"])

    assert outcome(BAD) == "NONE"
    assert configure(0, SCHEMA)[0] == "NONE"
    assert (outcome(BAD), outcome(GOOD)) == ("INVALID_RECORD", "NONE")
    code, message = configure(0, '{"type": "interger"}')
    assert code == "INVALID_CONFIG"
    assert message is not None
    assert "not a JSON Schema: $.type: 'interger' is not valid" in message
    assert configure(0, '{"type": "string"}')[0] == "NONE"
    assert (outcome(GOOD), outcome(b'"text"')) == ("INVALID_RECORD", "NONE")
    assert configure(1, None)[0] == "NONE"
    assert outcome(BAD) == "NONE"


# ---------------------------------------------------------------------- clients, three records in a batch


def test_librdkafka_learns_which_records_the_schema_refuses(broker: KorvetServer) -> None:
    topic = with_schema(broker.port)
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 60_000})
    failed: list[Any] = []
    for value in (GOOD, BAD, GOOD):
        producer.produce(topic, value, on_delivery=lambda error, _: failed.append(error))
    assert producer.flush(WITHIN_S) == 0
    assert [error.name() for error in failed] == ["INVALID_RECORD"] * 3 or [error.name() for error in failed] == [
        "_INVALID_DIFFERENT_RECORD",
        "INVALID_RECORD",
        "_INVALID_DIFFERENT_RECORD",
    ]
    producer.produce(topic, GOOD)
    assert producer.flush(WITHIN_S) == 0
    assert values(broker.bootstrap, topic) == [GOOD]


@pytest.fixture
def kafka_python() -> Iterator[Any]:
    """The package `kafka`, whose import uses deprecated parts of Python's library."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        importlib.import_module("kafka.admin")
        yield importlib.import_module("kafka")


def test_kafka_python_learns_why_the_schema_refuses(broker: KorvetServer, kafka_python: Any) -> None:
    topic = with_schema(broker.port)
    # With idempotence it sends nothing more after a refused batch.
    settings = {"enable_idempotence": False, "linger_ms": 300}
    producer = kafka_python.KafkaProducer(bootstrap_servers=broker.bootstrap, **settings)
    try:
        sent = [producer.send(topic, value) for value in (GOOD, BAD, GOOD)]
        producer.flush()
        assert [future.failed() for future in sent] == [True] * 3
        assert REASON in str(sent[1].exception)
        assert producer.send(topic, GOOD).get(WITHIN_S).offset == 0
    finally:
        producer.close()


def test_java_client_shows_the_reason(broker: KorvetServer) -> None:
    try:
        jars = fetch_jars()
    except KafkaUnavailable as error:
        cannot_run(str(error))
    topic = with_schema(broker.port)
    command = [find_tool("java"), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", f"{jars}/*"]
    command += ["org.apache.kafka.tools.ConsoleProducer", "--bootstrap-server", broker.bootstrap, "--topic", topic]
    lines = b"\n".join((GOOD, BAD, GOOD)) + b"\n"
    done = subprocess.run(command, input=lines, capture_output=True, timeout=60, check=False)
    shown = (done.stdout + done.stderr).decode()
    assert REASON in shown, shown
    assert "InvalidRecordException" in shown
    assert values(broker.bootstrap, topic) == []
