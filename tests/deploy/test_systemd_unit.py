"""deploy/systemd: systemd takes the unit as it is, and finds it closed."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from korvet.settings.file import read_config
from tests.support.broker import ROOT
from tests.support.tools import find_tool

SYSTEMD = ROOT / "deploy" / "systemd"
INSTALLED = "/opt/korvet/bin/korvet"
MOST_EXPOSED = 20
"""The bound of systemd's own score, in tenths: 0 is closed, 100 is open."""


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [find_tool("systemd-analyze"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit with the command of this environment, because systemd looks whether the command is there."""
    text = (SYSTEMD / "korvet.service").read_text()
    assert text.count(INSTALLED) == 1
    path = tmp_path / "korvet.service"
    path.write_text(text.replace(INSTALLED, str(Path(sys.executable).parent / "korvet")))
    return path


def test_systemd_knows_every_line_of_the_unit(unit: Path) -> None:
    done = analyze("verify", "--man=no", str(unit))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_systemd_names_a_wrong_line(unit: Path) -> None:
    unit.write_text(unit.read_text().replace("WatchdogSec", "WatchDogSec"))
    assert "Unknown key 'WatchDogSec'" in analyze("verify", "--man=no", str(unit)).stderr


def test_unit_is_closed_by_systemds_own_score() -> None:
    done = analyze("security", "--offline=true", f"--threshold={MOST_EXPOSED}", str(SYSTEMD / "korvet.service"))
    assert done.returncode == 0, done.stdout


def test_packaged_config_file_is_right_and_lies_where_the_unit_may_write() -> None:
    text = (SYSTEMD / "korvet.toml").read_text()
    assert read_config(SYSTEMD / "korvet.toml").serve["listen"] == "0.0.0.0:9092"
    assert tomllib.loads(text)["serve"]["data-dir"].startswith("/var/lib/korvet/")
    assert "StateDirectory=korvet" in (SYSTEMD / "korvet.service").read_text().splitlines()
