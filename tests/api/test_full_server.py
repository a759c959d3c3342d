"""A server at maxmemory: producers get an error to try again on, all others go on, and a trim makes room."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from tests.api.data import (
    Connection,
    connected,
    fetch,
    now_ms,
    offsets,
    produce,
    produce_request,
    produced,
    records,
    wanted,
)
from tests.api.raw import ask, created
from tests.api.rdkafka import WITHIN_S, Reader, Traffic, Writer
from tests.kafka.builds import driver_command
from tests.kafka.options import failures
from tests.kafka.process import ProcessClient
from tests.kafka.records import numbered
from tests.store.keyed import keyed
from tests.support.broker import KorvetServer, running_broker
from tests.support.redis import Kind, Server, ServerUnavailable, running_server, unavailable
from tests.support.waiting import until

MEGABYTE = 1 << 20
FULL = "redis is nearly at maxmemory"
ROOM = "redis takes appends again"


@pytest.fixture(params=["valkey", "redis"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    kind: Kind = request.param
    try:
        with running_server(kind) as running:
            yield running
    except ServerUnavailable as error:
        unavailable(error)


@pytest.fixture
def broker(server: Server) -> Iterator[KorvetServer]:
    with running_broker(redis_url=server.url) as running:
        yield running


def limit(server: Server, room_bytes: int) -> None:
    """Leave the server this much room; 0 for none at all, below 0 for no limit."""
    with server.client() as client:
        used = int(client.info("memory")["used_memory"])
        client.config_set("maxmemory", 0 if room_bytes < 0 else used + room_bytes if room_bytes else 1)


@pytest.mark.parametrize("size", [10, 100_000])
def test_appends_are_refused_while_everything_else_goes_on(server: Server, broker: KorvetServer, size: int) -> None:
    port = broker.port
    topic = created(port)
    produced(port, topic, records(1, size), records(1, size))
    limit(server, 0)
    codes = [produce(port, topic, records(1, size))["error_code"] for _ in range(3)]
    assert codes == ["KAFKA_STORAGE_ERROR"] * 3
    (read,) = fetch(port, topic, wanted(0))
    assert offsets(read) == [0, 1]
    part = {"partition_index": 0, "timestamp": 0, "current_leader_epoch": -1}
    listed = ask(port, "list_offsets", 7, replica_id=-1, topics=[{"name": topic, "partitions": [part]}])
    assert listed["topics"][0]["partitions"][0]["offset"] == 0
    part = {"partition_index": 0, "offset": 1}
    trimmed = ask(port, "delete_records", 2, timeout=1000, topics=[{"name": topic, "partitions": [part]}])
    assert trimmed["topics"][0]["partitions"][0]["low_watermark"] == 1
    limit(server, -1)
    assert produce(port, topic, records(1, size))["base_offset"] == 2
    until(lambda: produce(port, topic, records(1, size))["error_code"] == "NONE" and ROOM in broker.log)
    assert (broker.log.count(FULL), broker.log.count(ROOM)) == (1, 1)


@pytest.mark.parametrize("server", ["redis"], indirect=True)
def test_full_memory_is_one_log_line_with_figures_and_the_largest_topics(server: Server, broker: KorvetServer) -> None:
    """The log has one line for it, however often appends are refused and accepted again."""
    small, large = created(broker.port), created(broker.port)
    produced(broker.port, small, records(1, 10))
    produced(broker.port, large, *[records(1, 750_000)] * 3)
    for _ in range(3):
        limit(server, 0)
        until(lambda: produce(broker.port, small, records(1, 10))["error_code"] == "KAFKA_STORAGE_ERROR")
        limit(server, 50 * MEGABYTE)
        until(lambda: produce(broker.port, small, records(1, 10))["error_code"] == "NONE")
    until(lambda: FULL in broker.log and broker.log.endswith("\n"))
    log = broker.log
    line, *others = (line for line in log.splitlines() if FULL in line)
    # After a stall of some seconds the front-end tells that there is room, and then of the next shortage.
    assert len(others) <= log.count(ROOM)
    assert f"{large} 2 MiB, {small} 0 MiB" in line
    assert " MiB" in line.split("used=")[1]
    assert "korvet topics trim" in line


def test_trimming_makes_room(server: Server, broker: KorvetServer) -> None:
    port = broker.port
    topic = created(port)
    limit(server, 8 * MEGABYTE)
    sent = 0
    while produce(port, topic, records(1, MEGABYTE // 2))["error_code"] == "NONE":
        sent += 1
        assert sent < 100
    part = {"partition_index": 0, "offset": -1}
    trimmed = ask(port, "delete_records", 2, timeout=1000, topics=[{"name": topic, "partitions": [part]}])
    assert trimmed["topics"][0]["partitions"][0]["low_watermark"] == sent
    until(lambda: bool(produce(port, topic, records(1, 10))["error_code"] == "NONE"))


def test_retention_bounds_the_memory_of_a_topic(server: Server) -> None:
    """Three times the server's room goes through a topic, and the front-ends make room."""
    kept, size = 2 * MEGABYTE, MEGABYTE // 2
    with running_broker(redis_url=server.url, broker={"log.retention.check.interval.ms": "100"}) as broker:
        port = broker.port
        topic = created(port, retention_bytes=str(kept))
        batch = records(1, size)
        limit(server, 8 * MEGABYTE)
        for _ in range(48):
            until(lambda: bool(produce(port, topic, batch)["error_code"] == "NONE"))
        until(lambda: log_bytes(port, topic) < kept + 2 * size)
        assert log_bytes(port, topic) >= kept
        (read,) = fetch(port, topic, wanted(47))
        assert offsets(read) == [47]


def log_bytes(port: int, topic: str) -> int:
    asked = [{"topic": topic, "partitions": [0]}]
    (directory,) = ask(port, "describe_log_dirs", 4, topics=asked)["results"]
    return int(directory["topics"][0]["partitions"][0]["partition_size"])


def test_a_running_producer_waits_and_goes_on(server: Server, broker: KorvetServer) -> None:
    topic = created(broker.port)
    writer = Writer(broker.bootstrap, topic)
    with Reader(broker.bootstrap, topic) as reader:
        with Traffic(writer) as traffic:
            traffic.wait_for(50)
            limit(server, 0)
            until(lambda: FULL in broker.log)
            limit(server, -1)
            traffic.wait_for(50)
        writer.flush()
        assert writer.offsets == list(range(traffic.sent))
        reader.read_until(b"%d" % (traffic.sent - 1))
        assert reader.values == [b"%d" % number for number in range(traffic.sent)]


@pytest.mark.parametrize("server, size", [("valkey", 300), ("redis", 1000)], indirect=["server"])
def test_compaction_makes_room_for_the_producers_that_wait_for_it(server: Server, size: int) -> None:
    """Compaction of a topic that has filled the server uses the reserve."""
    with (
        running_broker(redis_url=server.url, broker={"log.cleaner.backoff.ms": "50"}) as broker,
        connected(broker.port) as connection,
    ):
        topic = created(broker.port)
        batch = keyed(*[(b"%d" % (number % 5), b"v" * size) for number in range(20)], timestamp=now_ms())
        limit(server, MEGABYTE)
        until(lambda: ask_produce(connection, topic, batch) == "KAFKA_STORAGE_ERROR")
        compacted = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
        configure(broker, topic, compacted)
        for _ in range(2 * MEGABYTE // len(batch)):
            until(lambda: ask_produce(connection, topic, batch) == "NONE")
        assert "Traceback" not in broker.log


def configure(broker: KorvetServer, topic: str, *changes: ConfigEntry) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    change = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=list(changes))
    for done in admin.incremental_alter_configs([change]).values():
        done.result(WITHIN_S)


def ask_produce(connection: Connection, topic: str, batch: bytes) -> str:
    answer = connection.ask("produce", 12, **produce_request(topic, batch))
    return str(answer["responses"][0]["partition_responses"][0]["error_code"])


def test_groups_and_transactions_go_on_and_end(server: Server, broker: KorvetServer) -> None:
    """A group reads, commits and ends; open transactions are committed and aborted; settings can be changed."""
    topic, spare = created(broker.port), created(broker.port)
    produced(broker.port, topic, records(5))
    producers = [transactional(broker, name) for name in ("commits", "aborts", "dies")]
    for producer in producers:
        producer.begin_transaction()
        producer.produce(topic, b"x", partition=0)
        assert producer.flush(WITHIN_S) == 0
    consumer = member(broker, topic)
    try:
        read = [one.offset() for one in consumer.consume(5, WITHIN_S)]
        assert read == [0, 1, 2, 3, 4]
        # From here on there is no room for a new group.
        limit(server, 0)
        consumer.commit(asynchronous=False)
        producers[0].commit_transaction(WITHIN_S)
        producers[1].abort_transaction(WITHIN_S)
        (committed,) = consumer.consume(1, WITHIN_S)
        assert (committed.offset(), committed.value()) == (5, b"x")
        consumer.commit(asynchronous=False)
        (position,) = consumer.committed([confluent_kafka.TopicPartition(topic, 0)], WITHIN_S)
        assert position.offset == 6
    finally:
        consumer.close()
    configure(broker, topic, ConfigEntry("retention.ms", "1", incremental_operation=AlterConfigOpType.SET))
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for done in admin.delete_topics([spare]).values():
        done.result(WITHIN_S)
    # The reserve is there for groups and transactions.
    limit(server, 65_536)
    until(lambda: bool(produce(broker.port, topic, records(1))["error_code"] == "KAFKA_STORAGE_ERROR"))
    restarted = transactional(broker, "dies")
    with pytest.raises(confluent_kafka.KafkaException):
        producers[2].commit_transaction(WITHIN_S)
    limit(server, -1)
    restarted.begin_transaction()
    restarted.produce(topic, b"y", partition=0)
    restarted.commit_transaction(WITHIN_S)
    assert "Traceback" not in broker.log


def transactional(broker: KorvetServer, name: str) -> confluent_kafka.Producer:
    """A transactional producer that took its id over."""
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": name})
    producer.init_transactions(WITHIN_S)
    return producer


def member(broker: KorvetServer, topic: str) -> confluent_kafka.Consumer:
    """A member of a new group, which reads committed records."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    return consumer


@pytest.mark.parametrize("server", ["valkey"], indirect=True)
def test_java_waits_at_its_defaults_and_goes_on(server: Server, broker: KorvetServer) -> None:
    topic = created(broker.port)
    java = ProcessClient("java", driver_command("java", broker.bootstrap))
    try:
        java.produce(topic, numbered(1))
        limit(server, 0)
        until(lambda: produce(broker.port, topic, records(1))["error_code"] != "NONE")
        with ThreadPoolExecutor(1) as thread:
            producing = thread.submit(java.produce, topic, numbered(50))
            assert not producing.done()
            limit(server, -1)
            outcomes = producing.result()
        assert failures(outcomes) == []
        assert [outcome.offset for outcome in outcomes] == list(range(1, 51))
    finally:
        java.stop()
