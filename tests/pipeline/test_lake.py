"""Tables of the lake: the proofs in their logs, their only writer, and their maintenance."""

from __future__ import annotations

import datetime
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from korvet.pipeline.errors import PipelineError
from korvet.pipeline.lake import RAW_COLUMNS, Lake, Proven, read_proven
from korvet.pipeline.lake.maintain import MaintainConfig, maintain
from korvet.pipeline.lake.table import Overtaken, Table

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
    return sorted(row.offset for row in spark.read.format("delta").load(path).select("offset").collect())


@pytest.fixture
def path(tmp_path: Path) -> str:
    return Lake(str(tmp_path)).raw("t")


def test_lake_names_the_places_of_its_tables() -> None:
    lake = Lake("s3a://bucket/lake/", "/checkpoints")
    assert lake.raw("a.b") == "s3a://bucket/lake/a.b/raw"
    assert lake.typed("a") == "s3a://bucket/lake/a/typed"
    assert lake.dead_letters("a") == "s3a://bucket/lake/a/dead_letters"
    assert lake.checkpoint("a") == "/checkpoints/a"
    assert Lake("lake").checkpoint("a") == "lake/a/_checkpoint"


def test_proof_outlives_other_commits_and_follows_a_restore(spark: SparkSession, path: str) -> None:
    assert read_proven(spark, path) is None
    table = Table(spark, path, {})
    assert table.append(records(spark, 0), proven(0, 2)) == 1
    assert table.append(records(spark, 2, 3), proven(1, 4)) == 2
    maintain(spark, MaintainConfig(lake=str(Path(path).parents[1])))
    assert read_proven(spark, path) == proven(1, 4)
    spark.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF 0")
    assert read_proven(spark, path) == proven(0, 2)


def test_proof_counts_rows_if_the_log_has_no_commit_of_an_archive(spark: SparkSession, path: str) -> None:
    table = Table(spark, path, {"delta.checkpointInterval": "3"})
    for batch_id in range(4):
        table.append(records(spark, batch_id), proven(batch_id, batch_id + 1))
    log = Path(path) / "_delta_log"
    assert list(log.glob("*.checkpoint*.parquet"))
    for commit in sorted(log.glob("*.json")):
        told = commit.read_text().replace("userMetadata", "somethingElse")
        commit.write_text(told)
        (commit.parent / f".{commit.name}.crc").unlink(missing_ok=True)
    found = read_proven(spark, path)
    assert found is not None
    assert (found.topic, found.topic_id, found.generation, found.batch_id) == ("t", "id", 1, 3)
    assert found.offsets == {0: 4}
    again = Table(spark, path, {})
    again.claim("t", "id", "two")
    again.append(records(spark, 4), proven(0, 5, "two"))
    assert offsets(spark, path) == [0, 1, 2, 3, 4]


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


def test_two_archives_with_one_checkpoint_write_a_batch_once(spark: SparkSession, path: str) -> None:
    tables = [Table(spark, path, {}) for _ in range(2)]
    for table in tables:
        table.append(records(spark, 0), proven(0, 1))
    assert offsets(spark, path) == [0]


def test_archive_does_not_write_to_a_table_made_meanwhile(spark: SparkSession, path: str) -> None:
    first, second = Table(spark, path, {}), Table(spark, path, {})
    first.append(records(spark, 0), proven(0, 1))
    # Its batches may have higher numbers than the table's.
    with pytest.raises(Overtaken):
        second.append(records(spark, 0), proven(5, 1, "two"))
    assert offsets(spark, path) == [0]


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


def test_claim_after_a_restore_is_above_all_generations(spark: SparkSession, path: str) -> None:
    table = Table(spark, path, {})
    table.append(records(spark, 0), proven(0, 1))
    table.claim("t", "id", "two")
    table.append(records(spark, 1), proven(0, 2, "two"))
    spark.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF 0")
    again = Table(spark, path, {})
    again.claim("t", "id", "three")
    again.append(records(spark, 1), proven(0, 2, "three"))
    assert offsets(spark, path) == [0, 1]
    assert again.proven is not None and again.proven.generation == 3


def test_archive_does_not_make_a_deleted_table_anew(spark: SparkSession, path: str) -> None:
    table = Table(spark, path, {})
    table.append(records(spark, 0), proven(0, 1))
    shutil.rmtree(path)
    with pytest.raises(PipelineError, match="the table was deleted"):
        table.append(records(spark, 1), proven(1, 2))
    assert not Path(path).exists()


def test_first_write_cut_off_leaves_nothing_in_the_way(spark: SparkSession, path: str) -> None:
    for left in ("_delta_log/_staged_commits", f"date={DAY}"):
        (Path(path) / left).mkdir(parents=True)
    (Path(path) / f"date={DAY}" / "part-0.snappy.parquet").write_bytes(b"PAR1")
    assert read_proven(spark, path) is None
    Table(spark, path, {}).append(records(spark, 0), proven(0, 1))
    assert offsets(spark, path) == [0]


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


def test_maintenance_joins_small_files_and_deletes_old_ones(spark: SparkSession, path: str) -> None:
    lake = str(Path(path).parents[1])
    table = Table(spark, path, {})
    for batch_id in range(3):
        table.append(records(spark, batch_id), proven(batch_id, batch_id + 1))
    done = maintain(spark, MaintainConfig(lake=lake, topics=("t",))).tables[path]
    assert (done.files_compacted, done.files_written, done.error) == (3, 1, None)
    assert len(list(Path(path).rglob("*.parquet"))) == 4
    assert maintain(spark, MaintainConfig(lake=lake)).tables[path].files_compacted == 0
    maintain(spark, MaintainConfig(lake=lake, retention_hours=0, force=True))
    assert len([each for each in Path(path).rglob("*.parquet") if "_delta_log" not in str(each)]) == 1
    # The archive goes on, and knows nothing of it.
    table.append(records(spark, 3), proven(3, 4))
    assert offsets(spark, path) == [0, 1, 2, 3]


def test_maintenance_tells_the_tables_that_fail(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    with pytest.raises(PipelineError, match="there are no tables of an archive"):
        maintain(spark, MaintainConfig(lake=str(tmp_path / "nowhere")))
    with pytest.raises(PipelineError, match="topic t: it has no tables"):
        maintain(spark, MaintainConfig(lake=str(tmp_path), topics=("t",)))
    with pytest.raises(PipelineError, match="below 168 files may go"):
        maintain(spark, MaintainConfig(lake=str(tmp_path), retention_hours=1))
    Path(lake.raw("bad")).mkdir(parents=True)
    (Path(lake.raw("bad")) / "file").write_text("")
    Table(spark, lake.raw("good"), {}).append(records(spark, 0), proven(0, 1))
    result = maintain(spark, MaintainConfig(lake=str(tmp_path)))
    assert list(result.failed) == [lake.raw("bad")]
    assert lake.raw("good") in result.tables
