"""Archives of topics with a JSON Schema, and tables that `retype` builds anew."""

from __future__ import annotations

import datetime
import json
import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, Row, SparkSession

from korvet.pipeline.errors import PipelineError
from korvet.pipeline.lake.table import Table
from korvet.pipeline.plan.proofs import Proven
from korvet.pipeline.retype import RetypeResult
from tests.pipeline.archiving import CLAIM, Scene, Source, schema_of
from tests.support.broker import KorvetServer
from tests.support.delta import delta_rows

SCHEMA = schema_of(n={"type": "integer"})


@pytest.fixture(scope="module")
def archived_twice(spark: SparkSession, broker: KorvetServer, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """A scene with two batches in all tables. Tests take copies of its lake."""
    scene = Scene.of(spark, broker.bootstrap, "twice", tmp_path_factory.mktemp("twice"))
    scene.create(1)
    for values in ([b'{"n": 0}', b"no"], [b'{"n": 2}', b'{"m": 3}', b'{"n": 4, "m": 4}', b"never"]):
        scene.produce(values)
        assert not scene.archive(schemas={scene.topic: SCHEMA}).failed
    return scene


@pytest.fixture
def twice(archived_twice: Scene, tmp_path: Path) -> Scene:
    """A copy of that scene's lake. No test produces to its topic."""
    shutil.copytree(archived_twice.lake.location, tmp_path / "lake")
    return Scene(archived_twice.spark, archived_twice.bootstrap, archived_twice.topic, tmp_path)


@pytest.mark.parametrize("source", [pytest.param("korvet", marks=pytest.mark.scene), "kafka"])
def test_archive_writes_each_value_as_a_typed_row_or_a_dead_letter(scene: Scene, source: Source) -> None:
    scene.create()
    inside = {"type": "object", "properties": {"at": {"type": "string", "format": "date-time"}}}
    schema = {"properties": {"n": {"type": "integer"}, "in": {"type": "array", "items": inside}, "more": {}}}
    scene.produce([b'{"n": 1, "in": [{"at": "2026-01-02T03:04:05.678901+01:00"}, {}]}', b"no", None])
    scene.produce([b'{"n": 2, "n": 3}', b'{"n": 2, "more": {"a": "\\u00fc"}}'], partition=1)
    schemas = {scene.topic: json.dumps({**schema, "required": ["n"]})}
    assert not scene.archive(source=source, schemas=schemas).failed
    at = datetime.datetime(2026, 1, 2, 2, 4, 5, 678901)
    assert [(row["_offset"], row.n, row["in"], row.more) for row in scene.typed()] == [
        (0, 1, [Row(at=at), Row(at=None)], None), (2, None, None, None), (1, 2, None, '{"a":"ü"}'),
    ]  # fmt: skip
    assert [(row.value, row.reason.partition(":")[0]) for row in scene.dead_letters()] == [
        (b"no", "not JSON"), (b'{"n": 2, "n": 3}', "not JSON"),
    ]  # fmt: skip
    assert len(scene.rows()) == 5
    if source == "korvet":
        # The tests' reader finds what Spark's reader finds.
        table = scene.lake.typed(scene.topic)
        by_spark = scene.spark.read.format("delta").load(table).collect()
        assert sorted(map(str, by_spark)) == sorted(map(str, delta_rows(scene.spark, table)))


def test_archive_with_batches_that_end_elsewhere_takes_nothing_back(twice: Scene) -> None:
    # The driver died after the typed rows were written, and before the raw records were.
    twice.forget(twice.lake.raw(twice.topic), CLAIM)
    twice.archive(max_offsets_per_trigger=2, schemas={twice.topic: SCHEMA})
    assert [row.offset for row in twice.rows()] == [0, 1, 2, 3, 4, 5]
    assert [row["_offset"] for row in twice.typed()] == [0, 2, 4]
    assert [row.offset for row in twice.dead_letters()] == [1, 3, 5]
    assert twice.reported() == {0: 6}


def test_record_goes_to_one_table_over_a_schema_change_and_beside_a_letter_of_a_lost_record(twice: Scene) -> None:
    # The driver died after the dead letters were written, and before the typed rows were.
    twice.forget(twice.lake.typed(twice.topic), CLAIM)
    twice.forget(twice.lake.raw(twice.topic), CLAIM)
    # One of them is of a history that the broker has lost.
    dead_letters = twice.lake.dead_letters(twice.topic)
    DeltaTable.forPath(twice.spark, dead_letters).update("offset = 5", {"offset": "4L"})
    assert not twice.archive(schemas={twice.topic: schema_of(m={})}).failed
    # A letter stays a letter although its record fits the schema by now. A letter of another record hides none.
    assert [(row["_offset"], row.m) for row in twice.typed()] == [(0, None), (4, "4")]
    assert [(row.offset, row.value[:4]) for row in twice.dead_letters()] == [
        (1, b"no"), (2, b'{"n"'), (3, b'{"m"'), (4, b"neve"), (5, b"neve"),
    ]  # fmt: skip


@pytest.mark.scene
def test_archive_takes_fractions_into_a_column_that_had_integers(scene: Scene) -> None:
    scene.create(1)

    def archived(kind: str, *values: str) -> None:
        inside = {"type": "object", "properties": {"x": {"type": kind}}}
        members = {"n": {"type": kind}, "a.b": {"type": "array", "items": inside}, "open": {}}
        scene.produce([value.encode() for value in values])
        assert not scene.archive(schemas={scene.topic: json.dumps({"properties": members})}).failed

    archived("integer", '{"n": 9007199254740992, "a.b": [{"x": 1}], "open": "a"}')
    archived("number", '{"n": 2.5, "a.b": [{"x": 3.5}], "open": "b"}')
    assert [(row.n, row["a.b"], row.open) for row in scene.typed()] == [
        (9007199254740992.0, [Row(x=1.0)], '"a"'),
        (2.5, [Row(x=3.5)], '"b"'),
    ]


def test_archive_rounds_no_integers_of_a_column_that_gets_fractions(scene: Scene) -> None:
    scene.create(1)

    def archived(value: str, **n: Any) -> dict[str, PipelineError]:
        scene.produce([value.encode()])
        return scene.archive(schemas={scene.topic: json.dumps({"properties": {"n": n}})}).failed

    assert not archived('{"n": 9007199254740993}', type="integer")
    assert "a double would round some of the table" in str(archived('{"n": 2.5}', type="number")[scene.topic])
    assert len(scene.rows()) == 2 and [row.n for row in scene.typed()] == [9007199254740993]
    assert not archived('{"n": 0.1}', type="number", multipleOf=0.1)
    assert [row.n for row in scene.typed()] == [Decimal("9007199254740993.0"), Decimal("2.5"), Decimal("0.1")]


@pytest.mark.scene
def test_retype_goes_on_judges_all_by_a_new_schema_and_refuses_a_raw_table_that_lacks_a_record(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = schema_of(n={"type": "string"})
    scene.create(1)
    scene.produce([b'{"n": 1}', b'{"n": "2"}', None])
    # The topic has got its schema late: there is no typed table yet.
    assert not scene.archive().failed
    _cut_off_retype(scene, monkeypatch)
    scene.produce([b'{"n": "4"}'])
    assert "'korvet pipeline retype' runs, or was cut off" in scene.archive_error(schemas={scene.topic: SCHEMA})
    assert scene.retype(SCHEMA) == RetypeResult(typed=2, dead_letters=1)
    assert [(row["_offset"], row.n) for row in scene.typed()] == [(0, 1), (2, None)]
    assert [row.offset for row in scene.dead_letters()] == [1]

    assert scene.retype(text) == RetypeResult(typed=2, dead_letters=1)
    _refused_retype(scene)
    # The archive goes on after all of them.
    scene.produce([b"no"])
    assert not scene.archive(schemas={scene.topic: text}).failed
    assert [(row["_offset"], row.n) for row in scene.typed()] == [(1, "2"), (2, None), (3, "4")]
    assert [(row.offset, row.reason[:3]) for row in scene.dead_letters()] == [(0, "$.n"), (4, "not")]
    assert [row.offset for row in scene.rows()] == [0, 2, 3, 4]


def _cut_off_retype(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut_off(table: Table, rows: DataFrame, proven: Proven) -> int:
        raise PipelineError("the driver died")

    with monkeypatch.context() as patched:
        patched.setattr(Table, "replace", cut_off)
        with pytest.raises(PipelineError, match="the driver died"):
            scene.retype(SCHEMA)


def _refused_retype(scene: Scene) -> None:
    """Take a record from the raw table, and see that a retype then changes nothing."""
    DeltaTable.forPath(scene.spark, scene.lake.raw(scene.topic)).delete("offset = 1")
    with pytest.raises(PipelineError, match=r"it lacks offset 1 of partition 0, which .*typed has"):
        scene.retype(schema_of(m={}))
    assert [row.n for row in scene.typed()] == ["2", None]
