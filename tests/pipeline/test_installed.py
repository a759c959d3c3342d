"""The wheel, away from the clone: its files, its server, and its data source for Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from korvet.pipeline.broker import Broker
from tests.support.broker import ROOT, KorvetServer

# Spark's search for data sources, from pyspark.sql.worker.lookup_data_sources.
LOOK_FOR_SOURCES = """
import importlib, pkgutil
found = [one.name for one in pkgutil.iter_modules() if one.name.startswith("pyspark_")]
for source in (importlib.import_module(name).DefaultSource for name in found):
    print(source.name(), importlib.import_module(source.__module__).__file__)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (built,) = directory.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the files that the wheel installs."""
    directory = tmp_path_factory.mktemp("installed")
    with ZipFile(wheel) as packed:
        packed.extractall(directory)
    return directory


def run(installed: Path, directory: Path, *arguments: str) -> str:
    """The output of a Python that finds the wheel first, run in another directory."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(installed)},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout


def test_wheel_has_the_packages_and_the_library(wheel: Path) -> None:
    files = (path for package in ("korvet", "pyspark_korvet") for path in ROOT.glob(f"{package}/**/*"))
    wanted = {str(path.relative_to(ROOT)) for path in files if path.is_file() and path.suffix != ".pyc"}
    wanted |= {f"korvet/lua/{path.parent.name}/{path.name}" for path in ROOT.glob("lua/*/*.lua")}
    assert "korvet/py.typed" in wanted
    with ZipFile(wheel) as packed:
        found = {name for name in packed.namelist() if ".dist-info/" not in name}
        (entry_points,) = (name for name in packed.namelist() if name.endswith("entry_points.txt"))
        assert "korvet = korvet.cli:main" in packed.read(entry_points).decode()
    assert found == wanted


def test_installed_korvet_serves(installed: Path, tmp_path: Path) -> None:
    server = KorvetServer(tmp_path, root=installed)
    server.start()
    try:
        with Broker({"bootstrap.servers": server.bootstrap}) as broker:
            assert broker.create_topic("installed", 3, {})
            assert broker.topics(["installed"])["installed"].partitions == (0, 1, 2)
    finally:
        server.stop()


@pytest.mark.all
def test_spark_finds_an_installed_korvets_data_source_and_jobs(installed: Path, tmp_path: Path) -> None:
    assert (
        run(installed, tmp_path, "-c", LOOK_FOR_SOURCES) == f"korvet {installed}/korvet/pipeline/source/__init__.py\n"
    )
    for verb in ("archive", "replay", "report", "retype", "maintain", "iceberg"):
        job = run(installed, tmp_path, "-m", "korvet.cli", "pipeline", "job", verb).strip()
        assert job == f"{installed}/korvet/jobs/{verb}.py" and Path(job).is_file()
