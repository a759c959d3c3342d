"""`df.writeStream.format("korvet")` writes exactly once, over kills of the driver anywhere."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from itertools import chain
from pathlib import Path

from pyspark.sql import SparkSession

from tests.pipeline.queries import tried_again
from tests.pipeline.sink_driver import start_query
from tests.pipeline.sourcing import create, produce
from tests.pipeline.written import create_topic, read_topic
from tests.support.broker import ROOT, KorvetServer

WITHIN_S = 240


def numbers(bootstrap: str, topic: str, partitions: int = 2) -> list[list[int]]:
    """The numbers in each partition, in order."""
    found: list[list[int]] = [[] for _ in range(partitions)]
    for one in read_topic(bootstrap, topic):
        found[one.partition].append(int(one.value or b""))
    return found


def produce_numbers(broker: KorvetServer, topic: str, first: int) -> None:
    """Produce the next 99 numbers; the remainder by three chooses the partition."""
    for partition in range(3):
        values = [str(number).encode() for number in range(first + partition, first + 99, 3)]
        produce(broker, topic, values, partition=partition)


def kill_where_held(
    directory: Path,
    broker: KorvetServer,
    jars: str,
    queries: Mapping[str, Mapping[str, str]],
    points: Collection[str],
    until: Callable[[], object],
) -> None:
    """Run the queries in a driver until they are held at all points and ``until`` is true; then kill its processes."""
    for point in points:
        (directory / f"hold-{point}").touch()
    command = [sys.executable, "-m", "tests.pipeline.sink_driver", str(directory), broker.bootstrap, jars]
    log = directory / "driver.log"
    with log.open("wb") as output:
        driver = subprocess.Popen(
            [*command, json.dumps(queries)], stdout=output, stderr=output, cwd=ROOT, start_new_session=True
        )
    deadline = time.monotonic() + WITHIN_S
    try:
        while not (all((directory / f"held-{point}").exists() for point in points) and until()):
            assert driver.poll() is None and time.monotonic() < deadline, log.read_text()[-4000:]
            time.sleep(0.05)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()


def run_to_its_end(spark: SparkSession, name: str, directory: Path, broker: KorvetServer, **options: str) -> None:
    def run() -> None:
        query = start_query(spark, name, "korvet", str(directory), broker.bootstrap, **options)
        try:
            assert query.awaitTermination(WITHIN_S)
        finally:
            query.stop()

    tried_again(run)


def test_stream_writes_every_row_once_over_kills_of_the_driver(
    spark: SparkSession, spark_jars: str, broker: KorvetServer, tmp_path: Path
) -> None:
    """Kill the driver in all tasks, after some of them, and between all of them and Spark's log of the batch."""
    queries: dict[str, dict[str, str]] = {
        create_topic(broker.bootstrap, f"sink-kill-{name}"): {} for name in ("middle", "control")
    }
    middle, control = queries
    queries[control] = {"exactlyOnce": "false"}
    # Spark's own source numbers the three tasks otherwise after a restart.
    taken = "sink-kill-taken"
    create(broker, taken, 3)
    produce_numbers(broker, taken, 0)
    copies = {
        create_topic(broker.bootstrap, f"sink-kill-{source}-{name}", 3): {"source": f"{source}:{taken}"}
        for source, name in (("kafka", "between"), ("kafka", "behind"), ("korvet", "between"), ("korvet", "fenced"))
    }
    kafka_between, kafka_behind, korvet_between, korvet_fenced = copies
    copies[korvet_fenced]["exactlyOnce"] = "partition"

    def are_as_far_as_can_be() -> bool:
        stored = read_topic(broker.bootstrap, middle, committed_only=False)
        held = (kafka_between, korvet_between, korvet_fenced)
        copied = [sum(map(bool, numbers(broker.bootstrap, name, 3))) for name in held]
        return bool(stored) and copied == [2, 2, 2]

    points = [f"{middle}-0", f"{middle}-1", f"{control}-commit"]
    points += [f"{kafka_between}-1", f"{kafka_behind}-commit", f"{korvet_between}-1", f"{korvet_fenced}-1"]
    kill_where_held(tmp_path, broker, spark_jars, queries | copies, points, are_as_far_as_can_be)
    first, second = list(range(0, 100, 2)), list(range(1, 100, 2))
    assert numbers(broker.bootstrap, middle) == [[], []]
    assert numbers(broker.bootstrap, kafka_behind, 3) == [list(range(partition, 99, 3)) for partition in range(3)]

    produce_numbers(broker, taken, 99)
    for name, options in (queries | copies).items():
        run_to_its_end(spark, name, tmp_path, broker, **options)
    evens, odds = numbers(broker.bootstrap, middle)
    assert evens[:50] == first and evens == list(range(0, 2 * len(evens), 2))
    assert odds[:50] == second and odds == list(range(1, 2 * len(odds), 2))
    for name in copies:
        assert numbers(broker.bootstrap, name, 3) == [list(range(partition, 198, 3)) for partition in range(3)]
    # The control shows the duplicates that the others avoid.
    seen = Counter(chain(*numbers(broker.bootstrap, control)))
    assert {number for number, times in seen.items() if times == 2} == set(range(100))
