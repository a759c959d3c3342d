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


class Place:
    """A topic, a lake, and what is done with them."""

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
        # To compile what a few rows go through takes longer than all else.
        interpreted = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
        for name, value in interpreted.items():
            self.spark.conf.set(name, value)
        try:
            self.spark.sql(f"RESTORE TABLE delta.`{table}` TO VERSION AS OF {version}")
        finally:
            for name in interpreted:
                self.spark.conf.unset(name)


@pytest.fixture
def place(spark: SparkSession, broker: KorvetServer, tmp_path: Path, request: pytest.FixtureRequest) -> Place:
    name = "archive." + "".join(each if each.isalnum() else "-" for each in request.node.name)
    return Place(spark, broker.bootstrap, name, tmp_path)


def numbered(*numbers: int) -> list[bytes | None]:
    return [b"%d" % number for number in numbers]


@pytest.mark.parametrize("source", ["korvet", "kafka"])
def test_every_record_gets_into_the_table_once(place: Place, source: Source) -> None:
    place.create()
    place.produce([b"first", None], partition=0)
    place.produce([b"other"], partition=1)
    assert place.archive(source=source).topics[place.topic].rows == 3
    place.produce([b"later"], partition=1)
    result = place.archive(source=source).topics[place.topic]
    assert (result.rows, result.batches, result.offsets, result.error) == (1, 1, {0: 2, 1: 2}, None)
    assert place.archive(source=source).topics[place.topic].rows == 0

    rows = place.rows()
    assert [(row.partition, row.offset, row.value) for row in rows] == [
        (0, 0, b"first"), (0, 1, None), (1, 0, b"other"), (1, 1, b"later"),
    ]  # fmt: skip
    assert rows[0].headers == [Row(key="a", value=b"1"), Row(key="b", value=None)]
    assert (rows[0].key, rows[0].topic, rows[0].timestampType) == (b"key", place.topic, 0)
    assert {row.date for row in rows} == {row.timestamp.date() for row in rows}
    assert place.spark.read.format("delta").load(place.lake.raw(place.topic)).schema == RAW_COLUMNS
    assert place.reported() == {0: 2, 1: 2}


@pytest.mark.parametrize("source", ["korvet", "kafka"])
def test_markers_count_as_archived_and_aborted_records_do_not_get_in(place: Place, source: Source) -> None:
    place.create(1)
    producer = Producer({**place.settings, "transactional.id": place.topic})
    producer.init_transactions()
    for value, end in ((b"aborted", producer.abort_transaction), (b"committed", producer.commit_transaction)):
        producer.begin_transaction()
        producer.produce(place.topic, value)
        producer.flush()
        end()
    assert place.archive(source=source).topics[place.topic].offsets == {0: 4}
    assert place.values() == [b"committed"]
    assert place.reported() == {0: 4}


@pytest.mark.parametrize("source", ["korvet", "kafka"])
def test_a_batch_that_was_written_and_not_noted_is_not_written_again(place: Place, source: Source) -> None:
    place.create(1)
    for number in range(2):
        place.produce(numbered(number))
        place.archive(source=source)
    # The driver died before it noted the last batch; what was archived is trimmed meanwhile.
    for name in ("1", ".1.crc"):
        (Path(place.lake.checkpoint(place.topic)) / "commits" / name).unlink()
    place.trim(2)
    place.produce(numbered(2))
    result = place.archive(source=source)
    assert (result.failed, result.topics[place.topic].rows) == ({}, 1)
    assert place.values() == [b"0", b"1", b"2"]


def test_without_its_checkpoint_it_goes_on_where_the_table_ends(place: Place) -> None:
    place.create(1)
    place.produce(numbered(0, 1))
    place.archive()
    for number in (2, 3):
        place.forget()
        place.produce(numbered(number))
        assert place.archive().topics[place.topic].rows == 1
    assert place.values() == [b"0", b"1", b"2", b"3"]
    proven = read_proven(place.spark, place.lake.raw(place.topic))
    assert proven is not None
    assert (proven.generation, proven.batch_id, proven.offsets) == (3, 0, {0: 4})


def test_an_older_checkpoint_takes_nothing_back_of_what_the_tables_have(place: Place) -> None:
    place.create(1)
    place.produce([b'{"n": 0}', b"no"])
    older, newer = str(place.directory / "older"), str(place.directory / "newer")
    schemas = {place.topic: SCHEMA}
    place.archive(checkpoints=older, schemas=schemas)
    place.produce([b'{"n": 2}', b"no", b'{"n": 4}', b"no"])
    place.archive(checkpoints=newer, schemas=schemas)
    # Its batches end below what the other one has written.
    place.archive(checkpoints=older, max_offsets_per_trigger=2, schemas=schemas)
    assert [row.offset for row in place.rows()] == [0, 1, 2, 3, 4, 5]
    assert [row["_offset"] for row in place.rows(place.lake.typed(place.topic))] == [0, 2, 4]
    assert [row.offset for row in place.rows(place.lake.dead_letters(place.topic))] == [1, 3, 5]
    assert place.reported() == {0: 6}


def test_it_begins_at_the_end_where_that_is_wished_and_the_lake_has_nothing(place: Place) -> None:
    place.create(1)
    place.produce(numbered(0))
    assert place.archive(starting="latest").topics[place.topic].rows == 0
    place.produce(numbered(1))
    place.archive(starting="latest")
    place.forget()
    place.produce(numbered(2))
    place.archive(starting="latest")
    assert place.values() == [b"1", b"2"]


def test_a_table_that_was_restored_is_not_gone_on_with_until_the_checkpoint_is_deleted(place: Place) -> None:
    place.create(1)
    for number in range(3):
        place.produce(numbered(number))
        place.archive()
    place.restore(place.lake.raw(place.topic), 1)
    place.produce(numbered(3))
    assert "the table was deleted or restored. Delete the checkpoint" in place.archive_error()
    assert place.values() == [b"0", b"1"]
    place.forget()
    assert not place.archive().failed
    assert place.values() == [b"0", b"1", b"2", b"3"]


def test_a_topic_that_was_created_anew_is_another_one(place: Place) -> None:
    place.create(1)
    place.produce(numbered(0))
    place.archive()
    with Broker(place.settings) as broker:
        former = broker.topics([place.topic])[place.topic]
    admin = AdminClient(place.settings)
    admin.delete_topics([place.topic])[place.topic].result()
    _until(lambda: place.topic not in admin.list_topics(timeout=10).topics)
    place.create(1)
    place.produce(numbered(1, 2))
    assert "deleted and created anew" in place.archive_error()
    assert place.values() == [b"0"]

    # Nor is anything reported of it by an archive that has not seen this yet.
    config = ArchiveConfig(bootstrap_servers=place.bootstrap, lake=place.lake.location, topics=(place.topic,))
    tables = batch.Tables(place.spark, place.lake, place.topic)
    checkpoint = Checkpoint(place.spark, place.lake.checkpoint(place.topic), place.topic)
    writer = batch.TopicWriter(place.spark, config, former, tables, checkpoint, threading.Event(), None)
    writer.report()
    writer.close()
    assert place.reported() == {}


def test_a_topic_that_is_created_anew_under_the_query_ends_it(place: Place) -> None:
    place.create(1)
    place.produce(numbered(0))
    stop, results = threading.Event(), list[ArchiveResult]()
    thread = threading.Thread(target=lambda: results.append(place.archive(every_s=0.2, stop=stop)))
    thread.start()
    try:
        _until(lambda: place.reported() == {0: 1})
        admin = AdminClient(place.settings)
        admin.delete_topics([place.topic])[place.topic].result()
        _until(lambda: place.topic not in admin.list_topics(timeout=10).topics)
        place.create(1)
        place.produce(numbered(1, 2))
        thread.join(WITHIN_S)
        assert not thread.is_alive()
    finally:
        stop.set()
        thread.join(WITHIN_S)
    assert place.topic in str(results[0].failed[place.topic])
    assert place.values() == [b"0"]


def test_records_that_were_trimmed_before_are_an_error_or_a_warning(place: Place) -> None:
    place.create(1)
    place.produce(numbered(0))
    place.archive()
    place.produce(numbered(1, 2))
    place.trim(2)
    assert "partition 0 begins at offset 2, archived is up to 1" in place.archive_error()
    assert not place.archive(fail_on_data_loss=False).failed
    assert place.values() == [b"0", b"2"]


def test_acknowledged_records_that_redis_lost_are_an_error_or_a_warning(spark: SparkSession, tmp_path: Path) -> None:
    with running_broker() as server:
        place = Place(spark, server.bootstrap, "lost", tmp_path)
        place.create(1)
        place.produce(numbered(0, 1))
        server.stop()
        shutil.copytree(server.data_dir, tmp_path / "before")
        server.start()
        place.produce(numbered(2, 3))
        place.archive()
        server.stop()
        shutil.rmtree(server.data_dir)
        shutil.move(tmp_path / "before", server.data_dir)
        server.start()
        # Others take the places of those that were lost, and more.
        place.produce(numbered(12, 13, 14))
        told = place.archive_error()
        assert "partition 0 has another history from offset 2 on, archived is up to 4" in told
        assert not place.archive(fail_on_data_loss=False).failed
        found = sorted((row.offset, row.value) for row in place.rows())
        assert found == [(0, b"0"), (1, b"1"), (2, b"12"), (2, b"2"), (3, b"13"), (3, b"3"), (4, b"14")]
        assert not place.archive().failed


SCHEMA = json.dumps({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})


def test_values_are_rows_of_the_typed_table_or_dead_letters(place: Place) -> None:
    place.create(1)
    place.produce([b'{"n": 1}', b"no", None, b'{"n": 2}'])
    assert not place.archive(schemas={place.topic: SCHEMA}).failed
    typed, dead_letters = place.lake.typed(place.topic), place.lake.dead_letters(place.topic)
    assert [(row["_offset"], row.n) for row in place.rows(typed)] == [(0, 1), (2, None), (3, 2)]
    assert [(row.offset, row.value) for row in place.rows(dead_letters)] == [(1, b"no")]
    assert len(place.rows()) == 4


def test_each_record_is_in_one_of_both_tables_though_the_schema_changed_in_between(place: Place) -> None:
    place.create(1)
    place.produce([b'{"n": 1}', b"no"])
    place.archive(schemas={place.topic: SCHEMA})
    place.produce([b'{"n": "x"}', b'{"n": 2}', b"never"])
    place.archive(schemas={place.topic: SCHEMA})
    # The driver died after the dead letters were written, and before the typed rows were.
    place.restore(place.lake.typed(place.topic), 0)
    place.restore(place.lake.raw(place.topic), 0)
    place.forget()
    other = json.dumps({"type": "object", "properties": {"m": {}}, "required": ["m"]})
    assert not place.archive(schemas={place.topic: other}).failed
    assert [row["_offset"] for row in place.rows(place.lake.typed(place.topic))] == [0]
    assert [row.offset for row in place.rows(place.lake.dead_letters(place.topic))] == [1, 2, 3, 4]


def test_a_batch_whose_typed_rows_alone_were_written_goes_on_under_another_leader(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.create(1)
    place.produce([b'{"n": 1}'])
    append, latest = Table.append, history.latest

    def cut_off(table: Table, rows: DataFrame, proven: Proven) -> int:
        if table.path == place.lake.raw(place.topic):
            raise PipelineError("the driver died")
        return append(table, rows, proven)

    def later(*asked: Any) -> dict[int, Position]:
        return {
            number: replace(end, leader_epoch=(end.leader_epoch or 0) + 1) for number, end in latest(*asked).items()
        }

    monkeypatch.setattr(Table, "append", cut_off)
    assert "the driver died" in place.archive_error(schemas={place.topic: SCHEMA})
    monkeypatch.setattr(Table, "append", append)
    monkeypatch.setattr(history, "latest", later)
    assert not place.archive(schemas={place.topic: SCHEMA}).failed
    assert place.values() == [b'{"n": 1}']
    assert len(place.rows(place.lake.typed(place.topic))) == 1


def test_a_schema_that_does_not_parse_ends_it_before_anything_is_written(place: Place) -> None:
    place.create(1)
    place.produce([b"{}"])
    assert "the JSON Schema gives no columns" in place.archive_error(schemas={place.topic: "{"})
    assert not Path(place.lake.raw(place.topic)).exists()


def test_new_topics_of_the_pattern_join_and_a_stop_ends_all(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_NEW_TOPICS_EVERY_S", 0.2)
    place.create(1)
    place.produce(numbered(0))
    later = Place(place.spark, place.bootstrap, f"{place.topic}.later", place.directory)
    stop, results = threading.Event(), list[ArchiveResult]()

    def work() -> None:
        pattern = place.topic.replace(".", r"\.") + ".*"
        results.append(place.archive(topics=(), pattern=pattern, every_s=0.2, stop=stop))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        _until(lambda: place.reported() == {0: 1})
        later.create(1)
        later.produce(numbered(0, 1))
        _until(lambda: later.reported() == {0: 2})
    finally:
        stop.set()
        thread.join(WITHIN_S)
    assert {name: (each.rows, each.error) for name, each in results[0].topics.items()} == {
        place.topic: (1, None), later.topic: (2, None),
    }  # fmt: skip


def test_a_topic_that_fails_leaves_the_others_alone(place: Place) -> None:
    other = Place(place.spark, place.bootstrap, f"{place.topic}.other", place.directory)
    for each in (place, other):
        each.create(1)
        each.produce(numbered(0))
    Path(place.lake.raw(place.topic)).parent.mkdir(parents=True)
    Path(place.lake.raw(place.topic)).write_text("in the way")
    result = place.archive(topics=(place.topic, other.topic))
    assert result.topics[other.topic].rows == 1
    assert "a file is in the way of the table" in str(result.failed[place.topic])


def test_a_topic_that_is_not_there_is_told_at_once(place: Place) -> None:
    with pytest.raises(UnknownTopic, match=place.topic):
        place.archive()
    with pytest.raises(PipelineError, match="no topics to archive"):
        place.archive(topics=())
    with pytest.raises(PipelineError, match="no regular expression"):
        place.archive(topics=(), pattern="(")


def _until(condition: Callable[[], bool]) -> None:
    pause, deadline = threading.Event(), WITHIN_S / 0.1
    while not condition():
        assert deadline > 0, "it did not come to that"
        deadline -= 1
        pause.wait(0.1)
