"""Rate-limited log lines, for what clients can provoke and what lasts: each kind of line has a budget."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any, Final

import structlog

log = structlog.get_logger()

_MOST_KINDS: Final = 1000


class LineBudget:
    """A budget of lines: so many of each kind in a period. No kind takes any from another.

    Clients may choose the kinds, by their addresses for example. So at most a thousand have a budget of their own at a
    time, and all others share one.

    :param most: the lines of a kind in a period.
    :param clock: seconds that never go back.
    """

    def __init__(self, most: int, period_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._period_s = period_s
        self._clock = clock
        self._kinds: dict[Hashable, tuple[float, int]] = {}
        """The begin of each kind's period, and its lines since; the oldest first."""
        self._forgotten = 0
        """Lines left out of kinds that are forgotten."""

    def take(self, kind: Hashable) -> int | None:
        """Count a line: the lines left out before it if it may be written, None if it is left out, too."""
        now = self._clock()
        if kind not in self._kinds and not self._has_room(now):
            kind = None
        began, count = self._kinds.get(kind, (now, 0))
        if count and now - began < self._period_s:
            self._kinds[kind] = began, count + 1
            return 0 if count < self._most else None
        # A new period is the youngest.
        self._kinds.pop(kind, None)
        self._kinds[kind] = now, 1
        left_out, self._forgotten = self._forgotten + max(0, count - self._most), 0
        return left_out

    def _has_room(self, now: float) -> bool:
        """True if one more kind may have a budget of its own; kinds whose periods have ended make room."""
        while len(self._kinds) >= _MOST_KINDS:
            oldest = next(iter(self._kinds))
            began, count = self._kinds[oldest]
            if now - began < self._period_s:
                return False
            del self._kinds[oldest]
            self._forgotten += max(0, count - self._most)
        return True


class RateLimitedLog:
    """A log that writes at most ``most`` lines of an event in ``period_s`` seconds.

    The next line of the event has the number of those that were left out.
    """

    def __init__(self, most: int = 1, period_s: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        self.counts: Counter[str] = Counter()
        """The lines of each event, also those that were left out."""
        self._budget = LineBudget(most, period_s, clock)

    def write(self, level: str, event: str, **values: Any) -> None:
        """Write the line at the level, or count it."""
        self.counts[event] += 1
        left_out = self._budget.take(event)
        if left_out is not None:
            getattr(log, level)(event, **values, **({"left_out": left_out} if left_out else {}))
