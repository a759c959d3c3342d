"""A terminal for a command, whose output is read while the command runs, and to its end."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

WITHIN_S = 60.0


class Terminal:
    """Both ends of a pseudo-terminal: ``end`` is the command's, ``shown`` the output read so far."""

    def __init__(self, near: int, end: int) -> None:
        self.end = end
        self.shown = ""
        self._near = near

    def read_until(self, text: str, process: subprocess.Popen[bytes], within_s: float = WITHIN_S) -> str:
        """Read until the terminal shows a text; returns all output. Kills a command that does not show it."""
        deadline = time.monotonic() + within_s
        while text not in self.shown and time.monotonic() < deadline and process.poll() is None:
            self._read(0.1)
        if text not in self.shown:
            process.kill()
            raise AssertionError(f"{text!r} was not shown, but: {self.shown}")
        return self.shown

    def read_to_end(self, process: subprocess.Popen[bytes], within_s: float = WITHIN_S) -> str:
        """Read all output until the command has ended, and return it. The command could not end if no one read it."""
        deadline = time.monotonic() + within_s
        while process.poll() is None and time.monotonic() < deadline:
            self._read(0.1)
        if process.poll() is None:
            process.kill()
            raise AssertionError(f"it has not ended, and showed: {self.shown}")
        while self._read(0):
            pass
        return self.shown

    def _read(self, wait_s: float) -> bool:
        """Read the output that is there; returns whether there was any."""
        if not select.select([self._near], [], [], wait_s)[0]:
            return False
        # On Linux a read from a terminal fails with EIO if no process has its other end open.
        with suppress(OSError):
            read = os.read(self._near, 65536).decode(errors="replace")
            self.shown += read
            return bool(read)
        return False


@contextmanager
def terminal() -> Iterator[Terminal]:
    """A terminal for one command, until the block ends."""
    near, end = pty.openpty()
    try:
        yield Terminal(near, end)
    finally:
        os.close(near)
        os.close(end)
