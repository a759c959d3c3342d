"""A clerk: a member of the group that carries the orders out: `python -m scripts.chaosrun.bank.clerk JOB`."""

import threading
import time
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, TopicPartition

from scripts.chaosrun.bank.books import ORDERS, Order
from scripts.chaosrun.bank.producing import WITHIN_S, Ended, Poster, run
from scripts.chaosrun.jobs import RECONNECT_MAX_MS, Job
from scripts.chaosrun.journal import Journal

AT_ONCE: Final = 20
GATHER_S: Final = 0.2


class Clerk:
    """A consumer, and the producer that commits its positions in transactions (KIP-447)."""

    def __init__(self, job: Job, journal: Journal) -> None:
        self._poster = Poster(job, journal)
        self._batch: list[Any] = []
        settings = {
            "bootstrap.servers": job.bootstrap,
            "client.id": self._poster.name,
            "reconnect.backoff.max.ms": RECONNECT_MAX_MS,
            "group.id": job.group,
            "session.timeout.ms": job.session_timeout_ms,
            "heartbeat.interval.ms": job.heartbeat_ms,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
        self._consumer = Consumer(settings | ({"group.instance.id": self._poster.name} if job.is_static else {}))

    def run(self, stopped: threading.Event) -> None:
        """Carry out orders until the stop, then leave. Raises Ended."""
        self._poster.begin()
        self._consumer.subscribe([ORDERS], on_assign=self._drop, on_revoke=self._drop, on_lost=self._drop)
        due = 0.0
        while not stopped.is_set():
            message = self._consumer.poll(GATHER_S)
            if message is not None:
                due = due if self._batch else time.monotonic() + GATHER_S
                self._take(message)
            if len(self._batch) >= AT_ONCE or (self._batch and time.monotonic() >= due):
                self._carry_out()
        self._consumer.close()

    def _drop(self, _consumer: Any, _partitions: list[TopicPartition]) -> None:
        """Read partitions that went, or came, again from their committed positions."""
        self._batch.clear()

    def _take(self, message: Any) -> None:
        if message.error() is None:
            self._batch.append(message)
        elif message.error().fatal():
            raise Ended(str(message.error()))

    def _carry_out(self) -> None:
        batch = list(self._batch)
        self._batch.clear()
        offsets: dict[int, list[int]] = {}
        for message in batch:
            offsets.setdefault(message.partition(), []).append(message.offset())
        positions = [TopicPartition(ORDERS, partition, read[-1] + 1) for partition, read in offsets.items()]
        orders = [Order.parse(message.value()) for message in batch]
        if not self._poster.post(orders, (positions, self._consumer.consumer_group_metadata())):
            self._go_back()

    def _go_back(self) -> None:
        """Read on at the committed positions of all partitions: librdkafka may have dropped records that wait to be
        polled."""
        try:
            for position in self._consumer.committed(self._consumer.assignment(), WITHIN_S):
                self._consumer.seek(TopicPartition(ORDERS, position.partition, max(position.offset, 0)))
        except KafkaException as error:
            raise Ended(f"cannot read again: {error}") from error


def work(job: Job, journal: Journal, stopped: threading.Event) -> None:
    """Be a clerk until the stop."""
    Clerk(job, journal).run(stopped)


if __name__ == "__main__":
    run(work)
