"""A bound on the logins that may fail: some at once, and then another one each while."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

MOST_NAMES: Final = 10_000
"""The addresses whose failed logins are counted."""


class Attempts:
    """Attempts that names have left, such as addresses. One that was not refused is given back.

    :param most_at_once: the attempts of a name that has not failed.
    :param every_s: the time after which a name has one more.
    """

    def __init__(self, most_at_once: int, every_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most_at_once, self._every_s = most_at_once, every_s
        self._clock = clock
        self._full_at: OrderedDict[str, float] = OrderedDict()
        """By name, the time at which it has all attempts again; full ones need not be here."""

    def take(self, name: str) -> bool:
        """Whether a name may try a login now, which takes the attempt."""
        if self.wait_s(name):
            return False
        self._full_at[name] = max(self._full_at.get(name, 0.0), self._clock()) + self._every_s
        self._full_at.move_to_end(name)
        if len(self._full_at) > MOST_NAMES:
            self._full_at.popitem(last=False)
        return True

    def wait_s(self, name: str) -> float:
        """The time until a name may try a login."""
        now = self._clock()
        full_at = max(self._full_at.get(name, now), now) + self._every_s
        return max(0.0, full_at - now - self._most_at_once * self._every_s)

    def give_back(self, name: str) -> None:
        """Forget an attempt that succeeded, or that nobody judged."""
        if name in self._full_at:
            self._full_at[name] -= self._every_s
