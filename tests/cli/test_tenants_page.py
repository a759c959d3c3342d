"""The commands of docs/tenants.md work in the order in which the page has them."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.redis import Server, running_server

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tenants.md"
WITHIN_S = 60.0


def commands() -> list[list[str]]:
    """The page's commands that end, up to a pipe."""
    lines = [line.partition("|")[0] for line in PAGE.read_text().splitlines() if line.startswith("    korvet ")]
    return [shlex.split(line)[1:] for line in lines if " serve " not in line]


@pytest.fixture
def server() -> Iterator[Server]:
    with running_server("valkey") as started:
        yield started


def test_commands_of_the_page_work(server: Server, tmp_path: Path) -> None:
    (tmp_path / "passwords").mkdir()
    for name in ("admin.secret", "front-ends.secret", "passwords/acme"):
        (tmp_path / name).write_text("secret")
    environment = {**os.environ, "KORVET_REDIS": server.url}
    load = [sys.executable, "-m", "korvet.cli", "functions", "load"]
    subprocess.run(load, env=environment, check=True, timeout=WITHIN_S, capture_output=True)
    said = []
    for words in commands():
        command = [sys.executable, "-m", "korvet.cli", *words]
        done = subprocess.run(command, env=environment, cwd=tmp_path, timeout=WITHIN_S, capture_output=True, text=True)
        assert done.returncode == 0, (words, done.stderr)
        said.append(done.stdout)
    assert len(said) == 9
    assert "acme" in said[2] and "bytes=10000000000" in said[2] and "User:admin" in said[2]
    assert "partitions=2000" in said[3] and "topics" not in said[3]
    with server.client() as client:
        assert list(client.scan_iter(match="korvet:{acme:*")) == []
        for line in said[-2:]:
            client.execute_command(*line.split())
        assert {"korvet", "korvet-acme"} <= set(client.acl_users())
