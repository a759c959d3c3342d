"""The columns that a JSON Schema gives, and the growth of a table's columns."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql.types import StructType

from korvet.pipeline.errors import PipelineError
from korvet.pipeline.typed import columns
from korvet.pipeline.typed.table import column_name, grown, is_json_text, property_name

DRAFT_7 = "http://json-schema.org/draft-07/schema#"


def told(schema: dict[str, Any]) -> str:
    """The columns in Spark's short form, with ``json`` for JSON's text."""
    return shown(columns(json.dumps(schema)))


def shown(found: StructType) -> str:
    texts = [f"{field.name}:{'json' if is_json_text(field) else field.dataType.simpleString()}" for field in found]
    return " ".join(texts)


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "integer"}, "bigint"),
        ({"type": "number"}, "double"),
        ({"type": ["integer", "number"]}, "double"),
        ({"type": "boolean"}, "boolean"),
        ({"type": "string"}, "string"),
        ({"type": ["string", "null"]}, "string"),
        ({"type": "string", "format": "date-time"}, "timestamp"),
        ({"type": ["null", "string"], "format": "date"}, "date"),
        ({"type": "string", "format": "uuid"}, "string"),
        ({"format": "date"}, "json"),
        ({"enum": ["a", "b", None]}, "string"),
        ({"enum": [1, 2]}, "bigint"),
        ({"enum": [1, 2.5]}, "double"),
        ({"enum": ["a", 1]}, "json"),
        ({"const": True}, "boolean"),
        ({"type": "number", "enum": [1, 2]}, "double"),
        ({"type": ["string", "integer"]}, "json"),
        ({"type": "null"}, "json"),
        ({}, "json"),
        (True, "json"),
        (False, "json"),
        ({"type": "object"}, "json"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, "json"),
        ({"type": "object", "properties": {"a": {"type": "integer"}, "b": {}}}, "struct<a:bigint,b:string>"),
        ({"properties": {"a": {"type": "integer"}}}, "json"),
        ({"type": "array", "items": {"type": "number"}}, "array<double>"),
        ({"type": "array", "items": {"type": "array", "items": {"type": "string"}}}, "array<array<string>>"),
        ({"type": "array"}, "json"),
        ({"type": "array", "items": {}}, "json"),
        ({"type": "array", "prefixItems": [{"type": "string"}], "items": {"type": "string"}}, "json"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "bigint"),
        ({"oneOf": [{"type": "null"}, {"$ref": "#/$defs/point"}]}, "struct<x:double,y:double>"),
        ({"anyOf": [{"type": "integer"}, {"type": "number"}]}, "double"),
        ({"anyOf": [{"type": "string", "format": "date"}, {"type": "string"}]}, "string"),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "json"),
        ({"oneOf": [{"$ref": "#/$defs/point"}, {"$ref": "#/$defs/tree"}]}, "json"),
        ({"allOf": [{"type": ["string", "integer"]}, {"type": ["integer", "null"]}]}, "bigint"),
        (
            {"$ref": "#/$defs/point", "properties": {"z": {"type": "integer"}}},
            "struct<z:bigint,x:double,y:double>",
        ),
        (
            {"$ref": "#/$defs/point", "anyOf": [{"required": ["x"]}, {"required": ["y"]}]},
            "struct<x:double,y:double>",
        ),
        ({"$ref": "#/$defs/tree"}, "struct<name:string,children:string>"),
        ({"$ref": "#point"}, "struct<x:double,y:double>"),
        ({"$ref": "other#/$defs/flag"}, "boolean"),
    ],
    ids=str,
)
def test_property_gives_a_column(schema: dict[str, Any], expected: str) -> None:
    number = {"type": "number"}
    definitions = {
        "point": {"$anchor": "point", "type": "object", "properties": {"x": number, "y": number}},
        "tree": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/tree"}},
            },
        },
        "other": {"$id": "other", "$defs": {"flag": {"type": "boolean"}}},
    }
    whole = {"$id": "http://schemas/it", "type": "object", "properties": {"it": schema}, "$defs": definitions}
    assert told(whole) == f"it:{expected}"


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "object", "required": ["id"]}, ""),
        ({}, ""),
        ({"properties": {"id": {"type": "integer"}}}, "id:bigint"),
        ({"type": ["object", "array"], "properties": {"id": {"type": "integer"}}}, "id:bigint"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"properties": {"id": {"type": "string"}}}}}, "id:string"),
        (
            {
                "oneOf": [
                    {"properties": {"kind": {"const": "a"}, "n": {"type": "integer"}}},
                    {"properties": {"kind": {"const": "b"}, "n": {"type": "string"}, "more": {}}},
                ]
            },
            "kind:string",
        ),
        (
            {
                "$schema": DRAFT_7,
                "properties": {"a": {"$ref": "#/definitions/b", "type": "string"}},
                "definitions": {"b": {"type": "integer"}},
            },
            "a:bigint",
        ),
        (
            {"$schema": DRAFT_7, "properties": {"a": {"type": "array", "items": [{"type": "string"}]}}},
            "a:json",
        ),
        ({"properties": {"self": {"$ref": "#"}, "b": {"type": "boolean"}}}, "self:json b:boolean"),
    ],
    ids=str,
)
def test_whole_value_gives_columns(schema: dict[str, Any], expected: str) -> None:
    assert told(schema) == expected


def test_value_too_deep_is_text() -> None:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(60):
        schema = {"type": "object", "properties": {"a": schema}}
    assert told(schema).count("struct") == 32
    assert told(schema).endswith(f"a:string{'>' * 32}")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it is empty"),
        ("{", "Expecting property name"),
        ("5", "the schema is not a JSON object"),
        ('{"type": "interger"}', "not a JSON Schema: $.type"),
        ('{"type": "string"}', "no JSON object fits it"),
        ('{"type": "array", "items": {"type": "object"}}', "no JSON object fits it"),
        ('{"properties": {"id": {}, "ID": {}}}', "the properties 'id' and 'ID' differ by case only"),
        (
            '{"properties": {"a": {"type": "object", "properties": {"\\u212a": {}, "k": {}}}}}',
            "the properties '\u212a' and 'k' differ by case only",
        ),
        ('{"properties": {"\\ud800": {}}}', "the property '\\ud800' holds half of a surrogate pair"),
        (
            json.dumps({"allOf": [{"anyOf": [{"minProperties": n}, {}]} for n in range(30)]}),
            "it has too many properties or alternatives",
        ),
        (
            json.dumps(
                {
                    "$ref": "#/$defs/0",
                    "$defs": {
                        str(n): {"type": "object", "properties": {name: {"$ref": f"#/$defs/{n + 1}"} for name in "ab"}}
                        for n in range(20)
                    }
                    | {"20": {}},
                }
            ),
            "it has too many properties or alternatives",
        ),
    ],
    ids=lambda text: text[:40],
)
def test_schema_without_columns_is_refused(text: str, why: str) -> None:
    with pytest.raises(PipelineError) as failure:
        columns(text)
    assert str(failure.value).startswith(f"the JSON Schema gives no columns: {why}")
    assert "\n" not in str(failure.value)


@pytest.mark.parametrize("name", ["date", "Date", "date_", "date___", "_key", "_offset_", "dates", "key", "_", ""])
def test_column_name_leads_back_to_its_property(name: str) -> None:
    column = column_name(name)
    assert property_name(column) == name
    assert column.lower() not in {"_key", "_partition", "_offset", "_timestamp", "_is_tombstone", "date"}


def test_table_grows_and_keeps_its_types() -> None:
    first = columns(
        json.dumps(
            {
                "properties": {
                    "id": {"type": "integer"},
                    "dropped": {"type": "string"},
                    "open": {},
                    "at": {"type": "object", "properties": {"x": {"type": "integer"}}},
                    "list": {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "string"}}}},
                }
            }
        )
    )
    second = columns(
        json.dumps(
            {
                "properties": {
                    "new": {"type": "boolean"},
                    "ID": {"type": "string"},
                    "open": {"type": "integer"},
                    "at": {"type": "object", "properties": {"y": {"type": "integer"}, "x": {"type": "number"}}},
                    "list": {"type": "array", "items": {"type": "object", "properties": {"b": {"type": "boolean"}}}},
                }
            }
        )
    )
    assert shown(grown(first, second)) == (
        "id:bigint dropped:string open:json at:struct<x:double,y:bigint> "
        "list:array<struct<a:string,b:boolean>> new:boolean"
    )
