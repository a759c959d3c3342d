"""The commands at the beginning of docs/security.md run as they are written, in one shell."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker import UNINSTALLED
from tests.support.ports import free_port
from tests.support.tools import find_tool

ROOT = Path(__file__).resolve().parents[2]
WITHIN_S = 180.0
SERVE = "korvet serve --config korvet.toml &"


def steps() -> list[str]:
    """The page's commands, one of each step."""
    text = (ROOT / "docs" / "security.md").read_text("utf-8")
    text = text.partition("## From nothing to TLS, logins and rights")[2].partition("Java's clients")[0]
    parts = re.split(r"^\d+\. ", text, flags=re.MULTILINE)[1:]
    return ["\n".join(line.strip() for line in part.splitlines() if line.startswith("       ")) for part in parts]


def is_one(command: str) -> bool:
    """Whether a text is one command: one line, perhaps continued, or with a text for its input."""
    lines = command.replace("\\\n", "").splitlines()
    return len(lines) == 1 or ("<<" in lines[0] and lines.index("END") == len(lines) - 1)


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory with a short path, because that of a unix socket may have about a hundred characters."""
    with tempfile.TemporaryDirectory(prefix="kv") as name:
        yield Path(name)


def test_page_leads_from_nothing_to_records_of_a_user_with_few_rights(directory: Path) -> None:
    find_tool("openssl"), find_tool("kcat")
    ten = steps()
    assert len(ten) == 10 and all(map(is_one, ten))
    commands, port = "\n".join(ten), free_port()
    assert commands.count(SERVE) == 1 and commands.count("korvet ") == 5
    # The shell's commands go on at once, so they wait for the ready line here, as a user does.
    run = f"{shlex.quote(sys.executable)} -m korvet.cli"
    # The process itself, so that the trap ends it and no shell around it.
    serve = f"coproc {{ exec {SERVE[:-2].replace('korvet', run, 1)}; }} 2> log\n"
    serve += "read -r ready <&\"${COPROC[0]}\"\ntrap 'kill $COPROC_PID; wait' EXIT"
    korvet = f'korvet() {{ {run} "$@"; }}'
    lines = ["set -euo pipefail", korvet, commands.replace(SERVE, serve).replace("9093", str(port))]
    lines += [
        "export KORVET_CLIENT_CONFIG=alice.properties",
        "korvet topics consume orders --group others && exit 1",
        "korvet acls list && exit 1",
        "stat -c %a *.password",
    ]
    done = subprocess.run(
        ["bash", "-c", "\n".join(lines)],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, UNINSTALLED)))},
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-4000:]}"
    assert done.stdout.count("hello\n") == 1
    assert "GROUP_AUTHORIZATION_FAILED" in done.stderr and "CLUSTER_AUTHORIZATION_FAILED" in done.stderr
    assert done.stdout.splitlines()[-2:] == ["600", "600"]
    for secret in (directory / "admin.password", directory / "alice.password"):
        assert secret.read_text().strip() not in done.stdout + done.stderr + (directory / "log").read_text()
