"""Archives of topics of a real broker into Delta tables."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.sql import Row, SparkSession

from korvet.pipeline.archive import ArchiveConfig, batch, run
from korvet.pipeline.archive.reading import read_ranges
from korvet.pipeline.broker import Broker
from korvet.pipeline.errors import PipelineError, UnknownTopic
from korvet.pipeline.lake import ARCHIVED, RAW_COLUMNS
from korvet.pipeline.plan.layout import LAKE_TABLES
from korvet.pipeline.plan.losses import Loss
from korvet.pipeline.source.ranges import OffsetRange
from tests.pipeline.archiving import Scene, Source, numbered, schema_of, until
from tests.support.broker import KorvetServer, running_broker


def test_small_ranges_of_many_partitions_share_tasks(spark: SparkSession) -> None:
    ranges = [OffsetRange("t", number, 0, 1) for number in range(1_000)]
    options = {"kafka.bootstrap.servers": "nowhere:1", "assign": '{"t": [0]}'}
    assert read_ranges(spark, ranges, options).rdd.getNumPartitions() < 100
    assert read_ranges(spark, ranges[:9], options).rdd.getNumPartitions() == 9


@pytest.mark.parametrize("source", [pytest.param("korvet", marks=pytest.mark.scene), "kafka"])
def test_archive_writes_every_record_once_and_goes_on_where_the_table_ends(scene: Scene, source: Source) -> None:
    scene.create(3)
    scene.produce([b"first", None], partition=0)
    scene.produce([b"other"], partition=1)
    _produce_an_aborted_and_a_committed_record(scene, partition=2)
    assert scene.archive(source=source).topics[scene.topic].rows == 4
    _leave_a_checkpoint(scene)
    # Archived records may be gone.
    scene.trim(2)
    scene.produce([b"beyond"], partition=0)
    scene.produce([b"later"], partition=1)
    result = scene.archive(source=source).topics[scene.topic]
    # Markers count, and aborted records are left out.
    ends = {0: 3, 1: 2, 2: 4}
    assert (result.rows, result.batches, result.offsets, result.error) == (2, 1, ends, None)
    assert scene.archive(source=source).topics[scene.topic].rows == 0

    rows = scene.rows()
    assert [(row.partition, row.offset, row.value) for row in rows] == [
        (0, 0, b"first"), (0, 1, None), (0, 2, b"beyond"), (1, 0, b"other"), (1, 1, b"later"), (2, 2, b"committed"),
    ]  # fmt: skip
    assert rows[0].headers == [Row(key="a", value=b"1"), Row(key="b", value=None)]
    assert (rows[0].key, rows[0].topic, rows[0].timestampType) == (b"key", scene.topic, 0)
    assert {row.date for row in rows} == {row.timestamp.date() for row in rows}
    table = scene.spark.read.format("delta").load(scene.lake.raw(scene.topic))
    assert table.schema.names == [*RAW_COLUMNS.names, ARCHIVED]
    assert scene.reported() == ends
    # The third archive had nothing to write.
    assert (scene.proven.generation, scene.proven.batch_id, scene.proven.offsets) == (2, 0, ends)


def _produce_an_aborted_and_a_committed_record(scene: Scene, partition: int) -> None:
    producer = Producer({**scene.settings, "transactional.id": scene.topic})
    producer.init_transactions()
    for value, end in ((b"aborted", producer.abort_transaction), (b"committed", producer.commit_transaction)):
        producer.begin_transaction()
        producer.produce(scene.topic, value, partition=partition)
        producer.flush()
        end()


def _leave_a_checkpoint(scene: Scene) -> None:
    """Korvet 0.7 and older had a streaming query's checkpoint beside the tables, here of a batch that was cut off."""
    offsets = Path(scene.lake.location) / scene.topic / "_checkpoint" / "offsets"
    offsets.mkdir(parents=True)
    for number, end in enumerate((2, 3)):
        (offsets / str(number)).write_text(json.dumps({scene.topic: {"0": end}}))


@pytest.mark.scene
def test_archive_begins_at_the_end_if_set_and_fills_a_restored_table_again(scene: Scene) -> None:
    scene.create(1)
    scene.produce(numbered(0))
    assert scene.archive(starting="latest").topics[scene.topic].rows == 0
    for number in (1, 2):
        scene.produce(numbered(number))
        scene.archive(starting="latest")
    # The versions are those of the beginning, of a claim and the first batch, and of a claim and the second one.
    scene.spark.sql(f"RESTORE TABLE delta.`{scene.lake.raw(scene.topic)}` TO VERSION AS OF 2")
    assert scene.values() == [b"1"]
    assert not scene.archive(starting="latest").failed
    assert scene.values() == [b"1", b"2"]


def test_topic_created_anew_ends_the_running_archive_and_all_later_ones(scene: Scene) -> None:
    scene.create(1)
    scene.produce(numbered(0))
    with Broker(scene.settings) as broker:
        former = broker.topics([scene.topic])[scene.topic]
    with scene.running() as results:
        until(lambda: scene.reported() == {0: 1})
        admin = AdminClient(scene.settings)
        admin.delete_topics([scene.topic])[scene.topic].result()
        until(lambda: scene.topic not in admin.list_topics(timeout=10).topics)
        scene.create(1)
        scene.produce(numbered(1, 2))
        until(lambda: bool(results))
    assert scene.topic in str(results[0].failed[scene.topic])
    assert "deleted and created anew" in scene.archive_error()
    assert scene.values() == [b"0"]

    # An archive that has not seen this yet reports nothing of the topic.
    config = ArchiveConfig(bootstrap_servers=scene.bootstrap, lake=scene.lake.location, topics=(scene.topic,))
    tables = batch.Tables(scene.spark, scene.lake, scene.topic)
    with Broker(scene.settings) as broker:
        batch.TopicWriter(scene.spark, config, former, tables, broker).report()
    assert scene.reported() == {}


@pytest.mark.scene
def test_records_trimmed_before_the_archive_are_an_error_or_a_warning(scene: Scene) -> None:
    scene.create(1)
    scene.produce(numbered(0))
    scene.archive()
    # A partition that the lake does not know yet.
    admin = AdminClient(scene.settings)
    admin.create_partitions([NewPartitions(scene.topic, 2)])[scene.topic].result()
    scene.produce(numbered(3, 4, 5), partition=1)
    scene.trim(2, partition=1)
    assert "partition 1 begins at offset 2, archived is up to 0" in scene.archive_error()
    scene.produce(numbered(1, 2))
    scene.trim(2)
    told = scene.archive_error()
    assert "partition 0 begins at offset 2, archived is up to 1" in told and "--no-fail-on-data-loss" in told
    assert scene.values() == [b"0"]
    assert not scene.archive(fail_on_data_loss=False).failed
    assert scene.values() == [b"0", b"2", b"5"]
    lost = [(loss.partition, loss.kind, loss.start, loss.end) for loss in scene.proven.losses]
    assert lost == [(0, "trimmed", 1, 2), (1, "trimmed", 0, 2)]


def test_proof_has_records_trimmed_while_a_batch_begins(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.create(2)
    scene.produce(numbered(0, 1))
    scene.archive()
    scene.produce(numbered(2, 3, 4))
    scene.produce(numbered(0), partition=1)
    ask = batch.TopicWriter._fetch_ends

    def trim_first(writer: batch.TopicWriter) -> Any:
        scene.trim(4)
        return ask(writer)

    monkeypatch.setattr(batch.TopicWriter, "_fetch_ends", trim_first)
    told = scene.archive_error()
    assert "Offsets 2 up to 4" in told and "--no-fail-on-data-loss" in told and "failOnDataLoss" not in told
    assert not scene.archive(fail_on_data_loss=False).failed
    assert sorted(scene.values()) == [b"0", b"0", b"1", b"4"]
    # Later batches carry it on.
    scene.produce(numbered(5))
    scene.archive()
    assert scene.proven.losses == (Loss(partition=0, kind="trimmed", start=2, end=4),)


def test_records_that_redis_lost_are_an_error_or_a_warning(spark: SparkSession, tmp_path: Path) -> None:
    with running_broker() as server:
        scene = Scene(spark, server.bootstrap, "lost", tmp_path)
        scene.create(2)
        scene.produce(numbered(0, 1))
        scene.produce(numbered(7), partition=1)
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
            # A new leader of the same history is no loss.
            assert "partition 1" not in told
        assert not scene.archive(fail_on_data_loss=False).failed
        found = sorted((row.offset, row.value) for row in scene.rows() if row.partition == 0)
        assert found == [(0, b"0"), (1, b"1"), (2, b"12"), (2, b"2"), (3, b"13"), (3, b"3"), (4, b"14")]
        assert scene.proven.losses == (Loss(partition=0, kind="replaced", start=2, end=4),)
        # Nor is it if retention removes all archived records.
        scene.trim(5)
        server.restart()
        scene.produce(numbered(5))
        scene.produce(numbered(8), partition=1)
        assert not scene.archive().failed
        assert scene.values()[-3:] == [b"5", b"7", b"8"]


def test_new_topics_of_a_pattern_join_and_a_stop_ends_all(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_NEW_TOPICS_EVERY_S", 0.2)
    scene.create(1)
    scene.produce(numbered(0))
    later = Scene(scene.spark, scene.bootstrap, f"{scene.topic}.later", scene.directory)
    with scene.running(topics=(), pattern=scene.topic.replace(".", r"\.") + ".*") as results:
        until(lambda: scene.reported() == {0: 1})
        later.create(1)
        later.produce(numbered(0, 1))
        until(lambda: later.reported() == {0: 2})
    assert {name: (each.rows, each.error) for name, each in results[0].topics.items()} == {
        scene.topic: (1, None), later.topic: (2, None),
    }  # fmt: skip


def test_topics_whose_setting_asks_for_tables_are_found_and_get_these(
    broker: KorvetServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "_LOOKED_AT", 2)
    config = ArchiveConfig(bootstrap_servers=broker.bootstrap, lake="lake", schema_registry="http://a")
    topics = run._Topics(config)
    with Broker({"bootstrap.servers": broker.bootstrap}) as admin:
        for number in range(5):
            admin.create_topic(f"asks-{number}", 1, {LAKE_TABLES: "typed, raw"} if number % 2 else {})
        off = replace(config, schema_registry=None)
        assert topics.new(admin) == [("asks-1", config), ("asks-3", config)]
        admin.create_topic("asks-5", 1, {LAKE_TABLES: "raw,latest"})
        # A look takes some of the others, in turns.
        found = [each for _ in range(len(admin.topic_names())) for each in topics.new(admin)]
        assert found == [("asks-5", replace(off, schemas={"asks-5": ""}, table="latest"))]
        with pytest.raises(PipelineError, match="raw, typed, latest"):
            admin.create_topic("asks-6", 1, {LAKE_TABLES: "cooked"})


def test_archive_without_topics_keeps_the_tables_that_settings_ask_for(scene: Scene) -> None:
    plain = Scene(scene.spark, scene.bootstrap, f"{scene.topic}.plain", scene.directory)
    schema = {"korvet.value.schema": schema_of(n={"type": "integer"})}
    scene.create(1, **{LAKE_TABLES: "raw,typed,latest", **schema})
    plain.create(1, **{LAKE_TABLES: "raw", **schema})
    for each in (scene, plain):
        each.produce([b'{"n": 1}'])
    names = {scene.topic, plain.topic}
    assert {
        name: done.rows for name, done in scene.archive(topics=()).topics.items() if name in names
    } == dict.fromkeys(names, 1)
    tables = {
        each: sorted(table.name for table in Path(scene.lake.location, each.topic).iterdir()) for each in (scene, plain)
    }
    assert tables == {scene: ["latest", "raw", "typed"], plain: ["raw"]}


def test_running_archive_compacts_its_tables(scene: Scene) -> None:
    scene.create(1)
    with scene.running(maintain_every_s=8, expire_hours=24) as results:
        for number in range(2):
            scene.produce(numbered(number))
            until(lambda end=number + 1: scene.reported() == {0: end})  # type: ignore[misc]
        raw = Path(scene.lake.raw(scene.topic))
        until(lambda: any('"OPTIMIZE"' in each.read_text() for each in raw.glob("_delta_log/*.json")))
        scene.produce(numbered(2))
        until(lambda: scene.reported() == {0: 3})
    assert not results[0].failed
    assert scene.values() == [b"0", b"1", b"2"]


@pytest.mark.scene
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
    with pytest.raises(PipelineError, match="no regular expression"):
        scene.archive(topics=(), pattern="(")
