"""Keys and values as the console shows them, and the words and pages of its requests."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.exceptions import HTTPException

from korvet.cli.console import form_fields
from korvet.cli.console.lake import read_report
from korvet.cli.console.paging import ROWS, page_of
from korvet.cli.console.shown import LIST_CHARACTERS, shown_bytes
from korvet.errors import KorvetError

MOST = LIST_CHARACTERS


def test_json_is_indented_and_its_numbers_stay_as_they_were_written() -> None:
    shown = shown_bytes(b'{"price":1.10,"id":12345678901234567890,"tags":[],"of":{"a":"x,{:"}}', MOST)
    assert shown.kind == "json"
    assert shown.text == (
        '{\n  "price": 1.10,\n  "id": 12345678901234567890,\n  "tags": [],\n  "of": {\n    "a": "x,{:"\n  }\n}'
    )


@pytest.mark.parametrize("value", [b"{broken", b"[" * 100_000, b'{"a":1} and more', b'{"n":' + b"9" * 5_000 + b"}"])
def test_text_that_only_begins_as_json_is_shown_as_it_is(value: bytes) -> None:
    assert shown_bytes(value, 10_000_000).text == value.decode()


def test_deep_json_does_not_grow_beyond_a_bound() -> None:
    value = b"[" * 800 + b"1," * 50_000 + b"1" + b"]" * 800
    whole = shown_bytes(value, 100_000_000)
    assert whole.kind == "json"
    assert len(whole.text) < 25 * len(value)
    assert len(shown_bytes(value, MOST).text) == MOST


def test_bytes_that_are_no_text_are_shown_in_hexadecimal() -> None:
    shown = shown_bytes(b"\xff\x00abc" * 200, MOST)
    assert (shown.kind, shown.size_bytes, shown.is_cut) == ("binary", 1000, True)
    assert shown.text.splitlines()[0] == "000000  ff 00 61 62 63 ff 00 61 62 63 ff 00 61 62 63 ff  ..abc..abc..abc."


def test_null_and_an_empty_value_look_different() -> None:
    assert shown_bytes(None, MOST).kind == "null"
    assert shown_bytes(b"", MOST).kind == "empty"


def test_characters_that_nobody_sees_are_escaped() -> None:
    assert shown_bytes("👩\u200d💻 o\u200dk".encode(), MOST).text == "👩\u200d💻 o\\u200dk"
    assert shown_bytes("a\u202eb\x1b[31m\n\tc".encode(), MOST).text == "a\\u202eb\\x1b[31m\n\tc"


@pytest.mark.parametrize(("asked_for", "number"), [(0, 1), (2, 2), (9, 3), (-5, 1)])
def test_page_outside_of_a_list_is_the_nearest_one(asked_for: int, number: int) -> None:
    rows = list(range(2 * ROWS + 1))
    page = page_of(rows, asked_for)
    assert (page.number, page.pages, page.total) == (number, 3, len(rows))
    assert page.rows == rows[(number - 1) * ROWS : number * ROWS]


def test_empty_list_has_one_page() -> None:
    assert page_of([], 4) == ([], 1, 1, 0)


@pytest.mark.parametrize("value", ["x", "1.5", "--1", "9" * 20, "\u0661"])
def test_word_that_is_no_number_is_refused(value: str) -> None:
    with pytest.raises(HTTPException, match="is no number"):
        form_fields.number({"page": value}, "page", 1)


def test_long_word_and_an_unknown_choice_are_refused() -> None:
    with pytest.raises(HTTPException, match="too long"):
        form_fields.text({"q": "a" * 2_001}, "q")
    with pytest.raises(HTTPException, match="is none of"):
        form_fields.choice({"start": "x"}, "start", ("end", "start"))


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"intervals": 1}', "[" * 100_000])
def test_file_that_is_no_report_of_a_lake_is_named(content: str, tmp_path: Path) -> None:
    (file := tmp_path / "report.json").write_text(content)
    with pytest.raises(KorvetError, match="is no report; make one"):
        read_report(file)


def test_missing_report_of_a_lake_is_named(tmp_path: Path) -> None:
    with pytest.raises(KorvetError, match="no such file"):
        read_report(tmp_path / "report.json")
