"""The Python processes in which Spark's tasks run, found among the descendants of a driver."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress

_DAEMON = "pyspark.daemon"


def python_processes(driver: int) -> dict[int, int]:
    """The processes that Spark started for Python code, of this driver alone: pid -> the parent's pid."""
    shown = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
    rows = [(int(pid), int(parent), command) for pid, parent, command in map(_columns, shown.splitlines())]
    found = {driver}
    while more := {pid for pid, parent, _ in rows if parent in found} - found:
        found |= more
    return {pid: parent for pid, parent, command in rows if pid in found and _DAEMON in command}


def kill_workers(driver: int) -> list[int]:
    """Kill (-9) those of them that run tasks, or are ready to; returns their pids."""
    processes = python_processes(driver)
    workers = [pid for pid, parent in processes.items() if parent in processes]
    for pid in workers:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return workers


def _columns(line: str) -> tuple[str, str, str]:
    pid, parent, command = line.split(None, 2)
    return pid, parent, command
