"""A driver of Spark with an archive, for a run to kill: one process group with its Java virtual machine.

The driver prints each batch on stdout, as a line of JSON. While the job's file ``hold`` is there, it stops after the
next batch, before it reports the batch to the broker. Then it makes the file ``held``, and waits for its end.
"""

import json
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self
from unittest.mock import patch

from pyspark.sql import DataFrame

from korvet.pipeline.archive import ArchiveConfig, ArchiveProgress, archive, topic
from korvet.pipeline.archive import batch as batches
from korvet.pipeline.archive.batch import TopicWriter
from korvet.pipeline.lake import read_proven
from korvet.pipeline.lake.table import Table
from korvet.pipeline.plan.proofs import Proven
from korvet.pipeline.reported import ARCHIVE_GROUP
from korvet.pipeline.session import make_session

HELD_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The driver's work. ``is_control``: without the application's transactions."""

    bootstrap: str
    lake: str
    topics: tuple[str, ...]
    source: Literal["korvet", "kafka"]
    jars: str
    scratch: str
    most_offsets: int
    every_s: float | None
    is_control: bool

    @property
    def config(self) -> ArchiveConfig:
        return ArchiveConfig(
            bootstrap_servers=self.bootstrap,
            lake=self.lake,
            topics=self.topics,
            source=self.source,
            every_s=self.every_s,
            max_offsets_per_trigger=self.most_offsets,
        )

    @property
    def hold(self) -> Path:
        return Path(self.scratch) / "hold"

    @property
    def held(self) -> Path:
        return Path(self.scratch) / "held"

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        values: dict[str, Any] = json.loads(text)
        return cls(**{**values, "topics": tuple(values["topics"])})


class Careless(Table):
    """Writes all rows that it gets, without a claim."""

    def claim(self, topic: str, topic_id: str, checkpoint: str) -> None:
        pass

    def append(self, rows: DataFrame, proven: Proven) -> int:
        proven = replace(proven, generation=1)
        rows.write.format("delta").mode("append").partitionBy("date").option("userMetadata", proven.to_json()).save(
            self.path
        )
        self.proven = read_proven(self._spark, self.path)
        return 0 if self.proven is None else self.proven.rows


class Holding(TopicWriter):
    """Waits for its end after a written batch, if the job wants it."""

    job: Job
    _is_writing = False

    def write(self, wanted: Mapping[int, int]) -> ArchiveProgress | None:
        self._is_writing = True
        return super().write(wanted)

    def report(self) -> None:
        if self._is_writing and self.job.hold.exists():
            self.job.held.touch()
            time.sleep(HELD_S)
        super().report()


class CarelessWriter(Holding):
    """Begins where the last report was, whatever the table has."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        values = self._broker.committed(ARCHIVE_GROUP)
        self._told = {number: at.offset for (name, number), at in values.items() if name == self._topic.name}
        self._first = self.proven

    def _position(self, number: int) -> int:
        return self._told.get(number, 0) if self.proven is self._first else super()._position(number)


@contextmanager
def writers_of(job: Job) -> Iterator[None]:
    """Have archives of this process write as the job wants it."""
    Holding.job = job
    stand_ins: list[tuple[Any, str, Any]] = [(topic, "TopicWriter", CarelessWriter if job.is_control else Holding)]
    if job.is_control:
        stand_ins.append((batches, "Table", Careless))
    with ExitStack() as stack:
        for module, name, stand_in in stand_ins:
            stack.enter_context(patch.object(module, name, stand_in))
        yield


def _report(values: Mapping[str, object]) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def _report_batch(values: ArchiveProgress) -> None:
    _report(asdict(values))


def main() -> None:
    job = Job.from_json(sys.argv[1])
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stop.set())
    settings = {
        "spark.jars": job.jars,
        "spark.driver.memory": "1g",
        "spark.local.dir": f"{job.scratch}/local",
        "spark.sql.warehouse.dir": f"{job.scratch}/warehouse",
        "spark.log.level": "ERROR",
    }
    spark = make_session("archive under chaos", "local[2]", settings)
    with writers_of(job):
        result = archive(spark, job.config, stop=stop, progress=_report_batch)
    spark.stop()
    failed = {name: str(error) for name, error in result.failed.items()}
    if failed:
        _report({"failed": failed})
        raise SystemExit(1)


if __name__ == "__main__":
    main()
