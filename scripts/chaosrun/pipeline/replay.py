"""A replay under kills of its driver, tasks, broker and Redis, and a look at the topic after it."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Literal

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition
from pyspark.sql import SparkSession
from rich.table import Table

from korvet.pipeline.broker import Broker
from korvet.pipeline.errors import PipelineError
from korvet.pipeline.replay import ReplayConfig
from korvet.pipeline.replay.run import replay
from scripts.chaosrun.pipeline.archive import spark_jars
from tests.pipeline.replaying import BEGIN_MS, record
from tests.support.broker import KorvetServer, running_broker
from tests.support.spark_workers import kill_workers

TOPIC: Final = "numbers"
TARGET: Final = "replayed"
ROOT: Final = Path(__file__).resolve().parents[3]
WITHIN_S: Final = 900.0
Fault = Literal["driver", "driver after a commit", "front-end", "redis", "workers", "workers after a commit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The driver's work.

    :param prepares: only make the table.
    :param holds: write ``marker`` after the first commit, and hang.
    :param marker: a file of this driver alone.
    :param forgets: commit no positions, as the control does.
    """

    jars: str
    scratch: str
    lake: str
    bootstrap: str
    result: str
    count: int
    partitions: int
    size_bytes: int
    prepares: bool = False
    holds: bool = False
    marker: str = ""
    forgets: bool = False

    @property
    def config(self) -> ReplayConfig:
        return ReplayConfig(bootstrap_servers=self.bootstrap, lake=self.lake, topic=TOPIC, to=TARGET)


@dataclass(kw_only=True)
class Verdict:
    """The committed records found in the topic, and the faults before."""

    is_control: bool = False
    records: int = 0
    duplicates: int = 0
    missing: int = 0
    different: int = 0
    out_of_order: int = 0
    faults: list[str] = field(default_factory=list)
    starts: int = 0
    seconds: float = 0.0

    @property
    def holds(self) -> bool:
        """True if each record is there once and in order; for the control, if records are there twice."""
        if self.is_control:
            return self.duplicates > 0 and not (self.missing or self.different)
        return not (self.duplicates or self.missing or self.different or self.out_of_order)


def replay_under_fire(
    *,
    jars: str,
    count: int = 1_000_000,
    partitions: int = 4,
    size_bytes: int = 100,
    faults: Sequence[Fault] = (
        "driver", "front-end", "driver after a commit", "driver", "redis", "workers", "driver",
        "workers after a commit",
    ),
    lake: str | None = None,
    spark: SparkSession | None = None,
    forgets: bool = False,
    seed: int = 1,
    report: Callable[[str], None] = lambda text: None,
) -> Verdict:  # fmt: skip
    """Replay numbered records while faults happen, one after the other, at moments left to chance.

    :param lake: the table's lake; None makes a new one.
    :param spark: replays the rest after the last kill; None has one more driver do it.
    :param forgets: run the control, which has to double records.
    """
    chance = random.Random(seed)
    with ExitStack() as stack:
        server = stack.enter_context(running_broker())
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="kr")))
        order = Order(
            jars=jars, scratch=str(directory / "scratch"), lake=lake or str(directory / "lake"),
            bootstrap=server.bootstrap, result=str(directory / "result"),
            count=count, partitions=partitions, size_bytes=size_bytes, forgets=forgets,
        )  # fmt: skip
        if lake is None:
            _run_to_end(replace(order, prepares=True), directory)
        with Broker({"bootstrap.servers": server.bootstrap}) as admin:
            admin.create_topic(TARGET, partitions, {"retention.ms": "-1"})
        verdict, began = Verdict(is_control=forgets), time.monotonic()
        play = _Play(server, order, directory, verdict, chance, report)
        try:
            for number, fault in enumerate(faults):
                play.act(fault, before=(number + 1) / (len(faults) + 1))
            play.finish(spark)
        finally:
            play.kill()
        verdict.seconds = time.monotonic() - began
        judge(server.bootstrap, order, verdict)
        return verdict


class _Play:
    """The driver at work, and the faults that happen to it."""

    def __init__(
        self,
        server: KorvetServer,
        order: Order,
        directory: Path,
        verdict: Verdict,
        chance: random.Random,
        report: Callable[[str], None],
    ) -> None:
        self._server, self._order, self._directory = server, order, directory
        self._verdict, self._chance, self._report = verdict, chance, report
        self._admin = Broker({"bootstrap.servers": server.bootstrap})
        self._driver: subprocess.Popen[bytes] | None = None
        self._began_at = 0

    def act(self, fault: Fault, *, before: float) -> None:
        """Make the fault happen once about that share of the records is in the topic."""
        if not fault.endswith("after a commit"):
            self._await_records(before)
        {
            "driver": self.kill,
            "driver after a commit": self._kill_held,
            "front-end": self._kill_front_end,
            "redis": self._server.kill_embedded,
            "workers": self._fail_tasks,
            "workers after a commit": self._kill_workers,
        }[fault]()
        written = self._written()
        self._verdict.faults.append(fault)
        self._report(f"{fault} killed; {written:,} of {self._order.count:,} records are in the topic")

    def finish(self, spark: SparkSession | None) -> None:
        """Let the last driver end, or replay the rest here."""
        if spark is not None and self._driver is None:
            self._verdict.starts += 1
            replay(spark, self._order.config)
            return
        while not Path(self._order.result).exists():
            driver = self._working()
            if driver.wait(WITHIN_S) != 0:
                raise AssertionError(f"the driver failed:\n{self._log()}")
            self._driver = None

    def kill(self) -> None:
        """Send SIGKILL to the driver's process group, with its JVM."""
        if self._driver is not None:
            os.killpg(self._driver.pid, signal.SIGKILL)
            self._driver.wait()
            self._driver = None

    def _kill_held(self) -> None:
        """Kill the driver between a commit and the end of its task."""
        self._held()
        self.kill()

    def _kill_workers(self) -> None:
        """Kill the Python processes of all tasks at such a moment. The driver goes on."""
        assert kill_workers(self._held().pid), f"no task has a process:\n{self._log()}"

    def _fail_tasks(self) -> None:
        """Kill the Python processes of all tasks until Spark gives them up. The driver goes on with others."""
        driver, failed = self._working(), self._failures()

        def has_failed() -> bool:
            kill_workers(driver.pid)
            return self._failures() > failed or driver.poll() is not None

        _await(has_failed)
        assert driver.poll() is None, f"the driver failed:\n{self._log()}"

    def _failures(self) -> int:
        """The number of failed jobs after which the driver began another one."""
        return (self._directory / "driver.log").read_text(errors="replace").count("replay failed")

    def _held(self) -> subprocess.Popen[bytes]:
        """A new driver with a task that hangs between a commit and its end."""
        self.kill()
        driver = self._working(holds=True)
        marker = Path(self._order.marker)
        _await(lambda: marker.exists() or driver.poll() is not None)
        assert marker.exists(), f"no task committed:\n{self._log()}"
        return driver

    def _kill_front_end(self) -> None:
        self._server.restart(crash=True)

    def _await_records(self, share: float) -> None:
        """Wait until the topic has about that share of the records, some of them by the present driver."""
        driver = self._working()
        count, least = self._order.count, self._began_at + self._order.count // 50
        wanted = max(count * share * self._chance.uniform(0.8, 1.0), least)
        _await(lambda: self._written() >= wanted or driver.poll() is not None)
        assert driver.poll() is None, f"the driver ended early:\n{self._log()}"

    def _working(self, *, holds: bool = False) -> subprocess.Popen[bytes]:
        if self._driver is None:
            self._began_at = self._written()
            self._verdict.starts += 1
            # A killed driver's tasks run on in a process group of their own, and would write a marker that both have.
            marker = str(self._directory / f"marker-{self._verdict.starts}")
            self._order = replace(self._order, holds=holds, marker=marker)
            self._driver = _start(self._order, self._directory)
        return self._driver

    def _written(self) -> int:
        partitions = [(TARGET, partition) for partition in range(self._order.partitions)]
        try:
            return sum(end.offset for end in self._admin.latest(partitions, committed_only=True).values())
        except PipelineError:
            return 0

    def _log(self) -> str:
        return (self._directory / "driver.log").read_text(errors="replace")[-5000:]


def _start(order: Order, directory: Path) -> subprocess.Popen[bytes]:
    with open(directory / "driver.log", "ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "scripts.chaosrun.pipeline.replay_driver", json.dumps(asdict(order))],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            start_new_session=True,
        )


def _run_to_end(order: Order, directory: Path) -> None:
    driver = _start(order, directory)
    if driver.wait(WITHIN_S) != 0:
        raise AssertionError(f"the table could not be made:\n{(directory / 'driver.log').read_text()[-5000:]}")


def _await(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that in time"
        time.sleep(0.2)


def judge(bootstrap: str, order: Order, verdict: Verdict) -> None:
    """Read the topic, and compare each record with the record made anew from its number."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "judge", "isolation.level": "read_committed"}
    reader = Consumer({**settings, "enable.partition.eof": "true", "enable.auto.commit": "false"})
    reader.assign([TopicPartition(TARGET, partition, 0) for partition in range(order.partitions)])
    seen = bytearray(order.count)
    last = dict.fromkeys(range(order.partitions), -1)
    ended: set[int | None] = set()
    deadline = time.monotonic() + WITHIN_S
    try:
        while len(ended) < order.partitions:
            assert time.monotonic() < deadline, "the topic was not read to its end in time"
            for message in reader.consume(5000, 0.5):
                error = message.error()
                if error is None:
                    _judge_record(message, order, seen, last, verdict)
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
    finally:
        reader.close()
    verdict.missing = seen.count(0)


def _judge_record(message: Message, order: Order, seen: bytearray, last: dict[int, int], verdict: Verdict) -> None:
    partition, timestamp = message.partition(), message.timestamp()[1]
    number = timestamp - BEGIN_MS
    verdict.records += 1
    found = (message.key(), message.value(), message.headers(), timestamp)
    if partition is None or number % order.partitions != partition or found != record(number, order.size_bytes):
        verdict.different += 1
        return
    verdict.duplicates += seen[number]
    verdict.out_of_order += number < last[partition]
    seen[number], last[partition] = 1, number


def keep_replays(*, records: int, seed: int, report: Callable[[str], None]) -> list[Verdict]:
    """Run a replay of ``records`` records, and the control."""
    jars = spark_jars()
    return [
        replay_under_fire(jars=jars, count=records, seed=seed, report=report),
        replay_under_fire(jars=jars, count=100_000, faults=["driver after a commit"], forgets=True, report=report),
    ]


def verdicts(found: Sequence[Verdict]) -> Table:
    """The verdicts as a table, a row for each replay."""
    table = Table(title="Replays under kill -9", title_justify="left")
    table.add_column("positions")
    for heading in ("records", "seconds", "drivers", "killed", "duplicates", "missing", "different", "out of order"):
        table.add_column(heading, justify="left" if heading == "killed" else "right")
    for each in found:
        killed = ", ".join(f"{fault} {each.faults.count(fault)}" for fault in sorted(set(each.faults)))
        table.add_row(
            "in no transaction: the control" if each.is_control else "in the transactions",
            f"{each.records:,}", f"{each.seconds:.0f}", str(each.starts), killed,
            f"{each.duplicates:,}", f"{each.missing:,}", f"{each.different:,}", f"{each.out_of_order:,}",
        )  # fmt: skip
    return table
