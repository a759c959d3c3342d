"""Iceberg tables over the files of Delta tables: what a reader of Iceberg finds as these change."""

from __future__ import annotations

import datetime
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from korvet.pipeline import iceberg
from korvet.pipeline.archive import ArchiveConfig, archive
from korvet.pipeline.errors import PipelineError
from korvet.pipeline.iceberg import IcebergConfig, TablePublished, publish
from korvet.pipeline.lake import RAW_COLUMNS, Lake
from korvet.pipeline.lake.maintain import MaintainConfig, maintain
from korvet.pipeline.lake.table import Table
from korvet.pipeline.plan.proofs import PROPERTY, Proven
from tests.pipeline.sourcing import create, produce
from tests.support.broker import KorvetServer
from tests.support.iceberg_catalog import running_catalog

if TYPE_CHECKING:
    from pyiceberg.table import Table as IcebergTable

pytest.importorskip("pyiceberg")

NOON = datetime.datetime(2026, 1, 2, 12, 0, 0, 123456)


class Scene:
    """A lake with a topic's raw table, and a catalog in a database."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.spark, self.lake = spark, Lake(str(directory / "a lake"))
        self.catalog = f"sqlite:///{directory}/catalog.db"
        self.begin()

    def begin(self) -> None:
        """Begin with no table."""
        self.raw = Table(self.spark, self.lake.raw("orders"), {})
        self._proof = Proven(topic="orders", topic_id="id", generation=1, batch_id=-1, offsets={0: 0})

    def append(self, count: int, time_us: int | None = None) -> None:
        begin = self._proof.offsets[0]
        rows = [
            (b"\xff", b"%d" % n, [("h", b"1")], "orders", 0, n, NOON + datetime.timedelta(seconds=n), 0, NOON.date())
            for n in range(begin, begin + count)
        ]
        batch = {"batch_id": self._proof.batch_id + 1, "offsets": {0: begin + count}}
        self._proof = replace(self._proof, **batch)  # type: ignore[arg-type]
        frame = self.spark.createDataFrame(rows, RAW_COLUMNS).coalesce(1)
        if time_us is not None:
            time = sql.timestamp_micros(sql.lit(time_us))
            frame = frame.withColumns({"timestamp": time, "date": time.cast("date")})
        self.raw.append(frame, self._proof)

    def publish(self) -> dict[str, TablePublished]:
        result = publish(self.spark, IcebergConfig(lake=self.lake.location, catalog=self.catalog))
        assert not result.failed
        return {done.name: done for done in result.tables.values()}

    def table(self, kind: str) -> IcebergTable:
        return table_of(self.catalog, "orders", kind)

    def rows(self, kind: str) -> list[dict[str, object]]:
        return rows_of(self.catalog, "orders", kind)

    def values(self) -> list[int]:
        return sorted(int(row["value"]) for row in self.rows("raw"))  # type: ignore[call-overload]


def table_of(catalog: str, topic: str, kind: str) -> IcebergTable:
    from pyiceberg.catalog import load_catalog

    return load_catalog("korvet", uri=catalog).load_table((topic, kind))


def rows_of(catalog: str, topic: str, kind: str) -> list[dict[str, object]]:
    """The rows that a reader of Iceberg finds."""
    rows: list[dict[str, object]] = table_of(catalog, topic, kind).scan().to_arrow().to_pylist()
    return rows


@pytest.fixture
def rest_catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_catalog(tmp_path_factory.mktemp("catalog")) as uri:
        yield uri


@pytest.fixture
def scene(spark: SparkSession, tmp_path: Path) -> Scene:
    return Scene(spark, tmp_path)


def test_reader_of_iceberg_finds_the_rows_of_the_newest_version(scene: Scene) -> None:
    scene.append(3)
    assert scene.publish()["orders.raw"].files_added == 1
    first = min(scene.rows("raw"), key=lambda row: str(row["value"]))
    assert isinstance(first.pop("_archived"), datetime.date)
    assert first == {
        "key": b"\xff", "value": b"0", "headers": [{"key": "h", "value": b"1"}], "topic": "orders", "partition": 0,
        "offset": 0, "timestamp": NOON.replace(tzinfo=datetime.UTC), "timestampType": 0, "date": NOON.date(),
    }  # fmt: skip
    scene.append(2)
    assert scene.values() == [0, 1, 2]
    done = scene.publish()["orders.raw"]
    assert (done.files_added, done.files_removed, scene.values()) == (1, 0, [0, 1, 2, 3, 4])
    done = scene.publish()["orders.raw"]
    assert (done.files_added, done.files_removed) == (0, 0)


def test_reader_of_iceberg_finds_each_row_once_after_compaction(scene: Scene) -> None:
    for _ in range(2):
        scene.append(2)
        scene.publish()
    assert not maintain(scene.spark, MaintainConfig(lake=scene.lake.location)).failed
    done = scene.publish()["orders.raw"]
    assert (done.files_added, done.files_removed, scene.values()) == (1, 2, [*range(4)])


@pytest.mark.parametrize("removed", ["orders/raw", "orders"])
def test_table_is_built_anew_after_somebody_removed_it(scene: Scene, removed: str) -> None:
    scene.append(2)
    scene.publish()
    metadata = Path(scene.lake.location, "orders", "iceberg", "raw", "metadata")
    before = set(metadata.iterdir())
    scene.publish()
    assert set(metadata.iterdir()) == before, "a run without news leaves no files behind"
    shutil.rmtree(Path(scene.lake.location, removed))
    scene.begin()
    scene.append(3)
    scene.publish()
    assert scene.values() == [0, 1, 2]


@pytest.mark.parametrize("time_us", [-(2**63) // 1000 * 1000 + 1000, 2**63 // 1000 * 1000, 253_402_300_800_000_000])
def test_time_that_python_does_not_have_leaves_no_row_unpublished(scene: Scene, time_us: int) -> None:
    scene.append(2)
    scene.append(1, time_us)
    assert scene.publish()["orders.raw"].files_added == 2
    scene.append(1)
    scene.publish()
    raw = scene.table("raw")

    def values(condition: str) -> list[bytes]:
        rows = raw.scan(condition, selected_fields=("value",)).to_arrow()
        return sorted(row["value"] for row in rows.to_pylist())

    assert values("partition = 0") == [b"0", b"1", b"2", b"3"]
    assert values("timestamp < '2026-01-01T00:00:00+00:00' or timestamp > '2027-01-01T00:00:00+00:00'") == [b"2"]
    assert len(list(raw.scan("offset = 2").plan_files())) == 1, "bounds of other columns are missing"


def test_typed_table_with_other_columns_keeps_its_rows(scene: Scene) -> None:
    path = scene.lake.typed("orders")

    def write(rows: DataFrame) -> None:
        rows.write.format("delta").mode("append").option("mergeSchema", "true").save(path)

    write(scene.spark.createDataFrame([(1,)], "id long"))
    assert scene.publish()["orders.typed"].files_added == 1
    write(scene.spark.createDataFrame([(2, "Bonn")], "id long, city string"))
    scene.publish()
    expected = [{"id": 1, "city": None}, {"id": 2, "city": "Bonn"}]
    assert sorted(scene.rows("typed"), key=lambda row: str(row["id"])) == expected
    # Integers became numbers: the table was written anew.
    rows = scene.spark.createDataFrame([(1.5, "Oslo")], "id double, city string")
    rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(path)
    scene.publish()
    assert scene.rows("typed") == [{"id": 1.5, "city": "Oslo"}]


def test_one_of_two_publications_at_a_time_fails_and_adds_no_row_twice(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.append(2)
    add = iceberg._add

    def overtaken(*arguments: Any) -> None:
        monkeypatch.setattr(iceberg, "_add", add)
        add(*arguments)
        scene.publish()

    monkeypatch.setattr(iceberg, "_add", overtaken)
    result = publish(scene.spark, IcebergConfig(lake=scene.lake.location, catalog=scene.catalog))
    assert list(result.failed) == [scene.raw.path]
    assert scene.values() == [0, 1]
    scene.publish()
    assert scene.values() == [0, 1]


def test_typed_table_is_found_by_the_ids_in_its_files_if_it_has_no_arrays(scene: Scene) -> None:
    scene.append(1)
    named = {"delta.columnMapping.mode": "name"}
    place = "named_struct('city', 'Oslo', 'zip', 7) AS place"
    made = scene.spark.range(1).selectExpr(place, "id AS number", "id AS dropped")
    made.write.format("delta").options(**named).save(scene.lake.typed("orders"))
    table = f"delta.`{scene.lake.typed('orders')}`"
    scene.spark.sql(f"ALTER TABLE {table} DROP COLUMN dropped")
    failed = publish(scene.spark, IcebergConfig(lake=scene.lake.location, catalog=scene.catalog)).failed
    [refused] = map(str, failed.values())
    assert "its files hold a column (col-" in refused and "run REORG TABLE" in refused
    scene.spark.sql(f"REORG TABLE {table} APPLY (PURGE)")
    scene.publish()
    assert scene.rows("typed") == [{"place": {"city": "Oslo", "zip": 7}, "number": 0}]
    # Another column of the same name has another id.
    scene.spark.sql(f"ALTER TABLE {table} DROP COLUMN number")
    scene.spark.sql(f"ALTER TABLE {table} ADD COLUMN number STRING")
    scene.publish()
    assert scene.rows("typed") == [{"place": {"city": "Oslo", "zip": 7}, "number": None}]
    scene.spark.sql(f"ALTER TABLE {table} ADD COLUMN tags ARRAY<STRING>")
    with pytest.raises(AssertionError, match="column tags holds several values, for which Delta's files have no ids"):
        scene.publish()


def test_reader_of_a_rest_catalog_finds_what_an_archive_wrote(
    spark: SparkSession, broker: KorvetServer, rest_catalog: str, tmp_path: Path
) -> None:
    topic, lake = "iceberg.rest", str(tmp_path)
    create(broker, topic)

    def archive_and_publish(kind: str) -> dict[str, TablePublished]:
        schema = f'{{"type": "object", "properties": {{"id": {{"type": "{kind}"}}}}}}'
        config = ArchiveConfig(bootstrap_servers=broker.bootstrap, lake=lake, topics=(topic,), schemas={topic: schema})
        assert not archive(spark, config).failed
        result = publish(spark, IcebergConfig(lake=lake, catalog=rest_catalog))
        assert not result.failed
        return {done.name: done for done in result.tables.values()}

    produce(broker, topic, [b'{"id": 1}', b"no JSON"])
    tables = archive_and_publish("integer")
    assert sorted(tables) == [f"{topic}.dead_letters", f"{topic}.raw", f"{topic}.typed"]
    assert [(row["offset"], row["value"]) for row in rows_of(rest_catalog, topic, "dead_letters")] == [(1, b"no JSON")]
    assert [row["id"] for row in rows_of(rest_catalog, topic, "typed")] == [1]

    # A column of the typed table is another one, and the raw table gets other files.
    produce(broker, topic, [b'{"id": 2.5}'])
    archive_and_publish("number")
    assert sorted(str(row["id"]) for row in rows_of(rest_catalog, topic, "typed")) == ["1.0", "2.5"]
    assert not maintain(spark, MaintainConfig(lake=lake)).failed
    raw = archive_and_publish("number")[f"{topic}.raw"]
    assert (raw.files_added, raw.files_removed) == (1, 2)
    assert sorted(str(row["offset"]) for row in rows_of(rest_catalog, topic, "raw")) == ["0", "1", "2"]

    # The catalog has tables without metadata.
    shutil.rmtree(tmp_path / topic)
    archive_and_publish("number")
    assert sorted(str(row["offset"]) for row in rows_of(rest_catalog, topic, "raw")) == ["0", "1", "2"]


def test_table_with_rows_deleted_within_files_is_refused(scene: Scene) -> None:
    scene.append(3)
    scene.spark.sql(f"ALTER TABLE delta.`{scene.raw.path}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    scene.spark.sql(f"DELETE FROM delta.`{scene.raw.path}` WHERE offset = 1")
    result = publish(scene.spark, IcebergConfig(lake=scene.lake.location, catalog=scene.catalog))
    assert "deletion vectors" in str(result.failed[scene.raw.path])


def test_catalog_that_is_not_there_is_one_sentence(scene: Scene) -> None:
    scene.append(1)
    with pytest.raises(PipelineError, match="the Iceberg catalog nowhere: Iceberg's client failed"):
        publish(scene.spark, IcebergConfig(lake=scene.lake.location, catalog="nowhere"))


def test_database_keeps_its_list_of_namespaces_and_has_the_catalog_by_the_name_that_was_given(tmp_path: Path) -> None:
    uri, nothing = f"sqlite:///{tmp_path}/catalog.db", cast(Any, None)
    catalog = iceberg._catalog(uri, "sales")
    catalog.create_namespace(("a.b",))
    for topic in (".dot", "a..b", "dot."):
        with pytest.raises(PipelineError, match="use a REST catalog"):
            iceberg._follow(catalog, (topic, "raw"), nothing)
    assert iceberg._catalog(uri, "sales").list_namespaces() and not iceberg._catalog(uri, "others").list_namespaces()


def test_lake_whose_path_iceberg_cannot_open_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "a#lake 100%"))
    Table(spark, lake.raw("t"), {}).begin(
        RAW_COLUMNS, Proven(topic="t", topic_id="id", generation=1, batch_id=-1, offsets={0: 7})
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("korvet.pipeline.plan.proofs.KEEP_AFTER_S", 0.0)
        assert not maintain(spark, MaintainConfig(lake=lake.location)).failed
    found = publish(spark, IcebergConfig(lake=lake.location, catalog=f"sqlite:///{tmp_path}/catalog.db"))
    assert "cannot open files whose path has # or ?" in str(found.failed[lake.raw("t")])
    log = Path(lake.raw("t"), "_delta_log")
    assert any(PROPERTY in commit.read_text() for commit in log.glob("*.json"))
