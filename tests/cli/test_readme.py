"""The README's tour works as it is written, one command after the other."""

from __future__ import annotations

import os
import pty
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


def shell(command: str, broker: KorvetServer, stdout: int = subprocess.PIPE) -> subprocess.Popen[str]:
    line = command.replace("./scripts/korvet", KORVET).replace("127.0.0.1:9092", broker.bootstrap)
    return subprocess.Popen(
        line if "|" in line else f"exec {line}",
        shell=True,
        cwd=ROOT,
        env={**os.environ, "KORVET_BOOTSTRAP_SERVER": broker.bootstrap},
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
    )


def group_reads(command: str, broker: KorvetServer, records: int) -> list[str]:
    """The lines that a command shows on a terminal, which goes on until Ctrl-C ends it."""
    terminal, end = pty.openpty()
    try:
        process = shell(command, broker, end)
        deadline, read = time.monotonic() + WITHIN_S, ""
        while read.count("\n") < records and time.monotonic() < deadline and process.poll() is None:
            if select.select([terminal], [], [], 0.1)[0]:
                read += os.read(terminal, 4096).decode()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=WITHIN_S)
    finally:
        os.close(terminal)
        os.close(end)
    return read.splitlines()


def test_tour_works_as_written(broker: KorvetServer) -> None:
    find_tool("kcat")
    shown: dict[str, str] = {}
    for command in tour():
        if " -G " in command:
            assert sorted(group_reads(command, broker, 2)) == ["hello", "world"]
            continue
        process = shell(command, broker)
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
