"""The programs in examples/ run as their README says, against one broker, twice each."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from korvet.store.library import library_source
from tests.kafka.example_builds import EXAMPLES, go_example, java_example, node_example, rust_example
from tests.support.broker import KorvetServer
from tests.support.redis import running_server

pytestmark = pytest.mark.all

WITHIN_S = 120.0


def python(name: str) -> Callable[[], list[str]]:
    return lambda: [sys.executable, str(EXAMPLES / "python" / name)]


PROGRAMS: dict[str, tuple[Callable[[], list[str]], str]] = {
    "confluent": (python("orders_confluent.py"), "read 10 orders of 450 in all"),
    "aiokafka": (python("orders_aiokafka.py"), "billed 10 orders"),
    "faststream": (python("orders_faststream.py"), "billed 10 orders of 540 in all"),
    "applied": (python("orders_applied.py"), "both have the same"),
    "java": (java_example, "read 10 orders"),
    "node": (node_example, "read 10 orders of 450 in all"),
    "node-applied": (lambda: node_example("orders_applied.js"), "both have the same"),
    "go": (go_example, "read 10 orders"),
    "rust": (rust_example, "read 10 orders"),
}
"""Example -> its command, and its output."""


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    """The address of a Valkey with the library."""
    with running_server("valkey", tcp=True) as server, server.client() as client:
        client.function_load(library_source().decode())
        yield server.tcp_url


@pytest.mark.parametrize("name", PROGRAMS)
def test_example_does_what_it_says_at_each_run(name: str, broker: KorvetServer, redis_url: str) -> None:
    command, said = PROGRAMS[name]
    for _ in range(2):
        done = subprocess.run(
            command(), env={**os.environ, "BROKER": broker.bootstrap, "REDIS": redis_url}, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=WITHIN_S, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, [said]), done.stdout + done.stderr


def test_readme_has_every_example() -> None:
    text = (EXAMPLES / "README.md").read_text()
    files = [path for path in EXAMPLES.rglob("*") if path.name.startswith(("orders", "Orders", "main.", "lake"))]
    assert len(files) == len(PROGRAMS) + 1
    assert [path for path in files if f"({path.relative_to(EXAMPLES)})" not in text] == []
