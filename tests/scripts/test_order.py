"""How the processes of a whole run share the tests."""

from __future__ import annotations

import pytest

from tests.support.order import TESTS, in_order, share


def test_files_that_compute_and_files_that_wait_alternate_and_the_others_follow() -> None:
    names = ["api/a.py", "chaos/b.py", "kafka/c.py", "kafka/d.py", "lua/e.py", "pipeline/f.py", "pipeline/g.py"]
    found = [str(file.relative_to(TESTS)) for file in in_order([TESTS / name for name in names * 2])]
    expected = ["chaos/b.py", "pipeline/f.py", "kafka/c.py", "pipeline/g.py", "kafka/d.py", "api/a.py", "lua/e.py"]
    assert found == expected


@pytest.mark.parametrize(
    ("test", "expected"),
    [("tests/oracle/test_a.py::test_x[1]", "tests/oracle/"), ("tests/api/test_a.py::test_x", "tests/api/test_a.py")],
)
def test_process_takes_a_file_at_a_time_or_all_that_compares_with_kafka(test: str, expected: str) -> None:
    assert share(test) == expected
