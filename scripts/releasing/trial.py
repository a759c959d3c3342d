"""The trial of a wheel: it is installed into an empty environment, away from the clone, and serves a client."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from scripts.releasing.build import ReleaseError

INSTALL_WITHIN_S = 900.0
ANSWER_WITHIN_S = 120.0
RECORDS = ["first", "second", "third"]


def install(wheel: Path, directory: Path, requirements: Path | None = None) -> Path:
    """Install the wheel into a new environment below ``directory``; the path of its command.

    :param requirements: its dependencies; without any the newest ones.
    :raises CalledProcessError: pip failed.
    """
    environment = directory / "environment"
    _run([sys.executable, "-m", "venv", "--without-pip", str(environment)], directory, within_s=ANSWER_WITHIN_S)
    pip = [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python"), "install", "--quiet"]
    # Python compiles what the trial imports, which is a small part of what pip would compile.
    pip += ["--disable-pip-version-check", "--no-compile"]
    if requirements is not None:
        _run([*pip, "-r", str(requirements)], directory, within_s=INSTALL_WITHIN_S)
        pip.append("--no-deps")
    _run([*pip, str(wheel)], directory, within_s=INSTALL_WITHIN_S)
    return environment / "bin" / "korvet"


def try_out(korvet: Path, directory: Path, version: str) -> None:
    """Serve, produce and consume with the installed command.

    :raises ReleaseError: it has another version, answers wrongly, or does not end well.
    :raises CalledProcessError: a command of it failed.
    """
    output = _run([str(korvet), "--version"], directory)
    _expect("korvet --version", f"korvet {version}\n", output)
    with _served(korvet, directory) as address:
        verb = [str(korvet), "topics"]
        at = ["--bootstrap-server", address]
        _run([*verb, "create", "trial", *at], directory)
        _run([*verb, "produce", "trial", *at], directory, text_in="\n".join(RECORDS) + "\n")
        read = _run([*verb, "consume", "trial", *at], directory)
        _expect("korvet topics consume", RECORDS, read.split())


@contextmanager
def _served(korvet: Path, directory: Path) -> Iterator[str]:
    """The address of a broker that runs for the time of the block, and then ends by SIGTERM."""
    data = directory / "data"
    command = [str(korvet), "serve", "--listen", "127.0.0.1:0", "--data-dir", str(data), "--log-format", "json"]
    with subprocess.Popen(command, cwd=directory, env=_environment(), stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield _address(process.stdout)
            process.send_signal(signal.SIGTERM)
            _expect("the exit code of korvet serve", 0, process.wait(ANSWER_WITHIN_S))
        finally:
            process.kill()


def _address(output: IO[str]) -> str:
    line = output.readline()
    if not line:
        raise ReleaseError("korvet serve ended before it was ready")
    (address,) = json.loads(line)["listeners"]
    return str(address)


def _run(command: list[str], directory: Path, text_in: str | None = None, within_s: float = ANSWER_WITHIN_S) -> str:
    done = subprocess.run(
        command, cwd=directory, env=_environment(), check=True, capture_output=True, text=True, input=text_in,
        timeout=within_s,
    )  # fmt: skip
    return done.stdout


def _environment() -> dict[str, str]:
    """The caller's environment without what would lead Python or korvet to the clone."""
    return {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "KORVET_", "VIRTUAL_ENV"))
    }


def _expect(what: str, wanted: object, found: object) -> None:
    if wanted != found:
        raise ReleaseError(f"{what}: expected {wanted!r}, found {found!r}")
