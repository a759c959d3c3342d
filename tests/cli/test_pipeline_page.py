"""The quickstart of docs/pipeline.md runs as it is written."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest

from tests.support.broker import KorvetServer, running_broker
from tests.support.tools import find_tool

ROOT = Path(__file__).resolve().parents[2]
WITHIN_S = 600.0
KORVET = f"PYTHONPATH={shlex.quote(str(ROOT))} {shlex.quote(sys.executable)} -m korvet.cli"


def quickstart() -> tuple[list[str], str]:
    """Its shell commands, and the notebook's text."""
    text = (ROOT / "docs" / "pipeline.md").read_text("utf-8").partition("## Quickstart")[2].partition("\n## ")[0]
    shell, fence, rest = text.partition("```python\n")
    notebook, end, _ = rest.partition("```")
    assert fence and end
    return [line[4:] for line in shell.splitlines() if line.startswith("    ")], notebook


@pytest.fixture
def broker() -> Iterator[KorvetServer]:
    """A broker without other tests' topics."""
    with running_broker() as server:
        yield server


def here(text: str, broker: KorvetServer) -> str:
    """The page's text with the broker's address and the clone's directory of this test."""
    return text.replace("./scripts/korvet", KORVET).replace("127.0.0.1:9092", broker.bootstrap)


def run_in(directory: Path, command: list[str], broker: KorvetServer) -> tuple[str, str]:
    """Standard output and error of a command that succeeds."""
    environment = {"KORVET_BOOTSTRAP_SERVER": broker.bootstrap, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        ["env", *(f"{name}={value}" for name, value in environment.items()), *command],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-4000:]}"
    return done.stdout, done.stderr


@pytest.mark.all
def test_quickstart_works_as_written(broker: KorvetServer, tmp_path: Path) -> None:
    find_tool("kcat"), find_tool("java")
    commands, notebook = quickstart()
    assert len(commands) == 5
    out, err = run_in(tmp_path, ["bash", "-euo", "pipefail", "-c", here("\n".join(commands), broker)], broker)
    archived = out.splitlines()[-1].split()
    assert archived[:2] == ["orders", "1000"]
    # Spark's own log stays out of it.
    events = [json.loads(line)["event"] for line in err.splitlines() if line.startswith("{")]
    assert events.count("archived a batch") == 1
    assert "WARN" not in err

    out, _ = run_in(tmp_path, [sys.executable, "-c", here(notebook, broker)], broker)
    assert "|Bonn| 1000|" in out
    assert "target='orders-again'" in out
    assert "complete=True" in out
    consumer = confluent_kafka.Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "page"})
    consumer.assign([confluent_kafka.TopicPartition("orders-again", 0, 0)])
    records = consumer.consume(10, WITHIN_S)
    consumer.close()
    values = [json.loads(record.value() or b"") for record in records]
    assert len(values) == 10
    assert all(value["city"] == "Bonn" for value in values)
    assert "records behind" in (tmp_path / "report.html").read_text("utf-8")
