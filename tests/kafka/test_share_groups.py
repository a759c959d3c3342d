"""Share consumers of Confluent's client: each record to one of them, also when a front-end is killed."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import confluent_kafka
import pytest

from korvet.store.keys import Namespace, share_partition
from tests.api.raw import created, unique
from tests.api.test_share_fetch import set_of_group
from tests.support.broker import KorvetServer, running_broker
from tests.support.redis import running_server

WITHIN_S = 40.0
LOCK_MS = 60_000
"""Longer than any test waits: no test passes because locks end."""
PARTITIONS = 3
TIME_HEADER = "korvet.share.delivery.time.header"

Record = tuple[int | None, int | None]


def produce(bootstrap: str, topic: str, count: int) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for number in range(count):
        producer.produce(topic, b"v%d" % number, partition=number % PARTITIONS)
        producer.poll(0)
    assert producer.flush(WITHIN_S) == 0


def consumer(bootstrap: str, group: str, topic: str, **settings: str) -> confluent_kafka.ShareConsumer:
    dotted = {name.replace("_", "."): value for name, value in settings.items()}
    found = confluent_kafka.ShareConsumer({"bootstrap.servers": bootstrap, "group.id": group, **dotted})
    found.subscribe([topic])
    return found


@contextmanager
def consuming(bootstrap: str, group: str, topic: str, count: int) -> Iterator[Counter[Record]]:
    """Consumers in threads; the records that they got so far."""
    got, lock, stop = Counter[Record](), threading.Lock(), threading.Event()

    def consume() -> None:
        with consumer(bootstrap, group, topic) as own:
            while not stop.is_set():
                for message in own.poll(0.5):
                    if message.error() is None:
                        with lock:
                            got[message.partition(), message.offset()] += 1

    threads = [threading.Thread(target=consume) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield got
    finally:
        stop.set()
        for thread in threads:
            thread.join(WITHIN_S)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def ready(broker: KorvetServer) -> tuple[str, str]:
    """A topic, and a group that reads it from its beginning."""
    topic, group = created(broker.port, partitions=PARTITIONS), unique("share")
    configs = {"share.auto.offset.reset": "earliest", "share.record.lock.duration.ms": str(LOCK_MS)}
    set_of_group(broker, group, **configs)
    return topic, group


@pytest.mark.parametrize("workers", [1, 2])
def test_share_consumers_get_each_record_once(workers: int) -> None:
    with running_broker(workers=workers) as broker:
        topic, group = ready(broker)
        with consuming(broker.bootstrap, group, topic, 4) as got:
            produce(broker.bootstrap, topic, 3_000)
            until(lambda: len(got) == 3_000)
        assert got.total() == 3_000


def test_share_consumer_releases_and_rejects(broker: KorvetServer) -> None:
    topic, group = ready(broker)
    produce(broker.bootstrap, topic, 30)
    counts = Counter[Record]()
    kinds = confluent_kafka.AcknowledgeType
    with consumer(broker.bootstrap, group, topic, share_acknowledgement_mode="explicit") as own:

        def poll() -> bool:
            for message in own.poll(0.5):
                record = message.partition(), message.offset()
                counts[record] += 1
                is_first = counts[record] == 1
                kind = (
                    kinds.REJECT if record[0] == 0 else kinds.RELEASE if record[0] == 1 and is_first else kinds.ACCEPT
                )
                own.acknowledge(message, kind)
            own.commit_sync()
            return counts.total() >= 40

        until(poll)
        poll()
    assert counts == {(partition, offset): 2 if partition == 1 else 1 for partition in range(3) for offset in range(10)}


def test_record_with_a_time_ahead_comes_then_to_consumers_and_redis_workers(broker: KorvetServer) -> None:
    topic, group = created(broker.port, korvet_storage="record"), unique("share")
    time_header = "not-before"
    set_of_group(broker, group, **{"share.auto.offset.reset": "earliest", TIME_HEADER: time_header})
    due_ms = int(time.time() * 1000) + 5000
    got: list[tuple[str, bytes | None, bool]] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(topic, b"later", headers={time_header: str(due_ms)})
    producer.produce(topic, b"now")
    assert producer.flush(WITHIN_S) == 0
    keys = share_partition(Namespace().partition(topic, 0), "jobs")
    with broker.redis() as client, consumer(broker.bootstrap, group, topic) as own:

        def poll() -> bool:
            given = ("jobs", "w", 9, LOCK_MS, 5, "earliest", time_header)
            _, *taken = client.fcall("korvet_queue_take", 4, *keys, *given)
            found = [("worker", fields[fields.index(b"value") + 1]) for *_, fields in taken]
            found += [("consumer", message.value()) for message in own.poll(0.2) if message.error() is None]
            got.extend((who, value, time.time() * 1000 >= due_ms) for who, value in found)
            return len(got) == 4

        until(poll)
    for who in ("worker", "consumer"):
        assert {value for one, value, _ in got if one == who} == {b"now", b"later"}
    assert all(is_due for _, value, is_due in got if value == b"later")


def test_no_record_is_lost_or_waits_for_its_lock_when_a_front_end_is_killed() -> None:
    with (
        running_server("valkey") as server,
        running_broker(redis_url=server.url) as one,
        running_broker(redis_url=server.url) as other,
    ):
        topic, group = ready(one)
        bootstrap = f"{one.bootstrap},{other.bootstrap}"
        with consuming(bootstrap, group, topic, 4) as got:
            produce(bootstrap, topic, 1_500)
            until(lambda: len(got) > 500)
            other.kill()
            produce(one.bootstrap, topic, 1_500)
            until(lambda: len(got) == 3_000)
