"""Rate-limited lines about the broker on the console's output, since visitors and self-refreshing pages cause many."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import structlog

from korvet.rate_limited_log import LineBudget

log = structlog.get_logger()


class Complaints:
    """One line in ``every_s``. Any thread may complain."""

    def __init__(self, every_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._lock = threading.Lock()
        self._budget = LineBudget(1, every_s, clock)

    def say(self, text: str) -> None:
        """Write a line, unless there was one a moment ago."""
        with self._lock:
            if self._budget.take(None) is None:
                return
        # The log does not wait for a pipe that nobody reads, as a line on stderr would.
        log.error(text)
