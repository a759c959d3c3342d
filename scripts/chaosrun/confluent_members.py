"""Members of a group through confluent-kafka, a thread for each: `python -m scripts.chaosrun.confluent_members JOB`.

They act as a careful application: they commit now and then, and before they give up a partition.
"""

import logging
import threading
import time
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from scripts.chaosrun.checks import SESSION_ENDED
from scripts.chaosrun.jobs import RECONNECT_MAX_MS, Job, run_clients
from scripts.chaosrun.journal import (
    Assigned,
    Committed,
    Consumed,
    Journal,
    Logged,
    Partition,
    Revoked,
    Troubled,
    now_us,
)

COMMIT_EVERY_S: Final = 0.5
REBALANCE_MS: Final = 90_000
"""The time that the broker gives a member of the consumer protocol to give up partitions. After a heartbeat without an
answer librdkafka never learns of them (docs/chaos.md)."""
_METADATA: Final = b"CGMDv2:"


def _identity(consumer: Any) -> tuple[str, int]:
    """Member id and generation, from the metadata that librdkafka packs for transactional producers."""
    packed: bytes = consumer.consumer_group_metadata()
    if not packed.startswith(_METADATA):
        raise RuntimeError(f"librdkafka's group metadata begins with {packed[:8]!r}")
    numbered = packed[len(_METADATA) :]
    _, member_id, _ = numbered[4:].split(b"\0", 2)
    return member_id.decode(), int.from_bytes(numbered[:4], "little", signed=True)


def _named(partitions: list[TopicPartition]) -> list[Partition]:
    return [(entry.topic, entry.partition) for entry in partitions]


def is_fatal(error: KafkaError) -> bool:
    """True if the client has ended for good; `poll` and `commit` show that by the code alone."""
    return bool(error.fatal() or error.code() == KafkaError._FATAL)


class _Log(logging.Handler):
    """Write down that the member ended its session."""

    def __init__(self, name: str, journal: Journal) -> None:
        super().__init__()
        self._name, self._journal = name, journal

    def emit(self, record: logging.LogRecord) -> None:
        if SESSION_ENDED in record.getMessage():
            self._journal.add(Logged(at_us=now_us(), client=self._name, text=record.getMessage()))


class Member:
    """One consumer of the group, driven by one thread."""

    def __init__(self, job: Job, name: str, journal: Journal) -> None:
        self._job, self._name, self._journal = job, name, journal
        self._is_cooperative = job.protocol == "consumer" or job.strategy == "cooperative-sticky"
        self._member_id, self._generation = "", -1
        self._owned: set[Partition] = set()
        self._positions: dict[Partition, int] = {}
        self._uncommitted: set[Partition] = set()
        self._commit_at = 0.0
        self._consumer = Consumer(self._settings(), logger=self._logger())

    def _logger(self) -> logging.Logger:
        logger = logging.getLogger(self._name)
        logger.addHandler(_Log(self._name, self._journal))
        return logger

    def _settings(self) -> dict[str, Any]:
        settings = {
            "bootstrap.servers": self._job.bootstrap,
            "client.id": self._name,
            "reconnect.backoff.max.ms": RECONNECT_MAX_MS,
            "group.id": self._job.group,
            "group.protocol": self._job.protocol,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "error_cb": self._on_error,
        }
        return settings | self._protocol_settings() | ({"group.instance.id": self._name} if self._job.is_static else {})

    def _protocol_settings(self) -> dict[str, Any]:
        if self._job.protocol == "consumer":
            return {"group.remote.assignor": self._job.strategy, "max.poll.interval.ms": REBALANCE_MS}
        return {
            "partition.assignment.strategy": self._job.strategy,
            "session.timeout.ms": self._job.session_timeout_ms,
            "heartbeat.interval.ms": self._job.heartbeat_ms,
        }

    def run(self, stopped: threading.Event) -> None:
        """Consume until the stop, then leave the group; an earlier end is written down."""
        try:
            self._consume(stopped)
        except Exception as error:
            self._journal.add(Troubled(at_us=now_us(), client=self._name, text=repr(error), fatal=True))
            raise
        finally:
            self._consumer.close()

    def _consume(self, stopped: threading.Event) -> None:
        self._consumer.subscribe(
            self._job.topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )
        while not stopped.is_set():
            message = self._consumer.poll(0.1)
            if message is not None:
                self._take(message)
            if self._uncommitted and time.monotonic() >= self._commit_at:
                self._commit(self._uncommitted)

    def _take(self, message: Any) -> None:
        if message.error() is not None:
            self._on_error(message.error())
            return
        partition = (message.topic(), message.partition())
        self._positions[partition] = message.offset() + 1
        self._uncommitted.add(partition)
        self._journal.add(Consumed(
            at_us=now_us(), client=self._name, group=self._job.group, member_id=self._member_id,
            generation=self._generation, partition=partition, offset=message.offset(), value=message.value().decode(),
        ))  # fmt: skip

    def _commit(self, partitions: set[Partition]) -> None:
        """Commit, and wait for the answer: librdkafka would send one that failed again after later ones."""
        self._commit_at = time.monotonic() + COMMIT_EVERY_S
        offsets = [TopicPartition(*partition, self._positions[partition]) for partition in partitions]
        self._uncommitted -= partitions
        try:
            committed = self._consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            self._on_error(error.args[0])
            return
        acknowledged = [((each.topic, each.partition), each.offset) for each in committed if each.error is None]
        self._journal.add(
            Committed(at_us=now_us(), client=self._name, group=self._job.group, offsets=acknowledged)
        )  # fmt: skip

    def _on_assign(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        added = _named(partitions)
        self._owned.update(added)
        self._member_id, self._generation = _identity(consumer)
        self._journal.add(Assigned(
            at_us=now_us(), client=self._name, group=self._job.group, member_id=self._member_id,
            generation=self._generation, added=added, owned=sorted(self._owned),
        ))  # fmt: skip
        if self._is_cooperative:
            consumer.incremental_assign(partitions)
        else:
            consumer.assign(partitions)

    def _on_revoke(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        if uncommitted := self._uncommitted & set(_named(partitions)):
            self._commit(uncommitted)
        self._give_up(consumer, partitions, lost=False)

    def _on_lost(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        self._give_up(consumer, partitions, lost=True)

    def _give_up(self, consumer: Any, partitions: list[TopicPartition], *, lost: bool) -> None:
        given_up = _named(partitions)
        self._owned.difference_update(given_up)
        self._uncommitted.difference_update(given_up)
        self._journal.add(
            Revoked(at_us=now_us(), client=self._name, group=self._job.group, partitions=given_up, lost=lost)
        )  # fmt: skip
        if self._is_cooperative:
            consumer.incremental_unassign(partitions)
        else:
            consumer.unassign()

    def _on_error(self, error: KafkaError) -> None:
        self._journal.add(Troubled(at_us=now_us(), client=self._name, text=str(error), fatal=is_fatal(error)))


def main() -> None:
    """Run the members until stdin ends."""
    logging.basicConfig()
    run_clients(Member)


if __name__ == "__main__":
    main()
