"""The idempotent producer of orders: `python -m scripts.chaosrun.bank.orders JOB`."""

import itertools
import random
import threading
from typing import Any

from confluent_kafka import KafkaError, Producer

from scripts.chaosrun.bank.books import ORDERS, PARTITIONS, Order
from scripts.chaosrun.bank.producing import run
from scripts.chaosrun.jobs import RECONNECT_MAX_MS, Job
from scripts.chaosrun.journal import Acknowledged, Journal, Troubled, now_us


def work(job: Job, journal: Journal, stopped: threading.Event) -> None:
    """Send orders until the stop, then wait until all are acknowledged."""
    [name] = job.names
    producer, chance = _producer(job, name, journal), random.Random(name)

    def delivered(error: KafkaError | None, message: Any) -> None:
        value = message.value().decode()
        if error is not None:
            journal.add(Troubled(at_us=now_us(), client=name, text=f"{value} was not delivered: {error}", fatal=True))
            return
        journal.add(Acknowledged(
            at_us=now_us(), client=name, partition=(message.topic(), message.partition()), offset=message.offset(),
            value=value,
        ))  # fmt: skip

    for number in itertools.count():
        order = Order.at_random(f"{name}:{number}", chance)
        producer.produce(ORDERS, order.to_json(), partition=number % PARTITIONS, on_delivery=delivered)
        producer.poll(0)
        if stopped.wait(1 / job.records_per_s):
            break
    producer.flush()


def _producer(job: Job, name: str, journal: Journal) -> Producer:
    def failed(error: KafkaError) -> None:
        journal.add(Troubled(at_us=now_us(), client=name, text=str(error), fatal=error.fatal()))

    return Producer({
        "bootstrap.servers": job.bootstrap, "client.id": name, "enable.idempotence": True, "error_cb": failed,
        "reconnect.backoff.max.ms": RECONNECT_MAX_MS,
    })  # fmt: skip


if __name__ == "__main__":
    run(work)
