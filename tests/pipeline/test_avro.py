"""Avro values in Confluent's frame: the registry, the columns of schemas, values that do not fit, and the archive."""

from __future__ import annotations

import datetime
import json
import threading
from collections.abc import Iterator
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any
from uuid import UUID

import fastavro
import pytest

from korvet.pipeline.archive import ArchiveResult
from korvet.pipeline.errors import Passing, PipelineError
from korvet.pipeline.lake import read_proven
from korvet.pipeline.registry import Registered, Registry
from korvet.pipeline.retype import RetypeConfig, RetypeResult, retype
from korvet.pipeline.typed.avro import AvroJudge, json_schemas
from korvet.pipeline.typed.columns import columns
from korvet.pipeline.typed.table import named
from tests.pipeline.archiving import Scene, until
from tests.support.ports import free_port
from tests.support.schema_registry import SchemaRegistry, running_registry

WITHIN_S = 300.0
ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "city", "type": ["null", "string"], "default": None}],
}


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[SchemaRegistry]:
    with running_registry(tmp_path / "registry") as running:
        yield running


def framed(number: int, schema: Any, value: Any) -> bytes:
    """A value as Confluent's serializers write it."""
    body = BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(schema), value)
    return b"\0" + number.to_bytes(4, "big") + body.getvalue()


def record(**fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields.items()]}


def registered(schema: Any, number: int = 1, **others: Any) -> Registered:
    return Registered(id=number, text=json.dumps(schema), **others)


def judged(schema: Any, value: bytes) -> tuple[Any, ...] | None:
    found = {1: registered(schema)}
    own = named(columns(json_schemas(found)[1]))
    return AvroJudge(found, own).row(value)


NOON = datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.UTC)
LINE = {"type": "record", "name": "Line", "fields": [{"name": "n", "type": "int"}]}


@pytest.mark.parametrize(
    ("kind", "value", "column", "held"),
    [
        ("int", 1, "bigint", 1),
        ("double", 1.5, "double", 1.5),
        ("boolean", True, "boolean", True),
        ("bytes", b"\xff", "string", "/w=="),
        (["null", "string"], None, "string", None),
        (["int", "string"], "x", "string", '"x"'),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "A", "string", "A"),
        ({"type": "array", "items": LINE}, [{"n": 1}], "array<struct<n:bigint>>", [(1,)]),
        ({"type": "map", "values": "long"}, {"a": 1}, "string", '{"a":1}'),
        ({"type": "long", "logicalType": "timestamp-micros"}, NOON, "timestamp", NOON),
        ({"type": "int", "logicalType": "date"}, NOON.date(), "date", NOON.date()),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            Decimal("1.50"),
            "decimal(38,2)",
            Decimal("1.50"),
        ),
        ({"type": "string", "logicalType": "uuid"}, UUID(int=1), "string", str(UUID(int=1))),
    ],
)
def test_avro_types_are_columns(kind: Any, value: Any, column: str, held: Any) -> None:
    schema = record(f=kind)
    assert columns(json_schemas({1: registered(schema)})[1])["f"].dataType.simpleString() == column
    assert judged(schema, framed(1, schema, {"f": value})) == (held,)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "not Avro: it does not begin with a zero byte"),
        (b'{"id": 1}', "not Avro: it does not begin with a zero byte"),
        (b"\0\0\0\0\1", "not Avro of schema 1"),
        (b"\0\0\0\0\1\2\2\x7fa", "not Avro of schema 1"),
        (b"\0\0\0\0\1\2\2\xff\xff\xff\xff\xff\xff\xff\xff\x7fa", "not Avro of schema 1"),
        (b"\0\0\0\0\1\2\x09", "not Avro of schema 1"),
        (b"\0\0\0\0\2\2\0", "the schema registry has no schema 2"),
    ],
)
def test_value_that_is_not_avro_of_its_schema_is_a_dead_letter(value: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        judged(ORDER, value)


def test_decimal_of_a_megabyte_is_a_dead_letter() -> None:
    schema = record(f={"type": "bytes", "logicalType": "decimal", "precision": 9})
    with pytest.raises(ValueError, match="a decimal has more than 64 bytes"):
        judged(schema, framed(1, record(f="bytes"), {"f": b"\x7f" * 1_000_000}))


WIDE = [{"name": "n", "type": "int"}, *({"name": f"f{number}", "type": "null"} for number in range(200))]
"""Fields of a record of a byte."""


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (registered(ORDER, kind="PROTOBUF"), "schema 1: it is of the type PROTOBUF"),
        (registered(ORDER, has_references=True), "schema 1: it refers to other schemas"),
        (Registered(id=1, text="{"), "schema 1: it is no Avro schema"),
        (registered("string"), "schema 1: the JSON Schema gives no columns: no JSON object fits it"),
        (registered(record(next=["null", "R"])), "schema 1: its record R is within itself"),
        # A value of ten bytes could say that it has 2^60 items.
        (
            registered(record(f={"type": "array", "items": "null"})),
            "schema 1: it has an array or a map whose",
        ),
        (
            registered(record(f={"type": "array", "items": {"type": "record", "name": "E", "fields": []}})),
            "too few bytes",
        ),
        (
            registered(record(f={"type": "array", "items": {"type": "error", "name": "E", "fields": []}})),
            "too few bytes",
        ),
        (
            registered(record(f={"type": "map", "values": {"type": "record", "name": "E", "fields": WIDE}})),
            "too few bytes",
        ),
        (registered(record(f={"type": "long", "logicalType": {}})), "schema 1: it is no"),
        (
            Registered(id=1, text='{"__fastavro_parsed": true, "__named_schemas": {}, "type": "record"}'),
            "schema 1: it is no",
        ),
    ],
)
def test_schema_that_gives_no_columns_makes_dead_letters(schema: Registered, reason: str) -> None:
    assert json_schemas({1: schema}) == {}
    with pytest.raises(ValueError, match=reason):
        AvroJudge({1: schema}, columns("{}")).row(b"\0\0\0\0\1\2\0")


def test_schema_whose_parts_multiply_is_refused_soon() -> None:
    inner: Any = "int"
    for level in range(40):
        fields = [{"name": "a", "type": inner}, {"name": "b", "type": inner if inner == "int" else inner["name"]}]
        inner = {"type": "record", "name": f"L{level}", "fields": fields}
    assert json_schemas({1: registered(inner)}) == {}


def test_registry_gets_one_request_for_a_schema_and_one_a_minute_for_an_unknown_one(registry: SchemaRegistry) -> None:
    now = [0.0]
    registry.register(1, ORDER)
    registry.register(2, {}, schemaType="JSON", references=[{"name": "a", "subject": "b", "version": 1}])
    asked = Registry(registry.url, clock=lambda: now[0])
    for _ in range(3):
        now[0] += 29.0
        found = asked.schemas([1, 2, 3])
        assert found[1] == registered(ORDER)
        assert (found[2].kind, found[2].has_references, 3 in found) == ("JSON", True, False)
    assert registry.asked == [f"/schemas/ids/{number}" for number in (1, 2, 3)]
    registry.register(3, ORDER)
    assert not asked.schemas([3])
    now[0] += 60.0
    assert asked.schemas([3])[3].text == json.dumps(ORDER)


def test_registry_keeps_a_bounded_number_of_unknown_ids(
    registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("korvet.pipeline.registry._MOST_UNKNOWN", 2)
    asked = Registry(registry.url)
    for number in (1, 2, 3, 3, 2, 1):
        assert not asked.schemas([number])
    assert registry.asked == [f"/schemas/ids/{number}" for number in (1, 2, 3, 1)]


def test_registry_that_is_away_or_busy_may_come_back_and_one_that_refuses_does_not(registry: SchemaRegistry) -> None:
    with pytest.raises(Passing, match="does not answer"):
        Registry(f"http://user:secret@127.0.0.1:{free_port()}").schemas([1])
    asked = Registry(registry.url.replace("//", "//user:secret@"))
    for status, kind in ((503, Passing), (401, PipelineError)):
        registry.status = status
        with pytest.raises(PipelineError) as caught:
            asked.schemas([1])
        assert type(caught.value) is kind
        assert f"HTTP {status}" in str(caught.value) and "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["", "localhost:8081", "ftp://there", "http://", "http://there:port"])
def test_address_that_is_no_url_is_one_sentence(url: str) -> None:
    with pytest.raises(PipelineError, match="its address is no URL"):
        Registry(url)


def typed(scene: Scene, *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in ("_offset", *names)) for row in scene.typed()]


@pytest.mark.scene
def test_archive_gives_avro_values_columns_over_a_change_of_schema(scene: Scene, registry: SchemaRegistry) -> None:
    wider = {**ORDER, "fields": [*ORDER["fields"], {"name": "amount", "type": "double"}]}
    registry.register(7, ORDER)
    scene.create(1)
    scene.produce([framed(7, ORDER, {"id": 1, "city": "Bonn"}), None, b"no"])
    assert not scene.archive(schema_registry=registry.url).failed
    registry.register(8, wider)
    later = [framed(8, wider, {"id": 2, "city": None, "amount": 1.5}), framed(9, ORDER, {"id": 3, "city": "Oslo"})]
    scene.produce(later)
    assert not scene.archive(schema_registry=registry.url).failed
    assert typed(scene, "id", "city", "amount", "_is_tombstone") == [
        (0, 1, "Bonn", None, False), (1, None, None, None, True), (3, 2, None, 1.5, False),
    ]  # fmt: skip
    assert [(row.offset, row.reason[:30]) for row in scene.dead_letters()] == [
        (2, "not Avro: it does not begin wi"), (4, "the schema registry has no sch"),
    ]  # fmt: skip
    # The schema came late.
    registry.register(9, ORDER)
    config = RetypeConfig(
        bootstrap_servers=scene.bootstrap, lake=scene.lake.location, topic=scene.topic, schema_registry=registry.url
    )
    assert retype(scene.spark, config) == RetypeResult(typed=4, dead_letters=1)
    assert typed(scene, "id", "city")[-1] == (4, 3, "Oslo")


def test_archive_of_a_topic_without_avro_values_makes_the_raw_table_alone(
    scene: Scene, registry: SchemaRegistry
) -> None:
    scene.create(1)
    scene.produce([b"no", b"\0\0\0\0\5no"])
    assert scene.archive(schema_registry=registry.url).topics[scene.topic].rows == 2
    assert not Path(scene.lake.typed(scene.topic)).exists()


def test_raw_table_does_not_wait_for_a_registry_that_is_away(scene: Scene, tmp_path: Path) -> None:
    scene.create(1)
    scene.produce([framed(1, ORDER, {"id": 1, "city": "Bonn"})])
    port = free_port()
    result: list[ArchiveResult] = []
    thread = threading.Thread(target=lambda: result.append(scene.archive(schema_registry=f"http://127.0.0.1:{port}")))
    thread.start()
    try:
        until(lambda: read_proven(scene.spark, scene.lake.raw(scene.topic)) is not None)
        assert thread.is_alive() and scene.typed() == []
    finally:
        with running_registry(tmp_path / "registry", port) as registry:
            registry.register(1, ORDER)
            thread.join(WITHIN_S)
    assert not result[0].failed
    assert typed(scene, "id") == [(0, 1)]
