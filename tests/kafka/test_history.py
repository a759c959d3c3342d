"""Java clients that run while their server loses its last writes (tests/api/test_history.py has librdkafka's).

The leader epoch tells them, as after a truncation on Kafka: the consumer goes back to the point at which the histories
part, and the idempotent producer goes on in order.
"""

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from tests.api.data import fetch, wanted
from tests.api.raw import created
from tests.api.test_history import Rewindable, rewindable
from tests.kafka.builds import driver_command
from tests.kafka.options import ProduceOptions, failures
from tests.kafka.process import ProcessClient
from tests.kafka.records import Record
from tests.kafka.waiting import poll_until

__all__ = ["rewindable"]

Java = list[ProcessClient]


@pytest.fixture
def java(rewindable: Rewindable) -> Iterator[Java]:
    """Two processes of Java clients, so that one can read while the other writes."""
    command = driver_command("java", rewindable.broker.bootstrap)
    with ExitStack() as stack:
        running = []
        for _ in range(2):
            client = ProcessClient("java", command)
            stack.callback(client.stop)
            running.append(client)
        yield running


def numbered(name: str, count: int) -> list[Record]:
    return [Record(value=f"{name}-{number}".encode(), partition=0) for number in range(count)]


def values(records: list[Record]) -> list[bytes | None]:
    return [record.value for record in records]


def end_of(port: int, topic: str) -> int:
    (read,) = fetch(port, topic, wanted(0))
    return int(read["high_watermark"]) if read["error_code"] == "NONE" else -1


def test_running_java_consumer_reads_the_new_history(rewindable: Rewindable, java: Java) -> None:
    writer, reader = java
    topic = created(rewindable.port)
    kept, lost, new = numbered("kept", 50), numbered("lost", 50), numbered("new", 120)
    writer.produce(topic, kept)
    with reader.open(topic, "earliest") as running:
        assert values(running.read(50)) == values(kept)
        rewindable.remember()
        writer.produce(topic, lost)
        assert values(running.read(50)) == values(lost)
        rewindable.rewind()
        poll_until(lambda: end_of(rewindable.port, topic) == 50, "the earlier history")
        assert failures(writer.produce(topic, new)) == []
        seen = values(running.read(120))
    assert [value for value in seen if value in values(new)] == values(new)
    assert not set(seen) & set(values(lost))


def test_running_java_producer_goes_on_in_order(rewindable: Rewindable, java: Java) -> None:
    writer, reader = java
    topic = created(rewindable.port)
    records = numbered("record", 1200)
    with ThreadPoolExecutor(1) as thread:
        writing = thread.submit(writer.produce, topic, records, ProduceOptions(one_by_one=True))
        poll_until(lambda: end_of(rewindable.port, topic) > 200, "two hundred records")
        rewindable.remember()
        remembered = end_of(rewindable.port, topic)
        poll_until(lambda: end_of(rewindable.port, topic) > remembered + 200, "two hundred more")
        rewindable.rewind()
        assert failures(writing.result()) == []
    count = end_of(rewindable.port, topic)
    found = values(reader.consume(topic, "earliest", count))
    numbers = [int(value.rpartition(b"-")[2]) for value in found if value is not None]
    # The acknowledged and lost records leave one gap; no record is doubled or out of order.
    assert len(found) == count
    assert numbers == sorted(set(numbers))
    assert numbers[-1] == 1199
    assert sum(later - earlier != 1 for earlier, later in itertools.pairwise(numbers)) <= 1
