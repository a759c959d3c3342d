"""The release script: its packages work in an empty environment, and it refuses what is not whole."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import korvet
import scripts.releasing.__main__ as releasing
from scripts.releasing.build import VERSIONS, ReleaseError, agreed_version, is_clean, is_proven
from scripts.releasing.trial import try_out
from tests.support.broker import ROOT

COMMIT = ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a", "--allow-empty"]


def test_release_builds_packages_that_work_in_an_empty_environment(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "scripts.releasing", "--uncommitted", "--output", str(tmp_path / "dist")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stderr
    lines = (line.split("  ") for line in done.stdout.splitlines())
    told = {path: digest for digest, path in lines}
    names = [f"korvet-{korvet.__version__}{suffix}" for suffix in (".tar.gz", "-py3-none-any.whl", ".cdx.json")]
    assert [Path(path).name for path in told] == names
    for path, digest in told.items():
        assert hashlib.sha256(Path(path).read_bytes()).hexdigest() == digest
    with tarfile.open(tmp_path / "dist" / names[0]) as packed:
        files = {name.partition("/")[2] for name in packed.getnames()}
    assert {"CHANGELOG.md", "SECURITY.md", "LICENSE", "README.md", "lua/0-core/0-library.lua"} <= files


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A directory with the files that name the version."""
    for name in VERSIONS:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_every_file_names_the_packages_version() -> None:
    assert agreed_version(ROOT) == korvet.__version__


@pytest.mark.parametrize("name", VERSIONS)
def test_release_is_refused_if_a_file_names_another_version(copied: Path, name: str) -> None:
    text = (copied / name).read_text()
    (copied / name).write_text(text.replace(korvet.__version__, "98.7.6"))
    with pytest.raises(ReleaseError, match=f"versions differ: .*{name} has 98.7.6"):
        agreed_version(copied)


def test_tree_with_uncommitted_changes_is_not_clean(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    assert is_clean(tmp_path)
    (tmp_path / "forgotten.py").touch()
    assert not is_clean(tmp_path)


def test_commit_is_proven_if_every_test_passed_at_it(tmp_path: Path) -> None:
    for command in (["init", "-q"], COMMIT):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)
    (tmp_path / ".cache").mkdir()
    assert not is_proven(tmp_path)
    (tmp_path / ".git" / "info" / "exclude").write_text(".cache\n")

    def is_proven_by(meanwhile: str) -> bool:
        run = f"root={tmp_path}; cd $root; . {ROOT}/scripts/setup.bash; began=$(clean_head); {meanwhile}"
        subprocess.run(["bash", "-euc", f'{run}; note_proven "$began"'], check=True)
        return is_proven(tmp_path)

    commit = f"git {' '.join(COMMIT)}"
    (tmp_path / "changed.py").touch()
    assert not is_proven_by("rm changed.py")
    assert not is_proven_by("touch changed.py")
    assert not is_proven_by(f"rm changed.py; {commit}")
    assert not is_proven_by("touch .cache/left-out")
    assert is_proven_by("rm .cache/left-out")
    assert not is_proven_by(commit)


def test_commit_that_is_not_proven_is_not_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(releasing, "is_clean", lambda _: True)
    monkeypatch.setattr(releasing, "is_proven", lambda _: False)
    with pytest.raises(ReleaseError, match=r"has not passed ./scripts/test all in this clone; run that, or give --unp"):
        releasing.release(tmp_path, uncommitted=False, unproven=False)
    assert list(tmp_path.iterdir()) == []


def test_wheel_with_another_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match=r"korvet --version: expected 'korvet 98.7.6\\n'"):
        try_out(Path(sys.executable).parent / "korvet", tmp_path, "98.7.6")
