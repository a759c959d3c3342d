"""The README's tour works as it is written, one command after the other."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.broker import KorvetServer
from tests.support.terminal import terminal

ROOT = Path(__file__).resolve().parents[2]
WITHIN_S = 60.0
KORVET = f"{shlex.quote(sys.executable)} -m korvet.cli"


def tour() -> list[str]:
    """The commands of the tour that talk to the broker of its first lines."""
    text = (ROOT / "README.md").read_text().partition("## A short tour")[2].partition("\n## ")[0]
    commands = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    return [command for command in commands if "--redis" not in command]


def shell(command: str, broker: KorvetServer, stdout: int = subprocess.PIPE) -> subprocess.Popen[bytes]:
    line = command.replace("./scripts/korvet", KORVET).replace("127.0.0.1:9092", broker.bootstrap)
    return subprocess.Popen(
        line if "|" in line else f"exec {line}",
        shell=True,
        cwd=ROOT,
        env={**os.environ, "KORVET_BOOTSTRAP_SERVER": broker.bootstrap},
        stdout=stdout,
        stderr=subprocess.PIPE,
    )


def group_reads(command: str, broker: KorvetServer, *texts: str) -> None:
    """Run a command that shows these texts on a terminal, and goes on until Ctrl-C ends it."""
    with terminal() as screen, shell(command, broker, screen.end) as process:
        for text in texts:
            screen.read_until(text, process)
        process.send_signal(signal.SIGINT)
        screen.read_to_end(process)
    assert process.returncode == 130


def test_tour_works_as_written(broker: KorvetServer) -> None:
    shown: dict[str, str] = {}
    for command in tour():
        if "--group" in command:
            group_reads(command, broker, "hello", "world")
            continue
        process = shell(command, broker)
        out, err = process.communicate(timeout=WITHIN_S)
        assert process.returncode == 0, f"{command}: {err.decode()}"
        shown[command] = out.decode()
    assert (
        shown["./scripts/korvet topics create greetings --partitions 3"]
        == "created topic greetings with 3 partitions\n"
    )
    assert sorted(shown["./scripts/korvet topics consume greetings"].split()) == ["hello", "world"]
    described = shown["./scripts/korvet groups describe readers"]
    assert "   state Empty" in described.splitlines()[0]
    assert sum(int(line.split()[2]) for line in described.splitlines() if line.startswith("greetings ")) == 2
    assert len(shown) == 7
