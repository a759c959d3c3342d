"""A day in the life of an archived topic, in minutes: memory must stay flat, and no record may be lost.

A producer sends 20,000 records of 200 B a second to a topic with korvet.retention=archived. `korvet pipeline archive
--every 10s` runs beside it as a process of its own. Every ten seconds a line shows the bytes in Redis, the archive's
lag, and the number of records in the lake. At the end the archive catches up and is stopped, and every record must be
in the lake once.
"""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

import redis
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from korvet.pipeline.broker import Broker
from korvet.pipeline.lake import Lake
from korvet.pipeline.reported import ARCHIVE_GROUP
from scripts.benchmark import targets
from scripts.benchmark.cold import PipelineFailed
from scripts.benchmark.pipeline import PARTITIONS, Sender
from scripts.benchmark.targets import ROOT

RATE: Final = 20_000
VALUE_BYTES: Final = 200
TOPIC: Final = "day"
# Archived records go after half a minute; retention looks at a partition as soon as the archive commits.
SETTINGS: Final = {"korvet.retention": "archived", "retention.ms": "30000"}
EVERY_S: Final = 10.0
PIECE_S: Final = 0.05
CAUGHT_UP_WITHIN_S: Final = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The figures of a moment: bytes in Redis, records sent, not yet archived, and in the lake."""

    seconds: float
    used_bytes: int
    sent: int
    behind: int
    in_lake: int

    @staticmethod
    def heading() -> str:
        """The heads of the columns of `line`."""
        return f"{'s':>5} {'Redis MB':>9} {'sent':>12} {'not archived':>13} {'in the lake':>12}"

    def line(self) -> str:
        """The moment as one line."""
        megabytes = self.used_bytes / 1e6
        return f"{self.seconds:5.0f} {megabytes:9.1f} {self.sent:12,} {self.behind:13,} {self.in_lake:12,}"


def records_in(path: Path) -> int:
    """Records in a Delta table, by the statistics in its log's commits."""
    total = 0
    for commit in (path / "_delta_log").glob("*.json"):
        for line in commit.read_text().splitlines():
            action = json.loads(line)
            if (added := action.get("add", {})).get("dataChange"):
                total += json.loads(added["stats"])["numRecords"]
    return total


def _behind(broker: Broker) -> int:
    """The number of records between the archive's committed offsets and the topic's ends."""
    partitions = [(TOPIC, number) for number in range(PARTITIONS)]
    ends = broker.latest(partitions, committed_only=False)
    committed = broker.committed(ARCHIVE_GROUP)
    return sum(
        ends[partition].offset - (committed[partition].offset if partition in committed else 0)
        for partition in partitions
    )


@contextmanager
def _sending(sender: Sender, seconds: float) -> Iterator[threading.Thread]:
    """Records at the rate, in a thread, for some seconds or until the block ends."""
    over = threading.Event()

    def send() -> None:
        started = time.monotonic()
        while not over.is_set() and (elapsed := time.monotonic() - started) < seconds:
            sender.send(int(elapsed * RATE) - sender.sent)
            over.wait(PIECE_S)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield thread
    finally:
        over.set()
        thread.join()


@contextmanager
def archiving(address: str, directory: Path, flags: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """`korvet pipeline archive` for the time of the block, its lake and its output in `directory`."""
    command = [sys.executable, "-m", "korvet.cli", "pipeline", "archive", "--bootstrap-server", address]
    command += ["--lake", str(directory / "lake"), *flags]
    with open(directory / "archive.log", "wb") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
    try:
        yield process
    except PipelineFailed as error:
        raise PipelineFailed(f"{error}; its last words:\n{(directory / 'archive.log').read_text()[-3000:]}") from None
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


class _Day:
    """A running day: looks at the broker, its Redis and the lake."""

    def __init__(self, broker: Broker, client: redis.Redis, sender: Sender, path: Path) -> None:
        self._broker, self._client, self._sender, self._path = broker, client, sender, path
        self._started = time.monotonic()

    def moment(self) -> Moment:
        """The figures of now."""
        used: int = self._client.info("memory")["used_memory"]
        return Moment(
            seconds=time.monotonic() - self._started,
            used_bytes=used,
            sent=self._sender.sent,
            behind=_behind(self._broker),
            in_lake=records_in(self._path),
        )

    def wait_until_archived(self, archive: subprocess.Popen[bytes]) -> None:
        """Wait until the archive has committed past every record. Raises PipelineFailed."""
        deadline = time.monotonic() + CAUGHT_UP_WITHIN_S
        while behind := _behind(self._broker):
            if archive.poll() is not None or time.monotonic() > deadline:
                raise PipelineFailed(f"the archive is {behind} records behind, and it ended or takes too long")
            time.sleep(1)


def _stop(archive: subprocess.Popen[bytes]) -> None:
    """Press Ctrl-C, as an operator does: the archive finishes its batch and ends with 0. Raises PipelineFailed."""
    archive.send_signal(signal.SIGINT)
    if (code := archive.wait(120)) != 0:
        raise PipelineFailed(f"the archive ended with {code}")


def table(directory: Path) -> str:
    """The directory of the day's raw table."""
    return Lake(str(directory / "lake")).raw(TOPIC)


def check_once(spark: SparkSession, path: str, sent: int) -> None:
    """Check that the table has every sent record once, and every offset. Raises PipelineFailed."""
    rows = spark.read.format("delta").load(path)
    number = F.conv(F.hex(F.substring("value", 1, 8)), 16, 10).cast("long")
    whole = rows.select(F.count("*"), F.count_distinct(number), F.min(number), F.max(number)).first()
    if whole is None or tuple(whole) != (sent, sent, 0, sent - 1):
        raise PipelineFailed(f"{sent} records were sent; the lake has (records, numbers, first, last) = {whole}")
    partitions = rows.groupBy("partition").agg(F.count("*"), F.count_distinct("offset"), F.max("offset") + 1)
    for partition, records, offsets, end in partitions.collect():
        if not records == offsets == end:
            raise PipelineFailed(f"partition {partition}: {records} records at {offsets} offsets below {end}")


def summary(moments: Sequence[Moment]) -> str:
    """The course of memory, by the medians of the second and the last fifth of the day: the first one fills it."""
    running = [moment.used_bytes / 1e6 for moment in moments[:-1]]
    fifth = max(1, len(running) // 5)
    early, late = median(running[fifth : 2 * fifth] or running), median(running[-fifth:])
    return (
        f"every one of {moments[-1].sent:,} records is in the lake once; Redis held {early:.0f} MB early and "
        f"{late:.0f} MB late ({late / early:.2f} times as much)"
    )


def run(directory: Path, minutes: float, report: Callable[[Moment], None]) -> list[Moment]:
    """Run such a day; it calls `report` every ten seconds, and at last after the archive has caught up.

    :raises PipelineFailed: if the archive does not keep up or does not end well.
    """
    with ExitStack() as stack:
        target = stack.enter_context(targets.korvet(directory))
        broker = stack.enter_context(Broker({"bootstrap.servers": target.address}))
        broker.create_topic(TOPIC, PARTITIONS, SETTINGS)
        client = stack.enter_context(redis.Redis.from_url(str(target.redis_url)))
        flags = ["--topic", TOPIC, "--every", f"{EVERY_S:g}s"]
        archive = stack.enter_context(archiving(target.address, directory, flags))
        sender = Sender(target.address, TOPIC, VALUE_BYTES)
        day, moments = _Day(broker, client, sender, Path(table(directory))), []
        with _sending(sender, minutes * 60) as sending:
            while sending.is_alive():
                sending.join(EVERY_S)
                moments.append(day.moment())
                report(moments[-1])
                if archive.poll() is not None:
                    raise PipelineFailed("the archive ended")
        sender.flush()
        day.wait_until_archived(archive)
        _stop(archive)
        moments.append(day.moment())
        report(moments[-1])
    return moments
