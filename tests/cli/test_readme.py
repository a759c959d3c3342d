"""The README's tour works as it is written, one command after the other."""

from __future__ import annotations

import os
import select
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.support.broker import KorvetServer
from tests.support.tools import find_tool

ROOT = Path(__file__).resolve().parents[2]
WITHIN_S = 60.0
KORVET = f"{shlex.quote(sys.executable)} -m korvet.cli"


def tour() -> list[str]:
    """The commands of the tour that talk to the broker of its first lines."""
    text = (ROOT / "README.md").read_text().partition("## A short tour")[2].partition("\n## ")[0]
    commands = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    return [command for command in commands if "--redis" not in command]


def shell(command: str, broker: KorvetServer) -> subprocess.Popen[str]:
    line = command.replace("./scripts/korvet", KORVET).replace("127.0.0.1:9092", broker.bootstrap)
    return subprocess.Popen(
        line if "|" in line else f"exec {line}",
        shell=True,
        cwd=ROOT,
        env={**os.environ, "KORVET_BOOTSTRAP_SERVER": broker.bootstrap},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def group_reads(process: subprocess.Popen[str], records: int) -> list[str]:
    """The lines that a command prints which goes on until Ctrl-C ends it."""
    assert process.stdout is not None
    deadline, read = time.monotonic() + WITHIN_S, ""
    while read.count("\n") < records and time.monotonic() < deadline:
        if select.select([process.stdout], [], [], 0.1)[0]:
            text = os.read(process.stdout.fileno(), 4096).decode()
            if not text:
                break
            read += text
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=WITHIN_S)
    return read.splitlines()


def test_tour_works_as_written(broker: KorvetServer) -> None:
    find_tool("kcat")
    shown: dict[str, str] = {}
    for command in tour():
        process = shell(command, broker)
        if " -G " in command:
            assert sorted(group_reads(process, 2)) == ["hello", "world"]
            continue
        out, err = process.communicate(timeout=WITHIN_S)
        assert process.returncode == 0, f"{command}: {err}"
        shown[command] = out
    assert (
        shown["./scripts/korvet topics create greetings --partitions 3"]
        == "created topic greetings with 3 partitions\n"
    )
    assert sorted(shown["kcat -b 127.0.0.1:9092 -C -t greetings -o beginning -e"].split()) == ["hello", "world"]
    assert shown["./scripts/korvet groups describe readers"].startswith("Group readers   state Empty")
    assert len(shown) == 6
