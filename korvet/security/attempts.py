"""A bound on failed logins: a burst, then one more per interval."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

MOST_NAMES: Final = 10_000
"""The addresses whose failed logins are counted."""


class Attempts:
    """The remaining attempts of each name, such as an address. An attempt that was not refused is given back.

    :param most_at_once: the attempts of a name without failures.
    :param every_s: seconds until a name gains one attempt.
    """

    def __init__(self, most_at_once: int, every_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most_at_once, self._every_s = most_at_once, every_s
        self._clock = clock
        self._full_at: OrderedDict[str, float] = OrderedDict()
        """The time at which each name has all attempts again; absent names have them."""

    def take(self, name: str) -> bool:
        """Take an attempt; false if the name has none left."""
        if self.wait_s(name):
            return False
        self._full_at[name] = max(self._full_at.get(name, 0.0), self._clock()) + self._every_s
        self._full_at.move_to_end(name)
        if len(self._full_at) > MOST_NAMES:
            self._full_at.popitem(last=False)
        return True

    def wait_s(self, name: str) -> float:
        """Seconds until a name has an attempt."""
        now = self._clock()
        full_at = max(self._full_at.get(name, now), now) + self._every_s
        return max(0.0, full_at - now - self._most_at_once * self._every_s)

    def give_back(self, name: str) -> None:
        """Return an attempt that succeeded or was never judged."""
        if name in self._full_at:
            self._full_at[name] -= self._every_s
