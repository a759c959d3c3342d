"""The buckets of a namespace at one front-end, and the time for which a client that is over a quota has to wait.

Client ids are clients' choice, so the number of buckets is bounded. Full buckets are forgotten; if all are in use,
further clients share one bucket of each rate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from time import monotonic
from typing import Final

from korvet.quotas.bucket import Bucket, RateLimit
from korvet.quotas.rules import Meter, RateLimits, Rules

MOST_BUCKETS: Final = 10_000
"""The users, client ids and addresses that a front-end follows."""
_MOST_METERS: Final = 10_000
_PURGE_S: Final = 1.0
_LEAST_FETCHED_S: Final = 0.1
_INT_MAX: Final = 2**31 - 1
_SHARED: Final = "shared"
"""The first word of a shared bucket's name, for clients beyond the bound."""

Report = tuple[RateLimit, float]
"""A limit, and what was used of it since the last report."""


class Meters:
    """The buckets. ``on_use`` is called on the first use after a report.

    ``share`` is the part of each quota that this front-end may use: 1 while Redis adds up what all of them use.
    """

    def __init__(
        self,
        rules: Rules,
        on_use: Callable[[], None],
        *,
        most: int = MOST_BUCKETS,
        now: Callable[[], float] = monotonic,
    ) -> None:
        self.share = 1.0
        self._rules = rules
        self._on_use = on_use
        self._most = most
        self._now = now
        self._buckets: dict[str, Bucket] = {}
        self._used: dict[str, Bucket] = {}
        self._meters: dict[tuple[str, str], Meter] = {}
        self._purged_at = float("-inf")

    @property
    def rules(self) -> Rules:
        """The quotas. Buckets keep their levels when these change."""
        return self._rules

    @rules.setter
    def rules(self, rules: Rules) -> None:
        self._rules = rules
        self._meters.clear()

    @property
    def window_s(self) -> int:
        """The longest throttle, in seconds, for exceeding a request-time quota."""
        return self._rules.windows.size_s

    def meter(self, principal: str, client_id: str | None) -> Meter:
        """The limits of a client; ``principal`` is as in ``User:alice``."""
        key = principal, client_id or ""
        meter = self._meters.get(key)
        if meter is None:
            if len(self._meters) >= _MOST_METERS:
                self._meters.clear()
            meter = self._meters[key] = self._rules.meter(principal.partition(":")[2], key[1])
        return meter

    def consume(self, limits: RateLimits, amount: float) -> None:
        """Count use of each limit."""
        now = self._now()
        for limit in limits:
            bucket = self._bucket(limit)
            bucket.consume(amount, now, self.share)
            if not self._used:
                self._on_use()
            self._used[bucket.limit.bucket] = bucket

    def wait_s(self, limits: RateLimits) -> float:
        """Seconds that a client with these limits must wait: the longest of the limits' waits."""
        now = self._now()
        return max((self._bucket(limit).wait_s(now, self.share) for limit in limits), default=0.0)

    def most_fetched(self, principal: str, client_id: str | None) -> int:
        """The most bytes that a client may fetch at once: what its bucket has left, or slightly more.

        Its consumers share the bucket: a larger fetch by one would make all of them wait.
        Source: ClientQuotaManager.getMaxValueInQuotaWindow
        """
        now = self._now()
        most: float = _INT_MAX
        for limit in self.meter(principal, client_id).fetch:
            left = self._bucket(limit).level(now, self.share)
            most = min(most, max(left, limit.rate * _LEAST_FETCHED_S))
        return max(1, int(most))

    def connection_wait_s(self, address: str) -> float:
        """Seconds that a new connection from an address must wait: 0 if it is accepted, and only then counted.

        Source: ConnectionQuotas.recordIpConnectionMaybeThrottle
        """
        limits = self._rules.connections(address)
        wait_s = self.wait_s(limits)
        if not wait_s:
            self.consume(limits, 1)
        return min(wait_s, self.window_s)

    def _bucket(self, limit: RateLimit) -> Bucket:
        bucket = self._buckets.get(limit.bucket)
        if bucket is None and len(self._buckets) >= self._most:
            self._purge()
            if len(self._buckets) >= self._most:
                limit = limit._replace(bucket=f"{_SHARED} {limit.bucket.partition(' ')[0]} {limit.rate}")
                bucket = self._buckets.get(limit.bucket)
        if bucket is None:
            bucket = self._buckets[limit.bucket] = Bucket(limit, self._now())
        elif bucket.limit != limit:
            bucket.limit = limit
        return bucket

    def _purge(self) -> None:
        """Drop full buckets; at most once a second, because it scans all of them."""
        now = self._now()
        if now - self._purged_at >= _PURGE_S:
            self._purged_at = now
            self._buckets = {name: bucket for name, bucket in self._buckets.items() if not bucket.is_full(now)}

    # ------------------------------------------------------------------ reports

    @property
    def has_reports(self) -> bool:
        """True if a bucket has use to report."""
        return bool(self._used)

    def reports(self, most: int) -> Iterator[Report]:
        """The use of at most ``most`` buckets since their last report."""
        for name in list(self._used)[:most]:
            bucket = self._used.pop(name)
            yield bucket.limit, bucket.reported()

    def heard(self, levels: Mapping[str, float]) -> None:
        """Take over the levels that Redis returned, by bucket name."""
        now = self._now()
        for name, level in levels.items():
            if (bucket := self._buckets.get(name)) is not None:
                bucket.heard(level, now)

    def __len__(self) -> int:
        return len(self._buckets)
