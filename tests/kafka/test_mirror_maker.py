"""A cluster moves from Apache Kafka to korvet by MirrorMaker 2, with the file that docs/migration.md shows."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from tests.api.raw import unique
from tests.support.broker import KorvetServer
from tests.support.kafka import Kafka
from tests.support.mirror import running_mirror

WITHIN_S = 240.0
PARTITIONS = 2
RECORDS = 40
READ = 25
STARTED = "sync idle consumer group offset from source to target took"
"""What MirrorMaker logs once it translates offsets. It does not translate those of records that it copied before."""


def until(condition: Callable[[], bool], output: Path) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline, output.read_text()[-3000:]
        time.sleep(0.2)


def write(bootstrap: str, topic: str, numbers: range) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for number in numbers:
        headers: Any = {"source": b"kafka"}
        producer.produce(topic, f"value {number}", f"key {number}", partition=number % PARTITIONS, headers=headers)
    assert producer.flush(WITHIN_S) == 0


def read(bootstrap: str, topic: str, group: str, count: int) -> list[Any]:
    """Read records as a member of the group, and commit them."""
    settings = {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    consumer = confluent_kafka.Consumer({**settings, "enable.auto.commit": False})
    consumer.subscribe([topic])
    found: list[Any] = []
    deadline = time.monotonic() + WITHIN_S
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} records"
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            found.append(message)
    last = {message.partition(): message.offset() + 1 for message in found}
    consumer.commit(
        offsets=[confluent_kafka.TopicPartition(topic, partition, offset) for partition, offset in last.items()],
        asynchronous=False,
    )
    consumer.close()
    return found


def committed(bootstrap: str, topic: str, group: str) -> int:
    """The sum of the group's offsets."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    wanted = [confluent_kafka.TopicPartition(topic, partition) for partition in range(PARTITIONS)]
    offsets = consumer.committed(wanted, timeout=WITHIN_S)
    consumer.close()
    return sum(max(0, one.offset) for one in offsets)


def test_topics_settings_records_and_offsets_move_to_korvet(kafka: Kafka, broker: KorvetServer, tmp_path: Path) -> None:
    topic, group = unique("mirrored"), unique("readers")
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1, config={"retention.ms": "123456789"})])[topic].result(WITHIN_S)
    write(kafka.bootstrap, topic, range(PARTITIONS))
    read(kafka.bootstrap, topic, group, PARTITIONS)
    overrides = {
        "kafka.bootstrap.servers": kafka.bootstrap,
        "korvet.bootstrap.servers": broker.bootstrap,
        "kafka->korvet.topics": topic,
        "kafka->korvet.groups": group,
        # The intervals of a user are too long for a test.
        "sync.group.offsets.interval.seconds": "1",
        "emit.checkpoints.interval.seconds": "1",
        "offset.flush.interval.ms": "1000",
    }
    with running_mirror(tmp_path, overrides) as output:
        until(lambda: STARTED in output.read_text(), output)
        # MirrorMaker translates the offset behind the last copied record exactly, and others towards the past.
        write(kafka.bootstrap, topic, range(PARTITIONS, READ))
        read(kafka.bootstrap, topic, group, READ - PARTITIONS)
        until(lambda: committed(broker.bootstrap, topic, group) == READ, output)
        write(kafka.bootstrap, topic, range(READ, RECORDS))
        # As the page says: consumers go on in korvet, and read what they had not read.
        rest = read(broker.bootstrap, topic, group, RECORDS - READ)
    assert all(message.headers() == [("source", b"kafka")] for message in rest)
    everything = read(broker.bootstrap, topic, unique("others"), RECORDS)
    assert sorted(int(message.value().split()[1]) for message in everything) == list(range(RECORDS))
    assert all(message.partition() == int(message.key().split()[1]) % PARTITIONS for message in everything)
    there = AdminClient({"bootstrap.servers": broker.bootstrap})
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    assert there.describe_configs([resource])[resource].result(WITHIN_S)["retention.ms"].value == "123456789"
    assert {"heartbeats", "kafka.checkpoints.internal"} <= set(there.list_topics(timeout=WITHIN_S).topics)
