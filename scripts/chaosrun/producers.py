"""Idempotent producers through confluent-kafka: `python -m scripts.chaosrun.producers JOB`.

Each sends records of its own, numbered, to one partition after the other at a steady rate, and writes down where each
one was acknowledged. When stdin ends they wait for records that are still on their way.
"""

import itertools
import threading
import time
from typing import Any

from confluent_kafka import KafkaError, Producer

from scripts.chaosrun.jobs import RECONNECT_MAX_MS, Job, run_clients
from scripts.chaosrun.journal import Acknowledged, Journal, Troubled, now_us


class Sender:
    """One producer, driven by one thread."""

    def __init__(self, job: Job, name: str, journal: Journal) -> None:
        self._job, self._name, self._journal = job, name, journal
        self._producer = Producer({
            "bootstrap.servers": job.bootstrap, "client.id": name, "enable.idempotence": True,
            "reconnect.backoff.max.ms": RECONNECT_MAX_MS,
            "error_cb": self._on_error,
        })  # fmt: skip

    def run(self, stopped: threading.Event) -> None:
        """Send until the stop, then wait until all records are acknowledged."""
        partitions = itertools.cycle((topic, p) for p in range(self._job.partitions) for topic in self._job.topics)
        started = time.monotonic()
        for number, (topic, partition) in enumerate(partitions):
            due = started + number / self._job.records_per_s
            while (wait_s := due - time.monotonic()) > 0 and not stopped.is_set():
                self._producer.poll(min(wait_s, 0.1))
            if stopped.is_set():
                break
            value = f"{self._name}:{number}"
            self._producer.produce(topic, value.encode(), partition=partition, on_delivery=self._on_delivery)
        self._producer.flush()

    def _on_delivery(self, error: KafkaError | None, message: Any) -> None:
        if error is not None:
            text = f"{message.value().decode()} was not delivered: {error}"
            self._journal.add(Troubled(at_us=now_us(), client=self._name, text=text, fatal=True))
            return
        partition = (message.topic(), message.partition())
        self._journal.add(Acknowledged(
            at_us=now_us(), client=self._name, partition=partition, offset=message.offset(),
            value=message.value().decode(),
        ))  # fmt: skip

    def _on_error(self, error: KafkaError) -> None:
        self._journal.add(Troubled(at_us=now_us(), client=self._name, text=str(error), fatal=error.fatal()))


def main() -> None:
    """Run the producers until stdin ends."""
    run_clients(Sender)


if __name__ == "__main__":
    main()
