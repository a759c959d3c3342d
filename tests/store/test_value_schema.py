"""Value schemas: the texts that are schemas, and the problems that they find in values."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest

from korvet.configs.schema_keywords import PATIENCE, OutOfPatience
from korvet.configs.topics import TOPIC_CONFIGS
from korvet.configs.types import topic_problem
from korvet.configs.value_schema import ValueSchema, is_value_schema, value_schema

ORDER = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "amount": {"$ref": "#/$defs/amount"}},
    "required": ["id"],
    "$defs": {"amount": {"type": "number", "minimum": 0}},
}


def test_texts_that_are_schemas_are_accepted() -> None:
    for schema in (ORDER, {}, {"$schema": "http://json-schema.org/draft-07/schema#", "type": "string"}):
        assert topic_problem({"korvet.value.schema": f" {json.dumps(schema)} "}, TOPIC_CONFIGS, {}) is None
    assert topic_problem({"korvet.value.schema": ""}, TOPIC_CONFIGS, {}) is None
    assert value_schema("") is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "Expecting property name"),
        ("true", "the schema is not a JSON object"),
        ('{"type": "interger"}', "not a JSON Schema: $.type: 'interger' is not valid"),
        ('{"pattern": "("}', "'(' is not a pattern of RE2: missing )"),
        ('{"minimum": NaN}', "NaN is not a JSON value"),
        ('{"$ref": "http://127.0.0.1:1/schema"}', "the reference http://127.0.0.1:1/schema leads to nothing"),
        ('{"$ref": "#/$defs/none"}', "the reference #/$defs/none leads to nothing"),
        ('{"$ref": "file:///etc/hostname"}', "the reference file:///etc/hostname leads to nothing"),
        ('{"$id": "http://a/b", "items": {"$id": "c", "$ref": "d"}}', "the reference d leads to nothing"),
        ('{"$ref": "#"}', "it is nested too deeply"),
        ('{"items": ' * 400 + "{}" + "}" * 400, "it is nested too deeply"),
        ('{"$schema": 5}', "the schema is not a JSON object whose $schema is a text"),
        ('{"items": {"$schema": "http://json-schema.org/draft-07/schema#"}}', "a part of the schema has a $schema of"),
        ('{"patternProperties": {"(?=a)": {}}}', "'(?=a)' is not a pattern of RE2: invalid perl operator: (?="),
        (
            '{"patternProperties": {"a": {}}, "unevaluatedProperties": false}',
            "patternProperties and unevaluatedPropert",
        ),
        ('{"type": "string", "type": "integer"}', "the name 'type' occurs twice in an object"),
        ("[" * 30_000, "it is nested too deeply"),
        ('{"allOf": [%s{}]}' % ("{}," * 10_000), "it takes more than 100000 keywords to check the schema"),
        (
            '{"$schema": "http://json-schema.org/draft-03/schema#", "type": [{}, "null"]}',
            "a type that is a schema, as in draft 3",
        ),
        ('{"$schema": "http://json-schema.org/draft-04/schema#", "enum": [1, 1]}', "not a JSON Schema: $.enum: [1, 1]"),
        ('{"title": "%s"}' % ("x" * 40_000), "a schema has at most 32767 bytes"),
    ],
)
def test_text_that_is_no_schema_is_refused_with_a_reason(text: str, why: str) -> None:
    message = topic_problem({"korvet.value.schema": text}, TOPIC_CONFIGS, {})
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
        (b'{"id": 1, "id": 2}', "not JSON: the name 'id' occurs twice in an object"),
        (b'{"id": 1, "amount": 1e400}', None),
        (b'{"id": %s}' % (b"9" * 4000), None),
        (b'{"id": %s}' % (b"9" * 5000), "not JSON: Exceeds the limit (4300 digits) for integer string conversion:"),
        (b" " * ((8 << 20) + 1), "longer than 8388608 bytes"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_value_is_judged_with_a_reason(value: bytes, why: str | None) -> None:
    problem = ValueSchema(json.dumps(ORDER)).problem(memoryview(value))
    assert problem is None if why is None else problem is not None and problem.startswith(why)


def test_reason_stays_short() -> None:
    reason = ValueSchema('{"type": "integer"}').problem(json.dumps("x\n" * 10_000).encode())
    assert reason is not None
    assert len(reason) == 200


SLOW = "^(a+)+$"
LONG = "a" * 5000 + "!"


def judged(schema: dict[str, Any], value: Any, cpu_s: float = 60.0) -> str | None:
    """The problem that a schema finds in a value, with far more time than any of these needs."""
    PATIENCE.begin(cpu_s=cpu_s)
    return ValueSchema(json.dumps(schema)).problem(json.dumps(value).encode())


@pytest.mark.parametrize("dialect", ["draft-04/schema#", "draft-07/schema#", "draft/2020-12/schema"])
def test_patterns_take_no_longer_than_the_text(dialect: str) -> None:
    """Python's own regular expressions would take 2^5000 steps."""
    scheme = "https" if "2020" in dialect else "http"
    head = {"$schema": f"{scheme}://json-schema.org/{dialect}"}
    nested = {**head, "properties": {"in": {"$ref": "#"}, "text": {"pattern": SLOW}}}
    problem = judged(nested, {"in": {"in": {"text": LONG}}})
    assert problem is not None
    assert problem.startswith("$.in.in.text: 'aaaaaaaaaa")
    assert judged(nested, {"in": {"text": "aaa"}}) is None
    named = {**head, "patternProperties": {SLOW: {"type": "integer"}}, "additionalProperties": {"type": "string"}}
    assert judged(named, {LONG: "a", "aa": 1}) is None
    assert judged(named, {"aa": "1"}) == "$.aa: '1' is not of type 'integer'"
    problem = judged({**named, "additionalProperties": False}, {LONG: 1})
    assert problem is not None
    assert problem.startswith("$: Additional properties are not allowed ('aaa")
    assert judged({**head, "pattern": "^\\p{L}$"}, "é") is None
    assert judged({**head, "pattern": "a"}, "\ud800") == "a text holds half of a surrogate pair"


@pytest.mark.parametrize(
    ("items", "is_unique"),
    [
        ([{"a": number} for number in range(20_000)], True),
        ([number * (2**61 - 1) for number in range(20_000)], True),
        ([1, True, "1", [1], {"1": 1}, None, 0, False, ""], True),
        ([1, 2, 1.0], False),
        ([{"a": [1, 2.0], "b": 0}, {"b": 0.0, "a": [1.0, 2]}], False),
    ],
    ids=["objects", "one hash", "kinds", "numbers", "order"],
)
def test_unique_items_are_not_compared_pair_by_pair(items: list[Any], is_unique: bool) -> None:
    assert (judged({"uniqueItems": True}, items) is None) is is_unique


def test_unevaluated_keywords_judge_a_bounded_number_of_members() -> None:
    for schema in (
        {"unevaluatedProperties": False},
        {"properties": {"0": {}}, "unevaluatedProperties": {"minimum": 1}},
    ):
        problem = judged(schema, {str(number): 1 for number in range(5000)})
        assert problem == "unevaluatedProperties can judge at most 4096 members, and the value has 5000"
    assert judged(schema, {str(number): number for number in range(4000)}) is None
    problem = judged({"unevaluatedItems": False}, list(range(5000)))
    assert problem == "unevaluatedItems can judge at most 4096 members, and the value has 5000"


def doubling(turns: int) -> dict[str, Any]:
    """Definitions that each refer twice to the next one."""
    parts = {f"p{turn}": {"allOf": [{"$ref": f"#/$defs/p{turn + 1}"}] * 2} for turn in range(turns)}
    return {**parts, f"p{turns}": {}}


def test_references_that_double_come_to_an_end() -> None:
    schema = {"$defs": doubling(60), "$ref": "#/$defs/p0"}
    with pytest.raises(ValueError, match="it takes more than 10000 keywords to judge null"):
        ValueSchema(json.dumps(schema))
    schema = {"$defs": doubling(60), "properties": {"x": {"$ref": "#/$defs/p0"}}}
    assert judged(schema, {}) is None
    with pytest.raises(OutOfPatience):
        judged(schema, {"x": 1}, cpu_s=0.02)


def by_patterns(count: int) -> str:
    return json.dumps({"patternProperties": {f"a{number}": True for number in range(count)}})


def test_schema_of_many_patterns_cannot_be_set() -> None:
    assert is_value_schema(by_patterns(100)) is None
    assert is_value_schema(by_patterns(101)) == "a schema has at most 100 patterns"
    assert value_schema(by_patterns(101)) is not None, "one that was set before this bound stays"


def test_time_is_looked_at_before_each_pattern() -> None:
    """Of thousands few are kept compiled, and an object without members takes no step between two of them."""
    schema = ValueSchema(by_patterns(300))
    PATIENCE.begin(cpu_s=-1)
    with pytest.raises(OutOfPatience):
        schema.problem(b"{}")
    PATIENCE.begin()


def test_schema_whose_references_multiply_anywhere_cannot_be_set() -> None:
    """`null` reaches none of these parts; the value [1] reached 2^60."""
    deep = {"$defs": doubling(60)}
    to_it = {"$ref": "#/$defs/p0"}
    for schema in (
        {**deep, "items": to_it},
        {**deep, "properties": {"x": to_it}},
        {**deep, "prefixItems": [{"not": {"if": {"anyOf": [to_it]}}}]},
        {**deep, "items": {"dependentSchemas": {"x": to_it}}},
        {"$defs": {name: {**part, "$dynamicAnchor": name} for name, part in doubling(60).items()}}
        | {"items": {"$dynamicRef": "#p0"}},
    ):
        assert "more than 50000 keywords" in (is_value_schema(json.dumps(schema)) or ""), schema


def test_schema_that_leads_to_itself_for_parts_of_a_value_can_be_set() -> None:
    tree = {"type": "object", "properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}, "$ref": {"not": {}}}}
    types = [{"properties": {"kind": {"const": number}, "of": {"$ref": "#"}}} for number in range(200)]
    for schema in (tree, {"oneOf": types}, {"items": {"anyOf": [{"type": "null"}, {"$ref": "#/items"}]}}):
        assert is_value_schema(json.dumps(schema)) is None


def test_dynamic_references_stay_inside_the_schema() -> None:
    schema = {"$dynamicRef": "#node", "$defs": {"x": {"$dynamicAnchor": "node", "type": "integer"}}}
    assert judged(schema, "a") == "$: 'a' is not of type 'integer'"
    # An object's members may have the names of keywords.
    names = {name: {"type": "string"} for name in ("$ref", "$schema", "pattern", "patternProperties")}
    assert judged({"properties": names}, {"pattern": "(", "$ref": "x"}) is None


def test_failed_alternatives_give_one_reason_without_each_ones_own() -> None:
    """Each reason would hold the whole value: a value of 1 MB and a thousand alternatives would take a gigabyte."""
    alternatives = [{"type": "null"}, {"type": "object", "required": ["id"]}, {"$ref": "#/$defs/text"}]
    schema = {"anyOf": alternatives, "$defs": {"text": {"type": "string", "maxLength": 3}}}
    assert judged(schema, None) is None
    assert judged(schema, {"id": 1}) is None
    assert judged(schema, "abc") is None
    assert judged(schema, "abcd") == "$: 'abcd' is not valid under any of the given schemas"
    one = {"oneOf": [{"type": "integer"}, {"minimum": 2}]}
    assert judged(one, 1) is None
    assert judged(one, 2.5) is None
    assert judged(one, 1.5) == "$: 1.5 is not valid under any of the given schemas"
    assert judged(one, 3) == "$: 3 is valid under each of {'type': 'integer'}, {'minimum': 2}"
    tracemalloc.start()
    try:
        assert judged({"anyOf": [{"type": "null"}] * 300}, "x" * 100_000) is not None
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


def test_schemas_are_checked_without_comparing_items_pair_by_pair() -> None:
    """jsonschema's own check makes 15 million comparisons here, and serves no client for six seconds."""
    many = {"$schema": "http://json-schema.org/draft-04/schema#", "enum": ["a", *range(5500)]}
    assert judged(many, 5499) is None
    assert judged(many, "b") is not None
