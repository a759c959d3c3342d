"""A group member with kafka-python, as a separate process that reports on stdout, one line of JSON at a time.

librdkafka leaves its group if no answer comes within the session; kafka-python looks for the coordinator again, as the
Java client does. The process ends when its stdin is closed.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

from kafka import ConsumerRebalanceListener, KafkaConsumer
from kafka.errors import KafkaError

# A poll that ends during a join can lose the assignment for good (`tests/kafka/drivers/kafka_python.py`).
JOINING_MS = 5000


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    def on_partitions_revoked(self, revoked: Any) -> None:
        """The member has nothing to do here."""

    def on_partitions_assigned(self, assigned: Any) -> None:
        _tell("assigned", [partition.partition for partition in assigned])


def _tell(event: str, what: Any) -> None:
    sys.stdout.write(json.dumps([event, what]) + "\n")
    sys.stdout.flush()


def _set_at_the_end_of_stdin(stop: threading.Event) -> None:
    sys.stdin.read()
    stop.set()


def _parsed(value: bytes) -> int:
    return int(value.split(b" ", 1)[0])


def main(bootstrap: str, group: str, topic: str, session_ms: int) -> None:
    stop = threading.Event()
    threading.Thread(target=_set_at_the_end_of_stdin, args=(stop,), daemon=True).start()
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False,
        session_timeout_ms=session_ms, heartbeat_interval_ms=500, fetch_max_wait_ms=200,
    )  # fmt: skip
    consumer.subscribe([topic], listener=_Listener())
    while not stop.is_set():
        for partition, records in consumer.poll(100 if consumer.assignment() else JOINING_MS).items():
            _tell("read", [partition.partition, [_parsed(record.value) for record in records]])
            consumer.commit_async()
    try:
        consumer.commit()
    except KafkaError as error:
        _tell("failed", f"the last commit failed: {error}")
    consumer.close(autocommit=False)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
