"""A token bucket that may be in debt. Without I/O.

A bucket fills at the quota's rate, up to its capacity. Use is taken out of it after the fact, so its level may fall
below zero. The level's way back to zero is the throttle time: the surplus over the quota, divided by the quota. That is
KIP-219's throttle time, too: (rate - quota) / quota, times the window.

Kafka measures rates of bytes and of request time over windows. A client may then use a whole window's worth at once,
and again when that leaves the window. A bucket allows the same at once, but later no more than the rate.

Source: QuotaUtils.throttleTime, TokenBucket; KIP-13, KIP-219, KIP-599
"""

from __future__ import annotations

from typing import NamedTuple


class RateLimit(NamedTuple):
    """A limit of one bucket: its name in Redis, its rate a second, and its capacity."""

    bucket: str
    rate: float
    capacity: float


class Bucket:
    """A front-end's view of a bucket. Times are seconds of one clock.

    ``used`` is what the front-end has taken since it last reported.
    """

    __slots__ = ("_at", "_level", "limit", "used")

    def __init__(self, limit: RateLimit, now: float) -> None:
        self.limit = limit
        self.used = 0.0
        self._level = limit.capacity
        self._at = now

    def level(self, now: float, share: float = 1.0) -> float:
        """The tokens left; negative while in debt.

        :param share: the part of the rate at which the bucket fills.
        """
        limit = self.limit
        self._level = min(limit.capacity, self._level + limit.rate * share * max(0.0, now - self._at))
        self._at = now
        return self._level

    def consume(self, amount: float, now: float, share: float = 1.0) -> None:
        """Take ``amount`` out, even into debt."""
        self._level = self.level(now, share) - amount
        self.used += amount

    def wait_s(self, now: float, share: float = 1.0) -> float:
        """Seconds until the debt is paid; 0 without debt."""
        level = self.level(now, share)
        return -level / (self.limit.rate * share) if level < 0 else 0.0

    def reported(self) -> float:
        """The use since the last report; reporting resets it."""
        used, self.used = self.used, 0.0
        return used

    def heard(self, level: float, now: float) -> None:
        """Take over the level of all front-ends together, less the use since the last report."""
        self._level = min(self.limit.capacity, level) - self.used
        self._at = now

    def is_full(self, now: float) -> bool:
        """True if the bucket may be dropped: nothing to report, and a new one would be equal."""
        return not self.used and self.level(now) >= self.limit.capacity
