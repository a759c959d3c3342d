"""A guardian for a test run: it ends processes that the run left, even if the run was killed.

Usage: ``python -I -S leftovers.py MARK``. `guard` marks this process's environment, which all its children inherit,
and starts this file beside it. The file waits on its stdin, which ends with the run, and then kills each process that
bears the mark. It works on Linux only, because it reads environments from ``/proc``.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

VARIABLE = "KORVET_TEST_RUN"
_ROUNDS = 50
_PAUSE_S = 0.1


def guard() -> None:
    """Start a guardian that kills all later children of this process when this process has ended. Call it once."""
    if sys.platform != "linux":
        return
    environment = {name: text for name, text in os.environ.items() if name != VARIABLE}
    # The kernel reuses a process id one day, but never the time.
    mark = f"{os.getpid()}-{time.time_ns()}"
    os.environ[VARIABLE] = mark
    read, _never_closed = os.pipe()
    # In a session of its own, Ctrl-C does not reach the guardian.
    guardian = subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, mark],
        stdin=read, stdout=subprocess.DEVNULL, env=environment, start_new_session=True,
    )  # fmt: skip
    os.close(read)
    guardian.returncode = 0  # no code waits for it


def _marked(mark: str) -> Iterator[int]:
    wanted = f"{VARIABLE}={mark}".encode()
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError), open(f"/proc/{name}/environ", "rb") as environ:
                if wanted in environ.read().split(b"\0"):
                    yield int(name)


def _sweep(mark: str) -> None:
    """Kill marked processes until none is left: a killed one may just have started another."""
    for _ in range(_ROUNDS):
        found = list(_marked(mark))
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not found:
            return
        time.sleep(_PAUSE_S)


if __name__ == "__main__":
    sys.stdin.buffer.read()
    _sweep(sys.argv[1])
