"""A driver that a test kills: its streams into topics stop at the points that the test names.

Run as ``python -m tests.pipeline.sink_driver DIRECTORY BOOTSTRAP JARS QUERIES``. If the directory has a
file ``hold-POINT``, the driver makes a file ``held-POINT`` there, and waits for its end.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from korvet.pipeline.session import make_session
from korvet.pipeline.sink.writer import StreamWriter, Written, stream_writer
from korvet.pipeline.source import KorvetDataSource
from tests.pipeline.queries import tried_again

HELD_S = 280.0
BEGUN_WITHIN_S = 120.0


def start_query(
    spark: SparkSession, name: str, sink: str, directory: str, bootstrap: str, *, source: str = "", **options: str
) -> StreamingQuery:
    """Write a batch of a hundred numbers to topic NAME: one task writes the even ones to one partition.

    :param source: ``FORMAT:TOPIC``, such as ``kafka:TOPIC``: take its values instead, each to its partition.
    """
    brokers = {"kafka.bootstrap.servers": bootstrap}
    reader = spark.readStream.format("rate-micro-batch").options(rowsPerBatch="100", numPartitions="2")
    columns = ("cast(value as string) as value", "cast(value % 2 as int) as partition")
    if source:
        kind, _, topic = source.partition(":")
        reader = spark.readStream.format(kind).options(**brokers, subscribe=topic, startingOffsets="earliest")
        columns = ("value", "partition")
    writer = reader.load().selectExpr(*columns).writeStream.format(sink)
    writer = writer.options(**brokers, topic=name, **options, directory=directory)
    checkpoint = f"{directory}/checkpoint-{name}"
    return writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()


def begin_query(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Start a query, and wait until it has its source."""
    query = start()
    deadline = time.monotonic() + BEGUN_WITHIN_S
    while query.isActive and query.status["message"].startswith("Initializing"):
        if time.monotonic() > deadline:
            raise TimeoutError(f"query {query.id} has no source after {BEGUN_WITHIN_S:g} s")
        time.sleep(0.05)
    if (error := query.exception()) is not None:
        raise error
    return query


def hold(directory: str, point: str) -> None:
    if Path(directory, f"hold-{point}").exists():
        Path(directory, f"held-{point}").touch()
        time.sleep(HELD_S)


class HeldWriter(StreamWriter):
    """The sink's writer, held behind a task's first rows, and between the last task and Spark's log."""

    def __init__(self, writer: StreamWriter, name: str, directory: str) -> None:
        super().__init__(writer._plan)
        self._name = name
        self._directory = directory

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return super().write(self._held(iterator))

    def _held(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        for batch in batches:
            yield batch
            hold(self._directory, f"{self._name}-{context.partitionId()}")

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        hold(self._directory, f"{self._name}-commit")


class HeldDataSource(KorvetDataSource):
    @classmethod
    def name(cls) -> str:
        return "held"

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        writer = stream_writer(self.options, schema, overwrite)
        return HeldWriter(writer, self.options["topic"], self.options["directory"])


def main(directory: str, bootstrap: str, jars: str, queries: str) -> None:
    options: dict[str, dict[str, str]] = json.loads(queries)
    settings = {
        "spark.jars": jars,
        "spark.driver.memory": "1g",
        "spark.sql.warehouse.dir": f"{directory}/warehouse",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10",
    }
    # Held tasks leave cores for the others.
    spark = make_session("killed", f"local[{2 * len(options)}]", settings)
    spark.dataSource.register(HeldDataSource)
    started = []
    # The ones whose source is a Python process begin before tasks of others keep the machine busy.
    for name in sorted(options, key=lambda name: not options[name].get("source", "").startswith("korvet:")):
        start = partial(start_query, spark, name, "held", directory, bootstrap, **options[name])
        started.append(tried_again(partial(begin_query, start)))
    for query in started:
        query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
