"""External programs that some tests need: kcat, Node, Java, Maven, redis-server."""

import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NoReturn

import pytest

YOURS = ("go", "cargo")
"""The programs that `./scripts/test` does not install."""
ANSWERS_WITHIN_S = 60.0
LEFT_OUT = Path(__file__).resolve().parents[2] / ".cache" / "left-out"
_VERSION = {"kcat": "-V", "haproxy": "-v", "openssl": "version", "go": "version"}


@cache
def trouble(name: str) -> str:
    """Why a program of PATH cannot be used: it is missing, or it does not even tell its version. Else an empty text."""
    path = shutil.which(name)
    if path is None:
        return f"{name} is not installed"
    command = [path, _VERSION.get(name, "--version")]
    try:
        subprocess.run(command, check=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=ANSWERS_WITHIN_S)
    except subprocess.CalledProcessError as error:
        said = (error.stderr or error.stdout).decode(errors="replace").strip().partition("\n")[0]
        return f"{name} is installed and does not work: {said or f'exit code {error.returncode}'}"
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{name} is installed and does not work: {error}"
    return ""


def find_tool(name: str) -> str:
    """The path of a program on PATH. If it does not work, the test is skipped.

    If CI is set, the test fails, unless the program is one of `YOURS`.
    """
    if reason := trouble(name):
        cannot_run(reason, fails_in_ci=name not in YOURS)
    return str(shutil.which(name))


def cannot_run(reason: str, *, fails_in_ci: bool = True) -> NoReturn:
    """Skip the test because this machine lacks something; if the environment variable CI is set, fail it."""
    if fails_in_ci and os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    # The run is no proof then (`note_proven` of scripts/setup.bash).
    with suppress(OSError):
        LEFT_OUT.touch()
    pytest.skip(reason)


def left_out(reasons: Iterable[str]) -> str:
    """A line about the tests that were skipped, by the reason of each."""
    counts = Counter(reason.removeprefix("Skipped: ") for reason in reasons)
    told = "; ".join(f"{count} because {reason}" for reason, count in counts.most_common())
    return f"korvet: {counts.total()} tests did not run here: {told}" if counts else ""
