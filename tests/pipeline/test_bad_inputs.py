"""An archive's errors for bad brokers, topics and lakes, and the lake after them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import unix_millis

from korvet.pipeline import broker as asking
from korvet.pipeline import tries
from korvet.pipeline.errors import BrokerUnreachable
from tests.pipeline.archiving import Scene, numbered, until
from tests.pipeline.sourcing import delete, produce
from tests.support.broker import KorvetServer, running_broker

NOON_MS = 1_767_355_200_000
VALUES = numbered(*range(10))


def be_impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an archive give a broker up soon."""
    monkeypatch.setattr(asking, "TIMEOUT_S", 3.0)
    monkeypatch.setattr(tries, "MOST", 2)


def test_archive_fails_at_once_if_no_broker_answers(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    be_impatient(monkeypatch)
    with pytest.raises(BrokerUnreachable, match=r"no broker answers at 127\.0\.0\.1:1 .*; start one with"):
        Scene(spark, "127.0.0.1:1", "orders", tmp_path).archive()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.scene
def test_records_of_any_time_do_not_end_their_topics_archive(scene: Scene, broker: KorvetServer) -> None:
    """Kafka's times are milliseconds of 64 bits, and Spark's are microseconds of 64 bits."""
    most = (2**63 - 1) // 1000
    scene.create(1, **{"message.timestamp.after.max.ms": str(2**63 - 1), "retention.ms": "-1"})
    for time_ms in (NOON_MS, -9 * 10**18, 2**63 - 1, -most, most, NOON_MS):
        produce(broker, scene.topic, [b"x"], start_ms=time_ms)
    assert not scene.archive(table="latest").failed
    found = scene.spark.read.format("delta").load(scene.lake.raw(scene.topic)).orderBy("offset")
    times = [row.ms for row in found.select(unix_millis("timestamp").alias("ms")).collect()]
    assert times == [NOON_MS, -most, most, -most, most, NOON_MS]


@pytest.mark.parametrize(
    ("path", "content", "reason"),
    [
        ("TOPIC/raw", "text", "a file is in the way of the table"),
        ("TOPIC/raw/_delta_log/00000000000000000003.json", "{}", "its Delta log cannot be read"),
        ("TOPIC", "text", "Parent path is not a directory"),
    ],
)
def test_archive_leaves_a_corrupt_lake_as_it_is(scene: Scene, path: str, content: str, reason: str) -> None:
    scene.create(1)
    scene.produce(VALUES)
    lake = Path(scene.lake.location)
    file = lake / path.replace("TOPIC", scene.topic)
    file.parent.mkdir(parents=True)
    file.write_text(content)
    told = scene.archive_error()
    assert reason in told and scene.topic in told and "\n" not in told
    assert [each for each in lake.rglob("*") if each.is_file()] == [file]
    assert file.read_text() == content


@pytest.mark.parametrize("source", ["korvet", "kafka"])
def test_archive_ends_if_its_topic_is_deleted(scene: Scene, broker: KorvetServer, source: str) -> None:
    scene.create(1)
    scene.produce(VALUES)
    with scene.running(source=source) as results:
        until(lambda: scene.reported() == {0: 10})
        delete(broker, scene.topic)
        until(lambda: bool(results))
    told = str(results[0].failed[scene.topic])
    assert "does not exist" in told and scene.topic in told and "\n" not in told
    assert scene.values() == VALUES


def test_archive_goes_on_when_the_broker_comes_back(spark: SparkSession, tmp_path: Path) -> None:
    with running_broker() as server:
        scene = Scene(spark, server.bootstrap, "bad-back", tmp_path)
        scene.create(1)
        scene.produce(VALUES)
        with scene.running() as results:
            until(lambda: scene.reported() == {0: 10})
            server.restart(crash=True)
            scene.produce(VALUES)
            # A report that failed meanwhile comes with the next batch.
            until(lambda: scene.proven.offsets == {0: 20})
    assert not results[0].failed and scene.values() == VALUES * 2


def test_archive_ends_if_the_broker_stays_away(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = {"request.timeout.ms": "5000", "default.api.timeout.ms": "10000"}
    with running_broker() as server:
        scene = Scene(spark, server.bootstrap, "bad-away", tmp_path)
        scene.create(1)
        scene.produce(VALUES)
        with scene.running(source="kafka", client=client) as results:
            until(lambda: scene.reported() == {0: 10})
            # The first batch may take its time: a Java virtual machine has just started.
            be_impatient(monkeypatch)
            server.kill()
            until(lambda: bool(results))
        assert "no broker answers" in str(results[0].failed["bad-away"])
    assert scene.values() == VALUES
