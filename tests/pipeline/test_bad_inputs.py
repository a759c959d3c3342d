"""An archive's errors for bad brokers, topics, lakes and schemas, and the lake after them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import unix_millis

from korvet.pipeline import broker as asking
from korvet.pipeline import tries
from korvet.pipeline.archive import ArchiveConfig, ArchiveResult, archive
from korvet.pipeline.broker import Broker
from korvet.pipeline.errors import BrokerUnreachable
from korvet.pipeline.lake import Lake
from tests.pipeline.sourcing import create, delete, produce
from tests.support.broker import KorvetServer, running_broker
from tests.support.delta import delta_rows

WITHIN_S = 300.0
NOON_MS = 1_767_355_200_000
SOURCES = ["korvet", "kafka"]
VALUES = [b'{"n": %d}' % number for number in range(10)]


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def config(broker: KorvetServer, lake: Path, topic: str, **others: Any) -> ArchiveConfig:
    return ArchiveConfig(bootstrap_servers=broker.bootstrap, lake=str(lake), topics=(topic,), **others)


def why(result: ArchiveResult, topic: str) -> str:
    """The reason why a topic's archive failed: one line that names the topic or its table."""
    error = result.failed[topic]
    assert "\n" not in str(error)
    assert topic in str(error)
    return str(error)


def rows(spark: SparkSession, lake: Path, topic: str) -> list[int]:
    """The offsets in the raw table, sorted; none if there is no table."""
    table = Lake(str(lake)).raw(topic)
    if not Path(table).exists():
        return []
    return sorted(row.offset for row in delta_rows(spark, table))


class Running:
    """An archive in a thread, with a batch each second."""

    def __init__(self, spark: SparkSession, of: ArchiveConfig) -> None:
        self._stop = threading.Event()
        self._done = 0
        self._result: ArchiveResult | None = None
        self._thread = threading.Thread(target=self._run, args=(spark, of))
        self._thread.start()

    def wait_for(self, count: int) -> None:
        deadline = time.monotonic() + WITHIN_S
        while self._done < count:
            assert time.monotonic() < deadline and self._thread.is_alive()
            time.sleep(0.05)

    def result(self) -> ArchiveResult:
        """Wait for the end; returns the result."""
        self._thread.join(WITHIN_S)
        assert self._result is not None
        return self._result

    def end(self) -> ArchiveResult:
        self._stop.set()
        return self.result()

    def abandon(self) -> None:
        self._stop.set()
        self._thread.join(WITHIN_S)

    def _run(self, spark: SparkSession, of: ArchiveConfig) -> None:
        self._result = archive(spark, of, stop=self._stop, progress=self._count)

    def _count(self, progress: Any) -> None:
        self._done += progress.rows


Run = Callable[[ArchiveConfig], Running]


@pytest.fixture
def run(spark: SparkSession) -> Iterator[Run]:
    """Begin archives that end with the test."""
    started: list[Running] = []

    def begin(of: ArchiveConfig) -> Running:
        started.append(Running(spark, of))
        return started[-1]

    yield begin
    for each in started:
        each.abandon()


def be_impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an archive give a broker up soon."""
    monkeypatch.setattr(asking, "TIMEOUT_S", 3.0)
    monkeypatch.setattr(tries, "MOST", 2)


def test_archive_fails_at_once_if_no_broker_answers(
    spark: SparkSession, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    be_impatient(monkeypatch)
    away = ArchiveConfig(bootstrap_servers="127.0.0.1:1", lake=str(lake), topics=("orders",))
    with pytest.raises(BrokerUnreachable, match=r"no broker answers at 127\.0\.0\.1:1 .*; start one with"):
        archive(spark, away)
    assert not lake.exists()


@pytest.mark.scene
def test_records_of_any_time_do_not_end_their_topics_archive(
    spark: SparkSession, broker: KorvetServer, lake: Path
) -> None:
    """Kafka's times are milliseconds of 64 bits, and Spark's are microseconds of 64 bits."""
    topic, most = "bad-times", (2**63 - 1) // 1000
    create(broker, topic, 1, {"message.timestamp.after.max.ms": str(2**63 - 1)})
    for time_ms in (NOON_MS, -9 * 10**18, 2**63 - 1, -most, most, NOON_MS):
        produce(broker, topic, [b"x"], start_ms=time_ms)
    assert not archive(spark, config(broker, lake, topic, table="latest")).failed
    found = spark.read.format("delta").load(Lake(str(lake)).raw(topic)).orderBy("offset")
    times = [row.ms for row in found.select(unix_millis("timestamp").alias("ms")).collect()]
    assert times == [NOON_MS, -most, most, -most, most, NOON_MS]


@pytest.mark.parametrize(
    ("path", "content", "reason"),
    [
        ("bad-lake/raw", "text", "a file is in the way of the table"),
        ("bad-lake/raw/_delta_log/00000000000000000003.json", "{}", "its Delta log cannot be read"),
        ("bad-lake", "text", "Parent path is not a directory"),
    ],
)
def test_archive_leaves_a_corrupt_lake_as_it_is(
    spark: SparkSession, broker: KorvetServer, lake: Path, path: str, content: str, reason: str
) -> None:
    topic = "bad-lake"
    with Broker({"bootstrap.servers": broker.bootstrap}) as admin:
        admin.create_topic(topic, 1, {})
    produce(broker, topic, VALUES)
    (lake / path).parent.mkdir(parents=True)
    (lake / path).write_text(content)
    assert reason in why(archive(spark, config(broker, lake, topic)), topic)
    assert [each for each in lake.rglob("*") if each.is_file()] == [lake / path]
    assert (lake / path).read_text() == content


@pytest.mark.parametrize("source", SOURCES)
def test_archive_ends_if_its_topic_is_deleted(
    broker: KorvetServer, spark: SparkSession, lake: Path, run: Run, source: str
) -> None:
    topic = f"bad-deleted-{source}"
    create(broker, topic)
    produce(broker, topic, VALUES)
    running = run(config(broker, lake, topic, source=source, every_s=0.5))
    running.wait_for(10)
    delete(broker, topic)
    assert "does not exist" in why(running.result(), topic)
    assert rows(spark, lake, topic) == list(range(10))


def test_archive_goes_on_when_the_broker_comes_back(spark: SparkSession, lake: Path, run: Run) -> None:
    topic = "bad-back"
    with running_broker() as server:
        create(server, topic)
        produce(server, topic, VALUES)
        running = run(config(server, lake, topic, every_s=0.5))
        running.wait_for(10)
        server.restart(crash=True)
        produce(server, topic, VALUES)
        running.wait_for(20)
        assert not running.end().failed
    assert rows(spark, lake, topic) == list(range(20))


def test_archive_ends_if_the_broker_stays_away(
    spark: SparkSession, lake: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = "bad-away"
    with running_broker() as server:
        create(server, topic)
        produce(server, topic, VALUES)
        client = {"request.timeout.ms": "5000", "default.api.timeout.ms": "10000"}
        running = run(config(server, lake, topic, source="kafka", every_s=0.5, client=client))
        running.wait_for(10)
        # The first batch may take its time: a Java virtual machine has just started.
        be_impatient(monkeypatch)
        server.kill()
        assert "no broker answers" in why(running.result(), topic)
    assert rows(spark, lake, topic) == list(range(10))
