"""A machine that lacks a program runs what it can, and says what it could not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.tools import find_tool, left_out, trouble


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """PATH begins with programs that do not work, as rustup's cargo without a toolchain."""
    for name in ("cargo", "kcat"):
        program = tmp_path / name
        program.write_text("#!/bin/sh\necho 'error: no toolchain\nhelp: choose one' >&2\nexit 1\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    trouble.cache_clear()
    yield
    trouble.cache_clear()


@pytest.mark.usefixtures("broken")
def test_program_that_does_not_work_is_as_a_missing_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert trouble("cargo") == "cargo is installed and does not work: error: no toolchain"
    assert trouble("korvets-own") == "korvets-own is not installed"
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.skip.Exception):
        find_tool("cargo")
    with pytest.raises(pytest.fail.Exception, match="kcat is installed and does not work"):
        find_tool("kcat")


def test_line_names_the_reasons_of_tests_that_did_not_run() -> None:
    told = left_out([f"Skipped: {name} is not installed" for name in ("java", "cargo", "java")])
    assert told == "korvet: 3 tests did not run here: 2 because java is not installed; 1 because cargo is not installed"
    assert left_out([]) == ""
