"""The figures of answered requests, which the connections count themselves.

A request costs two readings of the clock and five additions. All else is computed when somebody asks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence

from korvet.metrics.buckets import REQUEST_BOUNDS_S


class RequestFigures:
    """Requests of one API and version."""

    __slots__ = ("api", "buckets", "charged", "errors", "seconds", "sent", "version")

    def __init__(self, api: str, version: int, errors: Counter[int]) -> None:
        self.api = api
        self.version = version
        self.buckets = [0] * (len(REQUEST_BOUNDS_S) + 1)
        self.seconds = 0.0
        self.charged = 0
        """The bytes of requests, each with the charge for its objects."""
        self.sent = 0
        """The bytes of answers."""
        self.errors = errors
        """Error codes, counted for all versions together."""

    def answered(self, seconds: float, charged: int, sent: int) -> None:
        """Count a request."""
        self.buckets[bisect_left(REQUEST_BOUNDS_S, seconds)] += 1
        self.seconds += seconds
        self.charged += charged
        self.sent += sent

    def failed(self, codes: Sequence[int]) -> None:
        """Count an answer's error codes: one for each partition of all topics, if Redis is away."""
        for code, count in Counter(codes).items():
            self.errors[int(code)] += count


class Requests:
    """The figures of one process."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, int], RequestFigures] = {}
        self._errors: dict[str, Counter[int]] = {}

    def of(self, api: str, version: int) -> RequestFigures:
        """The figures of a version of an API."""
        found = self._of.get((api, version))
        if found is None:
            errors = self._errors.setdefault(api, Counter())
            found = self._of[api, version] = RequestFigures(api, version, errors)
        return found

    def all(self) -> Sequence[RequestFigures]:
        """The figures of each API and version that clients requested."""
        return list(self._of.values())

    def errors(self) -> Mapping[str, Mapping[int, int]]:
        """Error codes with their numbers, by API."""
        return self._errors
