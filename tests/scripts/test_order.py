"""How the processes of a whole run share the tests."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.order import TESTS, Sharing, in_order, share


def ordered(*names: str) -> list[str]:
    return [str(file.relative_to(TESTS)) for file in in_order([TESTS / name for name in names * 2])]


def test_files_that_compute_and_files_that_wait_alternate_and_the_others_follow() -> None:
    found = ordered("api/a.py", "chaos/b.py", "kafka/c.py", "kafka/d.py", "lua/e.py", "scripts/f.py", "scripts/g.py")
    assert found == ["chaos/b.py", "scripts/f.py", "kafka/c.py", "scripts/g.py", "kafka/d.py", "api/a.py", "lua/e.py"]


def test_share_is_taken_when_its_first_file_comes() -> None:
    pipeline = ["pipeline/test_avro.py", "pipeline/test_bench.py", "pipeline/test_lake.py", "pipeline/test_typed.py"]
    found = ordered("chaos/a.py", "chaos/b.py", "kafka/c.py", "oracle/d.py", "oracle/e.py", *pipeline, "scripts/f.py")
    alternating = ["oracle/d.py", "chaos/b.py", pipeline[0], "kafka/c.py", pipeline[2], "scripts/f.py"]
    assert found == ["chaos/a.py", *alternating, "oracle/e.py", pipeline[1], pipeline[3]]


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        ("tests/oracle/test_a.py::test_x[1]", "two brokers of Apache Kafka"),
        ("tests/pipeline/test_archive.py::test_x", "a session of Spark"),
        ("tests/pipeline/test_lake.py::test_x", "another session of Spark"),
        ("tests/api/test_a.py::test_x", "tests/api/test_a.py"),
    ],
)
def test_process_takes_a_file_at_a_time_or_all_that_share_something_dear(test: str, expected: str) -> None:
    assert share(test) == expected


@pytest.mark.parametrize(
    ("markexpr", "expected"), [("not all", "a session of Spark"), ("", "another session of Spark")]
)
def test_run_without_all_has_one_session_of_spark(markexpr: str, expected: str) -> None:
    sharing: Any = object.__new__(Sharing)
    sharing.config = SimpleNamespace(getoption={"markexpr": markexpr}.get)
    assert sharing._split_scope("tests/pipeline/test_lake.py::test_x") == expected
