"""Fetch against a real front-end. Codes and the other fields of answers were seen on Apache Kafka 4.1.2."""

from __future__ import annotations

import time
from uuid import UUID

import pytest

from tests.api.data import (
    connected,
    fetch,
    fetch_request,
    offsets,
    partitions_of,
    produce_request,
    produced,
    records,
    wanted,
)
from tests.api.raw import ask, create_topics, unique
from tests.support.broker import KorvetServer, running_broker

LARGE = 20_000
LONG_MS = 20_000
"""A time longer than any test may last: a Fetch that waits so long was not woken."""


def new_topic(broker: KorvetServer, partitions: int = 1) -> tuple[str, UUID]:
    (result,) = create_topics(broker.port, {"name": unique(), "num_partitions": partitions})
    return result["name"], result["topic_id"]


def test_fetch_of_a_negative_number_of_bytes_gets_the_first_batch(broker: KorvetServer) -> None:
    """Kafka answers UNKNOWN_SERVER_ERROR."""
    name, _ = new_topic(broker)
    produced(broker.port, name, records(), records())
    (read,) = fetch(broker.port, name, wanted(0), max_bytes=-1)
    assert offsets(read) == [0]


# ---------------------------------------------------------------------- waiting


def test_an_empty_answer_comes_when_the_time_is_over(broker: KorvetServer) -> None:
    name, _ = new_topic(broker)
    started = time.monotonic()
    (read,) = fetch(broker.port, name, wanted(0), max_wait=200)
    # The loop counts its timers in whole milliseconds.
    assert time.monotonic() - started >= 0.19
    assert (read["error_code"], read["high_watermark"], read["records"]) == ("NONE", 0, b"")


@pytest.mark.parametrize("size", [10, LARGE])
def test_append_wakes_a_fetch_at_the_end(broker: KorvetServer, size: int) -> None:
    name, _ = new_topic(broker, 3)
    with connected(broker.port) as consumer:
        for turn in range(5):
            parts = [wanted(turn if index == 1 else 0, index) for index in range(3)]
            consumer.send("fetch", 12, **fetch_request(name, *parts, max_wait=LONG_MS))
            produced(broker.port, name, records(1, size), partition=1)
            reads = partitions_of(consumer.receive())
            assert [offsets(read) for read in reads] == [[], [turn], []]
            assert [read["high_watermark"] for read in reads] == [0, turn + 1, 0]


def test_two_consumers_of_a_partition_are_both_woken(broker: KorvetServer) -> None:
    name, _ = new_topic(broker)
    with connected(broker.port) as one, connected(broker.port) as other:
        for consumer in (one, other):
            consumer.send("fetch", 12, **fetch_request(name, wanted(0), max_wait=LONG_MS))
        produced(broker.port, name, records())
        assert [offsets(partitions_of(consumer.receive())[0]) for consumer in (one, other)] == [[0], [0]]


def test_a_fetch_waits_for_its_min_bytes(broker: KorvetServer) -> None:
    name, _ = new_topic(broker)
    data = records()
    with connected(broker.port) as consumer:
        consumer.send("fetch", 12, **fetch_request(name, wanted(0), max_wait=LONG_MS, min_bytes=5 * len(data)))
        for _ in range(5):
            produced(broker.port, name, data)
        assert offsets(partitions_of(consumer.receive())[0]) == [0, 3, 6, 9, 12]
        started = time.monotonic()
        consumer.send("fetch", 12, **fetch_request(name, wanted(0), max_wait=200, min_bytes=1 << 20))
        assert offsets(partitions_of(consumer.receive())[0]) == [0, 3, 6, 9, 12]
        assert time.monotonic() - started >= 0.19


@pytest.mark.parametrize("version", [12, 18])
def test_deletion_of_a_topic_wakes_its_waiting_fetches(broker: KorvetServer, version: int) -> None:
    name, topic_id = new_topic(broker)
    with connected(broker.port) as consumer:
        topic = topic_id if version >= 13 else name
        consumer.send("fetch", version, **fetch_request(topic, wanted(0), max_wait=LONG_MS))
        wait_for_subscription(broker, name)
        ask(broker.port, "delete_topics", 5, topic_names=[name], timeout=5000)
        (read,) = partitions_of(consumer.receive())
        assert read["error_code"] == "UNKNOWN_TOPIC_OR_PARTITION"
        (read,) = partitions_of(consumer.ask("fetch", version, **fetch_request(topic, wanted(0))))
        assert read["error_code"] == ("UNKNOWN_TOPIC_ID" if version >= 13 else "UNKNOWN_TOPIC_OR_PARTITION")


def wait_for_subscription(broker: KorvetServer, name: str) -> None:
    """Return when a Fetch waits for the topic's first partition."""
    deadline = time.monotonic() + 60
    with broker.redis() as client:
        while not any(name in channel.decode() for channel in client.execute_command("PUBSUB SHARDCHANNELS")):
            assert time.monotonic() < deadline
            time.sleep(0.005)


def test_produce_after_a_waiting_fetch_is_appended_at_once(broker: KorvetServer) -> None:
    name, _ = new_topic(broker)
    with connected(broker.port) as connection:
        connection.send("fetch", 12, **fetch_request(name, wanted(0), max_wait=LONG_MS))
        connection.send("produce", 12, **produce_request(name, records()))
        assert offsets(partitions_of(connection.receive())[0]) == [0]
        assert connection.receive()["responses"][0]["partition_responses"][0]["base_offset"] == 0


def test_a_stopping_front_end_lets_waiting_consumers_go() -> None:
    with running_broker() as own:
        name, _ = new_topic(own)
        with connected(own.port) as consumer:
            consumer.send("fetch", 12, **fetch_request(name, wanted(0), max_wait=LONG_MS))
            wait_for_subscription(own, name)
            own.stop()
            (read,) = partitions_of(consumer.receive())
            assert (read["error_code"], read["records"]) == ("NONE", b"")


def test_a_whole_log_of_many_batches_is_read_in_order(broker: KorvetServer) -> None:
    name, _ = new_topic(broker)
    sizes = [(number * 7919) % 30_000 for number in range(120)]
    produced(broker.port, name, *[records(1, size) for size in sizes])
    seen: list[int] = []
    lengths: list[int] = []
    with connected(broker.port) as consumer:
        while len(seen) < 120:
            request = fetch_request(name, wanted(len(seen), max_bytes=100_000), max_wait=LONG_MS)
            (read,) = partitions_of(consumer.ask("fetch", 12, **request))
            assert len(read["records"]) <= 100_000
            seen += offsets(read)
            lengths.append(len(read["records"]))
    assert seen == list(range(120))
    assert sum(lengths) > sum(sizes)


def test_clients_of_a_damaged_partition_are_answered_after_a_pause(broker: KorvetServer) -> None:
    name, _ = new_topic(broker, 2)
    produced(broker.port, name, records(3))
    with broker.redis() as server:
        server.execute_command("XADD", f"korvet:{{default:{name}:0}}:log", "9-0", "foo", "bar")
    began = time.monotonic()
    (read,) = fetch(broker.port, name, wanted(3), max_wait=300, min_bytes=1)
    assert read["error_code"] == "CORRUPT_MESSAGE"
    assert time.monotonic() - began >= 0.29
    # Another partition's records are told at once, and the error with them.
    produced(broker.port, name, records(1), partition=1)
    reads = fetch(broker.port, name, wanted(3), wanted(0, 1), max_wait=LONG_MS, min_bytes=1)
    assert [read["error_code"] for read in reads] == ["CORRUPT_MESSAGE", "NONE"]
