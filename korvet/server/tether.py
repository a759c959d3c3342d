"""Run a program that gets SIGTERM when this process's parent dies: ``python -I -S tether.py PARENT_PID PROGRAM ARGS…``

Linux only (PR_SET_PDEATHSIG survives exec); elsewhere the program is run as it is. Run as a file, so that it starts in
milliseconds and imports nothing of korvet.
"""

import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def _tie_to_parent(parent_pid: int) -> None:
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent_pid:
        # The parent died before the kernel was told.
        sys.exit(1)


if __name__ == "__main__":
    _tie_to_parent(int(sys.argv[1]))
    os.execv(sys.argv[2], sys.argv[2:])
