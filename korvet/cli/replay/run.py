"""A replay of segments: what it copies where, and threads that do it."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import closing
from queue import Empty, SimpleQueue
from typing import Final

import structlog
from kio.schema.errors import ErrorCode

from korvet.cli.kafka.client import Client, retried
from korvet.cli.kafka.errors import BrokerError
from korvet.cli.kafka.offsets import TopicPartition, committed_offsets, leaders_of
from korvet.cli.kafka.topics import Topic, create_topic, describe_settings, describe_topics
from korvet.cli.replay.copies import portions
from korvet.cli.replay.segments import Sealed, find
from korvet.cli.replay.sending import Sender
from korvet.errors import KorvetError
from korvet.pipeline.replay.config import (
    GROUP_PREFIX,
    Note,
    ReplayConfig,
    ReplayProgress,
    ReplayResult,
    check_name,
    check_target,
    made_anew,
)

log = structlog.get_logger()

_THREADS: Final = 4
_REPORT_S: Final = 0.5
_LEAST_BYTES: Final = 1 << 20
_MOST_BYTES: Final = 16 << 20
"""Of a transaction."""
_LONG_S: Final = 2.0
"""The time of a transaction after which the next one has the least bytes."""


def replay_segments(
    clients: Callable[[], Client],
    tier: str,
    config: ReplayConfig,
    *,
    stop: threading.Event,
    progress: Callable[[ReplayProgress], None],
) -> ReplayResult:
    """Copy the sealed batches of a topic to a topic, each exactly once, however often the replay is restarted.

    :param clients: makes a client of the brokers that get the records.
    :param tier: the tier's directory or URL.
    :param stop: once it is set, the replay ends after its open transactions; the same call resumes it later.
    :raises KorvetError: if something cannot be read or written. Committed records stay, and count.
    """
    began = time.monotonic()
    with clients() as client:
        source = find(client, tier, config)
        topic = _target(client, config, source)
        assert topic.id is not None, "brokers since Kafka 2.8 name it"
        settings = {one.name: one.value for one in describe_settings(client, [topic.name])[topic.name]}
        oldest_ms = {number: part.oldest_ms for number, part in source.parts.items()}
        check_target(topic.name, len(topic.partitions), settings, oldest_ms)
        digest = config.digest(source.topic_id)
        name = config.name or f"{config.topic}-{digest}"
        check_name(name, topic.name, (at.topic for at in committed_offsets(client, f"{GROUP_PREFIX}{name}")))
        note = Note(job=digest, topic_id=topic.id.hex, records=0)
        # All at once: a second start of the same replay ends the first one.
        senders = {
            number: Sender(name, TopicPartition(topic.name, number), note, part.start)
            for number, part in source.parts.items()
        }
        for sender in senders.values():
            sender.begin(client)
        work = _Work(clients, source, senders)
        before = work.records
        log.info("replay begins", name=name, topic=topic.name, offsets=work.total - work.done, partitions=len(senders))

        def report() -> None:
            rate = (work.records - before) / max(time.monotonic() - began, _REPORT_S)
            progress(ReplayProgress(name=name, records=work.done, total=work.total, records_per_s=rate))

        work.run(Pace(config.rate), stop, report)
        if describe_topics(client, [topic.name])[0].id != topic.id:
            raise made_anew(topic.name)
    result = ReplayResult(
        name=name,
        target=topic.name,
        version=None,
        records=work.records - before,
        total=work.total,
        complete=work.done == work.total,
        seconds=time.monotonic() - began,
    )
    log.info("replay ended", name=name, records=result.records, complete=result.complete)
    return result


class _Work:
    """The partitions that are left, and the threads that copy them."""

    def __init__(self, clients: Callable[[], Client], source: Sealed, senders: Mapping[int, Sender]) -> None:
        self._clients, self._source, self._senders = clients, source, senders
        self._over = threading.Event()
        self._reached = {number: sender.position for number, sender in senders.items()}
        self._left: SimpleQueue[int] = SimpleQueue()
        for number, part in source.parts.items():
            if self._reached[number] < part.end:
                self._left.put(number)

    @property
    def total(self) -> int:
        """All offsets of the range."""
        return sum(part.end - part.start for part in self._source.parts.values())

    @property
    def done(self) -> int:
        """The offsets of the range whose records are in the topic."""
        parts = self._source.parts
        return sum(min(reached, parts[number].end) - parts[number].start for number, reached in self._reached.items())

    @property
    def records(self) -> int:
        """The records that are in the topic, also by former runs."""
        return sum(sender.records for sender in self._senders.values())

    def run(self, pace: Pace, stop: threading.Event, report: Callable[[], None]) -> None:
        """Copy what is left, until ``stop`` is set.

        :raises KorvetError: the first error, after all threads have ended their transactions.
        """
        with ThreadPoolExecutor(_THREADS) as threads:
            running = {threads.submit(self._copy_some, pace) for _ in range(min(_THREADS, self._left.qsize()))}
            try:
                while running and not stop.is_set() and not self._over.is_set():
                    ended, running = wait(running, _REPORT_S, FIRST_COMPLETED)
                    report()
                    for one in ended:
                        one.result()
            finally:
                self._over.set()
        for one in running:
            one.result()
        report()

    def _copy_some(self, pace: Pace) -> None:
        with self._clients() as client:
            while True:
                try:
                    number = self._left.get_nowait()
                except Empty:
                    return
                if not self._copy(client, number, pace):
                    return

    def _copy(self, client: Client, number: int, pace: Pace) -> bool:
        """Copy a partition. Returns false if the replay has to end before."""
        sender, most_bytes = self._senders[number], _LEAST_BYTES
        with closing(self._source.read(number, sender.position)) as chunks:
            for copies, next_offset in chunks:
                longest_s = 0.0
                for some in portions(copies, pace.most, most_bytes):
                    if not pace.wait(sum(one.records for one in some), self._over):
                        return False
                    began = time.monotonic()
                    sender.send(client, some, self._over)
                    longest_s = max(longest_s, time.monotonic() - began)
                    self._reached[number] = sender.position
                self._reached[number] = max(self._reached[number], next_offset)
                # A slow connection must not take longer than a transaction may.
                most_bytes = min(2 * most_bytes, _MOST_BYTES) if longest_s < _LONG_S else _LEAST_BYTES
        return True


class Pace:
    """Spreads the records of all threads over time.

    :param rate: records/s; None for no limit.
    :ivar most: the most records of a transaction.
    """

    def __init__(self, rate: float | None) -> None:
        self._rate, self._due, self._lock = rate, time.monotonic(), threading.Lock()
        self.most = math.inf if rate is None else max(1, int(rate))

    def wait(self, records: int, over: threading.Event) -> bool:
        """Wait for a transaction's turn. Returns false if all is over before."""
        if self._rate is None:
            return not over.is_set()
        with self._lock:
            due = max(self._due, time.monotonic())
            self._due = due + records / self._rate
        return not over.wait(max(0.0, due - time.monotonic()))


def _target(client: Client, config: ReplayConfig, source: Sealed) -> Topic:
    """The topic that gets the records, created if necessary.

    :raises KorvetError: it is missing, or is the source itself.
    """
    name = config.target
    if not source.parts:
        raise KorvetError(f"there is nothing to replay: {source.url} has no offset of {config.topic} in the range")
    try:
        topic = _described(client, name)
    except BrokerError as error:
        if error.code is not ErrorCode.unknown_topic_or_partition:
            raise
        if not config.create:
            raise KorvetError(f"topic {name} does not exist; create it, or give --create") from None
        # Old records would vanish at once.
        create_topic(client, name, partitions=source.partitions, configs={"retention.ms": "-1"})
        log.info("topic created", topic=name, partitions=source.partitions, retention_ms=-1)
        topic = _new(client, name)
    if topic.id is not None and topic.id.hex == source.topic_id and not config.into_archived:
        raise KorvetError(
            f"topic {name} is the one whose segments are read: it would hold these records a second time, under new "
            "offsets; name another topic with --to, or give --into-archived"
        )
    return topic


def _described(client: Client, name: str) -> Topic:
    (topic,) = describe_topics(client, [name])
    return topic


@retried
def _new(client: Client, name: str) -> Topic:
    """A topic that was just created: Kafka answers before its metadata shows it."""
    try:
        topic = _described(client, name)
    except BrokerError as error:
        raise BrokerError(str(error), ErrorCode.leader_not_available) from None
    leaders_of(client, [TopicPartition(name, one.partition) for one in topic.partitions])
    return topic
