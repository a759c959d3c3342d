"""What `.ci/run` runs, by what has changed since the last proven commit and by the time that is left."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.broker import ROOT

IDENTITY = ("-c", "user.name=a", "-c", "user.email=a@b")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone with one commit, whose check and tests only write down how they are called."""
    for name in (".ci/run", "scripts/setup.bash"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    for name in ("check", "test"):
        script = tmp_path / "scripts" / name
        script.write_text(f'#!/bin/sh\necho "{name} $*" >>.cache/ran\n')
        script.chmod(0o755)
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".gitignore").write_text(".cache\n")
    git(tmp_path, "init", "-q")
    commit(tmp_path, "README.md")
    return tmp_path


def git(clone: Path, *command: str) -> str:
    done = subprocess.run(["git", *IDENTITY, *command], cwd=clone, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def commit(clone: Path, name: str) -> None:
    (clone / name).parent.mkdir(parents=True, exist_ok=True)
    (clone / name).write_text(name)
    git(clone, "add", "-A")
    git(clone, "commit", "-qm", name)


def run(clone: Path, timeout_s: int = 10_000) -> tuple[list[str], str]:
    """The scripts that ran, and the last line on stderr."""
    (clone / ".cache" / "ran").unlink(missing_ok=True)
    env = {**os.environ, "CI_JOB_TIMEOUT": str(timeout_s)}
    done = subprocess.run([clone / ".ci/run"], env=env, capture_output=True, text=True, check=True, timeout=60)
    return (clone / ".cache" / "ran").read_text().splitlines(), done.stderr.splitlines()[-1]


def test_change_of_a_page_needs_the_default_alone(clone: Path) -> None:
    commit(clone, "docs/page.md")
    ran, line = run(clone)
    assert ran == ["check ", "test "]
    assert "nothing of lua, korvet/store, korvet/redis and korvet/server changed since" in line
    assert not (clone / ".cache" / "proven").exists()


@pytest.mark.parametrize("name", ["lua/a.lua", "korvet/store/a.py", "korvet/redis/a.py", "korvet/server/a.py"])
def test_change_of_what_all_clients_share_needs_all_tests_until_it_is_proven(clone: Path, name: str) -> None:
    commit(clone, name)
    before = git(clone, "rev-parse", "--short", "HEAD^")
    ran, line = run(clone)
    assert ran == ["check ", "test ", "test all -m all"]
    assert f"since {before} touches what all clients share; the default took " in line
    assert (clone / ".cache" / "proven").read_text() == git(clone, "rev-parse", "HEAD") + "\n"
    assert run(clone)[0] == ["check ", "test "]
    commit(clone, "docs/page.md")
    assert run(clone)[0] == ["check ", "test "]


def test_push_of_several_commits_is_one_change(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI_COMMIT_BEFORE_SHA", git(clone, "rev-parse", "HEAD"))
    commit(clone, "lua/a.lua")
    commit(clone, "docs/page.md")
    assert run(clone)[0] == ["check ", "test ", "test all -m all"]


def test_change_without_time_for_all_tests_is_not_proven(clone: Path) -> None:
    commit(clone, "lua/a.lua")
    ran, line = run(clone, timeout_s=0)
    assert ran == ["check ", "test "]
    assert "run ./scripts/test all, for which CI_JOB_TIMEOUT=0 leaves no time here" in line
    assert not (clone / ".cache" / "proven").exists()


def test_run_that_lacked_a_program_proves_nothing(clone: Path) -> None:
    commit(clone, "lua/a.lua")
    with (clone / "scripts" / "test").open("a") as script:
        script.write("touch .cache/left-out\n")
    git(clone, "commit", "-qa", "--amend", "-m", "a")
    assert "test all -m all" in run(clone)[0]
    assert not (clone / ".cache" / "proven").exists()
