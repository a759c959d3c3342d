"""A bound on the logins that an address may fail: `MOST_AT_ONCE`, and another one each `EVERY_S`."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from korvet.metrics.origins import origin_of

MOST_AT_ONCE: Final = 10
EVERY_S: Final = 6.0
MOST_ADDRESSES: Final = 10_000


class Attempts:
    """Attempts that addresses have left. One that was not refused is given back."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._full_at: OrderedDict[str, float] = OrderedDict()
        """By address, the time at which it has all attempts again; full ones need not be here."""

    def take(self, address: str) -> bool:
        """Whether an address may try a login now."""
        origin, now = origin_of(address), self._clock()
        full_at = max(self._full_at.get(origin, now), now) + EVERY_S
        if full_at - now > MOST_AT_ONCE * EVERY_S:
            return False
        self._full_at[origin] = full_at
        self._full_at.move_to_end(origin)
        if len(self._full_at) > MOST_ADDRESSES:
            self._full_at.popitem(last=False)
        return True

    def give_back(self, address: str) -> None:
        """Forget an attempt that succeeded, or that nobody judged."""
        origin = origin_of(address)
        if origin in self._full_at:
            self._full_at[origin] -= EVERY_S
