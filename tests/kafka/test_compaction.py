"""A compacted topic, read and written by real clients while front-ends compact it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from tests.kafka.builds import driver_command
from tests.kafka.options import ProduceOptions
from tests.kafka.process import ProcessClient
from tests.kafka.records import Record
from tests.kafka.traits import CODECS
from tests.support.broker import KorvetServer, running_broker
from tests.support.redis import Server

TOPIC = "compacted"
CONFIGS = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
META = f"korvet:{{compaction:{TOPIC}:0}}:meta"
OFTEN = {"log.cleaner.backoff.ms": "100"}
READERS = ("confluent-kafka", "java", "aiokafka", "kafka-python")
WITHIN_S = 150.0


@pytest.fixture(scope="module")
def front() -> Iterator[KorvetServer]:
    """A broker that often looks for logs to compact."""
    with running_broker(broker=OFTEN) as server:
        yield server


@pytest.fixture(scope="module")
def compacted(front: KorvetServer) -> dict[bytes, Record]:
    """The last record of each key, in a topic with batches of every codec that have lost records."""
    create(front)
    last: dict[bytes, Record] = {}
    for turn, codec in enumerate(CODECS):
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": front.bootstrap, "compression.type": codec, "linger.ms": 200}
        )
        for number in range(3 * turn, 3 * turn + 6):
            record = Record(key=b"%d" % number, value=codec.encode() * 200, headers=(("h", b"1"),))
            producer.produce(TOPIC, record.value, record.key, partition=0, headers=list(record.headers))
            last[record.key or b""] = record
        assert producer.flush(WITHIN_S) == 0
    producer = confluent_kafka.Producer({"bootstrap.servers": front.bootstrap})
    producer.produce(TOPIC, b"", b"end", partition=0)
    assert producer.flush(WITHIN_S) == 0
    last[b"end"] = Record(key=b"end", value=b"")
    until(lambda: len(read(front)) == len(last))
    return last


def create(server: KorvetServer) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    made = admin.create_topics([confluent_kafka.admin.NewTopic(TOPIC, 1, 1, config=CONFIGS)])
    made[TOPIC].result(WITHIN_S)


def read(server: KorvetServer) -> list[tuple[int | None, bytes | None, bytes | None]]:
    """All records from the start to the end: offset, key, value."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": server.bootstrap, "group.id": "none", "enable.partition.eof": True}
    )
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, 0)])
    found = []
    deadline = time.monotonic() + WITHIN_S
    while time.monotonic() < deadline:
        message = consumer.poll(1)
        if message is None:
            continue
        error = message.error()
        if error is not None:
            assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF, error
            break
        found.append((message.offset(), message.key(), message.value()))
    consumer.close()
    return found


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("name", READERS)
def test_every_client_reads_a_compacted_topic(front: KorvetServer, compacted: dict[bytes, Record], name: str) -> None:
    client = ProcessClient(name, driver_command(name, front.bootstrap))
    try:
        found = client.consume(TOPIC, "earliest", len(compacted))
        assert {record.key: (record.value, record.headers) for record in found} == {
            key: (record.value, record.headers) for key, record in compacted.items()
        }
        assert len(found) == len(compacted)
        refused = client.produce(TOPIC, [Record(value=b"no key", partition=0)], ProduceOptions(compression="none"))
        assert [outcome.offset for outcome in refused] in ([None], [-1])
    finally:
        client.stop()


def test_compaction_survives_kills_of_the_front_ends_that_compact(redis_server: Server) -> None:
    """Two front-ends compact a log while a third takes its records; the test kills the two by turns."""
    with ExitStack() as stack:
        shared = stack.enter_context(redis_server.client())
        namespace = {"namespace": "compaction", "redis_url": redis_server.url}
        taker = stack.enter_context(running_broker(**namespace))  # type: ignore[arg-type]
        often = {"log.cleaner.backoff.ms": "1"}
        cleaners = [stack.enter_context(running_broker(broker=often, **namespace)) for _ in range(2)]  # type: ignore[arg-type]
        create(taker)
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": taker.bootstrap, "enable.idempotence": True, "batch.size": 20_000}
        )
        last = {}
        for number in range(30_000):
            key, value = b"%d" % (number % 500), b"%d" % number
            producer.produce(TOPIC, value, key, partition=0)
            last[key] = value
            if number % 1000 == 0:
                producer.poll(0)
            if number % 5000 == 4999:
                producer.flush(WITHIN_S)
                victim = cleaners[number // 5000 % 2]
                victim.kill()
                # The lease of the killed front-end would end after half a minute.
                shared.hdel(META, "compaction")
                victim.start()
        assert producer.flush(WITHIN_S) == 0
        until(lambda: len(read(taker)) < 2000)
        found = read(taker)
        assert {key: value for _, key, value in found} == last
        offsets = [offset or 0 for offset, _, _ in found]
        assert offsets == sorted(set(offsets))
        assert found[-1][0] == 29_999
