"""The table of each key's newest record: what wins, and that each merge counts once."""

from __future__ import annotations

import copy
import datetime
import random
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from structlog.testing import capture_logs

from korvet.pipeline.errors import PipelineError
from korvet.pipeline.lake import RAW_COLUMNS, Lake, read_proven
from korvet.pipeline.lake.latest import LatestTable
from korvet.pipeline.lake.maintain import MaintainConfig, TableMaintained, maintain
from korvet.pipeline.lake.proofs import snapshot
from korvet.pipeline.lake.table import Table
from korvet.pipeline.plan.proofs import Proven
from korvet.pipeline.plan.table import Overtaken
from tests.pipeline.archiving import Scene
from tests.support.delta import delta_rows

DAY = datetime.date(2026, 1, 2)
NOON = datetime.datetime(2026, 1, 2, 12)
KEYS = 12
"""How many keys have random records."""

Record = tuple[bytes | None, bytes | None, int, int, int]
"""Key, value, partition, offset, and the timestamp in seconds after noon."""
Newest = dict[bytes, bytes | None]
Said = tuple[int, int, bytes | None]
"""The partition, the timestamp and the value of a record."""
Steps = tuple[tuple[list[Said], bytes | None], ...]
"""For each batch: the records of a key in it, and the key's value in the table after it."""

EXPIRED = "a row wins against earlier records although its raw record expired"
RULES: Mapping[str, Steps] = {
    "the record of another partition wins once a later one of its own partition lost": (
        ([(0, 5, b"late"), (1, 3, b"other")], b"late"),
        # The last record of partition 0 is earlier now than that of partition 1, which the table does not have.
        ([(0, 1, b"early")], b"other"),
        ([(1, 0, b"earlier")], b"early"),
    ),
    "a record no longer counts once its own partition has an earlier one behind it": (
        ([(0, 5, b"late")], b"late"),
        ([(0, 1, b"early"), (1, 3, b"other")], b"other"),
        ([], b"other"),
    ),
    "a record wins against an earlier one of another partition in a later batch": (
        ([(0, 5, b"1")], b"1"),
        ([], b"1"),
        ([(1, 4, b"earlier")], b"1"),
    ),
    "the highest offset of a batch wins in a partition, whatever its timestamp": (
        ([(0, 9, b"1"), (0, 1, b"2")], b"2"),
        ([], b"2"),
        ([], b"2"),
    ),
    "the highest offset of all batches wins in a partition, whatever its timestamp": (
        ([(0, 0, b"1")], b"1"),
        ([(0, -5, b"2")], b"2"),
        ([], b"2"),
    ),
    "the latest timestamp of a batch wins among partitions": (
        ([(1, 0, b"old"), (0, 1, b"new")], b"new"),
        ([], b"new"),
        ([(1, 0, b"older")], b"new"),
    ),
    "the highest partition wins among records of one time, in whatever order they come": (
        ([(0, -60, b"low")], b"low"),
        ([(1, -60, b"high")], b"high"),
        # No record of a batch is earlier.
        ([(0, -60, b"low again")], b"high"),
    ),
    "a record wins against a tombstone before it and against an earlier record of another partition": (
        ([(1, 0, b"1")], b"1"),
        ([], b"1"),
        ([(0, -1, None), (0, 2, b"2")], b"2"),
    ),
    "a tombstone holds against earlier records of other partitions in later batches": (
        ([(0, 1, b"1"), (0, 5, None)], None),
        ([(1, 3, b"earlier")], None),
        ([(1, 6, b"later")], b"later"),
    ),
    "a tombstone deletes its key until a later record": (
        ([(0, 0, b"1")], b"1"),
        ([(0, 0, None)], None),
        ([(0, 0, b"2")], b"2"),
    ),
    "a tombstone deletes its key again": (
        ([(0, 0, b"1"), (0, 0, None)], None),
        ([(0, 0, b"2")], b"2"),
        ([(0, 0, None)], None),
    ),
    "a tombstone of a key that the table lacks does nothing": (
        ([(0, 0, None)], None),
        ([], None),
        ([], None),
    ),
    EXPIRED: (
        ([(0, 5, b"1")], b"1"),
        ([(1, 3, b"earlier")], b"1"),
        ([], b"1"),
    ),
}


class Tables:
    """A raw table, and the table that follows it."""

    def __init__(self, spark: SparkSession, lake: Lake) -> None:
        self.spark, self.lake = spark, lake
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
        return newest(self.spark, self.latest.path)

    def copied(self, lake: Lake) -> Tables:
        """The same tables in another lake, as the same archive goes on with them."""
        shutil.copytree(self.lake.location, lake.location, dirs_exist_ok=True)
        tables = copy.copy(self)
        tables.lake, tables.raw, tables.latest = lake, copy.copy(self.raw), copy.copy(self.latest)
        tables.raw.path, tables.latest.path = lake.raw("t"), lake.latest("t")
        return tables


def newest(spark: SparkSession, path: str) -> Newest:
    found = [(bytes(row.key), row.value and bytes(row.value)) for row in delta_rows(spark, path)]
    assert len(dict(found)) == len(found)
    return dict(found)


class LongAgo(datetime.datetime):
    """A clock of 2020."""

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> LongAgo:
        return cls(2020, 1, 1, tzinfo=tz)


@pytest.fixture(scope="module")
def merged(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Tables:
    """Tables of a batch that was merged long ago."""
    tables = Tables(spark, Lake(str(tmp_path_factory.mktemp("merged"))))
    tables.add((b"a", b"1", 0, 0, 0), (b"b", b"1", 0, 1, 0), (b"a", b"2", 0, 2, 0), ends={0: 3})
    with pytest.MonkeyPatch.context() as clock:
        clock.setattr("korvet.pipeline.lake.latest.datetime", LongAgo)
        assert tables.follow() == {b"a": b"2", b"b": b"1"}
    return tables


@pytest.fixture
def tables(merged: Tables, tmp_path: Path) -> Tables:
    """The test's own copy."""
    return merged.copied(Lake(str(tmp_path)))


def test_table_has_the_newest_record_of_each_key_after_every_batch(spark: SparkSession, tmp_path: Path) -> None:
    tables, had = Tables(spark, Lake(str(tmp_path))), list[Record]()
    for number, batch in enumerate(batches()):
        had += batch
        tables.add(*batch, ends={partition: offset + 1 for _, _, partition, offset, _ in had})
        found = tables.follow()
        assert {rule: found.get(rule.encode()) for rule in RULES} == {r: steps[number][1] for r, steps in RULES.items()}
        assert found == newest_by_definition(had)
        if number == 0:
            spark.sql(f"DELETE FROM delta.`{tables.raw.path}` WHERE cast(key AS string) = '{EXPIRED}'")
    assert 0 < sum(key.isdigit() for key in found) < KEYS


def batches() -> Iterator[list[Record]]:
    """The records of the rules, and others. Each gets the next offset of its partition."""
    ends = Counter[int]()
    for number, others in enumerate(random_records()):
        batch: list[Record] = []
        ruled = [(rule.encode(), *said) for rule, steps in RULES.items() for said in steps[number][0]]
        for key, partition, second, value in (*ruled, *others):
            batch.append((key, value, partition, ends[partition], second))
            ends[partition] += 1
        yield batch


def random_records() -> Iterator[list[tuple[bytes, int, int, bytes | None]]]:
    """For each batch, records of keys that are numbers. Partition 2 comes with the second batch alone."""
    dice = random.Random(5)
    for partitions in (2, 3, 2):
        yield [
            (
                b"%d" % dice.randrange(KEYS),
                dice.randrange(partitions),
                dice.randrange(10),
                None if dice.random() < 0.25 else b"%d" % dice.randrange(1000),
            )
            for _ in range(40)
        ]


def newest_by_definition(records: Iterable[Record]) -> Newest:
    """The last record of each key in each partition; of these the latest, then that of the highest partition."""
    lasts = {(key, partition): (second, partition, value) for key, value, partition, _, second in records}
    found = {key: max(last for (of, _), last in lasts.items() if of == key) for key, _ in lasts}
    return {key: value for key, (_, _, value) in found.items() if key is not None and value is not None}


def test_merge_of_records_that_change_nothing_ends_with_the_proof(tables: Tables) -> None:
    tables.add((None, b"1", 0, 3, 0), (None, None, 0, 4, 0), ends={0: 7})
    with capture_logs() as logs:
        assert tables.follow() == {b"a": b"2", b"b": b"1"}
    assert [(line["log_level"], line["n"]) for line in logs] == [("warning", 2)]
    assert tables.latest.proven is not None
    assert tables.latest.proven.offsets == {0: 7}


@pytest.mark.scene
def test_records_in_place_of_lost_ones_win_also_in_a_table_that_was_restored(tables: Tables) -> None:
    for table in (tables.latest, tables.raw):
        assert table.proven is not None
        table.reset(replace(table.proven, offsets={0: 1}))
    before = snapshot(tables.spark, tables.latest.path)
    assert before is not None
    tables.add((b"a", b"replaced", 0, 1, 1), ends={0: 2})
    assert tables.follow() == {b"a": b"replaced", b"b": b"1"}
    tables.spark.sql(f"RESTORE TABLE delta.`{tables.latest.path}` TO VERSION AS OF {before.version}")
    tables.latest = LatestTable(tables.spark, tables.latest.path)
    assert newest(tables.spark, tables.latest.path) == {b"a": b"2", b"b": b"1"}
    assert tables.follow() == {b"a": b"replaced", b"b": b"1"}


def test_archive_that_was_overtaken_merges_nothing(tables: Tables) -> None:
    tables.add((b"a", b"3", 0, 3, 0), ends={0: 4})
    other = LatestTable(tables.spark, tables.latest.path)
    other.follow(tables.raw, "other")
    tables.add((b"a", b"4", 0, 4, 0), ends={0: 5})
    with pytest.raises(Overtaken):
        tables.follow()
    assert newest(tables.spark, other.path) == {b"a": b"3", b"b": b"1"}


def test_merge_begins_again_after_maintenance_that_expires_no_key(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables.add((b"a", None, 0, 3, 0), (b"c", b"1", 0, 4, 0), ends={0: 5})
    commit, done = LatestTable._commit, list[TableMaintained]()

    def late(table: LatestTable, *told: object) -> None:
        if not done:
            config = MaintainConfig(lake=tables.lake.location, expire_hours=24)
            done.append(maintain(tables.spark, config).tables[table.path])
            raise PySparkException("[DELTA_CONCURRENT_DELETE_READ] another job")
        commit(table, *told)  # type: ignore[arg-type]

    monkeypatch.setattr(LatestTable, "_commit", late)
    assert tables.follow() == {b"b": b"1", b"c": b"1"}
    assert done[0].error is None and done[0].files_compacted > 1 and done[0].rows_expired == 0


def produce(scene: Scene, *records: tuple[bytes, bytes | None]) -> None:
    for key, value in records:
        scene.produce([value], key=key)


def test_table_of_somebody_else_in_its_place_stays_as_it_is(scene: Scene) -> None:
    scene.create(1)
    path = scene.lake.latest(scene.topic)
    scene.spark.range(3).write.format("delta").save(path)
    produce(scene, (b"a", b"1"))
    assert not scene.archive().failed
    produce(scene, (b"a", b"2"))
    assert "was not written by an archive" in str(scene.archive(table="latest").failed[scene.topic])
    assert len(delta_rows(scene.spark, path)) == 3


def test_archive_gives_a_lake_the_newest_records_once_however_it_was_cut_off(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.create(1)
    produce(scene, (b"a", b"1"), (b"b", b"1"), (b"a", b"2"))
    assert scene.archive().topics[scene.topic].rows == 3
    assert not Path(scene.lake.latest(scene.topic)).exists()
    commit = LatestTable._commit

    def cut_off_before(table: LatestTable, *told: object) -> None:
        raise PipelineError("the driver died")

    def cut_off_after(table: LatestTable, *told: object) -> None:
        commit(table, *told)  # type: ignore[arg-type]
        raise PipelineError("the driver died")

    before = (cut_off_before, 0, [(b"b", None), (b"c", b"1")])
    after = (cut_off_after, 1, [(b"a", b"3")])
    for cut_off, rows, produced_then in (before, after):
        monkeypatch.setattr(LatestTable, "_commit", cut_off)
        result = scene.archive(table="latest", max_offsets_per_trigger=1)
        assert result.topics[scene.topic].rows == rows
        assert "the driver died" in str(result.failed[scene.topic])
        monkeypatch.undo()
        produce(scene, *produced_then)
    result = scene.archive(table="latest", max_offsets_per_trigger=1)
    assert (result.failed, result.topics[scene.topic].batches) == ({}, 2)
    assert newest(scene.spark, scene.lake.latest(scene.topic)) == {b"a": b"3", b"c": b"1"}
    proofs = [read_proven(scene.spark, path(scene.topic)) for path in (scene.lake.latest, scene.lake.raw)]
    assert [None if proven is None else proven.offsets for proven in proofs] == [{0: 6}, {0: 6}]
