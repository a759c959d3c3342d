"""Which texts are schemas, and what is said of values."""

from __future__ import annotations

import json

import pytest

from korvet.store.config_tables import TOPIC_CONFIGS
from korvet.store.configs import topic_problem
from korvet.store.value_schema import ValueSchema, value_schema

ORDER = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "amount": {"$ref": "#/$defs/amount"}},
    "required": ["id"],
    "$defs": {"amount": {"type": "number", "minimum": 0}},
}


def test_texts_that_are_schemas() -> None:
    for schema in (ORDER, {}, {"$schema": "http://json-schema.org/draft-07/schema#", "type": "string"}):
        assert topic_problem({"korvet.value.schema": f" {json.dumps(schema)} "}, TOPIC_CONFIGS) is None
    assert topic_problem({"korvet.value.schema": ""}, TOPIC_CONFIGS) is None
    assert value_schema("") is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "Expecting property name"),
        ("true", "the schema is not a JSON object"),
        ('{"type": "interger"}', "not a JSON Schema: $.type: 'interger' is not valid"),
        ('{"pattern": "("}', "not a JSON Schema: $.pattern: '(' is not a 'regex'"),
        ('{"minimum": NaN}', "NaN is not a JSON value"),
        ('{"$ref": "http://127.0.0.1:1/schema"}', "the reference http://127.0.0.1:1/schema leads to nothing"),
        ('{"$ref": "#/$defs/none"}', "the reference #/$defs/none leads to nothing"),
        ('{"$ref": "#"}', "it is nested too deeply"),
        ("[" * 30_000, "it is nested too deeply"),
        ('{"title": "%s"}' % ("x" * 40_000), "a schema has at most 32767 bytes"),
    ],
)
def test_texts_that_are_none(text: str, why: str) -> None:
    message = topic_problem({"korvet.value.schema": text}, TOPIC_CONFIGS)
    assert message is not None
    assert message.startswith("Invalid value ")
    assert f" for configuration korvet.value.schema: {why}" in message
    assert len(message) < 1500


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b'{"id": 1}', None),
        (b'{"id": 1, "amount": 0.5}', None),
        (b"{}", "$: 'id' is a required property"),
        (b'{"id": "1"}', "$.id: '1' is not of type 'integer'"),
        (b'{"id": 1, "amount": -1}', "$.amount: -1 is less than the minimum of 0"),
        (b'{"id": 1, "amount": NaN}', "not JSON: NaN is not a JSON value"),
        (b"", "not JSON: Expecting value: line 1 column 1 (char 0)"),
        (b"\xff", "not UTF-8"),
        (b"[" * 100_000, "not JSON: it is nested too deeply"),
    ],
)
def test_what_is_wrong_with_a_value(value: bytes, why: str | None) -> None:
    assert ValueSchema(json.dumps(ORDER)).problem(memoryview(value)) == why


def test_reason_stays_short() -> None:
    reason = ValueSchema('{"type": "integer"}').problem(json.dumps("x\n" * 10_000).encode())
    assert reason is not None
    assert len(reason) == 200
