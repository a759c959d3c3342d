"""A topic and its lake, for tests of archives."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import Row, SparkSession

from korvet.pipeline.archive import ArchiveConfig, ArchiveResult, archive
from korvet.pipeline.broker import Broker
from korvet.pipeline.lake import Lake, read_proven
from korvet.pipeline.lake.files import java_class
from korvet.pipeline.plan.proofs import Proven
from korvet.pipeline.reported import ARCHIVE_GROUP
from korvet.pipeline.retype import RetypeConfig, RetypeResult, retype
from tests.support.delta import delta_rows

Source = Literal["korvet", "kafka"]
WITHIN_S = 300.0
CLAIM = 1
"""The version of a table that the second archive claimed."""


class Scene:
    """A topic and a lake, with the steps of the tests."""

    def __init__(self, spark: SparkSession, bootstrap: str, topic: str, directory: Path) -> None:
        self.spark, self.bootstrap, self.topic, self.directory = spark, bootstrap, topic, directory
        self.lake = Lake(str(directory / "lake"))
        self.settings: dict[str, Any] = {"bootstrap.servers": bootstrap, "log_level": 0}

    @classmethod
    def of(cls, spark: SparkSession, bootstrap: str, test: str, directory: Path) -> Scene:
        """The scene of a test, by whose name its topic is called."""
        return cls(spark, bootstrap, "archive." + "".join(each if each.isalnum() else "-" for each in test), directory)

    def create(self, partitions: int = 2, **settings: str) -> None:
        with Broker(self.settings) as broker:
            assert broker.create_topic(self.topic, partitions, settings)

    def produce(self, values: Sequence[bytes | None], *, partition: int = 0, key: bytes = b"key") -> None:
        producer = Producer(self.settings)
        for value in values:
            producer.produce(self.topic, value, key, partition=partition, headers=[("a", b"1"), ("b", None)])
        assert producer.flush(WITHIN_S) == 0

    def archive(self, *, stop: threading.Event | None = None, **told: Any) -> ArchiveResult:
        given = {"bootstrap_servers": self.bootstrap, "lake": self.lake.location, "topics": (self.topic,), **told}
        return archive(self.spark, ArchiveConfig(**given), stop=stop)

    @contextmanager
    def running(self, **told: Any) -> Iterator[list[ArchiveResult]]:
        """An archive beside the block, with a batch each 0.2 s. Its result is in the list once it has ended."""
        stop, results = threading.Event(), list[ArchiveResult]()
        thread = threading.Thread(target=lambda: results.append(self.archive(every_s=0.2, stop=stop, **told)))
        thread.start()
        try:
            yield results
        finally:
            stop.set()
            thread.join(WITHIN_S)
            assert not thread.is_alive()

    def archive_error(self, **told: Any) -> str:
        return str(self.archive(**told).failed[self.topic])

    def retype(self, schema: str) -> RetypeResult:
        location = self.lake.location
        return retype(
            self.spark,
            RetypeConfig(bootstrap_servers=self.bootstrap, lake=location, topic=self.topic, schema=schema),
        )

    def rows(self) -> list[Row]:
        """The raw records, by partition and offset."""
        return sorted(delta_rows(self.spark, self.lake.raw(self.topic)), key=lambda row: (row.partition, row.offset))

    def typed(self) -> list[Row]:
        """The typed rows, by partition and offset."""
        rows = delta_rows(self.spark, self.lake.typed(self.topic))
        return sorted(rows, key=lambda row: (row["_partition"], row["_offset"]))

    def dead_letters(self) -> list[Row]:
        """The dead letters, by partition and offset."""
        rows = delta_rows(self.spark, self.lake.dead_letters(self.topic))
        return sorted(rows, key=lambda row: (row.partition, row.offset))

    def values(self) -> list[bytes]:
        return [row["value"] for row in self.rows()]

    def reported(self) -> dict[int, int]:
        with Broker(self.settings) as broker:
            told = broker.committed(ARCHIVE_GROUP)
        return {number: position.offset for (topic, number), position in told.items() if topic == self.topic}

    @property
    def proven(self) -> Proven:
        """The raw table's proof."""
        proven = read_proven(self.spark, self.lake.raw(self.topic))
        assert proven is not None
        return proven

    def trim(self, offset: int, *, partition: int = 0) -> None:
        admin = AdminClient(self.settings)
        for future in admin.delete_records([TopicPartition(self.topic, partition, offset)]).values():
            future.result()

    def forget(self, table: str, version: int) -> None:
        """Leave the table as a driver leaves it that dies before it commits a later version."""
        for file in Path(table, "_delta_log").iterdir():
            number = file.name.lstrip(".")[:20]
            if number.isdigit() and int(number) > version:
                file.unlink()
        java_class(self.spark, "org.apache.spark.sql.delta.DeltaLog").clearCache()


def numbered(*numbers: int) -> list[bytes | None]:
    return [b"%d" % number for number in numbers]


def schema_of(**members: Any) -> str:
    return json.dumps({"type": "object", "properties": members, "required": [*members]})


def until(condition: Callable[[], bool]) -> None:
    pause, deadline = threading.Event(), WITHIN_S / 0.1
    while not condition():
        assert deadline > 0, "it did not come to that"
        deadline -= 1
        pause.wait(0.1)
