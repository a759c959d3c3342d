"""Processes that tests start end with the run of the tests."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WITHIN_S = 60.0
# The script starts a child with a session of its own, as servers have, the child starts another child, and the script
# a Redis.
RUN = """
import subprocess, sys, tempfile, time
from pathlib import Path
from tests.support.leftovers import guard
from tests.support.redis import Server
guard()
grandchild = "import time; print(__import__('os').getpid(), flush=True); time.sleep(600)"
child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {grandchild!r}])"
started = subprocess.Popen([sys.executable, "-c", child], start_new_session=True)
print(started.pid, flush=True)
with tempfile.TemporaryDirectory(prefix="kv") as directory:
    server = Server("redis", Path(directory))
    server.start()
    with server.client() as client:
        print(client.info("server")["process_id"], flush=True)
    sys.stdin.read()
"""


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def ends(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.close()


@pytest.mark.skipif(sys.platform != "linux", reason="environments are read from /proc")
@pytest.mark.parametrize("end", [subprocess.Popen.kill, ends], ids=["killed", "ended"])
def test_processes_of_a_run_end_with_the_run(end: Callable[[subprocess.Popen[str]], None]) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", RUN], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        started = [int(run.stdout.readline()) for _ in range(3)]
        assert all(map(is_alive, started))
        end(run)
        run.wait(WITHIN_S)
        deadline = time.monotonic() + WITHIN_S
        while any(map(is_alive, started)):
            assert time.monotonic() < deadline, f"still there: {[pid for pid in started if is_alive(pid)]}"
            time.sleep(0.02)
