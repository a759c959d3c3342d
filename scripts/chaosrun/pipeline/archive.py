"""Archives of two topics, with kills of everything under them: every record is in the lake once.

Two producers write numbered records, one of them in transactions. Meanwhile the run kills (-9) the driver's process
group, at any moment and between a table's write and the report to the broker. It kills Spark's Python processes, the
front-end and Redis. At the end it compares the tables with the producers' acknowledgements.

The control does without application transactions and begins where it reported: it has to show duplicates.
"""

from __future__ import annotations

import functools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, get_args

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from korvet.pipeline.archive import ArchiveProgress, archive
from korvet.pipeline.broker import Broker
from korvet.pipeline.lake import Lake
from korvet.pipeline.session import make_session
from scripts.chaosrun.pipeline.driver import Job, writers_of
from scripts.chaosrun.pipeline.producing import FILLER, PARTITIONS, PLAIN, SPREAD, TOPICS, TRANSACTED
from scripts.chaosrun.processes import ROOT
from scripts.chaosrun.stage import DURABLE, MEMORY
from tests.support.broker import KorvetServer, running_broker
from tests.support.kafka import fetch_dependencies
from tests.support.redis import Kind, Server, running_server
from tests.support.spark_workers import kill_workers

Source = Literal["korvet", "kafka"]
SOURCES: Final[tuple[Source, ...]] = get_args(Source)
Fault = Literal["driver", "write", "later write", "front-end", "Redis", "workers"]
FULL: Final[tuple[Fault, ...]] = (
    "driver", "write", "front-end", "driver", "Redis", "write", "workers", "driver", "front-end", "Redis", "driver",
)  # fmt: skip
SHORT: Final[tuple[Fault, ...]] = ("write", "workers", "driver")
# A first batch makes the table, and no writer makes it twice.
CONTROL: Final[tuple[Fault, ...]] = ("later write",)
WITHIN_S: Final = 300.0
THROUGH_S: Final = 1800.0
# On a very busy machine Spark gives up its own Python processes.
_LAST_TRIES: Final = 5
_WORKERS_STRUCK: Final = 3
_CONTROL_RECORDS: Final = 100_000
_RECORDS_PER_S: Final = 8000.0


class ChaosError(Exception):
    """The run did not get to its end."""


@dataclass(kw_only=True)
class Archived:
    """The faults of a run, and the mistakes in the lake. ``duplicates`` counts the rows beyond one of each offset."""

    source: Source
    records: int
    seconds: float = 0.0
    happened: Counter[str] = field(default_factory=Counter)
    batches: int = 0
    is_control: bool = False
    duplicates: int = 0
    violations: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """True if nothing is wrong; for a control, if it showed duplicates."""
        return self.duplicates > 0 if self.is_control else not self.violations

    @property
    def did(self) -> str:
        return ", ".join(f"{what} {count}" for what, count in sorted(self.happened.items()))


class Driver:
    """A process with an archive, which the run starts again and again."""

    def __init__(self, job: Job, log: Path) -> None:
        self.job, self._log = job, log
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def start(self) -> None:
        self.job.hold.unlink(missing_ok=True)
        self.job.held.unlink(missing_ok=True)
        self.starts += 1
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "scripts.chaosrun.pipeline.driver", self.job.to_json()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                start_new_session=True,
            )

    @property
    def was_killed(self) -> bool:
        """True if the driver was killed, or not started yet."""
        return self._process is None

    @property
    def exit_code(self) -> int | None:
        return None if self._process is None else self._process.poll()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def batches(self) -> int:
        """The number of batches that it reported, over all starts."""
        return len(self._told())

    def archived(self) -> set[str]:
        """The topics of these batches."""
        return {json.loads(line)["topic"] for line in self._told()}

    def kill(self) -> None:
        """Kill the whole process group at once: Python and Java."""
        if self._process is not None:
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def _told(self) -> list[str]:
        lines = self._log.read_text(errors="replace").splitlines(keepends=True) if self._log.exists() else []
        return [line for line in lines if line.startswith('{"topic": ') and line.endswith("}\n")]

    def last_words(self) -> str:
        return self._log.read_text(errors="replace")[-3000:] if self._log.exists() else ""


class Run:
    """One run on its stage."""

    def __init__(self, broker: KorvetServer, redis: Server, driver: Driver, seed: int, result: Archived) -> None:
        self._broker, self._redis, self._driver, self._result = broker, redis, driver, result
        self._chance = random.Random(seed)

    def strike(self, fault: Fault) -> None:
        """Let the fault happen while the archive works."""
        if self._driver.was_killed:
            self._driver.start()
        if fault not in ("write", "later write"):
            self._await_a_batch()
        {
            "driver": self._kill_driver,
            "write": self._kill_after_write,
            "later write": self._kill_after_later_write,
            "front-end": self._kill_frontend,
            "Redis": self._kill_redis,
            "workers": self._kill_workers,
        }[fault]()

    def finish(self, make_session: Callable[[], SparkSession]) -> None:
        """Archive the rest in this process, once the producers have ended."""
        self._driver.kill()
        job = _once(self._driver.job)
        job.hold.unlink(missing_ok=True)
        batches: list[ArchiveProgress] = []
        for _ in range(_LAST_TRIES):
            with writers_of(job):
                done = archive(make_session(), job.config, progress=batches.append)
            if not done.failed:
                break
            self._result.happened["archive ended by itself"] += 1
        else:
            raise ChaosError(f"the archive failed: {done.failed}")
        self._result.batches = self._driver.batches() + len(batches)

    def _kill_driver(self) -> None:
        time.sleep(self._chance.uniform(0, 3))
        self._driver.kill()
        self._result.happened["driver killed"] += 1

    def _kill_after_write(self) -> None:
        self._driver.job.hold.touch()
        self._until(self._driver.job.held.exists, "no batch is written")
        self._driver.kill()
        self._result.happened["driver killed between write and report"] += 1

    def _kill_after_later_write(self) -> None:
        self._until(lambda: self._driver.archived() == set(TOPICS), "the archive does nothing")
        self._kill_after_write()

    def _kill_frontend(self) -> None:
        self._broker.kill()
        time.sleep(self._chance.uniform(0, 2))
        self._broker.start()
        self._result.happened["front-end killed"] += 1

    def _kill_redis(self) -> None:
        self._redis.kill()
        time.sleep(self._chance.uniform(0, 2))
        self._redis.start()
        self._result.happened["Redis killed"] += 1

    def _kill_workers(self) -> None:
        """Kill the Python processes of Spark's tasks, as the kernel does if memory is short."""
        killed = 0
        for _ in range(_WORKERS_STRUCK):
            killed += len(kill_workers(self._driver.pid))
            time.sleep(self._chance.uniform(0, 1))
        self._result.happened["Python processes killed"] += killed

    def _await_a_batch(self) -> None:
        before = self._driver.batches()
        self._until(lambda: self._driver.batches() > before, "the archive does nothing")

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + WITHIN_S
        while not condition():
            if self._driver.exit_code is not None:
                self._result.happened["driver ended by itself"] += 1
                hold = self._driver.job.hold.exists()
                self._driver.start()
                if hold:
                    self._driver.job.hold.touch()
            if time.monotonic() > deadline:
                raise ChaosError(f"{what}:\n{self._driver.last_words()}")
            time.sleep(0.05)


def run_archive(
    *,
    source: Source,
    records: int,
    faults: tuple[Fault, ...],
    jars: str,
    directory: Path,
    spark: Callable[[], SparkSession],
    per_s: float = 50_000.0,
    most_offsets: int = 20_000,
    seed: int = 1,
    is_control: bool = False,
    kind: Kind = "valkey",
    report: Callable[[str], None] = lambda text: None,
) -> Archived:
    """Archive so many records while the faults happen in turn, and look at the tables.

    :param per_s: records that the producers send in a second.
    :param spark: makes the session that archives the rest and reads the tables; no driver runs then.
    """
    result = Archived(source=source, records=records, is_control=is_control)
    began = time.monotonic()
    with _stage(kind) as (redis, broker), ExitStack() as stack:
        scratch = directory / "scratch"
        scratch.mkdir(parents=True)
        job = Job(
            bootstrap=broker.bootstrap, lake=str(directory / "lake"), topics=TOPICS, source=source, jars=jars,
            scratch=str(scratch), most_offsets=most_offsets, every_s=0.5, is_control=is_control,
        )  # fmt: skip
        with Broker({"bootstrap.servers": broker.bootstrap}) as admin:
            for topic in TOPICS:
                admin.create_topic(topic, PARTITIONS, {})
        producers = [stack.enter_context(_producer(topic, broker, records, per_s, directory)) for topic in TOPICS]
        driver = Driver(job, directory / "driver.log")
        stack.callback(driver.kill)
        run = Run(broker, redis, driver, seed, result)
        for fault in faults:
            run.strike(fault)
            report(f"{result.did}; {driver.batches()} batches")
        for producer in producers:
            if producer.wait(THROUGH_S):
                raise ChaosError(f"a producer failed: {(directory / 'producers.log').read_text()[-2000:]}")
        report("all is produced")
        run.finish(spark)
    judge(spark(), Lake(job.lake), directory, result)
    result.seconds = time.monotonic() - began
    return result


_MISTAKES: Final = {
    "acknowledged, and not in the lake": "count = 0",
    "in the lake, and never acknowledged": "number IS NULL",
    "in the lake more than once": "count > 1",
    "with other contents, or in another topic's table": "is_other",
}
"""Conditions on an offset, by what is wrong with it."""


def judge(spark: SparkSession, lake: Lake, directory: Path, result: Archived) -> None:
    """Compare the tables with the producers' acknowledgements, in one query."""
    found = [F.count("number").alias("acknowledged"), F.count_distinct("number").alias("numbers")]
    found += [F.coalesce(F.expr("sum(greatest(count - 1, 0))"), F.lit(0)).alias("duplicates")]
    for what, condition in _MISTAKES.items():
        found.append(F.count_if(F.expr(condition)).alias(what))
        found.append(F.expr(f"max(IF({condition}, struct(partition, offset, count, number), NULL))").alias(f"a {what}"))
    by_topic = {row.topic: row for row in _offsets(spark, lake, directory).groupBy("topic").agg(*found).collect()}
    for topic in TOPICS:
        row = by_topic[topic]
        result.duplicates += row.duplicates
        for what in _MISTAKES:
            if row[what]:
                result.violations.append(f"{topic}: {what}: {row[what]:,}, as {row[f'a {what}']}")
        numbers = [row.acknowledged, row.numbers]
        if numbers != [result.records // 2] * 2:
            result.violations.append(f"{topic}: {numbers} acknowledged of {result.records // 2}")


def _offsets(spark: SparkSession, lake: Lake, directory: Path) -> DataFrame:
    """Each offset of the topics, with the number of its rows, its acknowledged number, and true if a row differs."""
    at = ["topic", "partition", "offset"]
    tables = [spark.read.format("delta").load(lake.raw(topic)).withColumn("table", F.lit(topic)) for topic in TOPICS]
    rows = functools.reduce(DataFrame.union, tables)
    acknowledged = spark.read.parquet(*(str(directory / f"{topic}.parquet") for topic in TOPICS))
    number = F.col("number").cast("string")
    value = F.concat(number, F.lit(f":{FILLER}"), (F.col("number") * SPREAD).cast("string")).cast("binary")
    is_other = (
        (F.col("table") != F.col("topic"))
        | ~F.col("value").eqNullSafe(value)
        | ~F.col("key").eqNullSafe(F.concat(F.lit("key "), number).cast("binary"))
        | ~F.col("headers")[0]["value"].eqNullSafe(number.cast("binary"))
    )
    both = rows.withColumn("is_row", F.lit(True)).join(acknowledged, at, "full_outer")
    both = both.withColumn("is_other", F.col("is_row") & F.col("number").isNotNull() & is_other)
    counts = (F.count("is_row").alias("count"), F.first("number").alias("number"))
    return both.groupBy(*at).agg(*counts, F.coalesce(F.bool_or("is_other"), F.lit(False)).alias("is_other"))


@contextmanager
def _stage(kind: Kind) -> Iterator[tuple[Server, KorvetServer]]:
    """A Redis that loses nothing, and a front-end."""
    with ExitStack() as stack:
        data = stack.enter_context(tempfile.TemporaryDirectory(prefix="kv", dir=MEMORY if MEMORY.is_dir() else None))
        redis = stack.enter_context(running_server(kind, options=DURABLE, directory=Path(data)))
        yield redis, stack.enter_context(running_broker(redis_url=redis.url))


@contextmanager
def _producer(
    topic: str, broker: KorvetServer, records: int, per_s: float, directory: Path
) -> Iterator[subprocess.Popen[bytes]]:
    middle = records // 2
    numbers = {PLAIN: (0, middle), TRANSACTED: (middle, 2 * middle)}[topic]
    job: dict[str, Any] = {
        "topic": topic,
        "bootstrap": broker.bootstrap,
        "numbers": numbers,
        "per_s": per_s / 2,
        "acknowledged": str(directory / f"{topic}.parquet"),
    }
    with open(directory / "producers.log", "ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "scripts.chaosrun.pipeline.producing", json.dumps(job)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _once(job: Job) -> Job:
    """The same job, which archives the records at hand and ends."""
    fields = json.loads(job.to_json())
    return Job.from_json(json.dumps({**fields, "every_s": None, "most_offsets": 10_000_000}))


def spark_jars() -> str:
    """Delta and the stock Kafka connector, for the setting spark.jars."""
    found = fetch_dependencies(ROOT / "tests" / "pipeline" / "spark-pom.xml", ROOT / ".cache" / "spark-4.2.0-jars")
    return ",".join(sorted(str(path) for path in found.glob("*.jar")))


def keep_archives(
    *,
    sources: Sequence[Source],
    records: int,
    seed: int,
    kind: Kind,
    directory: Path | None,
    report: Callable[[str], None],
) -> list[Archived]:
    """Run the whole matrix for each source, with its control.

    :param directory: keeps tables and logs; None deletes them.
    """
    jars = spark_jars()
    found = []
    with ExitStack() as stack:
        directory = directory or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kv")))
        for source in sources:
            for is_control in (True, False):
                name = f"{source}{', control' if is_control else ''}"
                report(f"archive with source {name}")
                run = run_archive(
                    source=source,
                    records=_CONTROL_RECORDS if is_control else records,
                    faults=CONTROL if is_control else FULL,
                    jars=jars,
                    directory=directory / name.replace(", ", "-"),
                    spark=lambda: _session(jars),
                    per_s=_RECORDS_PER_S,
                    seed=seed,
                    is_control=is_control,
                    kind=kind,
                    report=report,
                )
                report(f"{run.records:,} records, {run.did}: {run.duplicates:,} duplicates, {run.violations}")
                found.append(run)
        if (session := SparkSession.getActiveSession()) is not None:
            session.stop()
    return found


def _session(jars: str) -> SparkSession:
    settings = {"spark.jars": jars, "spark.driver.memory": "1g", "spark.log.level": "ERROR"}
    return make_session("archive under chaos", "local[2]", settings)
