"""The dependencies: the lock fits pyproject.toml, and korvet works with the least versions.

Those of the lock are tried with the image (tests/deploy/test_image.py), and the newest ones by all other tests.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from korvet import __version__
from scripts.releasing.build import build
from scripts.releasing.sbom import pinned, write_sbom
from scripts.releasing.trial import install, try_out
from tests.support.broker import ROOT

WITHIN_S = 600.0
LOCKS = ("requirements.lock", "requirements-build.lock")


def project() -> Any:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def dependencies() -> list[Requirement]:
    return list(map(Requirement, project()["project"]["dependencies"]))


def test_lock_has_a_version_of_each_dependency_that_is_allowed() -> None:
    locked = pinned((ROOT / LOCKS[0]).read_text())
    for one in dependencies():
        assert one.specifier.contains(locked[canonicalize_name(one.name)]), one
    built = pinned((ROOT / LOCKS[1]).read_text())
    for one in map(Requirement, project()["build-system"]["requires"]):
        assert one.specifier.contains(built[canonicalize_name(one.name)]), one


@pytest.mark.parametrize("name", LOCKS)
def test_lock_has_hashes_and_names_no_index(name: str) -> None:
    text = (ROOT / name).read_text()
    entries = re.split(r"(?m)^(?=[a-z0-9-]+==)", text)[1:]
    assert len(entries) == len(pinned(text)) > 5
    assert [entry for entry in entries if not re.search(r"--hash=sha256:[0-9a-f]{64}", entry)] == []
    assert "//" not in text and "index" not in text


def test_bill_of_materials_names_all_that_is_installed(tmp_path: Path) -> None:
    path = write_sbom(ROOT, __version__, tmp_path)
    text = path.read_text()
    assert path.name == f"korvet-{__version__}.cdx.json"
    for name, version in pinned((ROOT / LOCKS[0]).read_text()).items():
        assert f'"purl": "pkg:pypi/{name}@{version}"' in text
    assert re.search(r'"purl": "pkg:npm/htmx.org@2\.[\d.]+"', text)


@pytest.mark.all
def test_korvet_works_with_the_least_versions_that_are_allowed(tmp_path: Path) -> None:
    """It serves a client, and names nothing that these versions lack."""
    least = tmp_path / "least.txt"
    run("uv", "pip", "compile", "pyproject.toml", "--resolution", "lowest-direct", "--no-header", "--no-annotate",
        "--output-file", str(least))  # fmt: skip
    told = pinned(least.read_text())
    bounds = {canonicalize_name(one.name): Version(next(iter(one.specifier)).version) for one in dependencies()}
    # No version of a bound may have been withdrawn, so that the least one is a later one.
    assert {name: told[name] for name, bound in bounds.items() if Version(told[name]).major != bound.major} == {}
    korvet = install(build(ROOT, tmp_path / "dist").wheel, tmp_path, least)
    try_out(korvet, tmp_path, __version__)
    found = run("mypy", "--strict", "korvet", "--python-executable", str(korvet.parent / "python"),
                "--cache-dir", str(tmp_path / "mypy"))  # fmt: skip
    # The pipeline's libraries are not there, and stubs differ.
    assert [line for line in found.splitlines() if re.search(r"\[(attr-defined|call-arg)\]$", line)] == []


def run(module: str, *arguments: str) -> str:
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=WITHIN_S)
    assert done.returncode == 0 or module == "mypy", done.stderr
    return done.stdout
