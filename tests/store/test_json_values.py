"""JSON values: read quickly, and always as Python's json reads them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from korvet.configs import json_values
from korvet.configs.json_values import parsed, parsed_text

TEXTS = st.text(st.characters(codec="utf-8"), max_size=8) | st.sampled_from(['"', "\\", "a", "\x7f", "\ud83d", "é"])
NUMBERS = (
    st.integers()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats()
    | st.sampled_from([0.0, -0.0, 1e22, 5e-324, 1.7976931348623157e308, 1 << 63, -(1 << 63) - 1, (1 << 64), 2**53 + 1])
)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)
# Pieces of a text that are put in at a random place.
PIECES = st.sampled_from(
    [
        *['"', '"a"', '"a":1,', ',"a":"b"', "'", "\\", "\\u0022", "\\ud800", "{", "}", "[", "]", ",", ":", " ", "//"],
        *["0", "-", "-0", ".", "e5", "E+05", "1e400", "00", "NaN", "Infinity", "true", "nul"],
        *["\n", "\0", "\t", "\x1f", "\xa0", "\ufeff"],
    ]
)


def outcome(read: Any, value: Any) -> str:
    try:
        return repr(read(value))
    except UnicodeDecodeError:
        return "not UTF-8"
    except ValueError as error:
        return f"ValueError: {error}"


def slowly(value: bytes) -> Any:
    return parsed_text(str(value, "utf-8"))


@settings(max_examples=500, deadline=None)
@given(
    value=VALUES,
    is_ascii=st.booleans(),
    puts=st.lists(st.tuples(st.floats(0, 1), PIECES), max_size=3),
    cut=st.none() | st.floats(0, 1),
    byte=st.none() | st.tuples(st.floats(0, 1), st.integers(0, 255)),
)
@example(value={"a": "b"}, is_ascii=True, puts=[(0.2, '"a":1,')], cut=None, byte=None)
@example(value={"a": {"a": "b"}}, is_ascii=True, puts=[(0.5, '"a":1,')], cut=None, byte=None)
def test_any_bytes_are_read_as_by_pythons_json(
    value: Any, is_ascii: bool, puts: list[tuple[float, str]], cut: float | None, byte: tuple[float, int] | None
) -> None:
    text = json.dumps(value, ensure_ascii=is_ascii)
    for at, piece in puts:
        place = int(at * len(text))
        text = text[:place] + piece + text[place:]
    data = bytearray(text.encode(errors="surrogatepass"))
    if cut is not None:
        del data[int(cut * len(data)) :]
    if byte is not None and data:
        data[int(byte[0] * (len(data) - 1))] = byte[1]
    assert outcome(parsed, bytes(data)) == outcome(slowly, bytes(data))


@pytest.mark.parametrize(
    "text",
    [
        '{"id":1,"city":"Bonn","lines":[{"sku":"a:b,c","n":1.5},{"sku":"ü","n":null}],"more":{"id":true}}',
        "18446744073709551616",
        "[" * 90 + "]" * 90,
        ' [1, "a" ]\n',
    ],
)
def test_common_values_are_read_quickly(text: str) -> None:
    assert json_values._parsed_quickly(text.encode()) == json.loads(text)


@pytest.mark.parametrize(
    "text",
    [
        '{"a":1,"a":2}',
        '{"a":"x","b":[{"c":1,"c":"\\""}]}',
        '{"a":{"b":"","b":{}},"c":":\\""}',
        "[" * 101 + "]" * 101,
        "1e400",
        "9" * 5000,
        '"\\ud800"',
        "[1]\0",
        "\ufeff1",
        "",
    ],
    ids=lambda text: text[:20],
)
def test_doubtful_values_are_left_to_pythons_json(text: str) -> None:
    assert json_values._parsed_quickly(text.encode()) is json_values._UNSURE
    assert outcome(parsed, text.encode()) == outcome(slowly, text.encode())


def test_value_may_be_a_part_of_a_buffer() -> None:
    assert parsed(memoryview(b'xx{"a": 1}xx')[2:-2]) == {"a": 1}
