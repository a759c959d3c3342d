"""The order of files in a whole run."""

from __future__ import annotations

from tests.support.order import TESTS, in_order


def test_files_that_compute_and_files_that_wait_alternate_and_the_others_follow() -> None:
    names = ["api/a.py", "chaos/b.py", "kafka/c.py", "kafka/d.py", "lua/e.py", "pipeline/f.py", "pipeline/g.py"]
    found = [str(file.relative_to(TESTS)) for file in in_order([TESTS / name for name in names * 2])]
    expected = ["chaos/b.py", "pipeline/f.py", "kafka/c.py", "pipeline/g.py", "kafka/d.py", "api/a.py", "lua/e.py"]
    assert found == expected
