"""The Java transactional producer writes to a topic while korvet compacts it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.kafka.builds import driver_command
from tests.kafka.process import Driver
from tests.kafka.waiting import TIMEOUT_S, poll_until
from tests.support.broker import KorvetServer, running_broker

TOPIC = "accounts"
CONFIGS = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": "100"}
KEYS = [f"key-{number}" for number in range(20)]
TRANSACTIONS, RECORDS = 90, 10


@pytest.fixture
def front() -> Iterator[KorvetServer]:
    """A broker that looks for logs to compact all the time."""
    with running_broker(broker={"log.cleaner.backoff.ms": "20"}) as server:
        admin = AdminClient({"bootstrap.servers": server.bootstrap})
        admin.create_topics([NewTopic(TOPIC, 1, 1, config=CONFIGS)])[TOPIC].result(TIMEOUT_S)
        yield server


@pytest.fixture
def producers(front: KorvetServer) -> Iterator[list[Driver]]:
    """Two transactional producers."""
    drivers = [Driver(driver_command("java", front.bootstrap)) for _ in range(2)]
    for number, driver in enumerate(drivers):
        driver.call("begin", transactional_id=f"teller-{number}", timeout_ms=60_000)
    yield drivers
    for driver in drivers:
        driver.stop()


def test_committed_values_stay_and_aborted_ones_are_never_seen(front: KorvetServer, producers: list[Driver]) -> None:
    chosen, last, written = random.Random(5), dict[str, str](), set[str]()
    outcomes = itertools.cycle(("commit", "abort", "commit"))
    for number, outcome in zip(range(TRANSACTIONS), outcomes, strict=False):
        # Only transactions that abort write some of the keys.
        names = [*chosen.choices(KEYS, k=RECORDS - 1), f"{outcome}-only"]
        values = [f"{number}-{outcome}-{at}" for at in range(RECORDS)]
        producers[number % 2].call(
            "transact", topic=TOPIC, keys=names, values=values, outcome=outcome, group=None, offset=0
        )
        if outcome == "commit":
            last.update(zip(names, values, strict=True))
            written.update(values)
        if number % 15 == 14:
            assert dict(committed(front)) == last
    # The last transactions' values may stay until other transactions follow.
    poll_until(lambda: len(committed(front)) < len(last) + 3 * RECORDS < len(written) / 4, "the topic is compacted")
    assert dict(committed(front)) == last
    found = producers[0].call("read_committed", topic=TOPIC, count=len(last), timeout_ms=30_000)
    assert len(found) >= len(last)
    assert written.issuperset(found)


def committed(server: KorvetServer) -> list[tuple[str, str]]:
    """Keys and values that librdkafka reads; by default it reads only committed records."""
    settings: Mapping[str, str | bool] = {"group.id": "none", "enable.partition.eof": True}
    consumer = confluent_kafka.Consumer({"bootstrap.servers": server.bootstrap, **settings})
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, 0)])
    found, offsets = [], []
    while (message := consumer.poll(TIMEOUT_S)) is not None and message.error() is None:
        found.append(((message.key() or b"").decode(), (message.value() or b"").decode()))
        offsets.append(message.offset() or 0)
    consumer.close()
    error = message.error() if message is not None else None
    assert error is not None
    assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF
    assert offsets == sorted(set(offsets))
    assert not [value for _, value in found if "abort" in value]
    return found
