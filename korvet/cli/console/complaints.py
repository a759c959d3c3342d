"""Lines about the broker on the console's output: few, whatever strangers and pages that refresh themselves ask for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from math import inf

import structlog

log = structlog.get_logger()


class Complaints:
    """One line in ``every_s``. Any thread may complain."""

    def __init__(self, every_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._every_s = every_s
        self._clock = clock
        self._lock = threading.Lock()
        self._next_at = -inf

    def say(self, text: str) -> None:
        """Write a line, unless there was one a moment ago."""
        with self._lock:
            now = self._clock()
            if now < self._next_at:
                return
            self._next_at = now + self._every_s
        # The log does not wait for a pipe that nobody reads, as a line on stderr would.
        log.error(text)
