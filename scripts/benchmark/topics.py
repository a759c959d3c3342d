"""The memory of an archive of many topics.

It is the proportional set size of Java and of all Python processes, sampled each second: in the first batch of each
topic, at rest, and in a later batch of each topic.
"""

import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import confluent_kafka

from korvet.pipeline.broker import Broker
from scripts.benchmark import targets
from scripts.benchmark.cold import PipelineFailed, session_settings
from scripts.benchmark.day import archiving
from scripts.benchmark.processes import proportional_mb
from tests.support.ports import free_port
from tests.support.scraping import scrape, total

RESTS_S: Final = 120.0
EVERY: Final = "10s"
PARTITIONS: Final = 2
RECORDS_EACH: Final = 100
VALUE_BYTES: Final = 200
_SAMPLED_EVERY_S: Final = 1.0
_HANGS_S: Final = 3600.0


class Cost(NamedTuple):
    """The highest memory in MB of each phase."""

    topics: int
    heap: str
    first_mb: float
    rest_mb: float
    later_mb: float

    def line(self) -> str:
        """The figures as text."""
        return (
            f"{self.topics} topics, heap {self.heap}: {self.first_mb:.0f} MB in first batches, {self.rest_mb:.0f} at "
            f"rest, {self.later_mb:.0f} in later batches"
        )


def run(
    directory: Path, topics: int, heap: str, report: Callable[[str], None], rests_s: float = RESTS_S, every: str = EVERY
) -> Cost:
    """Run an archive with a number of topics and with a given heap of Java.

    :raises PipelineFailed: if the archive ends, hangs, or does not end in order.
    """
    names = [f"many-{number}" for number in range(topics)]
    with targets.korvet(directory) as target:
        with Broker({"bootstrap.servers": target.address}) as broker:
            for name in names:
                broker.create_topic(name, PARTITIONS, {})
        return Cost(topics, heap, *_archived(target.address, directory, names, heap, rests_s, every, report))


def _archived(
    address: str,
    directory: Path,
    names: Sequence[str],
    heap: str,
    rests_s: float,
    every: str,
    report: Callable[[str], None],
) -> tuple[float, float, float]:
    """Memory in first batches, at rest, and in later batches."""
    port = free_port()
    flags = ["--pattern", "many-.*", "--every", every, "--metrics", f"127.0.0.1:{port}"]
    for name, value in (session_settings(directory) | {"spark.driver.memory": heap}).items():
        flags += ["--conf", f"{name}={value}"]
    _send(address, names)
    with archiving(address, directory, flags) as process:
        report("first batches")
        first_mb = _peak(process, port, len(names) * RECORDS_EACH)
        report("at rest")
        began, rest_mb = time.monotonic(), 0.0
        while time.monotonic() < began + rests_s:
            rest_mb = max(rest_mb, proportional_mb([process.pid]))
            time.sleep(_SAMPLED_EVERY_S)
        _send(address, names)
        report("later batches")
        later_mb = _peak(process, port, 2 * len(names) * RECORDS_EACH)
        process.send_signal(signal.SIGINT)
        if (code := process.wait(_HANGS_S)) != 0:
            raise PipelineFailed(f"the archive ended with {code}")
    return first_mb, rest_mb, later_mb


def _send(address: str, names: Sequence[str]) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": address, "linger.ms": 50})
    for name in names:
        for number in range(RECORDS_EACH):
            producer.produce(name, bytes(VALUE_BYTES), b"%d" % number, partition=number % PARTITIONS)
        producer.poll(0)
    if left := producer.flush(120):
        raise PipelineFailed(f"{left} records were not acknowledged")


def _peak(process: subprocess.Popen[bytes], port: int, wanted: int) -> float:
    """The highest memory until the archive has written ``wanted`` records."""
    most, deadline = 0.0, time.monotonic() + _HANGS_S
    while True:
        if process.poll() is not None or time.monotonic() > deadline:
            raise PipelineFailed("the archive ended, or it hangs")
        most = max(most, proportional_mb([process.pid]))
        try:
            if total(scrape(port), "korvet_archived_records_total") >= wanted:
                return most
        except OSError:
            # It does not listen yet.
            pass
        time.sleep(_SAMPLED_EVERY_S)
