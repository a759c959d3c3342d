"""Load on a broker while a test changes its Redis: idempotent producers, and a group that commits.

Everything runs in threads with confluent-kafka. `Load.settle` ends the load and compares the stored and consumed
records with the produced ones: none is lost, doubled or out of order, and the group did not rebalance again.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

WITHIN_S = 150.0
SESSION_S = 30.0
"""The members' session. On a busy machine a shorter one could end, and no group may rebalance here."""
SETTINGS = {"group.initial.rebalance.delay.ms": "1000"}
"""The broker's settings."""
IN_TIER = {"remote.storage.enable": "true", "retention.ms": "-1", "local.retention.ms": "1"}
"""The settings of a topic whose records soon are only in the tier."""
_MOST_IN_FLIGHT = 500
"""The records that a producer has sent and heard nothing of. On a busy machine, more of them would be load for ever."""
_SIZES = (100, 100, 20_000, 100, 9_000)
"""The records' sizes, in turn: a batch of 8 KiB or more is placed beside the log."""


def until(condition: Callable[[], bool], what: str | Callable[[], str], within_s: float = WITHIN_S) -> None:
    """Wait until a condition holds; ``what`` says what did not happen, and may find it out when the time is over."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, what if isinstance(what, str) else what()
        time.sleep(0.05)


class _Producer:
    """One partition's producer: its records are consecutive numbers, of different sizes."""

    def __init__(self, bootstrap: str, topic: str, partition: int) -> None:
        self.acknowledged: list[int] = []
        self.errors: list[str] = []
        self._topic, self._partition = topic, partition
        self._next = 0
        self._bootstrap = bootstrap

    def _failed(self, error: Any) -> None:
        if error.fatal():
            self.errors.append(str(error))

    def _told(self, number: int, error: Any, _message: Any) -> None:
        if error is None:
            self.acknowledged.append(number)
        else:
            self.errors.append(f"record {number}: {error}")

    def run(self, stop: threading.Event) -> None:
        # The client holds this object by its callbacks, so it must not be held in turn: it would print for minutes.
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self._bootstrap, "enable.idempotence": True, "linger.ms": 1, "batch.size": 30_000,
                "message.timeout.ms": 120_000, "error_cb": self._failed,
            }
        )  # fmt: skip
        while not stop.is_set():
            if self._next - len(self.acknowledged) - len(self.errors) >= _MOST_IN_FLIGHT:
                producer.poll(0.1)
                continue
            number, self._next = self._next, self._next + 1
            value = b"%d " % number + b"x" * _SIZES[number % len(_SIZES)]
            told = partial(self._told, number)
            producer.produce(self._topic, value, partition=self._partition, on_delivery=told)
            producer.poll(0.002)
        if producer.flush(WITHIN_S):
            self.errors.append("not everything was answered")

    @property
    def produced(self) -> int:
        return self._next


class _Member:
    """A member of the group, with the records that it read and every assignment."""

    def __init__(self, bootstrap: str, group: str, topic: str, session_s: float) -> None:
        self.read: dict[int, list[int]] = {}
        self.assignments: list[list[int]] = []
        self.errors: list[str] = []
        self.troubles: deque[str] = deque(maxlen=5)
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest",
                "enable.auto.commit": False, "session.timeout.ms": int(session_s * 1000),
                "heartbeat.interval.ms": 500, "fetch.wait.max.ms": 200,
            }
        )  # fmt: skip
        self._consumer.subscribe([topic], on_assign=self._assigned)

    def _assigned(self, _consumer: Any, partitions: Any) -> None:
        self.assignments.append([partition.partition for partition in partitions])

    def run(self, stop: threading.Event) -> None:
        commit_at = 0.0
        while not stop.is_set():
            message: Any = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                self.read.setdefault(message.partition(), []).append(_number(message))
            elif message is not None:
                self.troubles.append(str(message.error()))
            if self.read and time.monotonic() > commit_at:
                commit_at = time.monotonic() + 0.1
                self._consumer.commit(asynchronous=True)
        try:
            self._consumer.commit(asynchronous=False)
        except confluent_kafka.KafkaException as error:
            if error.args[0].code() != confluent_kafka.KafkaError._NO_OFFSET:
                self.errors.append(f"the last commit failed: {error}")
        self._consumer.close()


class _PatientMember:
    """A member in a separate process; see `tests.cluster.patient_member`."""

    def __init__(self, bootstrap: str, group: str, topic: str, session_s: float) -> None:
        self.read: dict[int, list[int]] = {}
        self.assignments: list[list[int]] = []
        self.errors: list[str] = []
        self.troubles: deque[str] = deque(maxlen=5)
        self._arguments = [bootstrap, group, topic, str(int(session_s * 1000))]

    def run(self, stop: threading.Event) -> None:
        command = [sys.executable, "-W", "ignore", "-m", "tests.cluster.patient_member", *self._arguments]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin is not None
            told = threading.Thread(target=self._take, args=(process,))
            told.start()
            stop.wait()
            process.stdin.close()
            try:
                process.wait(WITHIN_S)
            except subprocess.TimeoutExpired:
                self.errors.append("it did not end")
                process.kill()
            told.join()

    def _take(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            event, what = json.loads(line)
            if event == "read":
                self.read.setdefault(what[0], []).extend(what[1])
            elif event == "assigned":
                self.assignments.append(what)
            else:
                self.errors.append(what)


def _number(message: Any) -> int:
    return int(message.value().split(b" ", 1)[0])


def _is_created(admin: AdminClient, topic: NewTopic) -> bool:
    """Create a topic; false if that is refused, as for one in the tier until the front-end has tried the tier out."""
    (future,) = admin.create_topics([topic]).values()
    try:
        future.result(WITHIN_S)
    except confluent_kafka.KafkaException as error:
        return bool(error.args[0].code() == confluent_kafka.KafkaError.TOPIC_ALREADY_EXISTS)
    return True


class Load:
    """Two partitions, a producer for each, and two members."""

    def __init__(
        self,
        bootstrap: str,
        name: str,
        member: type[_Member | _PatientMember],
        session_s: float = SESSION_S,
        configs: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.bootstrap, self.topic, self.group = bootstrap, f"{name}-topic", f"{name}-group"
        self.partitions = 2
        topic = NewTopic(self.topic, self.partitions, 1, config=dict(configs))
        until(partial(_is_created, AdminClient({"bootstrap.servers": bootstrap}), topic), "the topic is created")
        self.members = [member(bootstrap, self.group, self.topic, session_s) for _ in range(2)]
        self.producers = [_Producer(bootstrap, self.topic, index) for index in range(self.partitions)]
        self._stop_producing, self._stop_reading = threading.Event(), threading.Event()
        self._producing = [threading.Thread(target=one.run, args=(self._stop_producing,)) for one in self.producers]
        self._reading = [threading.Thread(target=one.run, args=(self._stop_reading,)) for one in self.members]
        self._rebalances = 0

    def start(self) -> None:
        """Begin, and return after both members have a partition and read from it.

        Records come only then. If a member joined later, the group would read records again that it had not committed.
        """
        for thread in self._reading:
            thread.start()
        until(self._is_shared, lambda: f"each member has a partition; {self._state()}")
        for thread in self._producing:
            thread.start()
        until(self._is_stable, lambda: f"the group is stable and reads; {self._state()}")
        self._rebalances = self.rebalances

    def _is_shared(self) -> bool:
        return all(one.assignments and len(one.assignments[-1]) == 1 for one in self.members)

    def _is_stable(self) -> bool:
        return self._is_shared() and all(one.read for one in self.members)

    @property
    def rebalances(self) -> int:
        return sum(len(one.assignments) for one in self.members)

    @property
    def acknowledged(self) -> int:
        return sum(len(producer.acknowledged) for producer in self.producers)

    def go_on(self, records: int = 50) -> None:
        """Return after every partition has taken ``records`` more records, and the group has read them."""
        wanted = [len(producer.acknowledged) + records for producer in self.producers]
        until(
            lambda: all(len(one.acknowledged) >= count for one, count in zip(self.producers, wanted, strict=True)),
            lambda: f"producers go on; {self._state()}",
        )
        until(
            lambda: all(len(self.seen(index)) >= count for index, count in enumerate(wanted)),
            lambda: f"the group reads on; {self._state()}",
        )

    def seen(self, partition: int) -> list[int]:
        """The records of a partition that the group's members have read, in the order of each member."""
        return [number for member in self.members for number in member.read.get(partition, ())]

    def _state(self) -> str:
        produced = [f"{len(one.acknowledged)} of {one.produced} acknowledged, {one.errors}" for one in self.producers]
        read = [{partition: len(numbers) for partition, numbers in one.read.items()} for one in self.members]
        told = [f"{one.assignments}, {one.errors}, {list(one.troubles)}" for one in self.members]
        return f"produced: {produced}; read: {read}; members: {told}"

    def _unread(self, partition: int) -> str:
        """The records that the group lacks, and whether the log has them: a lost record, or a reader that stands."""
        missing = sorted(set(self.producers[partition].acknowledged) - set(self.seen(partition)))
        stored = set(self.stored(partition))
        lost = [number for number in missing if number not in stored]
        return f"partition {partition}: the group lacks {missing}, the log lacks {lost}; {self._state()}"

    def _is_read(self, partition: int, records: int) -> bool:
        return len(set(self.seen(partition))) >= records

    def stop(self) -> None:
        """End the threads."""
        self._stop_producing.set()
        self._stop_reading.set()
        for thread in (*self._producing, *self._reading):
            if thread.ident is not None:
                thread.join(WITHIN_S)

    def settle(self, *, may_repeat: bool = False) -> None:
        """End the load and judge it.

        :param may_repeat: whether Redis may have lost the last commits, so that members consume records again.
        """
        self._stop_producing.set()
        for thread in self._producing:
            thread.join(WITHIN_S)
        for producer in self.producers:
            assert producer.errors == [], self._state()
            assert producer.acknowledged == list(range(producer.produced))
        for index, producer in enumerate(self.producers):
            until(partial(self._is_read, index, producer.produced), partial(self._unread, index))
        rebalances = self.rebalances
        self.stop()
        assert [member.errors for member in self.members] == [[], []]
        for index, producer in enumerate(self.producers):
            assert self.stored(index) == list(range(producer.produced))
            if not may_repeat:
                assert self.seen(index) == list(range(producer.produced))
        assert rebalances == self._rebalances

    def stored(self, partition: int) -> list[int]:
        """All records of a partition that a reader without a group finds."""
        reader = confluent_kafka.Consumer(
            {"bootstrap.servers": self.bootstrap, "group.id": "reader", "enable.partition.eof": True}
        )
        numbers: list[int] = []
        try:
            reader.assign([confluent_kafka.TopicPartition(self.topic, partition, 0)])
            deadline = time.monotonic() + WITHIN_S
            while time.monotonic() < deadline:
                message: Any = reader.poll(1)
                if message is None:
                    continue
                if message.error() is None:
                    numbers.append(_number(message))
                elif message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    return numbers
        finally:
            reader.close()
        raise AssertionError(f"the end of partition {partition} was not reached")


@contextmanager
def running_load(
    bootstrap: str,
    name: str,
    *,
    is_patient: bool = False,
    session_s: float = SESSION_S,
    configs: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Load]:
    """Run a load that has begun; its threads end with the block.

    :param is_patient: whether the members outwait a silence that is longer than their session.
    :param configs: the topic's.
    """
    load = Load(bootstrap, name, _PatientMember if is_patient else _Member, session_s, configs)
    try:
        load.start()
        yield load
    finally:
        load.stop()
