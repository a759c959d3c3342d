"""A value becomes a row that reads back unchanged, or a dead letter with the reason."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import ArrayType, DataType, StructField, StructType

from korvet.configs.value_schema import ValueSchema
from korvet.pipeline.typed import columns, shapes
from korvet.pipeline.typed import judge as judging
from korvet.pipeline.typed.columns import fold
from korvet.pipeline.typed.judge import Judge, verdict
from korvet.pipeline.typed.table import column_name, grown, is_json_text, named


def judged(schema: Any, values: Sequence[bytes | None], table: StructType | None = None) -> list[dict[str, Any]]:
    """The verdicts, each with ``reason`` and ``row``, at most one of them not None."""
    text = json.dumps(schema)
    own = named(columns(text))
    verdicts = Judge(text, own if table is None else grown(table, own)).verdicts(pa.array(values, pa.binary()))
    assert verdicts.type == to_arrow_type(verdict(own if table is None else grown(table, own)), timezone="UTC")
    found: list[dict[str, Any]] = verdicts.to_pylist()
    return found


def member(schema: Any, text: str | bytes) -> Any:
    """The column of a property ``it``, or the text of the reason."""
    value = text if isinstance(text, bytes) else text.encode()
    (row,) = judged({"properties": {"it": schema}}, [b'{"it": %s}' % value])
    assert (row["row"] is None) != (row["reason"] is None)
    return row["row"]["it"] if row["row"] else ValueError(row["reason"])


INTEGER = {"type": "integer"}
NUMBER = {"type": "number"}
CENTS = {"type": "number", "multipleOf": 0.01}
STRING = {"type": "string"}
DATE = {"type": "string", "format": "date"}
DATE_TIME = {"type": "string", "format": "date-time"}
POINTS = {"type": "array", "items": {"type": "object", "properties": {"x y": INTEGER}}}


@pytest.mark.parametrize(
    ("schema", "text", "expected"),
    [
        (INTEGER, "-9223372036854775808", -(1 << 63)),
        (INTEGER, "1.0", 1),
        (INTEGER, "1e18", 10**18),
        (NUMBER, "3", 3.0),
        (NUMBER, "-0.0", -0.0),
        (NUMBER, "1.7976931348623157e308", 1.7976931348623157e308),
        (STRING, '"\\u00fc\\u0000\\ud83d\\ude00"', "ü\0😀"),
        (INTEGER, "9007199254740993.0", 9007199254740993),
        (NUMBER, "0.30000000000000004", 0.30000000000000004),
        (NUMBER, "0.1000000000000000055511151231257827021181583404541015625", 0.1),
        (CENTS, "0.07", Decimal("0.07")),
        (CENTS, "-3", Decimal("-3.00")),
        (CENTS, "999999999999999999999999999999999999.99", Decimal("999999999999999999999999999999999999.99")),
        ({"multipleOf": 1e-9, **NUMBER}, "12345678901234567890.123456789", Decimal("12345678901234567890.123456789")),
        ({"format": "decimal", **NUMBER}, "12345678901234567890.123456789", "12345678901234567890.123456789"),
        ({}, "[12345678901234567890.123456789, 1.5]", "[12345678901234567890.123456789,1.5]"),
        ({}, '{"ü": 1234567890123456789e10}', '{"ü":1234567890123456789e10}'),
        ({}, "[1e-400]", "[1e-400]"),
        (NUMBER, "2.2250738585072014e-308", 2.2250738585072014e-308),
        (NUMBER, "5e-324", 5e-324),
        (CENTS, "0e-99999999999999999999", Decimal("0.00")),
        (DATE, '"0001-01-01"', date(1, 1, 1)),
        (DATE_TIME, '"2024-02-29T23:30:00.123456789-01:30"', datetime(2024, 3, 1, 1, 0, 0, 123456, UTC)),
        (DATE_TIME, '"2024-02-29t23:30:00z"', datetime(2024, 2, 29, 23, 30, tzinfo=UTC)),
        (DATE_TIME, '"9999-12-31 23:59:59.999999+00:00"', datetime(9999, 12, 31, 23, 59, 59, 999999, UTC)),
        ({"type": ["boolean", "null"]}, "null", None),
        ({}, ' {"b" : [1, 2.50, "ü", null], "a": true}', '{"b":[1,2.5,"ü",null],"a":true}'),
        ({}, '"text"', '"text"'),
        ({}, "null", None),
        ({}, "123456789012345678901234567890", "123456789012345678901234567890"),
        (POINTS, '[{"x y": 1, "more": 2}, {}]', [{"x y": 1}, {"x y": None}]),
    ],
)
def test_judge_makes_a_row_of_a_value_that_fits(schema: Any, text: str, expected: Any) -> None:
    assert member(schema, text) == expected


@pytest.mark.parametrize(
    ("schema", "text", "reason"),
    [
        (INTEGER, "9223372036854775808", "$.it: 9223372036854775808 is not an integer of 64 bits"),
        (INTEGER, "1e300", "$.it: 1e+300 is not an integer of 64 bits"),
        (INTEGER, '"1"', "$.it: '1' is not of type 'integer'"),
        (NUMBER, "1e400", "$.it: Infinity is not a number that a double holds"),
        (NUMBER, "9" * 400, f"$.it: {'9' * 59}… is not a number that a double holds"),
        (NUMBER, "9007199254740993", "$.it: 9007199254740993 is not a number that a double holds without rounding"),
        (NUMBER, "0.12345678901234567891", "$.it: 0.12345678901234567891 is not a number that a double holds without"),
        # Decimals of Python have an end, and round by themselves.
        (NUMBER, "1234567890123456e-99999999999999999999", "$.it: 1234567890123456e-99999999999999999999 is not a num"),
        (NUMBER, f"0.5{'0' * 40}1", f"$.it: 0.5{'0' * 40}1 is not a number that a double holds without"),
        (NUMBER, "1.2345678901e-320", "$.it: 1.2345678901e-320 is not a number that a double holds without"),
        (CENTS, "1e-400", "$.it: 1e-400 is not a number of decimal(38,2)"),
        (INTEGER, "1e-400", "$.it: 1e-400 is not an integer of 64 bits"),
        (INTEGER, "9007199254740993.1", "$.it: 9007199254740993.1 is not an integer of 64 bits"),
        (CENTS, "0.071", "$.it: 0.071 is not a multiple of 0.01"),
        (CENTS, "1e300", "$.it: 1e+300 is not a number of decimal(38,2)"),
        (CENTS, "1e400", "$.it: Infinity is not a multiple of 0.01"),
        ({"type": ["object", "null"]}, "true", "$.it: true is not of type 'object', 'null'"),
        ({"enum": [True, None]}, '{"a": null}', '$.it: {"a": null} is not one of [true, null]'),
        (NUMBER, "NaN", "not JSON: NaN is not a JSON value"),
        (STRING, '"\\ud800"', "$.it: a text holds half of a surrogate pair"),
        ({}, '["\\ud800"]', "$.it: a text holds half of a surrogate pair"),
        ({}, "[1e400]", "$.it: it holds a number beyond those of a double"),
        (DATE, '"2023-02-29"', '$.it: "2023-02-29" is not a date'),
        (DATE, '"20230228"', '$.it: "20230228" is not a date'),
        (DATE_TIME, '"2023-02-28"', '$.it: "2023-02-28" is not a date-time that a timestamp holds'),
        (DATE_TIME, '"2023-02-28T00:00:00"', '$.it: "2023-02-28T00:00:00" is not a date-time that a timestamp holds'),
        (DATE_TIME, '"2016-12-31T23:59:60Z"', '$.it: "2016-12-31T23:59:60Z" is not a date-time that a timestamp'),
        (DATE_TIME, '"0001-01-01T00:00:00+01:00"', '$.it: "0001-01-01T00:00:00+01:00" is not a date-time that a'),
        (POINTS, '[{}, {"x y": 1e19}]', "$.it[1]['x y']: 1e+19 is not an integer of 64 bits"),
        (STRING, b'"\xff"', "not UTF-8"),
        (STRING, '"a", "it": "b"', "not JSON: the name 'it' occurs twice in an object"),
        (STRING, '"open', "not JSON: Unterminated string"),
        ({}, "[" * 100_000, "not JSON: it is nested too deeply"),
    ],
    ids=lambda text: str(text)[:40],
)
def test_judge_says_why_a_value_does_not_fit(schema: Any, text: str | bytes, reason: str) -> None:
    found = member(schema, text)
    assert isinstance(found, ValueError)
    assert str(found).startswith(reason)
    assert len(str(found)) <= judging.MOST_REASON


@pytest.mark.parametrize("value", [b"null", b"[]", b"5", b""])
def test_judge_refuses_a_value_that_is_no_object(value: bytes) -> None:
    (row,) = judged({}, [value])
    assert row["row"] is None
    assert row["reason"].startswith(("$: ", "not JSON: "))


def test_reason_stays_short() -> None:
    name = "x" * 2000
    (row,) = judged({"properties": {name: INTEGER}}, [json.dumps({name: 1 << 70}).encode()])
    assert len(row["reason"]) == judging.MOST_REASON


def test_reason_escapes_half_of_a_surrogate_pair() -> None:
    (row,) = judged({"additionalProperties": {"type": "integer"}}, [b'{"\\ud800": "x"}'])
    assert row["reason"] == r"$['\ud800']: 'x' is not of type 'integer'"


def test_tombstone_has_neither_row_nor_reason() -> None:
    assert judged({"properties": {"it": STRING}}, [None]) == [{"reason": None, "row": None}]


def test_schema_without_properties_still_finds_dead_letters() -> None:
    fits, wrong = judged({"type": "object", "required": ["id"]}, [b'{"id": 1}', b"{}"])
    assert fits == {"reason": None, "row": {}}
    assert wrong["reason"] == "$: 'id' is a required property"


@pytest.mark.parametrize(
    ("before", "now", "fits", "as_", "wrong"),
    [
        (INTEGER, NUMBER, "3.5", 3.5, None),
        (NUMBER, INTEGER, "3", 3.0, None),
        (INTEGER, {"type": ["integer", "string"]}, "3", 3, '"3"'),
        (STRING, DATE, '"2024-01-01"', "2024-01-01", None),
        (DATE, STRING, '"2024-01-01"', date(2024, 1, 1), '"soon"'),
        (STRING, {"type": ["integer", "null"]}, "null", None, "3"),
        ({}, INTEGER, "3", "3", None),
        ({"type": "object", "properties": {"a": INTEGER}}, {}, '{"a": 1}', {"a": 1}, '"text"'),
        ({"type": "object", "properties": {"a": INTEGER}}, {"type": ["string", "null"]}, "null", None, '"text"'),
        ({"type": "array", "items": INTEGER}, {}, "[1]", [1], '"text"'),
    ],
)
def test_columns_keep_their_types_when_the_schema_changes(
    before: Any, now: Any, fits: str, as_: Any, wrong: str | None
) -> None:
    table = columns(json.dumps({"properties": {"it": before, "gone": STRING}}))
    schema = {"properties": {"it": now}}
    (row,) = judged(schema, [b'{"it": %s, "gone": "x"}' % fits.encode()], table)
    assert row["row"]["it"] == as_
    assert row["row"]["gone"] is None
    if wrong is not None:
        (row,) = judged(schema, [b'{"it": %s}' % wrong.encode()], table)
        assert row["reason"].startswith(f"$.it: {wrong} is not a")


def test_property_that_changed_its_case_stays_in_its_column() -> None:
    table = columns(json.dumps({"properties": {"Id": INTEGER, "In": {"type": "object", "properties": {"A": INTEGER}}}}))
    schema = {"properties": {"id": INTEGER, "in": {"type": "object", "properties": {"a": INTEGER}}}}
    (row,) = judged(schema, [b'{"id": 1, "Id": 2, "in": {"a": 3}}'], table)
    assert row["row"]["Id"] == 1
    assert row["row"]["In"] == {"A": 3}


def test_value_that_takes_too_many_keywords_is_a_dead_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "MOST_KEYWORDS", 1000)
    schema = {"properties": {"it": {"type": "array", "items": INTEGER}}}
    few, many = judged(schema, [json.dumps({"it": list(range(n))}).encode() for n in (10, 10_000)])
    assert few["row"]["it"] == list(range(10))
    assert many["reason"] == "it takes more than 1000 keywords to judge"


def test_judge_takes_few_large_values_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = {"properties": {"it": STRING}}
    judge = Judge(json.dumps(schema), named(columns(json.dumps(schema))))
    taken: list[int] = []
    usual = judge._judged

    def counted(run: Sequence[bytes | None]) -> Any:
        taken.append(len(run))
        return usual(run)

    monkeypatch.setattr(judge, "_judged", counted)
    value = json.dumps({"it": "x" * (3 << 20)}).encode()
    verdicts = judge.verdicts(pa.array([value, None, value, value, value], pa.binary()))
    assert taken == [4, 1]
    assert [row["row"] is None for row in verdicts.to_pylist()] == [False, True, False, False, False]


# Any JSON value against generated schemas.

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
Fitting = tuple[Any, st.SearchStrategy[Any]]
"""A schema, and values that fit it and its column."""
SCALARS: list[Fitting] = [
    (INTEGER, st.integers(-(1 << 63), (1 << 63) - 1)),
    (NUMBER, st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(1 << 80), 1 << 80).map(float).map(int)),
    (CENTS, st.integers(-(1 << 52), 1 << 52).map(lambda cents: cents / 100) | st.integers(-(1 << 80), 1 << 80)),
    (STRING, TEXT),
    ({"type": "boolean"}, st.booleans()),
    (DATE, st.dates().map(date.isoformat)),
    (DATE_TIME, st.datetimes(timezones=st.just(UTC)).map(datetime.isoformat)),
    ({"enum": ["a", "b", None]}, st.sampled_from(["a", "b", None])),
    ({"type": ["string", "integer"]}, TEXT | st.integers()),
    ({}, JSON),
]


def array_of(inner: Fitting) -> Fitting:
    return {"type": "array", "items": inner[0]}, st.lists(inner[1], max_size=3)


def nullable(inner: Fitting) -> Fitting:
    return {"anyOf": [inner[0], {"type": "null"}]}, st.none() | inner[1]


def objects_of(inner: st.SearchStrategy[Fitting]) -> st.SearchStrategy[Fitting]:
    members = st.lists(st.tuples(TEXT | st.sampled_from(["date", "_key"]), inner), max_size=4)
    return members.map(object_of)


def object_of(members: list[tuple[str, Fitting]]) -> Fitting:
    chosen = dict({fold(name): (name, each) for name, each in members}.values())
    schema = {"type": "object", "properties": {name: each[0] for name, each in chosen.items()}}
    return schema, st.fixed_dictionaries({}, optional={name: each[1] for name, each in chosen.items()})


SCHEMAS = objects_of(
    st.recursive(
        st.sampled_from(SCALARS),
        lambda inner: inner.map(array_of) | inner.map(nullable) | objects_of(inner),
        max_leaves=5,
    )
)


def reads_back(field: StructField, found: Any, written: Any) -> bool:
    """Whether a column holds its property's value."""
    if found is None or written is None:
        return found is None and written is None
    return same(json.loads(found), written) if is_json_text(field) else same_by_type(field.dataType, found, written)


def same_by_type(kind: DataType, found: Any, written: Any) -> bool:
    if isinstance(kind, ArrayType):
        element = StructField("", kind.elementType)
        return len(found) == len(written) and all(map(reads_back, [element] * len(found), found, written))
    if isinstance(kind, StructType):
        return all(reads_back(field, found[field.name], written.get(field.name)) for field in kind)
    if isinstance(found, Decimal):
        return found == Decimal(str(written))
    if isinstance(found, datetime):
        return found == datetime.fromisoformat(written)
    if isinstance(found, date):
        return found.isoformat() == str(written)
    return same(found, float(written) if isinstance(found, float) else written)


def same(found: Any, written: Any) -> bool:
    return bool(found == written) and isinstance(found, bool) == isinstance(written, bool)


@given(schema=SCHEMAS, data=st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_value_is_in_one_table_and_reads_back(schema: Fitting, data: st.DataObject) -> None:
    fitting = data.draw(st.lists(schema[1], min_size=1, max_size=3))
    strange = data.draw(st.lists(JSON | st.dictionaries(st.sampled_from([*schema[0]["properties"], ""]), JSON)))
    values = [*fitting, *strange]
    rows = judged(schema[0], [json.dumps(value).encode() for value in values])
    assert len(rows) == len(values)
    assert all((row["row"] is None) != (row["reason"] is None) for row in rows)
    assert [row["reason"] for row in rows[: len(fitting)]] == [None] * len(fitting)
    broker = ValueSchema(json.dumps(schema[0]))
    wanted = columns(json.dumps(schema[0]))
    for value, row in zip(values, rows, strict=True):
        if row["row"] is not None:
            assert broker.problem(json.dumps(value).encode()) is None
            for field in wanted:
                assert reads_back(field, row["row"][column_name(field.name)], value.get(field.name))


# Values of one shape, against the judge that takes a value after the other.

MEMBERS: list[Fitting] = [
    *SCALARS,
    ({"type": "string", "pattern": "^a", "maxLength": 3}, TEXT | st.sampled_from(["a", "ab", "abcd"])),
    ({"type": "integer", "minimum": 0, "exclusiveMaximum": 1 << 62}, st.integers()),
    ({"type": ["number", "null"], "enum": [1, 2.5, None]}, st.sampled_from([1, 1.0, 2.5, None])),
    array_of(SCALARS[0]),
    object_of([("a", SCALARS[2]), ("b", array_of(SCALARS[1]))]),
    (DATE_TIME, st.sampled_from(["2024-02-29T00:00:00Z", "2023-02-29T00:00:00Z", "2016-12-31T23:59:60Z"])),
    (DATE_TIME, st.sampled_from(["0000-12-31T23:59:59Z", "0001-01-01T00:00:00.1234567Z", "9999-12-31T24:00:00.1Z"])),
]
HOSTILE = [
    *[
        "1.0",
        "-0",
        "1e400",
        "NaN",
        '"\\u0061"',
        '"\\ud800"',
        f"{'9' * 400}",
        "9223372036854775808",
        '{"a": "b", "a": "b"}',
        "9007199254740993",
        "9007199254740993.0",
        "0.12345678901234567",
        "1.23456789012345678",
        "12345678901234567890.12",
    ],
    *['"x", "x": "x"', '"x"} {"x": "x"', "[" * 200 + "]" * 200, '{"a": [{"b": 1, "b": 1}]}', "true", "01", '"\t"'],
]


@given(members=st.lists(st.sampled_from(MEMBERS), min_size=1, max_size=3), data=st.data())
@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
def test_values_of_one_shape_are_judged_as_each_alone(members: list[Fitting], data: st.DataObject) -> None:
    names = ["x", "date", "é"][: len(members)]
    schema, fitting = object_of(list(zip(names, members, strict=True)))
    schema |= data.draw(
        st.sampled_from(
            [{}, {"required": names[:1]}, {"additionalProperties": False}, {"additionalProperties": INTEGER}]
        )
    )
    before, _ = object_of(
        [(name, data.draw(st.sampled_from(MEMBERS))) for name in data.draw(st.sampled_from([[], names]))]
    )
    own = grown(named(columns(json.dumps(before))), named(columns(json.dumps(schema))))
    texts = [json.dumps(value) for value in data.draw(st.lists(fitting, max_size=6))]
    for name, text in data.draw(
        st.lists(st.tuples(st.sampled_from([*names, "z"]), st.sampled_from(HOSTILE)), max_size=6)
    ):
        texts.append(f'{{"{name}": {text}}}')
    values = [None, *(text.encode() for text in data.draw(st.permutations(texts + texts)))]
    at_once, alone = (Judge(json.dumps(schema), own) for _ in range(2))
    alone._shapes = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shapes, "_FEWEST", 1)
        found = at_once.verdicts(pa.array(values, pa.binary()))
    assert repr(found.to_pylist()) == repr(alone.verdicts(pa.array(values, pa.binary())).to_pylist())


def test_judge_takes_alone_only_values_that_differ_from_most(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = json.dumps({"properties": {"n": INTEGER, "at": DATE_TIME, "s": {"pattern": "^a"}}, "required": ["n"]})
    judge = Judge(schema, named(columns(schema)))
    fits = [b'{"n": %d, "at": "2024-01-01T00:00:00Z", "s": "a", "more": {"x": [1]}}' % n for n in range(100)]
    wrong = [b'{"n": 1, "at": "2024-01-01T00:00:00Z", "s": "b", "more": {"x": [1]}}', b'{"n": 1, "n": 1}', b"{", None]
    alone: list[bytes | None] = []
    usual = judge._judged

    def told(run: Sequence[bytes | None]) -> Any:
        alone.extend(run)
        return usual(run)

    monkeypatch.setattr(judge, "_judged", told)
    rows = judge.verdicts(pa.array([*fits[:50], *wrong, *fits[50:]], pa.binary())).to_pylist()
    assert alone == wrong
    assert [row["row"]["n"] for row in rows if row["row"]] == [*range(100)]
    assert [row["row"] is None for row in rows] == [False] * 50 + [True] * 4 + [False] * 50


@pytest.mark.parametrize(
    ("fits", "twice"),
    [
        (b'{"n": 1, "s": "a"}', b'{"n": 1, "s": "a", "n": 1}'),
        (b'{"n": 1, "s": "a"}', b'{"n": 1, "s": "b", "s": "a"}'),
        (b'{"n": 1, "more": {"x": 1}}', b'{"n": 1, "more": {"x": 2, "x": 1}}'),
        (b'{"n": 1, "more": [{"x": 1}]}', b'{"n": 1, "more": [], "more": [{"x": 1}]}'),
    ],
)
def test_name_that_occurs_twice_is_found_among_values_of_one_shape(fits: bytes, twice: bytes) -> None:
    schema = {"properties": {"n": INTEGER, "s": STRING}}
    rows = judged(schema, [*[fits] * 50, twice, *[fits] * 50])
    assert [place for place, row in enumerate(rows) if row["row"] is None] == [50]
    assert "occurs twice in an object" in rows[50]["reason"]


def test_value_that_reads_back_differently_is_noticed() -> None:
    field = columns('{"properties": {"it": {"type": "number"}}}')[0]
    assert reads_back(field, 1.0, 1)
    assert not reads_back(field, math.nextafter(1.0, 2.0), 1)
