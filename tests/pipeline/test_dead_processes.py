"""Python processes of Spark that die in the middle of their work, as the kernel kills them if memory is short."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Mapping, MutableMapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark import RDD, SparkFiles
from pyspark.sql import DataFrame, SparkSession
from structlog.testing import capture_logs

from korvet.pipeline import tries
from korvet.pipeline.archive import ArchiveConfig, archive, batch, reading
from korvet.pipeline.errors import ProcessDied
from korvet.pipeline.failures import failure
from korvet.pipeline.lake import Lake
from korvet.pipeline.replay import ReplayConfig, task
from korvet.pipeline.replay import run as replay_of
from korvet.pipeline.replay.run import replay
from tests.pipeline.dying import die, dying_run
from tests.pipeline.replaying import numbered, read_topic, record, write
from tests.pipeline.sourcing import create, produce
from tests.support.broker import KorvetServer
from tests.support.delta import delta_rows
from tests.support.spark_workers import python_processes

TRIES_OF_A_TASK = 4
VALUES = [b"%d" % number for number in range(20)]
_DATA_SOURCES = "org.apache.spark.sql.execution.datasources.DataSourceManager$"


def dying(monkeypatch: pytest.MonkeyPatch, directory: Path, deaths: int) -> None:
    """Let the processes that read the archive's records die so many times in all."""

    def read_and_die(*given: object) -> DataFrame:
        rows = reading.read(*given)  # type: ignore[arg-type]
        return rows.mapInArrow(partial(die, str(directory), deaths), rows.schema)

    monkeypatch.setattr(batch, "read", read_and_die)


def archived(spark: SparkSession, lake: Path, topic: str) -> list[bytes]:
    """The values in the topic's one partition, in order."""
    rows = delta_rows(spark, Lake(str(lake)).raw(topic))
    return [row.value for row in sorted(rows, key=lambda row: row.offset)]


def test_task_whose_process_died_is_tried_again_on_one_machine(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.range(0, 3, 1, 1).mapInArrow(partial(die, str(tmp_path), TRIES_OF_A_TASK - 1), "id long")
    assert rows.count() == 3


def test_error_names_the_process_that_died(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.range(0, 3, 1, 1).mapInArrow(partial(die, str(tmp_path), TRIES_OF_A_TASK), "id long")
    with pytest.raises(Exception) as caught:
        rows.count()
    error = failure(caught.value)
    assert isinstance(error, ProcessDied)
    assert str(error).startswith("a Python process of a task of Spark died; the kernel kills processes if memory")


@pytest.mark.scene
def test_archive_goes_on_after_more_deaths_than_tries_of_a_task(
    spark: SparkSession, broker: KorvetServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(broker, "dead-archive")
    produce(broker, "dead-archive", VALUES)
    dying(monkeypatch, tmp_path, TRIES_OF_A_TASK + 1)
    config = ArchiveConfig(bootstrap_servers=broker.bootstrap, lake=str(tmp_path / "lake"), topics=("dead-archive",))
    with capture_logs() as logs:
        result = archive(spark, config)
    assert result.topics["dead-archive"].rows == len(VALUES)
    [told] = [each for each in logs if each["event"] == "archive failed"]
    assert "dead-archive: it cannot be written: a Python process of a task of Spark died" in told["reason"]
    assert told["again_in_s"] == 1.0
    assert archived(spark, tmp_path / "lake", "dead-archive") == VALUES


def test_archive_whose_processes_die_all_the_time_ends_with_the_reason(
    spark: SparkSession, broker: KorvetServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(broker, "dead-always")
    produce(broker, "dead-always", VALUES)
    monkeypatch.setattr(tries, "MOST", 2)
    dying(monkeypatch, tmp_path, 100)
    config = ArchiveConfig(
        bootstrap_servers=broker.bootstrap, lake=str(tmp_path / "lake"), topics=("dead-always",), every_s=0.2
    )
    error = archive(spark, config).failed["dead-always"]
    assert isinstance(error, ProcessDied)


@pytest.fixture
def unknowing(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[SparkSession, Path]]:
    """A new session that looked for data sources in a process that died, and the module that kills such processes."""
    jvm: Any = spark._jvm
    known: Any = getattr(getattr(jvm, _DATA_SOURCES), "MODULE$")
    remember, of_the_others = getattr(known, "dataSourceBuilders_$eq"), known.dataSourceBuilders()
    module = Path(SparkFiles.getRootDirectory()) / "pyspark_dying.py"
    # PySpark lets the newest session serve this method of all RDDs.
    monkeypatch.setattr(RDD, "toDF", RDD.toDF)
    session = spark.newSession()
    try:
        remember(jvm.scala.Option.empty())
        module.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
        with pytest.raises(Exception, match="DATA_SOURCE_NOT_FOUND"):
            session.read.format("korvet").load()
        yield session, module
    finally:
        module.unlink(missing_ok=True)
        remember(of_the_others)


def test_archive_and_replay_work_in_a_session_that_found_no_data_source(
    unknowing: tuple[SparkSession, Path], broker: KorvetServer, tmp_path: Path
) -> None:
    session, _ = unknowing
    create(broker, "dead-look")
    produce(broker, "dead-look", VALUES)
    lake, brokers = str(tmp_path / "lake"), broker.bootstrap
    told = archive(session, ArchiveConfig(bootstrap_servers=brokers, lake=lake, topics=("dead-look",)))
    assert (told.failed, told.topics["dead-look"].rows) == ({}, len(VALUES))
    config = ReplayConfig(bootstrap_servers=brokers, lake=lake, topic="dead-look", to="dead-looked", create=True)
    assert replay(session, config).records == len(VALUES)


def test_another_session_looks_for_data_sources_anew(
    unknowing: tuple[SparkSession, Path], broker: KorvetServer
) -> None:
    session, module = unknowing
    module.unlink()
    create(broker, "dead-look-again")
    produce(broker, "dead-look-again", VALUES)
    options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "dead-look-again"}
    with pytest.raises(Exception, match="DATA_SOURCE_NOT_FOUND"):
        session.read.format("korvet").options(**options).load()
    assert session.newSession().read.format("korvet").options(**options).load().count() == len(VALUES)


@pytest.fixture
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_of, "_LONG_S", 1.0)


def by_thirty(broker: KorvetServer, directory: Path, to: str) -> ReplayConfig:
    """A replay of 90 records in four transactions, each of 30 offsets at most, of which some have no record."""
    return ReplayConfig(
        bootstrap_servers=broker.bootstrap, lake=str(directory / "lake"), topic="numbers", to=to, create=True, rate=30.0
    )


@pytest.mark.usefixtures("few_at_once")
def test_replay_goes_on_after_more_deaths_than_tries_as_long_as_it_writes(
    spark: SparkSession, broker: KorvetServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(numbered(spark, 90, 1), tmp_path / "lake", "numbers")
    monkeypatch.setattr(task, "run", partial(dying_run, str(tmp_path), TRIES_OF_A_TASK, 30))
    monkeypatch.setattr(tries, "MOST", 2)
    with capture_logs() as logs:
        result = replay(spark, by_thirty(broker, tmp_path, "dead-replay"))
    assert len(list(tmp_path.glob("death-*"))) == 3 * TRIES_OF_A_TASK
    assert (result.records, result.total, result.complete) == (90, 90, True)
    told = [(each["again_in_s"], each["reason"]) for each in logs if each["event"] == "replay failed"]
    assert [again_in_s for again_in_s, _ in told] == [1.0, 1.0, 1.0]
    assert all("a Python process of a task of Spark died" in reason for _, reason in told)
    assert read_topic(broker.bootstrap, "dead-replay") == {0: [record(number) for number in range(90)]}


@pytest.mark.usefixtures("few_at_once")
def test_replay_whose_processes_die_all_the_time_ends_with_the_reason(
    spark: SparkSession, broker: KorvetServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(numbered(spark, 90, 1), tmp_path / "lake", "numbers")
    monkeypatch.setattr(task, "run", partial(dying_run, str(tmp_path), 100, 0))
    monkeypatch.setattr(tries, "MOST", 2)
    with pytest.raises(ProcessDied, match="a Python process of a task of Spark died"):
        replay(spark, by_thirty(broker, tmp_path, "dead-for-good"))
    assert len(list(tmp_path.glob("death-*"))) == 2 * TRIES_OF_A_TASK


@pytest.mark.usefixtures("few_at_once")
def test_replay_that_has_to_stop_while_it_waits_for_its_next_try_stops(
    spark: SparkSession, broker: KorvetServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(numbered(spark, 90, 1), tmp_path / "lake", "numbers")
    monkeypatch.setattr(task, "run", partial(dying_run, str(tmp_path), TRIES_OF_A_TASK, 30))
    stop = threading.Event()

    def heed(_logger: object, _method: str, told: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        if told["event"] == "replay failed":
            stop.set()
        return told

    with capture_logs(processors=[heed]):
        stopped = replay(spark, by_thirty(broker, tmp_path, "dead-stopped"), stop=stop)
    assert (stopped.records, stopped.complete) == (27, False)
    assert replay(spark, by_thirty(broker, tmp_path, "dead-stopped")).records == 63
    assert read_topic(broker.bootstrap, "dead-stopped") == {0: [record(number) for number in range(90)]}


def test_failed_topic_is_tried_again_and_reported_while_others_go_on(
    spark: SparkSession, broker: KorvetServer, tmp_path: Path
) -> None:
    names: Mapping[str, Mapping[str, str]] = {"dead-beside": {}, "dead-kept": {"korvet.retention": "archived"}}
    for name, settings in names.items():
        create(broker, name, settings=settings)
        produce(broker, name, VALUES)
    lake = tmp_path / "lake"
    in_the_way = Path(Lake(str(lake)).raw("dead-kept"))
    in_the_way.parent.mkdir(parents=True)
    in_the_way.touch()
    config = ArchiveConfig(bootstrap_servers=broker.bootstrap, lake=str(lake), topics=tuple(names), every_s=0.2)
    stop, done = threading.Event(), set[str]()

    def heed(topic: str) -> None:
        done.add(topic)
        if done == set(names):
            stop.set()

    def make_way(_logger: object, _method: str, told: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        if "a file is in the way" in told.get("reason", ""):
            in_the_way.unlink(missing_ok=True)
        return told

    with capture_logs(processors=[make_way]) as logs:
        result = archive(spark, config, stop=stop, progress=lambda told: heed(told.topic))
    assert result.failed == {}
    assert archived(spark, lake, "dead-kept") == VALUES
    alarms = [each for each in logs if each["log_level"] == "critical"]
    assert [each["topic"] for each in alarms] == ["dead-kept"]
    assert re.match(r"alarm: the broker keeps this topic until an archive goes on", alarms[0]["event"])


def test_many_topics_have_as_many_processes_as_one(spark: SparkSession, broker: KorvetServer, tmp_path: Path) -> None:
    names = [f"dead-many-{number}" for number in range(8)]
    for name in names:
        create(broker, name)
        produce(broker, name, VALUES[:2])
    first = ArchiveConfig(bootstrap_servers=broker.bootstrap, lake=str(tmp_path / "lake"), topics=(names[0],))
    assert not archive(spark, first).failed
    before = len(python_processes(os.getpid()))
    all_of_them = ArchiveConfig(
        bootstrap_servers=broker.bootstrap, lake=str(tmp_path / "lake"), pattern=r"dead-many-\d"
    )
    result = archive(spark, all_of_them)
    assert {name: each.offsets for name, each in result.topics.items()} == {name: {0: 2} for name in names}
    # Two tasks run at a time. A process that ended its task just now may not be ready for the next one.
    assert len(python_processes(os.getpid())) <= before + len(names) // 2
