"""``python -I -S parent_death_signal.py PARENT_PID PROGRAM ARGS…`` runs a program that dies with its parent. No other
user may read its files.

The program gets SIGTERM when the parent dies. That works on Linux, where PR_SET_PDEATHSIG survives exec; elsewhere the
program runs without it. This file imports nothing of korvet, so it starts in milliseconds.
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
        # The parent died before the kernel knew of the signal.
        sys.exit(1)


if __name__ == "__main__":
    _tie_to_parent(int(sys.argv[1]))
    # The data of an embedded server has keys of passwords.
    os.umask(0o077)
    os.execv(sys.argv[2], sys.argv[2:])
