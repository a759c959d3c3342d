"""Lines of the log that clients can provoke, of which each kind has its budget."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Any, Final

import structlog

log = structlog.get_logger()

_PERIOD_S: Final = 60.0
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
        """Whether one more kind may have a budget of its own; kinds whose periods have ended make room."""
        while len(self._kinds) >= _MOST_KINDS:
            oldest = next(iter(self._kinds))
            began, count = self._kinds[oldest]
            if now - began < self._period_s:
                return False
            del self._kinds[oldest]
            self._forgotten += max(0, count - self._most)
        return True


class Seldom:
    """One kind of line, written at most once a minute."""

    def __init__(self, event: str) -> None:
        self._event = event
        self._budget = LineBudget(1, _PERIOD_S)

    def warn(self, **values: Any) -> None:
        """Write it, unless it was written within the last minute."""
        if self._budget.take(self._event) is not None:
            log.warning(self._event, **values)
