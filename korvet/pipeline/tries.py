"""When work that failed is done again."""

from __future__ import annotations

import time
from typing import Final

MOST: Final = 8
"""Failures in a row after which a passing one counts as one that stays. The waits between them take two minutes."""
_FIRST_S: Final = 1.0
_LONGEST_S: Final = 60.0


class Tries:
    """The failures in a row of some work: the next try comes after 1 s, 2 s, 4 s, and so on up to a minute."""

    def __init__(self) -> None:
        self._failed = 0
        self._next = 0.0

    @property
    def are_used_up(self) -> bool:
        return self._failed >= MOST

    @property
    def is_due(self) -> bool:
        """True if the work may be done now."""
        return time.monotonic() >= self._next

    def succeed(self) -> None:
        self._failed, self._next = 0, 0.0

    def fail(self) -> float:
        """Count a failure; returns the seconds until the next try."""
        wait_s = min(_FIRST_S * 2.0 ** min(self._failed, MOST), _LONGEST_S)
        self._failed += 1
        self._next = time.monotonic() + wait_s
        return wait_s
