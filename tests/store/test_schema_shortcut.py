"""The shortcut past the judge of values: it is never wrong, and common schemas have one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from jsonschema.validators import validator_for
from referencing import Registry

from korvet.configs.schema_keywords import PATIENCE, OutOfPatience
from korvet.configs.schema_shortcut import Shortcut, shortcut
from korvet.configs.value_schema import ValueSchema

DIALECTS = [
    "http://json-schema.org/draft-04/schema#",
    "http://json-schema.org/draft-06/schema#",
    "http://json-schema.org/draft-07/schema#",
    "https://json-schema.org/draft/2019-09/schema",
    "https://json-schema.org/draft/2020-12/schema",
]


def made(schema: dict[str, Any]) -> Shortcut | None:
    return shortcut(validator_for(schema, default=Draft202012Validator), schema, Registry())


@pytest.mark.parametrize(
    ("schema", "fits", "does_not"),
    [
        ({"type": "integer"}, "5", "true"),
        ({"type": "integer"}, "5", "1.5"),
        ({"type": ["number", "null"]}, "null", '"5"'),
        ({"type": "number", "minimum": 1, "maximum": 2}, "1.5", "2.5"),
        ({"exclusiveMinimum": 1}, "2", "1"),
        ({"exclusiveMaximum": 2}, "1", "2"),
        ({"minLength": 2, "maxLength": 3}, '"ab"', '"a"'),
        ({"pattern": "^a", "format": "date"}, '"ab"', '"ba"'),
        ({"enum": ["a", 1, None]}, "1", "true"),
        ({"enum": [0, True]}, "true", "1"),
        ({"const": True}, "true", "1"),
        ({"items": {"type": "string"}, "minItems": 1, "maxItems": 2}, '["a"]', '["a", 1]'),
        ({"properties": {"a": {"type": "string"}}, "required": ["a"]}, '{"a": "b", "c": 1}', '{"c": 1}'),
        ({"properties": {"a": {}}, "additionalProperties": False}, '{"a": 1}', '{"b": 1}'),
        ({"additionalProperties": {"type": "string"}, "maxProperties": 2}, '{"a": "b"}', '{"a": 1}'),
        ({"minProperties": 1, "properties": {"a": False}}, '{"b": 1}', '{"a": 1}'),
        ({"allOf": [{"type": "string"}, {"minLength": 2}]}, '"ab"', '"a"'),
        ({"anyOf": [{"type": "null"}, {"type": "string", "minLength": 2}, {"const": "a"}]}, '"a"', '"b"'),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "string"}}}, '"a"', "1"),
        ({"$ref": "#/$defs/a", "minLength": 2, "$defs": {"a": {"type": "string"}}}, '"ab"', '"a"'),
        ({"$schema": DIALECTS[2], "$ref": "#/$defs/a", "minLength": 2, "$defs": {"a": {"type": "string"}}}, '"a"', "1"),
        ({"$id": "http://a/b", "items": {"$id": "c", "$ref": "#/$defs/d", "$defs": {"d": {"const": 1}}}}, "[1]", "[2]"),
    ],
)
def test_shortcut_knows_values_that_fit(schema: dict[str, Any], fits: str, does_not: str) -> None:
    found = made(schema)
    assert found is not None
    assert found.fits(json.loads(fits))
    assert not found.fits(json.loads(does_not))


@pytest.mark.parametrize(
    "schema",
    [
        {"not": {"type": "string"}},
        {"items": {"if": {}, "then": False}},
        {"anyOf": [{"oneOf": [{}]}]},
        {"properties": {"a": {"$ref": "#"}}},
        {"$schema": DIALECTS[2], "items": [{"type": "string"}]},
        {"$schema": DIALECTS[0], "type": "string"},
        {"allOf": [{"type": "string"}] * 1001},
    ],
)
def test_schema_with_other_keywords_has_no_shortcut(schema: dict[str, Any]) -> None:
    assert made(schema) is None


def test_long_value_takes_the_shortcut_only_within_the_bounds_of_the_judge() -> None:
    schema = ValueSchema('{"items": {"type": "integer"}}')
    value = json.dumps([1] * 10_000).encode()
    PATIENCE.begin(most_keywords=1000)
    with pytest.raises(OutOfPatience):
        schema.parsed(value)
    PATIENCE.begin(cpu_s=0)
    with pytest.raises(OutOfPatience):
        schema.parsed(value)
    PATIENCE.begin()
    assert schema.problem(value) is None


# Hostile values against generated schemas, which the shortcut may not let pass.

TEXTS = ["", "a", "ab", "1", "\ud800", "é", "\0"]
NUMBERS = ["0", "-0", "1", "1.0", "-0.0", "1e0", "2", "1e400", "-1e400", "0.5", "9" * 400, "9007199254740993"]
ATOMS = ["null", "true", "false", *NUMBERS, *map(json.dumps, TEXTS)]


def array_of(items: list[str]) -> str:
    return f"[{', '.join(items)}]"


def object_of(members: list[tuple[str, str]]) -> str:
    return f"{{{', '.join(f'{json.dumps(name)}: {value}' for name, value in members)}}}"


JSON = st.recursive(
    st.sampled_from(ATOMS),
    lambda inner: (
        st.lists(inner, max_size=3).map(array_of)
        | st.lists(st.tuples(st.sampled_from(TEXTS), inner), max_size=3).map(object_of)
    ),
    max_leaves=5,
)
BROKEN = st.sampled_from(
    ["", "NaN", "-Infinity", "[1]x", "{}{}", '{"a": 1}}', "01", "'a'", "\ufeff1", '"\t"', "[" * 9999]
)
KINDS = st.sampled_from(["null", "boolean", "object", "array", "string", "integer", "number"])
VALUES = st.sampled_from([None, True, False, 0, 1, 1.0, "a", "1", [1]])
FEW = st.integers(0, 2)


def schemas_of(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    names = st.sampled_from(["", "a", "ab", "1"])
    keywords: dict[str, st.SearchStrategy[Any]] = {
        "type": KINDS | st.lists(KINDS, min_size=1, max_size=3, unique=True),
        "enum": st.lists(VALUES, min_size=1, max_size=3, unique_by=json.dumps),
        "const": VALUES,
        **dict.fromkeys(["minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"], FEW),
        **dict.fromkeys(
            ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"],
            FEW | st.sampled_from([0.5, 1e300, 9007199254740992]),
        ),
        "pattern": st.sampled_from(["a", "^1$"]),
        "format": st.sampled_from(["date", "date-time"]),
        "required": st.lists(names, max_size=2, unique=True),
        "items": inner,
        "properties": st.dictionaries(names, inner, max_size=3),
        "additionalProperties": inner,
        "allOf": st.lists(inner, min_size=1, max_size=2),
        "anyOf": st.lists(inner, min_size=1, max_size=3),
        "oneOf": st.lists(inner, min_size=1, max_size=2),
        "$ref": st.just("#/$defs/it"),
    }
    return st.sets(st.sampled_from([*keywords]), max_size=3).flatmap(
        lambda chosen: st.fixed_dictionaries({name: keywords[name] for name in sorted(chosen)})
    )


SCHEMAS = st.recursive(schemas_of(st.just({})), schemas_of, max_leaves=4)


@given(
    schema=SCHEMAS,
    it=schemas_of(st.just({})).map(lambda found: {name: each for name, each in found.items() if name != "$ref"}),
    dialect=st.sampled_from(DIALECTS),
    texts=st.lists(JSON | BROKEN, min_size=3, max_size=8),
)
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
def test_judge_with_a_shortcut_finds_what_the_judge_finds_alone(
    schema: dict[str, Any], it: dict[str, Any], dialect: str, texts: list[str]
) -> None:
    try:
        judge = ValueSchema(json.dumps({"$schema": dialect, **schema, "$defs": {"it": it}}))
        alone = ValueSchema(json.dumps({"$schema": dialect, **schema, "$defs": {"it": it}}))
    except ValueError:
        return
    alone._shortcut = None
    for text in texts:
        PATIENCE.begin()
        assert outcome(judge, text) == outcome(alone, text)


def outcome(judge: ValueSchema, text: str) -> str:
    try:
        return repr(judge.parsed(text.encode()))
    except ValueError as error:
        return f"refused: {error}"


def test_generated_schemas_often_have_a_shortcut() -> None:
    @given(schema=SCHEMAS)
    @settings(max_examples=200, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    def count(schema: dict[str, Any]) -> None:
        found.append(made({**schema, "$defs": {"it": {}}}) is not None)

    found: list[bool] = []
    count()
    assert sum(found) > len(found) / 4
