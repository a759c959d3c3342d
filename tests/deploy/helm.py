"""Helm's own engine and linter, as a program that is built once from its Go modules."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.kafka.builds import built_once, run_build
from tests.support.broker import ROOT
from tests.support.tools import find_tool

CHART = ROOT / "deploy" / "helm" / "korvet"
PROJECT = Path(__file__).with_name("chart")
WITHIN_S = 120.0


def helm_program() -> Path:
    """The path of the program, which the first use builds. Raises BuildError."""
    go = find_tool("go")

    def build(target: Path) -> None:
        # Unoptimized it takes two thirds of the time.
        flags = ["-gcflags=all=-N -l", "-ldflags=-s -w"]
        run_build([go, "build", *flags, "-o", str(target / "chart"), "."], PROJECT)

    sources = [PROJECT / name for name in ("go.mod", "go.sum", "main.go")]
    return built_once("chart", sources, build) / "chart"


def helm(verb: str, kubernetes: str, values: dict[str, Any]) -> str:
    """Lint or render the chart; the output. An AssertionError has Helm's complaint."""
    done = subprocess.run(
        [str(helm_program()), verb, str(CHART), kubernetes],
        input=json.dumps(values), capture_output=True, text=True, check=False, timeout=WITHIN_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
