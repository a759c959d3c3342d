"""Tables of the lake: the proofs in their logs, their only writer, and their maintenance."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyarrow import parquet
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from korvet.pipeline.errors import PipelineError
from korvet.pipeline.lake import ARCHIVED, RAW_COLUMNS, Lake, read_proven
from korvet.pipeline.lake.files import newest_snapshot, read_text
from korvet.pipeline.lake.log_store import keep_one_writer
from korvet.pipeline.lake.maintain import MaintainConfig, maintain
from korvet.pipeline.lake.table import Table
from korvet.pipeline.plan.losses import Loss
from korvet.pipeline.plan.proofs import APPLICATION, PROPERTY, Proven, Unproven
from korvet.pipeline.plan.table import Overtaken
from korvet.pipeline.report.archived import losses
from scripts.rivalry.rounds import Acknowledged, compactions, differences, play
from tests.pipeline.conftest import reach
from tests.support.delta import delta_rows
from tests.support.object_store import ObjectStore, running_object_store

DAY = datetime.date(2026, 1, 2)
WITHIN_S = 120.0
TIME = datetime.datetime(2026, 1, 2, 3)


def records(spark: SparkSession, *offsets: int) -> DataFrame:
    rows = [(b"k", b"v", None, "t", 0, offset, TIME, 0, DAY) for offset in offsets]
    return spark.createDataFrame(rows, RAW_COLUMNS).coalesce(1)


def proven(batch_id: int, offset: int, checkpoint: str = "one") -> Proven:
    return Proven(
        topic="t",
        topic_id="id",
        generation=1,
        batch_id=batch_id,
        offsets={0: offset},
        leader_epochs={0: 5},
        checkpoint=checkpoint,
    )


def offsets(spark: SparkSession, path: str) -> list[int]:
    return sorted(row.offset for row in delta_rows(spark, path))


@pytest.fixture
def path(tmp_path: Path) -> str:
    return Lake(str(tmp_path)).raw("t")


def test_lake_names_the_places_of_its_tables() -> None:
    lake = Lake("s3a://bucket/lake/")
    assert lake.raw("a.b") == "s3a://bucket/lake/a.b/raw"
    assert lake.typed("a") == "s3a://bucket/lake/a/typed"
    assert lake.dead_letters("a") == "s3a://bucket/lake/a/dead_letters"


def test_proof_outlives_maintenance_and_follows_a_restore_above_all_generations(spark: SparkSession, path: str) -> None:
    assert read_proven(spark, path) is None
    made_earlier(records(spark, 0), proven(0, 2), path)
    table = Table(spark, path, {})
    table.claim("t", "id", "two")
    assert table.append(records(spark, 2, 3), proven(0, 4, "two")) == 2
    done = maintain(spark, MaintainConfig(lake=str(Path(path).parents[1]), expire_hours=24)).tables[path]
    # Nobody knows when the rows of an earlier version were archived. They stay while no others expire.
    assert (done.files_compacted, done.rows_expired, done.error) == (2, 0, None)
    assert read_proven(spark, path) == replace(proven(0, 4, "two"), generation=2)
    spark.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF 0")
    assert read_proven(spark, path) == proven(0, 2)
    again = Table(spark, path, {})
    again.claim("t", "id", "three")
    again.append(records(spark, 2), proven(0, 3, "three"))
    assert offsets(spark, path) == [0, 2]
    assert again.proven is not None and again.proven.generation == 3


def without_old_commits(path: str) -> None:
    """Leave of the table's log what Delta leaves after 30 days: no commit tells a proof."""
    for commit in sorted((Path(path) / "_delta_log").glob("*.json")):
        commit.write_text(commit.read_text().replace("userMetadata", "somethingElse"))
        (commit.parent / f".{commit.name}.crc").unlink(missing_ok=True)


def test_proof_of_an_idle_table_outlives_its_commits(
    spark: SparkSession, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss = Loss(partition=0, kind="trimmed", start=0, end=500)
    table = Table(spark, path, {"delta.checkpointInterval": "3"})
    # It began at the end of its topic, and its rows have expired.
    table.begin(RAW_COLUMNS, replace(proven(-1, 500), losses=(loss,)))
    config = MaintainConfig(lake=str(Path(path).parents[1]))
    assert maintain(spark, config).tables[path].error is None
    assert newest_snapshot(spark, path).metadata().configuration().get(PROPERTY).isEmpty()
    monkeypatch.setattr("korvet.pipeline.plan.proofs.KEEP_AFTER_S", 0.0)
    for _ in range(2):
        assert maintain(spark, config).tables[path].error is None
    without_old_commits(path)
    assert read_proven(spark, path) == replace(proven(-1, 500), losses=(loss,))
    # So does that of a claim, and a batch follows.
    Table(spark, path, {}).claim("t", "id", "two")
    again = Table(spark, path, {})
    again.claim("t", "id", "three")
    again.append(records(spark, 500), proven(0, 501, "three"))
    assert again.proven is not None and again.proven.offsets == {0: 501}
    # The property is of another transaction now, and what no commit tells is unknown.
    without_old_commits(path)
    with pytest.raises(Unproven, match="archive the topic anew, or, if you know the next offset") as refused:
        Table(spark, path, {})
    assert maintain(spark, config).tables[path].error is None
    assert losses(spark, {"t": path}) == []
    spark.sql("ALTER TABLE " + str(refused.value).partition("ALTER TABLE ")[2].replace('{"0": 0}', '{"0": 501}'))
    told = Table(spark, path, {})
    told.claim("t", "id", "four")
    assert told.proven is not None and told.proven.offsets == {0: 501}


@pytest.mark.scene
def test_property_set_beside_a_batch_is_no_other_archive(spark: SparkSession, path: str, tmp_path: Path) -> None:
    table = Table(spark, path, {})
    table.append(records(spark, 0), proven(0, 1))
    has_begun, is_set = tmp_path / "has begun", tmp_path / "is set"

    def while_somebody_sets_it(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        has_begun.touch()
        until_there(is_set)
        yield from batches

    rows = records(spark, 1).mapInArrow(while_somebody_sets_it, RAW_COLUMNS)
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(table.append, rows, proven(1, 2))
        until_there(has_begun)
        spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('any' = 'thing')")
        is_set.touch()
        assert late.result() == 1
    assert offsets(spark, path) == [0, 1]


@pytest.mark.scene
def test_claim_makes_an_archive_the_only_writer(spark: SparkSession, path: str) -> None:
    older = Table(spark, path, {})
    older.append(records(spark, 0), proven(0, 1))
    newer = Table(spark, path, {})
    older.append(records(spark, 1), proven(1, 2))
    newer.claim("t", "id", "two")
    # Rows written after its first look count.
    assert (newer.next_offset(0), newer.proven and newer.proven.generation) == (2, 2)
    with pytest.raises(Overtaken, match="another archive writes to this table"):
        older.append(records(spark, 2), proven(2, 3))
    assert offsets(spark, path) == [0, 1]
    newer.append(records(spark, 2), proven(0, 3, "two"))
    with pytest.raises(Overtaken):
        older.append(records(spark, 2), proven(2, 3))
    assert offsets(spark, path) == [0, 1, 2]


@pytest.mark.scene
def test_one_of_two_archives_makes_a_table_in_one_instant(spark: SparkSession, path: str, tmp_path: Path) -> None:
    first, second = Table(spark, path, {}), Table(spark, path, {})
    has_begun, has_lost = tmp_path / "has begun", tmp_path / "has lost"

    def while_the_other_writes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        has_begun.touch()
        until_there(has_lost)
        yield from batches

    rows = records(spark, 0).mapInArrow(while_the_other_writes, RAW_COLUMNS)
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(second.append, rows, proven(5, 1, "two"))
        until_there(has_begun)
        first.append(records(spark, 0), proven(0, 1))
        has_lost.touch()
        with pytest.raises(Overtaken):
            late.result()
    assert offsets(spark, path) == [0]


def until_there(file: Path) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not file.exists():
        assert time.monotonic() < deadline, f"{file} did not come"
        time.sleep(0.01)


def test_first_write_cut_off_leaves_nothing_in_the_way(spark: SparkSession, path: str) -> None:
    for left in ("_delta_log/_staged_commits", f"date={DAY}"):
        (Path(path) / left).mkdir(parents=True)
    (Path(path) / f"date={DAY}" / "part-0.snappy.parquet").write_bytes(b"PAR1")
    assert read_proven(spark, path) is None
    Table(spark, path, {}).append(records(spark, 0), proven(0, 1))
    assert offsets(spark, path) == [0]


@pytest.mark.scene
def test_file_that_is_no_table_is_one_sentence(spark: SparkSession, path: str) -> None:
    table = Path(path)
    table.parent.mkdir(parents=True)
    table.write_text("a file")
    with pytest.raises(PipelineError, match="a file is in the way of the table"):
        read_proven(spark, path)
    table.unlink()
    table.mkdir()
    assert read_proven(spark, path) is None
    (table / "something").write_text("else")
    with pytest.raises(PipelineError, match="there are files, but no Delta table"):
        read_proven(spark, path)
    spark.range(3).withColumn("date", F.lit(DAY)).write.format("delta").save(str(table.parent / "typed"))
    with pytest.raises(PipelineError, match="was not written by an archive"):
        Table(spark, str(table.parent / "typed"), {})
    (table / "_delta_log").mkdir()
    (table / "_delta_log" / f"{0:020d}.json").write_text("{")
    with pytest.raises(PipelineError, match="its Delta log cannot be read"):
        read_proven(spark, path)


@pytest.mark.scene
def test_maintenance_joins_small_files_and_deletes_old_ones_and_days_that_expired(
    spark: SparkSession, path: str
) -> None:
    table = Table(spark, path, {})
    for batch_id in range(3):
        table.append(records(spark, batch_id), proven(batch_id, batch_id + 1))
    # They go back to noon of the second day ago, so a midnight during the test changes nothing.
    expire_hours = 36 + datetime.datetime.now(datetime.UTC).hour
    older = archived(records(spark, 3), days_ago=4).unionAll(archived(records(spark, 4), days_ago=2))
    older.write.format("delta").mode("append").save(path)
    config = MaintainConfig(lake=str(Path(path).parents[1]), topics=("t",), expire_hours=expire_hours)
    done = maintain(spark, config).tables[path]
    assert (done.files_compacted, done.files_written, done.rows_expired, done.error) == (3, 1, 1, None)
    assert offsets(spark, path) == [0, 1, 2, 4]
    assert len(data_files(path)) == 6
    again = maintain(spark, replace(config, topics=(), retention_hours=0, force=True)).tables[path]
    assert (again.files_compacted, again.rows_expired, again.error) == (0, 0, None)
    assert len(data_files(path)) == 2
    # The archive goes on, and does not write the expired row again.
    table.append(records(spark, 5), proven(3, 6))
    assert offsets(spark, path) == [0, 1, 2, 4, 5]
    assert read_proven(spark, path) == proven(3, 6)


def data_files(path: str) -> list[Path]:
    return [each for each in Path(path).rglob("*.parquet") if "_delta_log" not in str(each)]


def test_records_of_many_days_are_one_file_of_a_batch(spark: SparkSession, path: str) -> None:
    days = [TIME - datetime.timedelta(days=number) for number in range(1500)]
    rows = [(b"k", b"v", None, "t", 0, offset, time, 0, time.date()) for offset, time in enumerate(days)]
    table = Table(spark, path, {})
    assert table.append(spark.createDataFrame(rows, RAW_COLUMNS).coalesce(1), proven(0, 1500)) == 1500
    (file,) = data_files(path)
    columns = parquet.ParquetFile(file).metadata.row_group(0)
    leaves = map(columns.column, range(columns.num_columns))
    (offset,) = [leaf for leaf in leaves if leaf.path_in_schema == "offset"]
    assert (offset.compression, offset.encodings) == ("ZSTD", ("DELTA_BINARY_PACKED",))


def test_table_of_an_earlier_version_goes_on_as_it_was_made(spark: SparkSession, path: str) -> None:
    made_earlier(records(spark, 0, 1), proven(0, 2), path)
    table = Table(spark, path, {})
    table.claim("t", "id", "two")
    table.append(records(spark, 2), proven(0, 3, "two"))
    assert offsets(spark, path) == [0, 1, 2]
    assert newest_snapshot(spark, path).metadata().partitionColumns().mkString() == "date"
    # They are older than the first rows of which one knows.
    archived(records(spark, 3), days_ago=3).write.format("delta").mode("append").save(path)
    config = MaintainConfig(lake=str(Path(path).parents[1]), expire_hours=24)
    assert maintain(spark, config).tables[path].rows_expired == 3
    assert offsets(spark, path) == [2]


def made_earlier(rows: DataFrame, proof: Proven, path: str) -> None:
    """Make a table as korvet up to 0.6 did, without the days of archiving."""
    writer = rows.write.format("delta").partitionBy("date").option("userMetadata", proof.to_json())
    writer.option("txnAppId", f"{APPLICATION}id").option("txnVersion", proof.transaction_version).save(path)


def archived(rows: DataFrame, *, days_ago: int) -> DataFrame:
    """The rows as an archive wrote them on that day."""
    return rows.withColumn(ARCHIVED, F.lit((datetime.datetime.now(datetime.UTC) - datetime.timedelta(days_ago)).date()))


def test_maintenance_reports_the_tables_that_fail(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    with pytest.raises(PipelineError, match="there are no tables of an archive"):
        maintain(spark, MaintainConfig(lake=str(tmp_path / "nowhere")))
    with pytest.raises(PipelineError, match="topic t: it has no tables"):
        maintain(spark, MaintainConfig(lake=str(tmp_path), topics=("t",)))
    with pytest.raises(PipelineError, match="below 168 files may go"):
        maintain(spark, MaintainConfig(lake=str(tmp_path), retention_hours=1))
    Path(lake.raw("bad")).mkdir(parents=True)
    (Path(lake.raw("bad")) / "file").write_text("")
    # It has no days of archiving.
    made_earlier(records(spark, 0), proven(0, 1), lake.raw("good"))
    # Somebody else's table, where newest records would be, is left alone.
    spark.range(3).write.format("delta").save(lake.latest("good"))
    result = maintain(spark, MaintainConfig(lake=str(tmp_path), expire_hours=24))
    assert list(result.failed) == [lake.raw("bad")]
    assert set(result.tables) == {lake.raw("bad"), lake.raw("good")}
    assert result.tables[lake.raw("good")].rows_expired == 0


def test_rival_drivers_on_s3_lose_no_row_beside_maintenance(spark: SparkSession, object_store: ObjectStore) -> None:
    path = Lake(f"{object_store.url}/rivals").raw("t")
    keep_one_writer(spark, path)
    with ThreadPoolExecutor(2) as pool:
        played = [pool.submit(lambda name=name: list(play(spark, path, name, 1))) for name in "ab"]  # type: ignore[misc]
        rows = [row for each in played for row in each.result() if row is not None]
    assert rows
    # One of them may have overtaken the other in its only round.
    rows += [row for row in play(spark, path, "c", 1) if row is not None]
    done = maintain(spark, MaintainConfig(lake=f"{object_store.url}/rivals"))
    assert not done.failed
    assert compactions(spark, path) == 1
    # It finds the row that nobody wrote, and nothing else.
    other = Acknowledged(offset=0, value="other")
    assert differences(spark, path, [*rows, other]) == [f"lost: {other}"]


def test_store_that_would_overwrite_a_commit_gets_none(
    spark: SparkSession, object_store: ObjectStore, tmp_path: Path
) -> None:
    """Also if the driver wrote to a better store before."""
    keep_one_writer(spark, object_store.url)
    spark.range(1).write.format("delta").save(f"{object_store.url}/kept")
    with running_object_store(tmp_path, "tests.support.careless_store") as careless:
        reach(spark, careless)
        with pytest.raises(Exception, match="does not support conditional writes"):
            spark.range(1).write.format("delta").save(f"{careless.url}/refused")
        assert read_text(spark, f"{careless.url}/refused/_delta_log/{0:020d}.json") is None


def test_store_that_the_user_chose_for_the_log_stays(spark: SparkSession) -> None:
    conf: Any = spark.sparkContext._jsc.sc().conf()
    setting, chosen = "spark.delta.logStore.s3n.impl", "io.delta.storage.S3SingleDriverLogStore"
    conf.set(setting, chosen)
    try:
        keep_one_writer(spark, "s3n://bucket/lake")
        assert conf.get(setting) == chosen
    finally:
        conf.remove(setting)


def test_log_on_s3_takes_one_of_two_commits_of_a_name(spark: SparkSession, object_store: ObjectStore) -> None:
    keep_one_writer(spark, object_store.url)
    jvm: Any = spark._jvm
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    commit = jvm.org.apache.hadoop.fs.Path(f"{object_store.url}/log/{0:020d}.json")
    # Each driver has a store of its own. This one does not look whether the name is free.
    stores = [jvm.io.delta.storage.KorvetS3LogStore(hadoop) for _ in range(2)]

    def write(number: int, overwrite: bool) -> None:
        stores[number].write(commit, jvm.java.util.ArrayList([f"driver {number}"]).iterator(), overwrite, hadoop)

    write(0, False)
    with pytest.raises(Py4JJavaError, match="FileAlreadyExistsException"):
        write(1, False)
    assert read_text(spark, commit.toString()) == "driver 0\n"
    write(1, True)
    assert read_text(spark, commit.toString()) == "driver 1\n"
