"""A server at maxmemory: producers are told to try again, everybody else goes on, and trimming makes room."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.api.data import fetch, offsets, produce, produced, records, wanted
from tests.api.raw import ask, created
from tests.api.rdkafka import Reader, Traffic, Writer, until
from tests.support.broker import KorvetServer, running_broker
from tests.support.redis import Kind, Server, ServerUnavailable, running_server, unavailable

MEGABYTE = 1 << 20
FULL = "redis is at maxmemory"
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
    assert (broker.log.count(FULL), broker.log.count(ROOM)) == (1, 1)


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


def test_retention_bounds_what_a_topic_takes(server: Server) -> None:
    """Three times as much as there is room for goes through a topic, and the front-ends make the room."""
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
