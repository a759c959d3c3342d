"""Archives of topics of a real broker into Delta tables."""

from __future__ import annotations

import datetime
import json
import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, Row, SparkSession

from korvet.pipeline.archive import ArchiveConfig, ArchiveResult, archive, batch, history, run
from korvet.pipeline.broker import Broker, Position
from korvet.pipeline.errors import PipelineError, UnknownTopic
from korvet.pipeline.lake import ARCHIVED, RAW_COLUMNS, Lake, Loss, Proven, read_proven
from korvet.pipeline.lake.java import java_class
from korvet.pipeline.lake.table import Table
from korvet.pipeline.reported import ARCHIVE_GROUP
from korvet.pipeline.retype import RetypeConfig, RetypeResult, retype
from tests.support.broker import KorvetServer, running_broker

Source = Literal["korvet", "kafka"]
WITHIN_S = 120.0
CLAIM = 1
"""The version of a table that the second archive claimed."""


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

    def retype(self, schema: str) -> RetypeResult:
        location = self.lake.location
        return retype(
            self.spark,
            RetypeConfig(bootstrap_servers=self.bootstrap, lake=location, topic=self.topic, schema=schema),
        )

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

    def losses(self) -> tuple[Loss, ...]:
        proven = read_proven(self.spark, self.lake.raw(self.topic))
        return () if proven is None else proven.losses

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


@pytest.fixture
def scene(spark: SparkSession, broker: KorvetServer, tmp_path: Path, request: pytest.FixtureRequest) -> Scene:
    name = "archive." + "".join(each if each.isalnum() else "-" for each in request.node.name)
    return Scene(spark, broker.bootstrap, name, tmp_path)


def numbered(*numbers: int) -> list[bytes | None]:
    return [b"%d" % number for number in numbers]


@pytest.mark.parametrize("source", ["korvet", "kafka"])
def test_archive_writes_every_record_once_and_goes_on_where_the_table_ends(scene: Scene, source: Source) -> None:
    scene.create()
    scene.produce([b"first", None], partition=0)
    scene.produce([b"other"], partition=1)
    assert scene.archive(source=source).topics[scene.topic].rows == 3
    # Archived records may be gone.
    scene.trim(2)
    scene.produce([b"beyond"], partition=0)
    scene.produce([b"later"], partition=1)
    result = scene.archive(source=source).topics[scene.topic]
    assert (result.rows, result.batches, result.offsets, result.error) == (2, 1, {0: 3, 1: 2}, None)
    assert scene.archive(source=source).topics[scene.topic].rows == 0

    rows = scene.rows()
    assert [(row.partition, row.offset, row.value) for row in rows] == [
        (0, 0, b"first"), (0, 1, None), (0, 2, b"beyond"), (1, 0, b"other"), (1, 1, b"later"),
    ]  # fmt: skip
    assert rows[0].headers == [Row(key="a", value=b"1"), Row(key="b", value=None)]
    assert (rows[0].key, rows[0].topic, rows[0].timestampType) == (b"key", scene.topic, 0)
    assert {row.date for row in rows} == {row.timestamp.date() for row in rows}
    table = scene.spark.read.format("delta").load(scene.lake.raw(scene.topic))
    assert table.schema.names == [*RAW_COLUMNS.names, ARCHIVED]
    assert scene.reported() == {0: 3, 1: 2}
    proven = read_proven(scene.spark, scene.lake.raw(scene.topic))
    assert proven is not None
    # The third archive had nothing to write.
    assert (proven.generation, proven.batch_id, proven.offsets) == (2, 0, {0: 3, 1: 2})


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


def test_archive_goes_on_in_a_lake_that_has_checkpoints(scene: Scene) -> None:
    scene.create(1)
    scene.produce(numbered(0, 1, 2))
    with Broker(scene.settings) as broker:
        topic_id = broker.topics([scene.topic])[scene.topic].id
    # Korvet 0.7 and older had a streaming query's checkpoint beside the tables, here of a batch that was cut off.
    now = datetime.datetime(2026, 1, 2)
    rows = [(b"key", b"%d" % offset, None, scene.topic, 0, offset, now, 0, now.date()) for offset in range(2)]
    proof = Proven(topic=scene.topic, topic_id=topic_id, generation=1, batch_id=0, offsets={0: 2}, checkpoint="spark's")
    table = Table(scene.spark, scene.lake.raw(scene.topic), {})
    table.append(scene.spark.createDataFrame(rows, RAW_COLUMNS), proof)
    offsets = Path(scene.lake.location) / scene.topic / "_checkpoint" / "offsets"
    offsets.mkdir(parents=True)
    for number, end in enumerate((2, 3)):
        (offsets / str(number)).write_text(json.dumps({scene.topic: {"0": end}}))
    assert scene.archive().topics[scene.topic].rows == 1
    assert scene.values() == [b"0", b"1", b"2"]


def test_archive_with_batches_that_end_elsewhere_takes_nothing_back(scene: Scene) -> None:
    scene.create(1)
    scene.produce([b'{"n": 0}', b"no"])
    schemas = {scene.topic: SCHEMA}
    scene.archive(schemas=schemas)
    scene.produce([b'{"n": 2}', b"no", b'{"n": 4}', b"no"])
    scene.archive(schemas=schemas)
    # The driver died after the typed rows were written, and before the raw records were.
    scene.forget(scene.lake.raw(scene.topic), CLAIM)
    scene.archive(max_offsets_per_trigger=2, schemas=schemas)
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
    scene.produce(numbered(2))
    scene.archive(starting="latest")
    assert scene.values() == [b"1", b"2"]


def test_archive_fills_a_restored_table_again(scene: Scene) -> None:
    scene.create(1)
    for number in range(3):
        scene.produce(numbered(number))
        scene.archive()
    scene.spark.sql(f"RESTORE TABLE delta.`{scene.lake.raw(scene.topic)}` TO VERSION AS OF 0")
    scene.produce(numbered(3))
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
    with Broker(scene.settings) as broker:
        batch.TopicWriter(scene.spark, config, former, tables, broker).report()
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
    told = scene.archive_error()
    assert "partition 0 begins at offset 2, archived is up to 1" in told and "--no-fail-on-data-loss" in told
    assert not scene.archive(fail_on_data_loss=False).failed
    assert scene.values() == [b"0", b"2"]
    lost = Loss(partition=0, kind="trimmed", start=1, end=2)
    assert scene.losses() == (lost,)
    # Partitions that the lake does not know yet.
    admin = AdminClient(scene.settings)
    admin.create_partitions([NewPartitions(scene.topic, 2)])[scene.topic].result()
    scene.produce(numbered(3, 4, 5), partition=1)
    scene.trim(2, partition=1)
    assert "partition 1 begins at offset 2, archived is up to 0" in scene.archive_error()
    assert not scene.archive(fail_on_data_loss=False).failed
    assert scene.values() == [b"0", b"2", b"5"]
    assert scene.losses() == (lost, Loss(partition=1, kind="trimmed", start=0, end=2))


def test_proof_tells_of_records_trimmed_while_a_batch_begins(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.create(2)
    scene.produce(numbered(0, 1))
    scene.archive()
    scene.produce(numbered(2, 3, 4))
    scene.produce(numbered(0), partition=1)
    ask = batch.TopicWriter._ask

    def trim_first(writer: batch.TopicWriter) -> Any:
        scene.trim(4)
        return ask(writer)

    monkeypatch.setattr(batch.TopicWriter, "_ask", trim_first)
    told = scene.archive_error()
    assert "Offsets 2 up to 4" in told and "--no-fail-on-data-loss" in told and "failOnDataLoss" not in told
    assert not scene.archive(fail_on_data_loss=False).failed
    assert sorted(scene.values()) == [b"0", b"0", b"1", b"4"]
    # Later batches carry it on.
    scene.produce(numbered(5))
    scene.archive()
    assert scene.losses() == (Loss(partition=0, kind="trimmed", start=2, end=4),)


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
        # Other records take the offsets of the lost ones: fewer at first, then more.
        for numbers in (numbered(12), numbered(13, 14)):
            scene.produce(numbers)
            told = scene.archive_error()
            assert "partition 0 has another history from offset 2 on, archived is up to 4" in told
        assert not scene.archive(fail_on_data_loss=False).failed
        found = sorted((row.offset, row.value) for row in scene.rows())
        assert found == [(0, b"0"), (1, b"1"), (2, b"12"), (2, b"2"), (3, b"13"), (3, b"3"), (4, b"14")]
        assert scene.losses() == (Loss(partition=0, kind="replaced", start=2, end=4),)
        # A new leader of the same history is no loss, nor is it if retention removes all archived records.
        for _ in range(2):
            server.restart()
            scene.produce(numbered(5))
            assert not scene.archive().failed
            scene.trim(5)


SCHEMA = json.dumps({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})


@pytest.mark.parametrize("source", ["korvet", "kafka"])
def test_archive_writes_each_value_as_a_typed_row_or_a_dead_letter(scene: Scene, source: Source) -> None:
    scene.create()
    inside = {"type": "object", "properties": {"at": {"type": "string", "format": "date-time"}}}
    schema = {"properties": {"n": {"type": "integer"}, "in": {"type": "array", "items": inside}, "more": {}}}
    scene.produce([b'{"n": 1, "in": [{"at": "2026-01-02T03:04:05.678901+01:00"}, {}]}', b"no", None])
    scene.produce([b'{"n": 2, "n": 3}', b'{"n": 2, "more": {"a": "\\u00fc"}}'], partition=1)
    schemas = {scene.topic: json.dumps({**schema, "required": ["n"]})}
    assert not scene.archive(source=source, schemas=schemas).failed
    typed, dead_letters = scene.lake.typed(scene.topic), scene.lake.dead_letters(scene.topic)
    at = datetime.datetime(2026, 1, 2, 2, 4, 5, 678901)
    assert [(row["_offset"], row.n, row["in"], row.more) for row in scene.rows(typed)] == [
        (0, 1, [Row(at=at), Row(at=None)], None), (2, None, None, None), (1, 2, None, '{"a":"ü"}'),
    ]  # fmt: skip
    assert [(row.value, row.reason.partition(":")[0]) for row in scene.rows(dead_letters)] == [
        (b"no", "not JSON"), (b'{"n": 2, "n": 3}', "not JSON"),
    ]  # fmt: skip
    assert len(scene.rows()) == 5


def test_archive_writes_a_record_to_one_table_over_a_schema_change(scene: Scene) -> None:
    scene.create(1)
    scene.produce([b'{"n": 1}', b"no"])
    scene.archive(schemas={scene.topic: SCHEMA})
    scene.produce([b'{"n": "x"}', b'{"n": 2}', b"never"])
    scene.archive(schemas={scene.topic: SCHEMA})
    # The driver died after the dead letters were written, and before the typed rows were.
    scene.forget(scene.lake.typed(scene.topic), CLAIM)
    scene.forget(scene.lake.raw(scene.topic), CLAIM)
    other = json.dumps({"type": "object", "properties": {"m": {}}, "required": ["m"]})
    assert not scene.archive(schemas={scene.topic: other}).failed
    assert [row["_offset"] for row in scene.rows(scene.lake.typed(scene.topic))] == [0]
    assert [row.offset for row in scene.rows(scene.lake.dead_letters(scene.topic))] == [1, 2, 3, 4]


def test_dead_letter_of_a_lost_record_hides_no_record_of_its_offset(scene: Scene) -> None:
    scene.create(1)
    scene.produce([b'{"n": 1}', b"no"])
    scene.archive(schemas={scene.topic: SCHEMA})
    scene.produce([b'{"n": 2}', b"never"])
    scene.archive(schemas={scene.topic: SCHEMA})
    typed, dead_letters = scene.lake.typed(scene.topic), scene.lake.dead_letters(scene.topic)
    # The driver died after the dead letters were written. One of them is of a history that the broker has lost.
    scene.forget(typed, CLAIM)
    scene.forget(scene.lake.raw(scene.topic), CLAIM)
    DeltaTable.forPath(scene.spark, dead_letters).update("offset = 3", {"offset": "2L"})
    assert not scene.archive(schemas={scene.topic: SCHEMA}).failed
    assert [(row["_offset"], row.n) for row in scene.rows(typed)] == [(0, 1), (2, 2)]
    assert [row.offset for row in scene.rows(dead_letters)] == [1, 2, 3]


def test_archive_takes_fractions_into_a_column_that_had_integers(scene: Scene) -> None:
    scene.create(1)

    def archived(kind: str, *values: str) -> None:
        inside = {"type": "object", "properties": {"x": {"type": kind}}}
        members = {"n": {"type": kind}, "a.b": {"type": "array", "items": inside}, "open": {}}
        scene.produce([value.encode() for value in values])
        assert not scene.archive(schemas={scene.topic: json.dumps({"properties": members})}).failed

    archived("integer", '{"n": 9007199254740993, "a.b": [{"x": 1}], "open": "a"}')
    archived("number", '{"n": 2.5, "a.b": [{"x": 3.5}], "open": "b"}')
    rows = scene.rows(scene.lake.typed(scene.topic))
    assert [(row.n, row["a.b"], row.open) for row in rows] == [
        (9007199254740992.0, [Row(x=1.0)], '"a"'),
        (2.5, [Row(x=3.5)], '"b"'),
    ]


def schema_of(**members: Any) -> str:
    return json.dumps({"type": "object", "properties": members, "required": [*members]})


def test_retype_judges_all_records_by_the_schema_as_it_is_now(scene: Scene) -> None:
    integer, text = schema_of(n={"type": "integer"}), schema_of(n={"type": "string"})
    typed, dead_letters = scene.lake.typed(scene.topic), scene.lake.dead_letters(scene.topic)
    scene.create(1)
    scene.produce([b'{"n": 1}', b'{"n": "2"}', None])
    assert not scene.archive(schemas={scene.topic: integer}).failed
    assert [row.offset for row in scene.rows(dead_letters)] == [1]
    assert scene.retype(text) == RetypeResult(typed=2, dead_letters=1)
    scene.produce([b'{"n": "4"}', b"no"])
    assert not scene.archive(schemas={scene.topic: text}).failed
    assert [(row["_offset"], row.n) for row in scene.rows(typed)] == [(1, "2"), (2, None), (3, "4")]
    assert [(row.offset, row.reason[:3]) for row in scene.rows(dead_letters)] == [(0, "$.n"), (4, "not")]
    assert [row.offset for row in scene.rows()] == [*range(5)]


def test_retype_that_was_cut_off_goes_on_when_it_is_repeated(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    # The topic has got its schema late: there is no typed table yet.
    schema = schema_of(n={"type": "integer"})
    scene.create(1)
    scene.produce([b'{"n": 1}', b"no"])
    assert not scene.archive().failed
    replace_rows = Table.replace

    def cut_off(table: Table, rows: DataFrame, proven: Proven) -> int:
        raise PipelineError("the driver died")

    monkeypatch.setattr(Table, "replace", cut_off)
    with pytest.raises(PipelineError, match="the driver died"):
        scene.retype(schema)
    monkeypatch.setattr(Table, "replace", replace_rows)
    scene.produce([b'{"n": 2}'])
    assert "'korvet pipeline retype' runs, or was cut off" in scene.archive_error(schemas={scene.topic: schema})
    assert scene.retype(schema) == RetypeResult(typed=1, dead_letters=1)
    assert not scene.archive(schemas={scene.topic: schema}).failed
    assert [(row["_offset"], row.n) for row in scene.rows(scene.lake.typed(scene.topic))] == [(0, 1), (2, 2)]
    assert [row.offset for row in scene.rows(scene.lake.dead_letters(scene.topic))] == [1]


def test_retype_changes_nothing_if_the_raw_table_lacks_a_record(scene: Scene) -> None:
    schema = schema_of(n={"type": "integer"})
    scene.create(1)
    scene.produce([b'{"n": 1}', b'{"n": 2}'])
    assert not scene.archive(schemas={scene.topic: schema}).failed
    DeltaTable.forPath(scene.spark, scene.lake.raw(scene.topic)).delete("offset = 0")
    with pytest.raises(PipelineError, match=r"it lacks offset 0 of partition 0, which .*typed has"):
        scene.retype(schema_of(m={}))
    assert [row.n for row in scene.rows(scene.lake.typed(scene.topic))] == [1, 2]
    scene.produce([b'{"n": 3}'])
    assert not scene.archive(schemas={scene.topic: schema}).failed


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


def test_running_archive_compacts_its_tables(scene: Scene) -> None:
    scene.create(1)
    stop, results = threading.Event(), list[ArchiveResult]()
    thread = threading.Thread(
        target=lambda: results.append(scene.archive(every_s=0.2, maintain_every_s=0.5, expire_hours=24, stop=stop))
    )
    thread.start()
    try:
        for number in range(3):
            scene.produce(numbered(number))
            _until(lambda end=number + 1: scene.reported() == {0: end})  # type: ignore[misc]
        raw = Path(scene.lake.raw(scene.topic))
        _until(lambda: any('"OPTIMIZE"' in each.read_text() for each in raw.glob("_delta_log/*.json")))
        scene.produce(numbered(3))
        _until(lambda: scene.reported() == {0: 4})
    finally:
        stop.set()
        thread.join(WITHIN_S)
    assert not results[0].failed
    assert sorted(scene.values()) == [b"0", b"1", b"2", b"3"]


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
