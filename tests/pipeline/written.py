"""A topic's records, read by a plain consumer."""

from __future__ import annotations

import time
from typing import NamedTuple, cast

from confluent_kafka import Consumer, KafkaError, TopicPartition

from korvet.pipeline.broker import Broker

READ_WITHIN_S = 120.0


class Written(NamedTuple):
    """A record as it was stored."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp_ms: int


def create_topic(bootstrap: str, name: str, partitions: int = 2) -> str:
    """Create a topic that keeps records of any age, for tests write old ones; returns its name."""
    with Broker({"bootstrap.servers": bootstrap}) as broker:
        assert broker.create_topic(name, partitions, {"retention.ms": "-1"})
    return name


def read_topic(bootstrap: str, topic: str, *, committed_only: bool = True) -> list[Written]:
    """All records up to the present log ends, by partition and offset."""
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": "tests",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed" if committed_only else "read_uncommitted",
        "fetch.message.max.bytes": 10_000_000,
        "log_level": 0,
    }
    with Broker({"bootstrap.servers": bootstrap}) as broker:
        partitions = broker.topics([topic])[topic].partitions
    consumer = Consumer(settings)
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        return sorted(_until_the_ends(consumer, len(partitions)), key=lambda one: (one.partition, one.offset))
    finally:
        consumer.close()


def _until_the_ends(consumer: Consumer, partitions: int) -> list[Written]:
    found: list[Written] = []
    ended: set[int] = set()
    deadline = time.monotonic() + READ_WITHIN_S
    while len(ended) < partitions:
        assert time.monotonic() < deadline, f"after {READ_WITHIN_S} s only the ends of {ended} were reached"
        message = consumer.poll(1.0)
        if message is None:
            continue
        partition, error = message.partition(), message.error()
        assert partition is not None
        if error is not None:
            assert error.code() == KafkaError._PARTITION_EOF, error
            ended.add(partition)
            continue
        headers = cast(list[tuple[str, bytes | None]], message.headers() or [])
        found.append(
            Written(partition, message.offset() or 0, message.key(), message.value(), headers, message.timestamp()[1])
        )
    return found
