"""Rows a second between topics and a lake: korvet's source, archive, replay and sink against Spark's stock connector.

Both run in one Spark on this machine, with a thread for each processor, against one korvet broker on the same machine.
A topic has four partitions. The steps are:

- read: every column of the whole topic, thrown away.
- archive: `korvet pipeline archive` into an empty lake, its source once format("korvet") and once format("kafka").
- cold: the same, as the first work of a new Spark in a process of its own, without the start of that Spark.
- replay: `korvet pipeline replay`, which writes exactly once and in order, against the table written by
  format("kafka"), which does neither.
- ordered: replay, against format("kafka") on rows that Spark sorted before, so that a partition keeps its order.
- sink: a stream of the archived table into a topic, by format("korvet") with the option exactlyOnce=partition, and by
  format("kafka"), which writes at least once.
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
from pyspark.sql.functions import col, lit

from korvet.pipeline.archive import ArchiveConfig, archive
from korvet.pipeline.broker import Broker
from korvet.pipeline.lake import Lake
from korvet.pipeline.replay import ReplayConfig
from korvet.pipeline.replay.run import replay
from korvet.pipeline.session import make_session
from scripts.benchmark import cold
from scripts.benchmark.cold import PipelineFailed, session_settings
from scripts.benchmark.measures import PIPELINE_WAYS, Measure
from scripts.benchmark.rounds import Values, round_name
from scripts.benchmark.targets import Target

PARTITIONS: Final = 4
SOURCES: Final[Mapping[str, Literal["korvet", "kafka"]]] = {"korvet": "korvet", "stock": "kafka"}


@contextmanager
def spark_session(directory: Path) -> Iterator[SparkSession]:
    """A Spark in this machine with Delta and the stock connector, its files in `directory`."""
    spark = make_session("bench", settings=session_settings(directory))
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
            while not self._queued():
                self._producer.poll(0.1)
            self.sent += 1
        self._producer.poll(0)

    def flush(self) -> None:
        """Wait until all sent records are acknowledged. Raises PipelineFailed."""
        if left := self._producer.flush(120):
            raise PipelineFailed(f"{left} of {self.sent} records were not acknowledged")

    def value(self, number: int) -> bytes:
        """The value of a record."""
        return number.to_bytes(8) + self._padding

    def _queued(self) -> bool:
        partition, key = self.sent % PARTITIONS, self.sent.to_bytes(8)
        try:
            self._producer.produce(self._topic, value=self.value(self.sent), key=key, partition=partition)
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
        return {
            "read": self.read, "archive": self.archive, "cold": self.cold, "replay": self.replay,
            "ordered": self.ordered, "sink": self.sink,
        }  # fmt: skip

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

    def cold(self, way: str) -> float:
        """Rows a second into an empty lake, in a process of its own."""
        lake = self.directory / "cold"
        shutil.rmtree(lake, ignore_errors=True)
        spent = cold.archived(self.target.address, self.topic, lake, SOURCES[way])
        self._check(self.spark.read.format("delta").load(Lake(str(lake)).raw(self.topic)).count(), f"cold, {way}")
        return self.records / spent["archive_s"]

    def replay(self, way: str) -> float:
        """Rows a second from the lake into a new topic."""
        return self._written(self._replay if way == "korvet" else self._write, f"replay, {way}")

    def ordered(self, way: str) -> float:
        """As `replay`, with each partition in order either way."""
        return self._written(self._replay if way == "korvet" else self._write_ordered, f"ordered, {way}")

    def sink(self, way: str) -> float:
        """Rows a second of a stream from the lake into a new topic."""
        return self._written(lambda to: self._stream(way, to), f"sink, {way}")

    def _written(self, write: Callable[[str], None], what: str) -> float:
        to = f"{self.topic}-{time.monotonic_ns()}"
        with Broker({"bootstrap.servers": self.target.address}) as broker:
            broker.create_topic(to, PARTITIONS, {})
        rate = self._rate(lambda: write(to))
        self._check(self._reader("stock", to).count(), what)
        self.target.delete_topic(to)
        return rate

    def _reader(self, way: str, topic: str) -> DataFrame:
        options = {"kafka.bootstrap.servers": self.target.address, "subscribe": topic, "includeHeaders": "true"}
        return self.spark.read.format(SOURCES[way]).options(**options).load()

    def _replay(self, to: str) -> None:
        lake, address = self._lake("korvet"), self.target.address
        replay(self.spark, ReplayConfig(bootstrap_servers=address, lake=lake, topic=self.topic, to=to))

    def _write(self, to: str) -> None:
        self._write_rows(self._rows(), to)

    def _write_ordered(self, to: str) -> None:
        self._write_rows(self._rows().repartitionById(PARTITIONS, col("partition")).sortWithinPartitions("offset"), to)

    def _rows(self) -> DataFrame:
        return self.spark.read.format("delta").load(self._table("stock"))

    def _write_rows(self, rows: DataFrame, to: str) -> None:
        options = {"kafka.bootstrap.servers": self.target.address, "includeHeaders": "true"}
        _records(rows, to).write.format("kafka").options(**options).save()

    def _stream(self, way: str, to: str) -> None:
        rows = self.spark.readStream.format("delta").load(self._table("stock"))
        options = {
            "kafka.bootstrap.servers": self.target.address, "includeHeaders": "true", "exactlyOnce": "partition",
            "checkpointLocation": str(self.directory / f"checkpoint-{to}"),
        }  # fmt: skip
        writer = _records(rows, to).writeStream.format(SOURCES[way]).options(**options).trigger(availableNow=True)
        writer.start().awaitTermination()

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


def _records(rows: DataFrame, to: str) -> DataFrame:
    return rows.select("key", "value", "headers", "partition", "timestamp").withColumn("topic", lit(to))


def fill(target: Target, topic: str, sender: Sender, records: int) -> None:
    """Create a topic, and send it records."""
    with Broker({"bootstrap.servers": target.address}) as broker:
        broker.create_topic(topic, PARTITIONS, {})
    sender.send(records)
    sender.flush()


def run(
    spark: SparkSession,
    target: Target,
    directory: Path,
    measures: Sequence[Measure],
    records: int,
    rounds: int,
    warm_up: int,
    report: Callable[[str], None],
) -> Values:
    """Measure every step with every source at a broker.

    :param warm_up: the uncounted rounds first, while Java still compiles.
    :raises PipelineFailed: if not all records came through.
    """
    results: Values = defaultdict(lambda: defaultdict(list))
    for measure in measures:
        fill(target, measure.name, Sender(target.address, measure.name, measure.value_bytes), records)
        bench = Bench(spark=spark, target=target, topic=measure.name, records=records, directory=directory)
        steps = bench.steps()
        chosen = [line.key for line in measure.lines]
        if "archive" not in chosen and {"replay", "ordered", "sink"} & {*chosen}:
            for way in PIPELINE_WAYS:
                bench.archive(way)
        for number in range(1 - warm_up, rounds + 1):
            counts = number > 0
            report(f"{measure.name}: {round_name(number, rounds, warm_up)}")
            for line, way in product(measure.lines, PIPELINE_WAYS if number % 2 else PIPELINE_WAYS[::-1]):
                if line.key == "cold" and not counts:
                    # It is never warm.
                    continue
                rate = steps[line.key](way)
                if counts:
                    results[measure.name, line.key][way].append(rate)
        target.delete_topic(measure.name)
    return results
