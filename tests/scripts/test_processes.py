"""What the bench counts of processes."""

import shutil
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from scripts.benchmark.processes import resident_mb

# A copy of itself, with the same words, that reads until the end.
LOOP = 'if [ -n "$DEEP" ]; then read word; else DEEP=1 "$0" -c "$1" "$0" "$1"; true; fi'


def test_memory_of_java_counts_once_while_it_makes_a_process(tmp_path: Path) -> None:
    java = tmp_path / "java"
    shutil.copy(Path("/bin/sh").resolve(), java)
    words = [str(java), "-c", LOOP, str(java), LOOP]
    with subprocess.Popen(words, stdin=subprocess.PIPE) as process:
        try:
            shell, deadline = psutil.Process(process.pid), time.monotonic() + 30
            while not [child for child in shell.children() if child.cmdline() == words]:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            assert resident_mb([process.pid]) == pytest.approx(shell.memory_info().rss / 1e6, rel=0.2)
        finally:
            assert process.stdin is not None
            process.stdin.close()
