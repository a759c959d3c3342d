"""A queue: one share group of three clients and of Redis workers, which settle the records of two producers."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from korvet.store.keys import Namespace
from scripts.chaosrun.checks import Times, gave_up, is_owed
from scripts.chaosrun.journal import Acknowledged, Journal, Partition, now_us
from scripts.chaosrun.load import PARTITIONS, TOPICS, Group, Load, LoadError
from scripts.chaosrun.processes import Program
from scripts.chaosrun.queue import checks
from scripts.chaosrun.queue.workers import LIMIT, Worker, keys_of
from scripts.chaosrun.stage import Stage

NAME: Final = "queue"
LETTERS: Final = "dlq.queue"
GROUPS: Final = (Group(name=NAME, client="confluent"),)
MEMBERS: Final[dict[Program, int]] = {"share-librdkafka": 14, "share-java": 13, "share-go": 13}
WORKERS: Final = 2
LOCK_MS: Final = 6_000
"""Hangs are longer."""
RECORDS_AT_ONCE: Final = 10
WORK_MS: Final = 50
JOURNAL_US: Final = 100_000
CALM_US: Final = 1_000_000
"""Before a fault, in which members take what they hold as it begins."""
_ALL: Final[Sequence[Partition]] = [(topic, index) for topic in TOPICS for index in range(PARTITIONS)]


class Queue(Load):
    """The running consumers, workers and producers of a queue, and their journals."""

    kinds = GROUPS

    def __init__(self, stage: Stage, directory: Path, session_timeout_ms: int, records_per_s: float) -> None:
        super().__init__(stage, directory, session_timeout_ms, records_per_s)
        self._journal = Journal(directory / "workers.jsonl")
        self._workers = [
            Worker(stage, self._journal, f"worker-{number}", NAME, _ALL, LOCK_MS, WORK_MS) for number in range(WORKERS)
        ]

    @property
    def clients(self) -> list[str]:
        """Client ids and names of all clients that should get answers."""
        return [*super().clients, *(worker.name for worker in self._workers)]

    def _new_topics(self) -> list[NewTopic]:
        by_records = {"korvet.storage": "record"}
        letters = {**by_records, "errors.deadletterqueue.group.enable": "true"}
        return [
            *(NewTopic(topic, PARTITIONS, 1, config=by_records) for topic in TOPICS),
            NewTopic(LETTERS, 1, 1, config=letters),
        ]

    def _group_settings(self) -> dict[str, dict[str, object]]:
        return {
            NAME: {
                "share.auto.offset.reset": "earliest",
                "share.session.timeout.ms": self.session_timeout_ms,
                "share.heartbeat.interval.ms": self.heartbeat_ms,
                "share.record.lock.duration.ms": LOCK_MS,
                "errors.deadletterqueue.topic.name": LETTERS,
                "errors.deadletterqueue.copy.record.enable": "true",
            }
        }

    def _start_members(self, _admin: AdminClient) -> None:
        for program, count in MEMBERS.items():
            job = replace(
                self._job([f"{program}-{number}" for number in range(count)], self.groups[NAME]),
                protocol="share", records_at_once=RECORDS_AT_ONCE, work_ms=WORK_MS,
            )  # fmt: skip
            self._members[NAME].append(self._start(program, job))
        for worker in self._workers:
            worker.start()

    def await_delivered(self) -> dict[str, int]:
        """Wait until the group's start is past every record acknowledged so far; the records of partitions where it is
        not, if that fails."""
        ends: dict[Partition, int] = {}
        for event in self.events:
            if isinstance(event, Acknowledged) and event.offset is not None and is_owed(event, self.forgiven):
                ends[event.partition] = max(ends.get(event.partition, 0), event.offset + 1)
        left: dict[str, int] = {}

        def passed() -> bool:
            nonlocal left
            with self.stage.redis() as client:
                lags = {partition: end - _start_of(client, partition) for partition, end in ends.items()}
            left = {f"{topic}-{index}": lag for (topic, index), lag in lags.items() if lag > 0}
            return not left

        try:
            self.until(passed, lambda: "", poll_s=0.5)
        except LoadError:
            return left
        return {}

    def judged(self, since_us: int, outages: Times | None) -> dict[str, list[str]]:
        """As of any load, once the group's start is past every record that is owed so far."""
        # An event of the last moment may not be in its journal yet.
        asked_us = now_us() - JOURNAL_US
        missing = self.await_delivered()
        events, letters, forgiven = list(self.events), self._letters(), self.forgiven
        during = [event for event in events if event.at_us >= since_us - CALM_US]
        owed = {
            event.value for event in events
            if isinstance(event, Acknowledged) and event.at_us <= asked_us and is_owed(event, forgiven)
        }  # fmt: skip
        return {
            "delivery": [f"{NAME} is {count} records short of {partition}'s" for partition, count in missing.items()],
            "lost": checks.lost(owed, events, letters),
            "once": checks.came_after_end(events, letters, forgiven),
            "letters": checks.missing_letters(owed, events, letters, forgiven),
            "locks": [
                *checks.over_delivered(events, LIMIT),
                *([] if outages is None else checks.ended_early(during, LOCK_MS, outages)),
            ],
            "clients": gave_up(events),
        }

    def _letters(self) -> set[str]:
        """The values of all dead letters."""
        with self.stage.redis() as client:
            entries = client.xrange(Namespace("default").partition(LETTERS, 0).log)
        return {fields[b"value"].decode() for _, fields in entries if b"value" in fields}

    def stop(self) -> None:
        """Let the producers finish, and then all members and workers leave."""
        super().stop()
        self._end_workers()

    def kill(self) -> None:
        """End everything that still runs."""
        super().kill()
        self._end_workers()

    def _end_workers(self) -> None:
        for worker in self._workers:
            worker.stopped.set()
        for worker in self._workers:
            if worker.ident is not None:
                worker.join()


def _start_of(client: Any, partition: Partition) -> int:
    """The group's start in a partition; -1 if it has none."""
    keys = keys_of(partition, NAME)
    topic_id = client.hget(keys[1], "topic_id")
    reply = client.execute_command("FCALL_RO", "korvet_share_describe", len(keys), *keys, topic_id, NAME, -1)
    return int(reply[2]) if reply[0] == 0 else -1
