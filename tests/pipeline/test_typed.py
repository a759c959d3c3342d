"""Batches that Spark splits, and their tables while the schema changes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from korvet.pipeline.lake import ARCHIVED, RAW_COLUMNS
from korvet.pipeline.typed import TABLE_PROPERTIES, JsonVerdicts, dead_letters, table_type, typed_rows
from tests.support.delta import delta_rows

AT = datetime(2024, 2, 29, 12, tzinfo=UTC)
INTEGER = {"type": "integer"}
STRING = {"type": "string"}

Batch = Callable[[Sequence[Any]], DataFrame]
"""Makes a batch of values: None becomes a tombstone, bytes stay, all else becomes JSON."""


@pytest.fixture
def batch(spark: SparkSession) -> Batch:
    offsets = iter(range(1000))

    def make(values: Sequence[Any]) -> DataFrame:
        written = [value if isinstance(value, bytes | None) else json.dumps(value).encode() for value in values]
        headers = [("h", b"v"), ("n", None)]
        rows = [(b"k", value, headers, "t", 1, next(offsets), AT, 0, AT.date()) for value in written]
        return spark.createDataFrame(rows, RAW_COLUMNS)

    return make


class Tables:
    """A topic's two tables, written like the archive's."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self._spark = spark
        self._typed, self._dead_letters = (str(directory / name) for name in ("typed", "dead_letters"))

    def add(self, batch: DataFrame, schema: dict[str, Any]) -> None:
        wanted = table_type(json.dumps(schema), self.typed().schema if Path(self._typed).exists() else None)
        judged = JsonVerdicts(json.dumps(schema), wanted).on(batch).persist()
        append = typed_rows(judged).write.format("delta").mode("append").options(**TABLE_PROPERTIES)
        append.option("mergeSchema", "true").partitionBy("date").save(self._typed)
        dead_letters(judged).write.format("delta").mode("append").partitionBy("date").save(self._dead_letters)
        judged.unpersist()

    def typed(self) -> DataFrame:
        return self._spark.read.format("delta").load(self._typed)

    def rows(self, *names: str) -> list[tuple[Any, ...]]:
        rows = sorted(delta_rows(self._spark, self._typed), key=lambda row: row["_offset"])
        return [tuple(row[name] for name in names) for row in rows]

    def dead_letters(self) -> list[Row]:
        return sorted(delta_rows(self._spark, self._dead_letters), key=lambda row: row.offset)


@pytest.fixture
def tables(spark: SparkSession, tmp_path: Path) -> Tables:
    return Tables(spark, tmp_path)


@pytest.mark.scene
def test_typed_table_grows_over_three_versions_of_a_schema(batch: Batch, tables: Tables) -> None:
    coordinates: dict[str, Any] = {"x": INTEGER}
    goods: dict[str, Any] = {"sku": STRING}
    at = {"type": "object", "properties": coordinates}
    lines = {"type": "array", "items": {"type": "object", "properties": goods}}
    tables.add(
        batch([{"id": 1, "at": {"x": 2}, "lines": [{"sku": "a"}]}, b"{", None]),
        {"properties": {"id": INTEGER, "at": at, "lines": lines, "open": {}, "dropped": STRING}},
    )
    coordinates["y"] = {"type": "string", "format": "date-time"}
    goods["n"] = {"type": "number"}
    tables.add(
        batch([{"id": 2, "at": {"y": "0001-01-01T00:00:00Z"}, "lines": [{"sku": "b", "n": 1.5}], "new": True}]),
        {"properties": {"id": INTEGER, "at": at, "lines": lines, "open": INTEGER, "new": {"type": "boolean"}}},
    )
    # The change is incompatible: a text fits the schema, but not the column.
    tables.add(
        batch([{"id": "three", "open": 3}, {"id": 3, "open": [4]}, {"new": False}]),
        {"properties": {"id": {"type": ["integer", "string"]}, "new": {"type": "boolean"}, "open": {}}},
    )
    assert [field.simpleString() for field in tables.typed().schema.fields[6:]] == [
        "id:bigint",
        "at:struct<x:bigint,y:timestamp>",
        "lines:array<struct<sku:string,n:double>>",
        "open:string",
        "dropped:string",
        "new:boolean",
    ]
    assert tables.rows("_offset", "_is_tombstone", "id", "new", "open", "dropped") == [
        (0, False, 1, None, None, None),
        (2, True, None, None, None, None),
        (3, False, 2, True, None, None),
        (5, False, 3, None, "[4]", None),
        (6, False, None, False, None, None),
    ]
    about = tables.rows("_key", "_partition", "_timestamp", "date")
    assert about == [(b"k", 1, AT.replace(tzinfo=None), AT.date())] * 5
    # The query reads text, since Python has no timestamps so early.
    read = tables.typed().where("id is not null").orderBy("id").selectExpr("lines", "at.x", "cast(at.y as string)")
    assert [tuple(row) for row in read.collect()] == [
        ([Row(sku="a", n=None)], 2, None),
        ([Row(sku="b", n=1.5)], None, "0001-01-01 00:00:00"),
        (None, None, None),
    ]
    no_json, no_integer = tables.dead_letters()
    assert (no_json.offset, no_json.value, no_json.headers) == (
        1,
        b"{",
        [Row(key="h", value=b"v"), Row(key="n", value=None)],
    )
    assert no_json.reason.startswith("not JSON: ")
    assert no_integer.asDict() | {"headers": None} == {
        "key": b"k",
        "value": b'{"id": "three", "open": 3}',
        "headers": None,
        "topic": "t",
        "partition": 1,
        "offset": 4,
        "timestamp": AT.replace(tzinfo=None),
        "timestampType": 0,
        "date": AT.date(),
        "reason": '$.id: "three" is not an integer of 64 bits',
    }


def test_columns_have_the_names_of_properties(batch: Batch, tables: Tables) -> None:
    names = ["a b", "a.b", "`", "ü", " ,;{}()\n\t=", "date", "_offset", "date_", "_metadata", "", "\0", "x" * 300]
    inside = {"type": "object", "properties": {"d.e": INTEGER}}
    schema = {"properties": {**dict.fromkeys(names, INTEGER), "in side": inside}}
    value = {name: index for index, name in enumerate(names)} | {"in side": {"d.e": -1}}
    tables.add(batch([value]), schema)
    tables.add(batch([value]), schema)
    columns = [{"date": "date_", "_offset": "_offset_", "date_": "date__"}.get(name, name) for name in names]
    assert tables.rows(*columns, "in side") == [(*range(len(names)), Row(**{"d.e": -1}))] * 2
    assert tables.typed().select("`a b`", "`a.b`", "`in side`.`d.e`").where("`ü` = 3").count() == 2


def test_rows_and_dead_letters_of_a_raw_table_keep_the_day_of_archiving(batch: Batch) -> None:
    schema = json.dumps({"properties": {"id": INTEGER}})
    raw = batch([{"id": 1}, b"no"]).withColumn(ARCHIVED, F.lit(AT.date()))
    judged = JsonVerdicts(schema, table_type(schema, None)).on(raw)
    for part in (typed_rows(judged), dead_letters(judged)):
        assert [row[ARCHIVED] for row in part.collect()] == [AT.date()]


def test_persisted_verdicts_judge_each_record_once(batch: Batch) -> None:
    schema = json.dumps({"properties": {"id": INTEGER}})
    judged = JsonVerdicts(schema, table_type(schema, None)).on(batch([{"id": 1}, {"id": "x"}])).persist()
    for part in (typed_rows(judged), dead_letters(judged)):
        assert part.count() == 1
        plan = part._jdf.queryExecution().executedPlan().toString()
        assert "InMemoryTableScan" in plan
    judged.unpersist()
