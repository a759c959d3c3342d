"""Transactions whose last writes a server lost: they are never committed in part, and their producers go on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import confluent_kafka
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.api import transactions
from tests.api.data import fetch, offsets, wanted
from tests.api.raw import created, unique
from tests.api.test_history import DURABLE, Rewindable, is_served
from tests.api.transactions import committed, described, producer
from tests.support.broker import running_broker
from tests.support.redis import running_server
from tests.support.waiting import until

PATIENCE_S = 30.0


@pytest.fixture(scope="module")
def rewindable() -> Iterator[Rewindable]:
    with running_server("valkey", options=DURABLE) as server, running_broker(redis_url=server.url) as broker:
        yield Rewindable(broker, server)


def is_aborted_for_good(port: int, mine: transactions.Producer, topic: str, group: str, version: int) -> str:
    """The end of a partly lost transaction; returns the code of its commit."""
    # Offsets join the transaction, and are dropped with it.
    assert mine.flow == 2 or mine.add_offsets(group) == "NONE"
    assert mine.commit_offsets(group, {(topic, 0): 5}) == ["NONE"]
    code = mine.end(version=version)
    assert mine.end(version=version) == code
    assert described(port, mine.transactional_id)["transaction_state"] == "CompleteAbort"
    assert mine.end(commit=False) == "NONE"
    assert committed(port, group, (topic, 0), stable=True) == [(-1, "NONE")]
    (read,) = fetch(port, topic, wanted(0), isolation_level=1)
    assert [one["first_offset"] for one in read["aborted_transactions"]] == [0]
    assert read["last_stable_offset"] == read["high_watermark"]
    return code


def test_transaction_that_the_server_lost_in_part_is_aborted(rewindable: Rewindable) -> None:
    port = rewindable.port
    flows = [(2, 5, "TRANSACTION_ABORTABLE"), (1, 4, "TRANSACTION_ABORTABLE"), (1, 1, "UNKNOWN_PRODUCER_ID")]
    topics = [created(port) for _ in flows]
    producers = [producer(port, flow) for flow, _, _ in flows]
    for topic, mine in zip(topics, producers, strict=True):
        mine.sent(topic)
    rewindable.remember()
    for topic, mine in zip(topics, producers, strict=True):
        mine.sent(topic)
    rewindable.rewind()
    until(lambda: is_served(port, topics[0]))
    for topic, mine, (flow, version, code) in zip(topics, producers, flows, strict=True):
        assert is_aborted_for_good(port, mine, topic, unique("group"), version) == code
        again = mine if flow == 2 else producer(port, flow, mine.transactional_id)
        base = again.sent(topic)
        assert again.end() == "NONE"
        (read,) = fetch(port, topic, wanted(base), isolation_level=1)
        assert offsets(read)[0] == base


def test_transaction_that_the_server_lost_whole_is_not_committed(rewindable: Rewindable) -> None:
    port = rewindable.port
    topic = created(port, partitions=2)
    producers = [producer(port, flow) for flow in (1, 2)]
    for mine in producers:
        mine.sent(topic)
        assert mine.end() == "NONE"
    rewindable.remember()
    for mine in producers:
        mine.sent(topic)
    rewindable.rewind()
    until(lambda: is_served(port, topic))
    first, second = producers
    assert first.add(topic, 1) == ["UNKNOWN_PRODUCER_ID"]
    assert second.send(topic, 1)["error_code"] == "TRANSACTION_ABORTABLE"
    # With version 1 it may be the former commit again, which must not be answered as another one.
    assert first.end() == "PRODUCER_FENCED"
    assert second.end() == "TRANSACTION_ABORTABLE"
    assert [mine.end(commit=False) for mine in producers] == ["NONE"] * 2


class Bank:
    """librdkafka's consumer and transactional producer, and a reader of committed records."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.topic, self.group = topic, unique("group")
        self.bootstrap = bootstrap
        self.producer = Producer({
            "bootstrap.servers": bootstrap, "transactional.id": unique("txn"), "linger.ms": 0,
            "reconnect.backoff.max.ms": 200,
        })  # fmt: skip
        self.producer.init_transactions(PATIENCE_S)

    def write(self, value: str) -> None:
        """Write a record, and wait until it is acknowledged."""
        self.producer.produce(self.topic, value, partition=0)
        assert self.producer.flush(PATIENCE_S) == 0

    def send_offsets(self, consumer: Consumer, position: int) -> None:
        positions = [TopicPartition(self.topic, 1, position)]
        self._patiently(
            lambda: self.producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), 5)
        )

    def commit(self) -> None:
        self._patiently(lambda: self.producer.commit_transaction(5))

    def abort(self) -> None:
        self._patiently(lambda: self.producer.abort_transaction(5))

    def _patiently(self, call: Callable[[], None]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return call()
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise

    @contextmanager
    def consumer(self) -> Iterator[Consumer]:
        consumer = Consumer({
            "bootstrap.servers": self.bootstrap, "group.id": self.group, "isolation.level": "read_committed",
            "auto.offset.reset": "earliest", "enable.auto.commit": False,
        })  # fmt: skip
        try:
            yield consumer
        finally:
            consumer.close()

    def read_until(self, last: str) -> list[str]:
        """The committed records in partition 0."""
        values: list[str] = []
        with self.consumer() as consumer:
            consumer.assign([TopicPartition(self.topic, 0, 0)])
            deadline = time.monotonic() + PATIENCE_S
            while last not in values and time.monotonic() < deadline:
                message = consumer.poll(0.2)
                if message is not None and message.error() is None:
                    values.append((message.value() or b"").decode())
        return values


def test_librdkafka_aborts_a_partly_lost_transaction_and_goes_on(rewindable: Rewindable) -> None:
    topic = created(rewindable.port, partitions=2)
    bank = Bank(rewindable.broker.bootstrap, topic)
    with bank.consumer() as consumer:
        bank.producer.begin_transaction()
        bank.write("A")
        rewindable.remember()
        bank.write("B")
        rewindable.rewind()
        until(lambda: is_served(rewindable.port, topic))
        with pytest.raises(KafkaException) as raised:
            bank.send_offsets(consumer, 7)
            bank.commit()
        error: KafkaError = raised.value.args[0]
        assert error.txn_requires_abort()
        assert not error.fatal()
        bank.abort()
        assert consumer.committed([TopicPartition(topic, 1)], PATIENCE_S)[0].offset == confluent_kafka.OFFSET_INVALID
        bank.producer.begin_transaction()
        bank.write("A again")
        bank.write("B again")
        bank.send_offsets(consumer, 7)
        bank.commit()
        assert consumer.committed([TopicPartition(topic, 1)], PATIENCE_S)[0].offset == 7
        assert bank.read_until("B again") == ["A again", "B again"]


def test_librdkafka_goes_on_after_a_restart_that_lost_nothing(rewindable: Rewindable) -> None:
    topic = created(rewindable.port)
    bank = Bank(rewindable.broker.bootstrap, topic)
    bank.producer.begin_transaction()
    bank.write("before")
    bank.commit()
    with rewindable.broker.redis_outage():
        rewindable.server.restart(crash=True)
    until(lambda: is_served(rewindable.port, topic))
    # The coordinator cannot know that nothing was lost, so one transaction is aborted.
    bank.producer.begin_transaction()
    with pytest.raises(KafkaException) as raised:
        bank.write("never")
        bank.commit()
    assert raised.value.args[0].txn_requires_abort()
    bank.abort()
    bank.producer.begin_transaction()
    bank.write("behind")
    bank.commit()
    assert bank.read_until("behind") == ["before", "behind"]
