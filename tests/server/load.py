"""A load that must notice nothing: librdkafka's idempotent producer and its consumer group, each in a thread."""

from __future__ import annotations

import threading
import time
from typing import Any

import confluent_kafka

WITHIN_S = 120.0
_QUICK = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200, "retry.backoff.ms": 20}


class Member:
    """A member of the group: the values that it read, and the number of its assignments and revocations."""

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        self.values: list[int] = []
        self.errors: list[Any] = []
        self.assignments = 0
        self.revocations = 0
        self._stop = threading.Event()
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 200,
                "heartbeat.interval.ms": 500,
                "fetch.wait.max.ms": 200,
                **_QUICK,
            }
        )
        self._consumer.subscribe([topic], on_assign=self._assigned, on_revoke=self._revoked)
        self.thread = threading.Thread(target=self._run)

    def stop(self) -> None:
        self._stop.set()

    def _assigned(self, _consumer: Any, _partitions: Any) -> None:
        self.assignments += 1

    def _revoked(self, _consumer: Any, _partitions: Any) -> None:
        self.revocations += 1

    def _run(self) -> None:
        while not self._stop.is_set():
            message = self._consumer.poll(0.05)
            if message is None:
                continue
            if message.error() is None:
                self.values.append(int(message.value() or b""))
            else:
                self.errors.append(message.error())
        self._consumer.close()


class Load:
    """The load, for the time of the block. Values are numbers, in the order of sending."""

    def __init__(self, bootstrap: str, topic: str, group: str, *, partitions: int, members: int) -> None:
        self.acknowledged: list[int] = []
        self.errors: list[Any] = []
        self.members = [Member(bootstrap, topic, group) for _ in range(members)]
        self._topic = topic
        self._partitions = partitions
        self._stop = threading.Event()
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0, **_QUICK}
        )
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Load:
        for member in self.members:
            member.thread.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    def finish(self) -> None:
        """Stop sending, wait until all records are acknowledged, and let the members leave."""
        self._stop.set()
        self._thread.join()
        for member in self.members:
            member.stop()
        for member in self.members:
            member.thread.join()

    def _run(self) -> None:
        number = 0
        while not self._stop.wait(0.003):
            value = b"%d" % number
            self._producer.produce(self._topic, value, partition=number % self._partitions, on_delivery=self._delivered)
            self._producer.poll(0)
            number += 1
        if self._producer.flush(WITHIN_S):
            self.errors.append("not everything was acknowledged")

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None:
            self.acknowledged.append(int(message.value()))
        else:
            self.errors.append(error)

    @property
    def all_errors(self) -> list[Any]:
        """The errors of producer and members, except errors that librdkafka mends itself."""
        return self.errors + [error for member in self.members for error in member.errors]

    def wait_until_settled(self) -> None:
        """Wait until every member has an assignment, and reads."""
        self._wait(lambda: all(member.assignments and member.values for member in self.members))

    def wait_for(self, more: int) -> None:
        """Wait until each partition has ``more`` further acknowledged records, and the group has read all of them."""
        goal = len(self.acknowledged) + more * self._partitions
        self._wait(lambda: len(self.acknowledged) >= goal)
        wanted = set(self.acknowledged)
        self._wait(lambda: wanted <= {value for member in self.members for value in list(member.values)})

    def _wait(self, condition: Any) -> None:
        deadline = time.monotonic() + WITHIN_S
        while not condition():
            assert time.monotonic() < deadline, self.all_errors
            assert self.all_errors == []
            time.sleep(0.02)


def read_all(bootstrap: str, topic: str, partitions: int) -> list[int]:
    """All values of a topic, sorted."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "nobody", **_QUICK})
    wanted = 0
    for index in range(partitions):
        low, high = consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, index), WITHIN_S)
        wanted += high - low
    consumer.assign([confluent_kafka.TopicPartition(topic, index, 0) for index in range(partitions)])
    values: list[int] = []
    while len(values) < wanted:
        messages = consumer.consume(wanted - len(values), WITHIN_S)
        assert messages, "the topic ends too early"
        values += [int(message.value() or b"") for message in messages if message.error() is None]
    consumer.close()
    return sorted(values)
