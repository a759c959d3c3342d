"""Rows a second between topics and a lake: korvet's source, archive and replay against Spark's stock Kafka connector.

Both run in one Spark on this machine, with a thread for each processor, against one korvet broker on the same machine.
A topic has four partitions. The steps are:

- read: every column of the whole topic, thrown away.
- archive: `korvet pipeline archive` into an empty lake, its source once format("korvet") and once format("kafka").
- replay: `korvet pipeline replay`, which writes exactly once and in order, against the table written by
  format("kafka"), which does neither.
"""

import os
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Final, Literal

import confluent_kafka
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit

from korvet.pipeline.archive import ArchiveConfig, archive
from korvet.pipeline.broker import Broker
from korvet.pipeline.lake import Lake
from korvet.pipeline.replay import ReplayConfig, replay
from korvet.pipeline.session import make_session
from scripts.benchmark.measures import PIPELINE_WAYS, Measure
from scripts.benchmark.rounds import Values
from scripts.benchmark.targets import Target
from tests.pipeline.conftest import JARS, POM
from tests.support.kafka import fetch_dependencies

PARTITIONS: Final = 4
SOURCES: Final[Mapping[str, Literal["korvet", "kafka"]]] = {"korvet": "korvet", "stock": "kafka"}


class PipelineFailed(RuntimeError):
    """Not all records came through."""


@contextmanager
def spark_session(directory: Path) -> Iterator[SparkSession]:
    """A Spark in this machine with Delta and the stock connector, its files in `directory`."""
    settings = {
        "spark.jars": ",".join(str(path) for path in sorted(fetch_dependencies(POM, JARS).glob("*.jar"))),
        "spark.driver.memory": "2g",
        "spark.local.dir": str(directory / "spark"),
        "spark.sql.session.timeZone": "UTC",
    }
    spark = make_session("bench", settings=settings)
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


class Sender:
    """A producer of numbered records, spread over a topic's partitions; a number leads each value."""

    def __init__(self, address: str, topic: str, value_bytes: int) -> None:
        settings = {"bootstrap.servers": address, "linger.ms": 50, "enable.idempotence": True}
        self._producer = confluent_kafka.Producer(settings)
        self._topic = topic
        self._padding = os.urandom(value_bytes - 8)
        self.sent = 0

    def send(self, count: int) -> None:
        """Queue the next records; waits while the queue is full."""
        for _ in range(count):
            number = self.sent.to_bytes(8)
            while not self._queued(number):
                self._producer.poll(0.1)
            self.sent += 1
        self._producer.poll(0)

    def flush(self) -> None:
        """Wait until all sent records are acknowledged. Raises PipelineFailed."""
        if left := self._producer.flush(120):
            raise PipelineFailed(f"{left} of {self.sent} records were not acknowledged")

    def _queued(self, number: bytes) -> bool:
        partition = self.sent % PARTITIONS
        try:
            self._producer.produce(self._topic, value=number + self._padding, key=number, partition=partition)
        except BufferError:
            return False
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """One topic of `records` records of `value_bytes` at a broker, and a directory for lakes."""

    spark: SparkSession
    target: Target
    topic: str
    records: int
    directory: Path

    def steps(self) -> dict[str, Callable[[str], float]]:
        """The steps, by name; each needs the one before it."""
        return {"read": self.read, "archive": self.archive, "replay": self.replay}

    def read(self, way: str) -> float:
        """Rows a second out of the topic."""
        rows = self._reader(way, self.topic)
        return self._rate(lambda: rows.write.format("noop").mode("overwrite").save())

    def archive(self, way: str) -> float:
        """Rows a second into an empty lake, which `replay` reads afterwards."""
        shutil.rmtree(self._lake(way), ignore_errors=True)
        config = ArchiveConfig(
            bootstrap_servers=self.target.address, topics=(self.topic,), lake=self._lake(way), source=SOURCES[way]
        )
        rate = self._rate(lambda: archive(self.spark, config))
        self._check(self.spark.read.format("delta").load(self._table(way)).count(), f"archive, {way}")
        return rate

    def replay(self, way: str) -> float:
        """Rows a second from the lake into a new topic."""
        replayed = f"{self.topic}-{way}-{time.monotonic_ns()}"
        with Broker({"bootstrap.servers": self.target.address}) as broker:
            broker.create_topic(replayed, PARTITIONS, {})
        write = self._replay if way == "korvet" else self._write
        rate = self._rate(lambda: write(replayed))
        self._check(self._reader("stock", replayed).count(), f"replay, {way}")
        self.target.delete_topic(replayed)
        return rate

    def _reader(self, way: str, topic: str) -> DataFrame:
        options = {"kafka.bootstrap.servers": self.target.address, "subscribe": topic, "includeHeaders": "true"}
        return self.spark.read.format(SOURCES[way]).options(**options).load()

    def _replay(self, to: str) -> None:
        lake, address = self._lake("korvet"), self.target.address
        replay(self.spark, ReplayConfig(bootstrap_servers=address, lake=lake, topic=self.topic, to=to))

    def _write(self, to: str) -> None:
        rows = self.spark.read.format("delta").load(self._table("stock"))
        rows = rows.select("key", "value", "headers", "partition", "timestamp").withColumn("topic", lit(to))
        options = {"kafka.bootstrap.servers": self.target.address, "includeHeaders": "true"}
        rows.write.format("kafka").options(**options).save()

    def _lake(self, way: str) -> str:
        return str(self.directory / way)

    def _table(self, way: str) -> str:
        return Lake(self._lake(way)).raw(self.topic)

    def _rate(self, run: Callable[[], object]) -> float:
        started = time.perf_counter()
        run()
        return self.records / (time.perf_counter() - started)

    def _check(self, found: int, what: str) -> None:
        if found != self.records:
            raise PipelineFailed(f"{what}: {found} of {self.records} records came through")


def run(
    spark: SparkSession,
    target: Target,
    directory: Path,
    measures: Sequence[Measure],
    records: int,
    rounds: int,
    tell: Callable[[str], None],
) -> Values:
    """Measure every step with every source at a broker; round 0 warms up and is not counted.

    :raises PipelineFailed: if not all records came through.
    """
    results: Values = defaultdict(lambda: defaultdict(list))
    with Broker({"bootstrap.servers": target.address}) as broker:
        for measure in measures:
            broker.create_topic(measure.name, PARTITIONS, {})
            sender = Sender(target.address, measure.name, measure.value_bytes)
            sender.send(records)
            sender.flush()
            bench = Bench(spark=spark, target=target, topic=measure.name, records=records, directory=directory)
            steps = bench.steps()
            chosen = [line.key for line in measure.lines]
            if "replay" in chosen and "archive" not in chosen:
                for way in PIPELINE_WAYS:
                    bench.archive(way)
            for number in range(rounds + 1):
                tell(f"{measure.name}: round {number} of {rounds}{' (warming up)' if number == 0 else ''}")
                for line, way in product(measure.lines, PIPELINE_WAYS if number % 2 else PIPELINE_WAYS[::-1]):
                    rate = steps[line.key](way)
                    if number:
                        results[measure.name, line.key][way].append(rate)
            target.delete_topic(measure.name)
    return results
