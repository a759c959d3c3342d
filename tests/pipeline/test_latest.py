"""The table of each key's newest record: what wins, and that each merge counts once."""

from __future__ import annotations

import datetime
import random
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from structlog.testing import capture_logs

from korvet.pipeline.archive import ArchiveConfig, ArchiveResult, archive
from korvet.pipeline.broker import Broker
from korvet.pipeline.errors import PipelineError
from korvet.pipeline.lake import ARCHIVED, RAW_COLUMNS, Lake, Proven, read_proven
from korvet.pipeline.lake.latest import LatestTable
from korvet.pipeline.lake.maintain import MaintainConfig, maintain
from korvet.pipeline.lake.table import Overtaken, Table
from tests.support.broker import KorvetServer

WITHIN_S = 60.0
DAY = datetime.date(2026, 1, 2)
NOON = datetime.datetime(2026, 1, 2, 12)

Record = tuple[bytes | None, bytes | None, int, int, int]
"""Key, value, partition, offset, and the timestamp in seconds after noon."""
Newest = dict[bytes, bytes | None]


class Tables:
    """A raw table, and the table that follows it."""

    def __init__(self, spark: SparkSession, lake: Lake) -> None:
        self.spark = spark
        self.raw = Table(spark, lake.raw("t"), {})
        self.latest = LatestTable(spark, lake.latest("t"))
        self._proof = Proven(topic="t", topic_id="id", generation=1, batch_id=-1, offsets={}, checkpoint="writer")

    def add(self, *records: Record, ends: Mapping[int, int]) -> None:
        rows = [
            (key, value, None, "t", partition, offset, NOON + datetime.timedelta(seconds=second), 0, DAY)
            for key, value, partition, offset, second in records
        ]
        self._proof = replace(self._proof, batch_id=self._proof.batch_id + 1, offsets=dict(ends))
        self.raw.append(self.spark.createDataFrame(rows, RAW_COLUMNS).coalesce(1), self._proof)

    def follow(self) -> Newest:
        self.latest.follow(self.raw, "writer")
        assert self.latest.has(self.raw.proven)
        return newest(self.latest.rows)


def newest(rows: DataFrame | None) -> Newest:
    assert rows is not None
    found = [(bytes(row.key), bytes(row.value)) for row in rows.collect()]
    assert len(dict(found)) == len(found)
    return dict(found)


@pytest.fixture
def tables(spark: SparkSession, tmp_path: Path) -> Tables:
    return Tables(spark, Lake(str(tmp_path)))


def test_highest_offset_of_a_key_wins_in_a_partition_whatever_its_timestamp(tables: Tables) -> None:
    tables.add((b"a", b"1", 0, 0, 9), (b"a", b"2", 0, 1, 1), (b"b", b"1", 0, 2, 0), ends={0: 3})
    assert tables.follow() == {b"a": b"2", b"b": b"1"}
    tables.add((b"b", b"2", 0, 3, -5), (b"c", b"1", 0, 4, 0), ends={0: 5})
    assert tables.follow() == {b"a": b"2", b"b": b"2", b"c": b"1"}


def test_latest_timestamp_of_a_key_wins_among_partitions(tables: Tables) -> None:
    tables.add((b"a", b"old", 1, 0, 0), (b"a", b"new", 0, 0, 1), (b"b", b"low", 0, 1, 0), ends={0: 2, 1: 1})
    tables.add((b"b", b"high", 1, 1, 0), ends={0: 2, 1: 2})
    assert tables.follow() == {b"a": b"new", b"b": b"high"}
    tables.add((b"a", b"older", 1, 2, 0), (b"b", None, 0, 2, -1), (b"b", b"newer", 0, 3, 2), ends={0: 4, 1: 3})
    assert tables.follow() == {b"a": b"new", b"b": b"newer"}


def test_record_of_another_partition_wins_once_a_later_one_of_its_own_partition_lost(tables: Tables) -> None:
    tables.add((b"a", b"late", 0, 0, 5), (b"a", b"other", 1, 0, 3), (b"b", b"1", 0, 1, 5), ends={0: 2, 1: 1})
    assert tables.follow() == {b"a": b"late", b"b": b"1"}
    # The last record of partition 0 is earlier now than that of partition 1, which the table does not have.
    tables.add((b"a", b"early", 0, 2, 1), ends={0: 3, 1: 1})
    assert tables.follow() == {b"a": b"other", b"b": b"1"}
    tables.add((b"a", b"earlier", 1, 1, 0), (b"b", b"earlier", 1, 2, 4), ends={0: 3, 1: 3})
    assert tables.follow() == {b"a": b"early", b"b": b"1"}


def test_tombstone_holds_against_earlier_records_of_other_partitions_in_later_batches(tables: Tables) -> None:
    tables.add((b"a", b"1", 0, 0, 1), (b"a", None, 0, 1, 5), ends={0: 2, 1: 0})
    assert tables.follow() == {}
    tables.add((b"a", b"earlier", 1, 0, 3), ends={0: 2, 1: 1})
    assert tables.follow() == {}
    tables.add((b"a", b"later", 1, 1, 6), ends={0: 2, 1: 2})
    assert tables.follow() == {b"a": b"later"}


def test_row_wins_against_earlier_records_although_its_raw_record_expired(tables: Tables) -> None:
    tables.add((b"a", b"1", 0, 0, 5), ends={0: 1, 1: 0})
    tables.follow()
    tables.spark.sql(f"DELETE FROM delta.`{tables.raw.path}`")
    tables.add((b"a", b"earlier", 1, 0, 3), ends={0: 1, 1: 1})
    assert tables.follow() == {b"a": b"1"}


def test_table_does_not_depend_on_the_batches_in_which_records_came(spark: SparkSession, tmp_path: Path) -> None:
    dice = random.Random(5)
    partitions: dict[int, list[Record]] = {number: [] for number in range(3)}
    for _ in range(120):
        number = dice.randrange(3)
        value = None if dice.random() < 0.25 else b"%d" % dice.randrange(1000)
        key, second = b"%d" % dice.randrange(12), dice.randrange(10)
        partitions[number].append((key, value, number, len(partitions[number]), second))
    expected = newest_by_definition(partitions)
    assert 0 < len(expected) < 12
    for run, steps in enumerate(([], [0.3, 0.7])):
        tables, has = Tables(spark, Lake(str(tmp_path / str(run)))), dict.fromkeys(partitions, 0)
        for step in (*steps, 1.0):
            # Each partition comes as far as it likes.
            ends = {n: max(has[n], int(len(each) * min(1.0, step * dice.uniform(0.7, 1.3)))) for n, each in
                    partitions.items()} if step < 1 else {n: len(each) for n, each in partitions.items()}  # fmt: skip
            tables.add(*(each for n in partitions for each in partitions[n][has[n] : ends[n]]), ends=ends)
            tables.follow()
            has = ends
        assert newest(tables.latest.rows) == expected


def newest_by_definition(partitions: Mapping[int, Iterable[Record]]) -> Newest:
    """The last record of each key in each partition; of these the latest, then that of the highest partition."""
    lasts = {
        (key, number): (second, number, value) for each in partitions.values() for key, value, number, _, second in each
    }
    found = {key: max(last for (of, _), last in lasts.items() if of == key) for key, _ in lasts}
    return {key: value for key, (_, _, value) in found.items() if key is not None and value is not None}


def test_tombstone_deletes_its_key_until_a_later_record(tables: Tables) -> None:
    tables.add((b"a", b"1", 0, 0, 0), (b"b", b"1", 0, 1, 0), (b"b", None, 0, 2, 0), (b"c", None, 0, 3, 0), ends={0: 4})
    assert tables.follow() == {b"a": b"1"}
    tables.add((b"a", None, 0, 4, 0), (b"b", b"2", 0, 5, 0), ends={0: 6})
    assert tables.follow() == {b"b": b"2"}
    tables.add((b"a", b"3", 0, 6, 0), (b"b", None, 0, 7, 0), ends={0: 8})
    assert tables.follow() == {b"a": b"3"}


def test_merge_of_records_that_change_nothing_ends_with_the_proof(tables: Tables) -> None:
    tables.add((b"a", b"1", 0, 0, 0), ends={0: 1})
    tables.follow()
    tables.add((None, b"1", 0, 1, 0), (None, None, 0, 2, 0), ends={0: 5})
    with capture_logs() as logs:
        assert tables.follow() == {b"a": b"1"}
    assert [(line["log_level"], line["n"]) for line in logs] == [("warning", 2)]
    assert tables.latest.proven is not None
    assert tables.latest.proven.offsets == {0: 5}


def test_records_in_place_of_lost_ones_win(tables: Tables) -> None:
    tables.add((b"a", b"kept", 0, 0, 0), (b"b", b"lost", 0, 1, 0), (b"a", b"lost", 0, 2, 0), ends={0: 3})
    tables.follow()
    for table in (tables.latest, tables.raw):
        assert table.proven is not None
        table.reset(replace(table.proven, offsets={0: 1}))
    tables.add((b"a", b"replaced", 0, 1, 1), ends={0: 2})
    assert tables.follow() == {b"a": b"replaced", b"b": b"lost"}


def test_table_that_was_restored_gets_all_again(tables: Tables) -> None:
    tables.add((b"a", b"1", 0, 0, 0), (b"b", b"1", 0, 1, 0), ends={0: 2})
    tables.follow()
    version = tables.spark.sql(f"DESCRIBE HISTORY delta.`{tables.latest.path}`").first()
    tables.add((b"a", None, 0, 2, 0), (b"b", b"2", 0, 3, 0), ends={0: 4})
    tables.follow()
    assert version is not None
    tables.spark.sql(f"RESTORE TABLE delta.`{tables.latest.path}` TO VERSION AS OF {version['version']}")
    tables.latest = LatestTable(tables.spark, tables.latest.path)
    assert tables.follow() == {b"b": b"2"}


def test_archive_that_was_overtaken_merges_nothing(tables: Tables) -> None:
    tables.add((b"a", b"1", 0, 0, 0), ends={0: 1})
    tables.follow()
    tables.add((b"a", b"2", 0, 1, 0), ends={0: 2})
    other = LatestTable(tables.spark, tables.latest.path)
    other.claim("t", "id", "other")
    with pytest.raises(Overtaken):
        tables.follow()
    assert newest(other.rows) == {b"a": b"1"}
    other.follow(tables.raw, "other")
    assert newest(other.rows) == {b"a": b"2"}


def test_merge_begins_again_if_maintenance_came_between(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    tables.add((b"a", b"1", 0, 0, 0), ends={0: 1})
    tables.follow()
    tables.add((b"a", b"2", 0, 1, 0), (b"b", b"1", 0, 2, 0), ends={0: 3})
    commit, conflicts = LatestTable._commit, [PySparkException("[DELTA_CONCURRENT_DELETE_READ] another job")]

    def late(table: LatestTable, *told: object) -> None:
        if conflicts:
            raise conflicts.pop()
        commit(table, *told)  # type: ignore[arg-type]

    monkeypatch.setattr(LatestTable, "_commit", late)
    assert tables.follow() == {b"a": b"2", b"b": b"1"}
    assert not conflicts


def test_maintenance_compacts_the_table_and_expires_no_key(tables: Tables, tmp_path: Path) -> None:
    for number in range(3):
        tables.add((b"%d" % number, b"1", 0, number, 0), ends={0: number + 1})
        tables.follow()
    tables.spark.sql(f"UPDATE delta.`{tables.latest.path}` SET {ARCHIVED} = date '2020-01-01'")
    done = maintain(tables.spark, MaintainConfig(lake=str(tmp_path), expire_hours=24)).tables[tables.latest.path]
    assert done.error is None and done.files_compacted > 1 and done.rows_expired == 0
    assert len(newest(tables.latest.rows)) == 3
    tables.add((b"0", None, 0, 3, 0), ends={0: 4})
    assert tables.follow() == {b"1": b"1", b"2": b"1"}


class Scene:
    """A topic, and its archive with a table of newest records."""

    def __init__(self, spark: SparkSession, bootstrap: str, topic: str, directory: Path) -> None:
        self.spark, self.bootstrap, self.topic = spark, bootstrap, topic
        self.lake = Lake(str(directory / "lake"))
        with Broker({"bootstrap.servers": bootstrap}) as broker:
            assert broker.create_topic(topic, 1, {})

    def produce(self, records: Iterable[tuple[bytes, bytes | None]]) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap, "log_level": 0})
        for key, value in records:
            producer.produce(self.topic, value, key, partition=0)
        assert producer.flush(WITHIN_S) == 0

    def archive(self, **told: object) -> ArchiveResult:
        given = {"bootstrap_servers": self.bootstrap, "lake": self.lake.location, "topics": (self.topic,), **told}
        return archive(self.spark, ArchiveConfig(**given))  # type: ignore[arg-type]

    def newest(self) -> Newest:
        return newest(self.spark.read.format("delta").load(self.lake.latest(self.topic)))


@pytest.fixture
def scene(spark: SparkSession, broker: KorvetServer, tmp_path: Path, request: pytest.FixtureRequest) -> Scene:
    name = request.node.name.translate({ord("["): ".", ord("]"): None})
    return Scene(spark, broker.bootstrap, f"latest.{name}", tmp_path)


def test_archive_gives_a_lake_that_it_has_the_newest_record_of_each_key(scene: Scene) -> None:
    scene.produce([(b"a", b"1"), (b"b", b"1"), (b"a", b"2")])
    assert scene.archive().topics[scene.topic].rows == 3
    assert not Path(scene.lake.latest(scene.topic)).exists()
    result = scene.archive(table="latest")
    assert (result.failed, result.topics[scene.topic].rows) == ({}, 0)
    assert scene.newest() == {b"a": b"2", b"b": b"1"}
    scene.produce([(b"b", None), (b"c", b"1")])
    assert scene.archive(table="latest", max_offsets_per_trigger=1).topics[scene.topic].batches == 2
    assert scene.newest() == {b"a": b"2", b"c": b"1"}


def test_table_of_somebody_else_in_its_place_stays_as_it_is(scene: Scene) -> None:
    path = scene.lake.latest(scene.topic)
    scene.spark.range(3).write.format("delta").save(path)
    scene.produce([(b"a", b"1")])
    assert not scene.archive().failed
    assert path not in maintain(scene.spark, MaintainConfig(lake=scene.lake.location)).tables
    scene.produce([(b"a", b"2")])
    assert "was not written by an archive" in str(scene.archive(table="latest").failed[scene.topic])
    assert scene.spark.read.format("delta").load(path).count() == 3


@pytest.mark.parametrize("comes_after", [False, True])
def test_archive_cut_off_around_a_merge_goes_on_with_each_record_once(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, comes_after: bool
) -> None:
    scene.produce([(b"a", b"1"), (b"b", b"1")])
    commit = LatestTable._commit

    def cut_off(table: LatestTable, *told: object) -> None:
        if comes_after:
            commit(table, *told)  # type: ignore[arg-type]
        raise PipelineError("the driver died")

    monkeypatch.setattr(LatestTable, "_commit", cut_off)
    result = scene.archive(table="latest").topics[scene.topic]
    assert (result.rows, "the driver died" in str(result.error)) == (2, True)
    monkeypatch.undo()
    scene.produce([(b"a", None), (b"c", b"1")])
    assert not scene.archive(table="latest").failed
    assert scene.newest() == {b"b": b"1", b"c": b"1"}
    proofs = [read_proven(scene.spark, path(scene.topic)) for path in (scene.lake.latest, scene.lake.raw)]
    assert [None if proven is None else proven.offsets for proven in proofs] == [{0: 4}, {0: 4}]
