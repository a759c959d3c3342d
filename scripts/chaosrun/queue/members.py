"""Share consumers through confluent-kafka, a thread for each: `python -m scripts.chaosrun.queue.members JOB`.

Each takes some records, works on one after the other, settles each as `kind` says, and waits for the answer. Redis
workers do the same.
"""

import threading
import time
from collections.abc import Sequence
from typing import Any, Final, Literal

from confluent_kafka import AcknowledgeType, KafkaException, Message, ShareConsumer

from scripts.chaosrun.confluent_members import is_fatal
from scripts.chaosrun.jobs import RECONNECT_MAX_MS, Job, run_clients
from scripts.chaosrun.journal import Journal, Settled, Taken, Troubled, now_us

Kind = Literal["accept", "release", "reject"]
_TYPES: Final[dict[Kind, AcknowledgeType]] = {
    "accept": AcknowledgeType.ACCEPT,
    "release": AcknowledgeType.RELEASE,
    "reject": AcknowledgeType.REJECT,
}


def kind(value: str, deliveries: int) -> Kind:
    """How a record of `producers.py` is settled: one of 40 is rejected, one always released, one only once."""
    number = int(value.rpartition(":")[2]) % 40
    if number == 1:
        return "reject"
    return "release" if number == 2 or (number == 3 and deliveries == 1) else "accept"


class Member:
    """One share consumer, driven by one thread."""

    def __init__(self, job: Job, name: str, journal: Journal) -> None:
        self._job, self._name, self._journal = job, name, journal
        self._consumer = ShareConsumer({
            "bootstrap.servers": job.bootstrap, "client.id": name, "group.id": job.group,
            "share.acknowledgement.mode": "explicit", "max.poll.records": job.records_at_once,
            "reconnect.backoff.max.ms": RECONNECT_MAX_MS,
        })  # fmt: skip

    def run(self, stopped: threading.Event) -> None:
        """Take and settle until the stop, then leave the group; an earlier end is written down."""
        try:
            self._consumer.subscribe(self._job.topics)
            while not stopped.is_set():
                messages = self._consumer.poll(0.2)
                for message in messages:
                    if (error := message.error()) is not None:
                        self._trouble(str(error), fatal=is_fatal(error))
                if records := [message for message in messages if message.error() is None]:
                    self._settle(records)
        except Exception as error:
            self._trouble(repr(error), fatal=True)
            raise
        finally:
            self._consumer.close()

    def _settle(self, records: Sequence[Message]) -> None:
        kinds = [self._take(record) for record in records]
        failed, errors = "no answer", dict[Any, str]()
        try:
            for part, error in self._consumer.commit_sync().items():
                errors[part.topic, part.partition] = "" if error is None else str(error)
        except KafkaException as error:
            failed = str(error)
        for record, kind in zip(records, kinds, strict=True):
            self._journal.add(Settled(
                at_us=now_us(), client=self._name, group=self._job.group, value=_value(record), kind=kind,
                error=errors.get((record.topic(), record.partition()), failed),
            ))  # fmt: skip

    def _take(self, record: Message) -> Kind:
        """Work on a record, and acknowledge it for the next commit."""
        deliveries = record.delivery_count() or 0
        self._journal.add(Taken(
            at_us=now_us(), client=self._name, group=self._job.group, offset=record.offset() or 0,
            partition=(record.topic() or "", record.partition() or 0), value=_value(record), deliveries=deliveries,
        ))  # fmt: skip
        time.sleep(self._job.work_ms / 1000)
        chosen = kind(_value(record), deliveries)
        self._consumer.acknowledge(record, _TYPES[chosen])
        return chosen

    def _trouble(self, text: str, *, fatal: bool) -> None:
        self._journal.add(Troubled(at_us=now_us(), client=self._name, text=text, fatal=fatal))


def _value(record: Message) -> str:
    return (record.value() or b"").decode()


def main() -> None:
    """Run the members until stdin ends."""
    run_clients(Member)


if __name__ == "__main__":
    main()
