"""Several listeners of one broker, each with its own namespace. Clients of one see nothing of the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from korvet.server.ground.settings import ListenerSettings
from tests.support.broker import KorvetServer, running_broker

WITHIN_S = 30.0
GROUP, TOPIC = "same-group", "same-topic"
DOORS = (
    ListenerSettings(port=0),
    ListenerSettings(port=0, namespace="b"),
    ListenerSettings(port=0, namespace="b", advertised_host="localhost"),
)


@pytest.fixture(scope="module", params=[1, 2], ids=["one-process", "two-workers"])
def server(request: pytest.FixtureRequest) -> Iterator[KorvetServer]:
    with running_broker(listeners=DOORS, workers=request.param) as broker:
        yield broker


@pytest.fixture
def doors(server: KorvetServer) -> list[str]:
    return [f"127.0.0.1:{port}" for port in server.ports]


def create(door: str) -> None:
    admin = AdminClient({"bootstrap.servers": door})
    admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(WITHIN_S)


def fill(door: str, values: list[bytes]) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": door, "linger.ms": 0})
    for value in values:
        producer.produce(TOPIC, value)
    assert producer.flush(WITHIN_S) == 0


def read_as_group(door: str, count: int) -> list[bytes]:
    """Read a number of values as a group, commit, and leave."""
    settings = {"bootstrap.servers": door, "group.id": GROUP, "auto.offset.reset": "earliest"}
    consumer = confluent_kafka.Consumer({**settings, "enable.auto.commit": False})
    consumer.subscribe([TOPIC])
    values = [message.value() or b"" for message in consumer.consume(count, WITHIN_S)]
    consumer.commit(asynchronous=False)
    consumer.close()
    return values


def listed(door: str) -> set[str]:
    admin = AdminClient({"bootstrap.servers": door})
    found = admin.list_consumer_groups(request_timeout=WITHIN_S).result()
    assert not found.errors
    return {group.group_id for group in found.valid}


def position(door: str) -> int:
    partitions = [confluent_kafka.TopicPartition(TOPIC, 0)]
    consumer = confluent_kafka.Consumer({"bootstrap.servers": door, "group.id": GROUP})
    found: Any = consumer.committed(partitions, WITHIN_S)
    consumer.close()
    return int(found[0].offset)


def test_two_listeners_with_two_namespaces_share_no_topic_and_no_group(doors: list[str]) -> None:
    one, other, other_again = doors
    create(one)
    fill(one, [b"one-0", b"one-1"])
    assert TOPIC not in AdminClient({"bootstrap.servers": other}).list_topics(timeout=WITHIN_S).topics
    assert read_as_group(one, 2) == [b"one-0", b"one-1"]
    assert (listed(one), listed(other)) == ({GROUP}, set())
    create(other)
    fill(other, [b"other-0", b"other-1", b"other-2"])
    assert position(other) == confluent_kafka.OFFSET_INVALID
    assert read_as_group(other, 3) == [b"other-0", b"other-1", b"other-2"]
    assert [position(door) for door in doors] == [2, 3, 3]
    assert listed(other_again) == {GROUP}
    fill(other_again, [b"more"])
    assert read_as_group(other, 1) == [b"more"]
    assert position(one) == 2


def brokers(door: str) -> set[tuple[str | None, int]]:
    found = AdminClient({"bootstrap.servers": door}).list_topics(timeout=WITHIN_S).brokers
    return {(broker.host, broker.port) for broker in found.values()}


def test_clients_learn_the_address_of_their_own_listener(server: KorvetServer, doors: list[str]) -> None:
    told = [
        {
            (broker.host, broker.port)
            for broker in AdminClient({"bootstrap.servers": door}).list_topics().brokers.values()
        }
        for door in doors
    ]
    hosts: list[str | None] = ["127.0.0.1", "127.0.0.1", "localhost"]
    assert told == [{address} for address in zip(hosts, server.ports, strict=True)]


def test_ready_line_names_every_listener(server: KorvetServer) -> None:
    where = ", ".join(f"127.0.0.1:{port}" for port in server.ports)
    assert f" ready on {where} (embedded Valkey " in server.ready_line
