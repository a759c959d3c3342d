"""Topics for the tests of the source: records, transactions, trims and partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from korvet.pipeline.broker import Broker, Partition
from tests.support.broker import KorvetServer

_NOTHING: Mapping[str, str] = MappingProxyType({})


def create(broker: KorvetServer, topic: str, partitions: int = 1, settings: Mapping[str, str] = _NOTHING) -> None:
    """Create a topic that keeps records of any age."""
    with Broker({"bootstrap.servers": broker.bootstrap}) as admin:
        assert admin.create_topic(topic, partitions, {"retention.ms": "-1", **settings})


def produce(
    broker: KorvetServer,
    topic: str,
    values: Sequence[bytes | None],
    *,
    partition: int = 0,
    settings: Mapping[str, str] = _NOTHING,
    start_ms: int = 1_700_000_000_000,
) -> None:
    """Produce records a second apart, from `start_ms` on, with keys ``k0``, ``k1`` and so on."""
    # Only full batches leave before the flush, so their sizes do not hang on the machine's speed.
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 10_000, **settings})
    for index, value in enumerate(values):
        producer.produce(topic, value, f"k{index}", partition=partition, timestamp=start_ms + index * 1_000)
    assert producer.flush(30) == 0


def transact(broker: KorvetServer, topic: str, values: Sequence[bytes], *, commit: bool, partition: int = 0) -> None:
    """Write one transaction, and end it."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": f"of-{topic}"})
    producer.init_transactions(30)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, partition=partition)
    assert producer.flush(30) == 0
    if commit:
        producer.commit_transaction(30)
    else:
        producer.abort_transaction(30)


def trim(broker: KorvetServer, offsets: Mapping[Partition, int]) -> None:
    """Delete the records below the offsets."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.delete_records(
        [TopicPartition(*partition, offset) for partition, offset in offsets.items()]
    ).values():
        future.result(30)


def delete(broker: KorvetServer, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics([topic])[topic].result(30)


def grow(broker: KorvetServer, topic: str, partitions: int) -> None:
    """Give the topic so many partitions."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(30)
