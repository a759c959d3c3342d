"""librdkafka clients that keep running while servers come and go under them."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any

import confluent_kafka

from tests.support.waiting import until

WITHIN_S = 60.0


@dataclass(slots=True)
class Reader:
    """A consumer of one partition from its start; it keeps every value, in order."""

    bootstrap: str
    topic: str
    values: list[bytes] = field(default_factory=list)
    consumer: Any = None

    def __enter__(self) -> Reader:
        settings = {"bootstrap.servers": self.bootstrap, "group.id": "unused", "auto.offset.reset": "earliest"}
        self.consumer = confluent_kafka.Consumer(
            {**settings, "enable.auto.commit": False, "reconnect.backoff.max.ms": 200}
        )
        self.consumer.assign([confluent_kafka.TopicPartition(self.topic, 0, 0)])
        return self

    def __exit__(self, *_: object) -> None:
        self.consumer.unassign()
        self.consumer.close()

    def read_until(self, value: bytes) -> None:
        """Read up to this value."""
        deadline = time.monotonic() + WITHIN_S
        while value not in self.values[-1000:]:
            assert time.monotonic() < deadline, self.values[-5:]
            message = self.consumer.poll(0.05)
            if message is not None and message.error() is None:
                self.values.append(message.value())


@dataclass(slots=True)
class Writer:
    """An idempotent producer to partition 0; ``errors`` and ``offsets`` are its records' outcomes."""

    bootstrap: str
    topic: str
    errors: list[Any] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    producer: Any = None

    def __post_init__(self) -> None:
        settings = {"bootstrap.servers": self.bootstrap, "enable.idempotence": True, "linger.ms": 0}
        backoff = {"retry.backoff.ms": 20, "reconnect.backoff.max.ms": 200}
        self.producer = confluent_kafka.Producer({**settings, **backoff})

    def send(self, value: bytes) -> None:
        """Send a record without waiting."""
        self.producer.produce(self.topic, value, partition=0, on_delivery=self._delivered)
        self.producer.poll(0)

    def flush(self) -> None:
        """Wait until every record is acknowledged, and assert it."""
        assert self.producer.flush(WITHIN_S) == 0
        assert self.errors == []

    def write(self, values: list[bytes]) -> None:
        """Send records and wait until they are acknowledged."""
        for value in values:
            self.send(value)
        self.flush()

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None:
            self.offsets.append(message.offset())
        else:
            self.errors.append(error)


class Traffic:
    """A writer in a thread of its own, which sends numbered records until it is stopped."""

    def __init__(self, writer: Writer, pause_s: float = 0.002) -> None:
        self.writer = writer
        self.sent = 0
        self._pause_s = pause_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Traffic:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._pause_s):
            self.writer.send(b"%d" % self.sent)
            self.sent += 1

    def wait_for(self, more: int) -> None:
        """Return when this many more records are acknowledged."""
        goal = len(self.writer.offsets) + more
        until(lambda: len(self.writer.offsets) >= goal)


def numbered(name: str, count: int) -> list[bytes]:
    """Values that name their position."""
    return [b"%s-%d" % (name.encode(), number) for number in range(count)]
