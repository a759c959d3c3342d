"""The cases of Kafka's tests that the tests here repeat, and those that cases_left_out.txt lists."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.ported import ported

LEFT_OUT = Path(__file__).with_name("cases_left_out.txt")
LEAST = 150


def test_no_case_is_both_repeated_and_left_out() -> None:
    names = re.findall(r"^    (.+)$", LEFT_OUT.read_text(), re.MULTILINE)
    assert len(names) > 100
    assert all(re.fullmatch(r"\w+Test\.\w+", name) for name in names)
    assert len(names) == len(set(names))
    assert set(names) & {f"{one.class_name}.{one.method}" for one in ported()} == set()


def test_most_cases_are_repeated_at_the_library() -> None:
    assert len([one.test for one in ported() if one.test.startswith("lua/")]) > 500


def test_many_cases_are_repeated() -> None:
    assert len({(one.class_name, one.method) for one in ported()}) >= LEAST
