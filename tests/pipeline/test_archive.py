"""Archives of topics of a real broker into Delta tables."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame, Row, SparkSession

from korvet.pipeline.archive import ArchiveConfig, ArchiveResult, archive, batch, history, run
from korvet.pipeline.archive.checkpoint import Checkpoint
from korvet.pipeline.broker import Broker, Position
from korvet.pipeline.errors import PipelineError, UnknownTopic
from korvet.pipeline.lake import RAW_COLUMNS, Lake, Proven, read_proven
from korvet.pipeline.lake.table import Table
from korvet.pipeline.reported import ARCHIVE_GROUP
from tests.support.broker import KorvetServer, running_broker

Source = Literal["korvet", "kafka"]
WITHIN_S = 120.0


class Scene:
    """A topic and a lake, with the steps of the tests."""

    def __init__(self, spark: SparkSession, bootstrap: str, topic: str, directory: Path) -> None:
        self.spark, self.bootstrap, self.topic, self.directory = spark, bootstrap, topic, directory
        self.lake = Lake(str(directory / "lake"))
        self.settings: dict[str, Any] = {"bootstrap.servers": bootstrap, "log_level": 0}

    def create(self, partitions: int = 2, **settings: str) -> None:
        with Broker(self.settings) as broker:
            assert broker.create_topic(self.topic, partitions, settings)

    def produce(self, values: Sequence[bytes | None], *, partition: int = 0) -> None:
        producer = Producer(self.settings)
        for value in values:
            producer.produce(self.topic, value, b"key", partition=partition, headers=[("a", b"1"), ("b", None)])
        assert producer.flush(WITHIN_S) == 0

    def archive(self, *, stop: threading.Event | None = None, **told: Any) -> ArchiveResult:
        given = {"bootstrap_servers": self.bootstrap, "lake": self.lake.location, "topics": (self.topic,), **told}
        return archive(self.spark, ArchiveConfig(**given), stop=stop)

    def archive_error(self, **told: Any) -> str:
        return str(self.archive(**told).failed[self.topic])

    def rows(self, table: str | None = None) -> list[Row]:
        path = table or self.lake.raw(self.topic)
        order = ("_partition", "_offset") if path.endswith("typed") else ("partition", "offset")
        return self.spark.read.format("delta").load(path).orderBy(*order).collect()

    def values(self) -> list[bytes]:
        return [bytes(row["value"]) for row in self.rows()]

    def reported(self) -> dict[int, int]:
        with Broker(self.settings) as broker:
            told = broker.committed(ARCHIVE_GROUP)
        return {number: position.offset for (topic, number), position in told.items() if topic == self.topic}

    def trim(self, offset: int) -> None:
        admin = AdminClient(self.settings)
        for future in admin.delete_records([TopicPartition(self.topic, 0, offset)]).values():
            future.result()

    def forget(self) -> None:
        shutil.rmtree(self.lake.checkpoint(self.topic))

    def restore(self, table: str, version: int) -> None:
        # Compiling code for a few rows takes longer than all else.
        interpreted = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
        for name, value in interpreted.items():
            self.spark.conf.set(name, value)
        try:
            self.spark.sql(f"RESTORE TABLE delta.`{table}` TO VERSION AS OF {version}")
        finally:
            for name in interpreted:
                self.spark.conf.unset(name)


@pytest.fixture
def scene(spark: SparkSession, broker: KorvetServer, tmp_path: Path, request: pytest.FixtureRequest) -> Scene:
    name = "archive." + "".join(each if each.isalnum() else "-" for each in request.node.name)
    return Scene(spark, broker.bootstrap, name, tmp_path)


def numbered(*numbers: int) -> list[bytes | None]:
    return [b"%d" % number for number in numbers]


@pytest.mark.parametrize("source", ["korvet", "kafka"])
def test_archive_writes_every_record_once(scene: Scene, source: Source) -> None:
    scene.create()
    scene.produce([b"first", None], partition=0)
    scene.produce([b"other"], partition=1)
    assert scene.archive(source=source).topics[scene.topic].rows == 3
    scene.produce([b"later"], partition=1)
    result = scene.archive(source=source).topics[scene.topic]
    assert (result.rows, result.batches, result.offsets, result.error) == (1, 1, {0: 2, 1: 2}, None)
    assert scene.archive(source=source).topics[scene.topic].rows == 0

    rows = scene.rows()
    assert [(row.partition, row.offset, row.value) for row in rows] == [
        (0, 0, b"first"), (0, 1, None), (1, 0, b"other"), (1, 1, b"later"),
    ]  # fmt: skip
    assert rows[0].headers == [Row(key="a", value=b"1"), Row(key="b", value=None)]
    assert (rows[0].key, rows[0].topic, rows[0].timestampType) == (b"key", scene.topic, 0)
    assert {row.date for row in rows} == {row.timestamp.date() for row in rows}
    assert scene.spark.read.format("delta").load(scene.lake.raw(scene.topic)).schema == RAW_COLUMNS
    assert scene.reported() == {0: 2, 1: 2}


@pytest.mark.parametrize("source", ["korvet", "kafka"])
def test_archive_counts_markers_and_leaves_out_aborted_records(scene: Scene, source: Source) -> None:
    scene.create(1)
    producer = Producer({**scene.settings, "transactional.id": scene.topic})
    producer.init_transactions()
    for value, end in ((b"aborted", producer.abort_transaction), (b"committed", producer.commit_transaction)):
        producer.begin_transaction()
        producer.produce(scene.topic, value)
        producer.flush()
        end()
    assert scene.archive(source=source).topics[scene.topic].offsets == {0: 4}
    assert scene.values() == [b"committed"]
    assert scene.reported() == {0: 4}


@pytest.mark.parametrize("source", ["korvet", "kafka"])
def test_archive_does_not_repeat_a_batch_missing_from_the_checkpoint(scene: Scene, source: Source) -> None:
    scene.create(1)
    for number in range(2):
        scene.produce(numbered(number))
        scene.archive(source=source)
    # The driver died before it noted the last batch; an admin trims the archived records meanwhile.
    for name in ("1", ".1.crc"):
        (Path(scene.lake.checkpoint(scene.topic)) / "commits" / name).unlink()
    scene.trim(2)
    scene.produce(numbered(2))
    result = scene.archive(source=source)
    assert (result.failed, result.topics[scene.topic].rows) == ({}, 1)
    assert scene.values() == [b"0", b"1", b"2"]


def test_archive_without_checkpoint_goes_on_where_the_table_ends(scene: Scene) -> None:
    scene.create(1)
    scene.produce(numbered(0, 1))
    scene.archive()
    for number in (2, 3):
        scene.forget()
        scene.produce(numbered(number))
        assert scene.archive().topics[scene.topic].rows == 1
    assert scene.values() == [b"0", b"1", b"2", b"3"]
    proven = read_proven(scene.spark, scene.lake.raw(scene.topic))
    assert proven is not None
    assert (proven.generation, proven.batch_id, proven.offsets) == (3, 0, {0: 4})


def test_archive_with_an_older_checkpoint_takes_nothing_back(scene: Scene) -> None:
    scene.create(1)
    scene.produce([b'{"n": 0}', b"no"])
    older, newer = str(scene.directory / "older"), str(scene.directory / "newer")
    schemas = {scene.topic: SCHEMA}
    scene.archive(checkpoints=older, schemas=schemas)
    scene.produce([b'{"n": 2}', b"no", b'{"n": 4}', b"no"])
    scene.archive(checkpoints=newer, schemas=schemas)
    # Its batches end below the last batch of the other checkpoint.
    scene.archive(checkpoints=older, max_offsets_per_trigger=2, schemas=schemas)
    assert [row.offset for row in scene.rows()] == [0, 1, 2, 3, 4, 5]
    assert [row["_offset"] for row in scene.rows(scene.lake.typed(scene.topic))] == [0, 2, 4]
    assert [row.offset for row in scene.rows(scene.lake.dead_letters(scene.topic))] == [1, 3, 5]
    assert scene.reported() == {0: 6}


def test_archive_of_an_empty_lake_begins_at_the_end_if_told(scene: Scene) -> None:
    scene.create(1)
    scene.produce(numbered(0))
    assert scene.archive(starting="latest").topics[scene.topic].rows == 0
    scene.produce(numbered(1))
    scene.archive(starting="latest")
    scene.forget()
    scene.produce(numbered(2))
    scene.archive(starting="latest")
    assert scene.values() == [b"1", b"2"]


def test_archive_refuses_a_restored_table_until_the_checkpoint_is_deleted(scene: Scene) -> None:
    scene.create(1)
    for number in range(3):
        scene.produce(numbered(number))
        scene.archive()
    scene.restore(scene.lake.raw(scene.topic), 1)
    scene.produce(numbered(3))
    assert "the table was deleted or restored. Delete the checkpoint" in scene.archive_error()
    assert scene.values() == [b"0", b"1"]
    scene.forget()
    assert not scene.archive().failed
    assert scene.values() == [b"0", b"1", b"2", b"3"]


def test_archive_refuses_a_topic_created_anew(scene: Scene) -> None:
    scene.create(1)
    scene.produce(numbered(0))
    scene.archive()
    with Broker(scene.settings) as broker:
        former = broker.topics([scene.topic])[scene.topic]
    admin = AdminClient(scene.settings)
    admin.delete_topics([scene.topic])[scene.topic].result()
    _until(lambda: scene.topic not in admin.list_topics(timeout=10).topics)
    scene.create(1)
    scene.produce(numbered(1, 2))
    assert "deleted and created anew" in scene.archive_error()
    assert scene.values() == [b"0"]

    # An archive that has not seen this yet reports nothing of the topic.
    config = ArchiveConfig(bootstrap_servers=scene.bootstrap, lake=scene.lake.location, topics=(scene.topic,))
    tables = batch.Tables(scene.spark, scene.lake, scene.topic)
    checkpoint = Checkpoint(scene.spark, scene.lake.checkpoint(scene.topic), scene.topic)
    writer = batch.TopicWriter(scene.spark, config, former, tables, checkpoint, threading.Event(), None)
    writer.report()
    writer.close()
    assert scene.reported() == {}


def test_topic_created_anew_ends_the_running_archive(scene: Scene) -> None:
    scene.create(1)
    scene.produce(numbered(0))
    stop, results = threading.Event(), list[ArchiveResult]()
    thread = threading.Thread(target=lambda: results.append(scene.archive(every_s=0.2, stop=stop)))
    thread.start()
    try:
        _until(lambda: scene.reported() == {0: 1})
        admin = AdminClient(scene.settings)
        admin.delete_topics([scene.topic])[scene.topic].result()
        _until(lambda: scene.topic not in admin.list_topics(timeout=10).topics)
        scene.create(1)
        scene.produce(numbered(1, 2))
        thread.join(WITHIN_S)
        assert not thread.is_alive()
    finally:
        stop.set()
        thread.join(WITHIN_S)
    assert scene.topic in str(results[0].failed[scene.topic])
    assert scene.values() == [b"0"]


def test_records_trimmed_before_the_archive_are_an_error_or_a_warning(scene: Scene) -> None:
    scene.create(1)
    scene.produce(numbered(0))
    scene.archive()
    scene.produce(numbered(1, 2))
    scene.trim(2)
    assert "partition 0 begins at offset 2, archived is up to 1" in scene.archive_error()
    assert not scene.archive(fail_on_data_loss=False).failed
    assert scene.values() == [b"0", b"2"]


def test_records_that_redis_lost_are_an_error_or_a_warning(spark: SparkSession, tmp_path: Path) -> None:
    with running_broker() as server:
        scene = Scene(spark, server.bootstrap, "lost", tmp_path)
        scene.create(1)
        scene.produce(numbered(0, 1))
        server.stop()
        shutil.copytree(server.data_dir, tmp_path / "before")
        server.start()
        scene.produce(numbered(2, 3))
        scene.archive()
        server.stop()
        shutil.rmtree(server.data_dir)
        shutil.move(tmp_path / "before", server.data_dir)
        server.start()
        # Other records take the offsets of the lost ones, and more.
        scene.produce(numbered(12, 13, 14))
        told = scene.archive_error()
        assert "partition 0 has another history from offset 2 on, archived is up to 4" in told
        assert not scene.archive(fail_on_data_loss=False).failed
        found = sorted((row.offset, row.value) for row in scene.rows())
        assert found == [(0, b"0"), (1, b"1"), (2, b"12"), (2, b"2"), (3, b"13"), (3, b"3"), (4, b"14")]
        assert not scene.archive().failed


SCHEMA = json.dumps({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})


def test_archive_writes_each_value_as_a_typed_row_or_a_dead_letter(scene: Scene) -> None:
    scene.create(1)
    scene.produce([b'{"n": 1}', b"no", None, b'{"n": 2}'])
    assert not scene.archive(schemas={scene.topic: SCHEMA}).failed
    typed, dead_letters = scene.lake.typed(scene.topic), scene.lake.dead_letters(scene.topic)
    assert [(row["_offset"], row.n) for row in scene.rows(typed)] == [(0, 1), (2, None), (3, 2)]
    assert [(row.offset, row.value) for row in scene.rows(dead_letters)] == [(1, b"no")]
    assert len(scene.rows()) == 4


def test_archive_writes_a_record_to_one_table_over_a_schema_change(scene: Scene) -> None:
    scene.create(1)
    scene.produce([b'{"n": 1}', b"no"])
    scene.archive(schemas={scene.topic: SCHEMA})
    scene.produce([b'{"n": "x"}', b'{"n": 2}', b"never"])
    scene.archive(schemas={scene.topic: SCHEMA})
    # The driver died after the dead letters were written, and before the typed rows were.
    scene.restore(scene.lake.typed(scene.topic), 0)
    scene.restore(scene.lake.raw(scene.topic), 0)
    scene.forget()
    other = json.dumps({"type": "object", "properties": {"m": {}}, "required": ["m"]})
    assert not scene.archive(schemas={scene.topic: other}).failed
    assert [row["_offset"] for row in scene.rows(scene.lake.typed(scene.topic))] == [0]
    assert [row.offset for row in scene.rows(scene.lake.dead_letters(scene.topic))] == [1, 2, 3, 4]


def test_archive_goes_on_after_typed_rows_alone_under_a_new_leader(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.create(1)
    scene.produce([b'{"n": 1}'])
    append, latest = Table.append, history.latest

    def cut_off(table: Table, rows: DataFrame, proven: Proven) -> int:
        if table.path == scene.lake.raw(scene.topic):
            raise PipelineError("the driver died")
        return append(table, rows, proven)

    def later(*asked: Any) -> dict[int, Position]:
        return {
            number: replace(end, leader_epoch=(end.leader_epoch or 0) + 1) for number, end in latest(*asked).items()
        }

    monkeypatch.setattr(Table, "append", cut_off)
    assert "the driver died" in scene.archive_error(schemas={scene.topic: SCHEMA})
    monkeypatch.setattr(Table, "append", append)
    monkeypatch.setattr(history, "latest", later)
    assert not scene.archive(schemas={scene.topic: SCHEMA}).failed
    assert scene.values() == [b'{"n": 1}']
    assert len(scene.rows(scene.lake.typed(scene.topic))) == 1


def test_schema_that_does_not_parse_ends_the_archive_before_a_write(scene: Scene) -> None:
    scene.create(1)
    scene.produce([b"{}"])
    assert "the JSON Schema gives no columns" in scene.archive_error(schemas={scene.topic: "{"})
    assert not Path(scene.lake.raw(scene.topic)).exists()


def test_new_topics_of_a_pattern_join_and_a_stop_ends_all(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_NEW_TOPICS_EVERY_S", 0.2)
    scene.create(1)
    scene.produce(numbered(0))
    later = Scene(scene.spark, scene.bootstrap, f"{scene.topic}.later", scene.directory)
    stop, results = threading.Event(), list[ArchiveResult]()

    def work() -> None:
        pattern = scene.topic.replace(".", r"\.") + ".*"
        results.append(scene.archive(topics=(), pattern=pattern, every_s=0.2, stop=stop))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        _until(lambda: scene.reported() == {0: 1})
        later.create(1)
        later.produce(numbered(0, 1))
        _until(lambda: later.reported() == {0: 2})
    finally:
        stop.set()
        thread.join(WITHIN_S)
    assert {name: (each.rows, each.error) for name, each in results[0].topics.items()} == {
        scene.topic: (1, None), later.topic: (2, None),
    }  # fmt: skip


def test_failing_topic_does_not_end_the_others(scene: Scene) -> None:
    other = Scene(scene.spark, scene.bootstrap, f"{scene.topic}.other", scene.directory)
    for each in (scene, other):
        each.create(1)
        each.produce(numbered(0))
    Path(scene.lake.raw(scene.topic)).parent.mkdir(parents=True)
    Path(scene.lake.raw(scene.topic)).write_text("in the way")
    result = scene.archive(topics=(scene.topic, other.topic))
    assert result.topics[other.topic].rows == 1
    assert "a file is in the way of the table" in str(result.failed[scene.topic])


def test_missing_topic_is_an_error_at_once(scene: Scene) -> None:
    with pytest.raises(UnknownTopic, match=scene.topic):
        scene.archive()
    with pytest.raises(PipelineError, match="no topics to archive"):
        scene.archive(topics=())
    with pytest.raises(PipelineError, match="no regular expression"):
        scene.archive(topics=(), pattern="(")


def _until(condition: Callable[[], bool]) -> None:
    pause, deadline = threading.Event(), WITHIN_S / 0.1
    while not condition():
        assert deadline > 0, "it did not come to that"
        deadline -= 1
        pause.wait(0.1)
