"""The cases of Kafka's tests that the tests here repeat, and those that docs/kafka-tests.md leaves out."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.ported import ported

PAGE = Path(__file__).resolve().parents[2] / "docs" / "kafka-tests.md"
LEAST = 150
_NOT_REPEATED = "\n## Not repeated\n\n"
_LIST = re.compile(r"^  - (\w+): ((?:.+\n)(?:    .+\n)*)", re.MULTILINE)


def left_out() -> list[str]:
    text = PAGE.read_text().partition(_NOT_REPEATED)[2]
    return [f"{kind}.{name}" for kind, names in _LIST.findall(text) for name in re.split(r",\s+", names.strip())]


def test_no_case_is_both_repeated_and_left_out() -> None:
    names = left_out()
    assert all(re.fullmatch(r"\w+Test\.\w+", name) for name in names)
    assert len(names) == len(set(names))
    assert set(names) & {f"{one.class_name}.{one.method}" for one in ported()} == set()


def test_most_cases_are_repeated_at_the_library() -> None:
    assert len([one.test for one in ported() if one.test.startswith("lua/")]) > 500


def test_many_cases_are_repeated() -> None:
    assert len({(one.class_name, one.method) for one in ported()}) >= LEAST
