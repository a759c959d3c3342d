"""The page docs/kafka-tests.md lists the cases of Kafka's tests that the tests here repeat."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.ported import ported, table

PAGE = Path(__file__).resolve().parents[3] / "docs" / "kafka-tests.md"
LEAST = 150
_REPEATED = "\n## Repeated\n\n"
_NOT_REPEATED = "\n## Not repeated\n\n"
_LIST = re.compile(r"^  - (\w+): ((?:.+\n)(?:    .+\n)*)", re.MULTILINE)


def parts() -> tuple[str, str]:
    """The page's list of cases that tests do not repeat, and its tables of the others."""
    rest, repeated = PAGE.read_text().split(_REPEATED)
    return rest.split(_NOT_REPEATED)[1] + "\n", repeated


def left_out() -> list[str]:
    return [f"{kind}.{name}" for kind, names in _LIST.findall(parts()[0]) for name in re.split(r",\s+", names.strip())]


def test_page_lists_the_cases_that_tests_name() -> None:
    assert parts()[1] == table(), "write the tables anew: python -m tests.support.ported"


def test_no_case_is_both_repeated_and_left_out() -> None:
    names = left_out()
    assert all(re.fullmatch(r"\w+Test\.\w+", name) for name in names)
    assert len(names) == len(set(names))
    assert set(names) & {f"{one.class_name}.{one.method}" for one in ported()} == set()


def test_only_this_directory_repeats_cases_at_the_library() -> None:
    library = [one.test for one in ported() if one.test.startswith("lua/")]
    assert len(library) > 500
    assert [test for test in library if not test.startswith("lua/kafka/")] == []


def test_many_cases_are_repeated() -> None:
    assert len({(one.class_name, one.method) for one in ported()}) >= LEAST
