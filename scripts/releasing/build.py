"""The packages of a release: the sdist of the clone, and the wheel of the unpacked sdist."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import NamedTuple

VERSIONS = {
    "korvet/__init__.py": r'^__version__ = "(.+)"$',
    "lua/0-core/0-library.lua": r"^local korvet = \{ VERSION = '(.+)' \}$",
    "CHANGELOG.md": r"^## (\d\S*)",
    "deploy/helm/korvet/Chart.yaml": r'^appVersion: "(.+)"$',
}
"""Where a version stands: file -> pattern of its first mention."""


class ReleaseError(Exception):
    """The release is not whole; the message says why."""


class Packages(NamedTuple):
    """The files of a release."""

    sdist: Path
    wheel: Path


def agreed_version(root: Path) -> str:
    """The version that every file of `VERSIONS` names.

    :raises ReleaseError: a file names none, or another one.
    """
    found = {name: re.search(pattern, (root / name).read_text(), re.MULTILINE) for name, pattern in VERSIONS.items()}
    named = {name: match[1] if match else "none" for name, match in found.items()}
    if len(set(named.values())) != 1:
        raise ReleaseError("versions differ: " + ", ".join(f"{name} has {version}" for name, version in named.items()))
    return next(iter(named.values()))


def is_clean(root: Path) -> bool:
    """True if the clone's files are those of its last commit."""
    return not _run(["git", "status", "--porcelain"], root).strip()


def is_proven(root: Path) -> bool:
    """True if every test passed at the clone's last commit, by the note of ``./scripts/test all``."""
    note = root / ".cache" / "proven"
    return note.exists() and note.read_text() == _run(["git", "rev-parse", "HEAD"], root)


def build(root: Path, output: Path) -> Packages:
    """Build both packages into ``output``. The wheel comes from the sdist, so the sdist lacks nothing that it needs.

    :raises CalledProcessError: a build failed.
    """
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="korvet-build-") as name:
        made = Path(name)
        (sdist,) = _build(root, "sdist", made)
        with tarfile.open(sdist) as packed:
            # The first Pythons 3.11 have no filters.
            packed.extraction_filter = getattr(tarfile, "data_filter", None)
            packed.extractall(made)
        unpacked = made / sdist.name.removesuffix(".tar.gz")
        (wheel,) = _build(unpacked, "wheel", made / "wheel")
        return Packages(*(Path(shutil.move(path, output / path.name)) for path in (sdist, wheel)))


def _build(source: Path, target: str, directory: Path) -> list[Path]:
    _run([sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(directory)], source)
    return sorted(directory.glob("*.tar.gz" if target == "sdist" else "*.whl"))


def _run(command: list[str], directory: Path) -> str:
    return subprocess.run(command, cwd=directory, check=True, capture_output=True, text=True).stdout
