"""Connections whose requests queue up after one that waits, while the process can read no more requests.

Queued requests count against the bound on requests in flight. A Fetch or a JoinGroup may wait for as long as its client
says, and a client may leave its answers unread. The requests that such a client sends later wait too. While requests in
flight are over the bound, connections whose requests did not move for ``stall_s`` are cut off, the largest first. A
connection that waits for Redis is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar


class Queueing(Protocol):
    """A connection with requests in flight."""

    @property
    def charged_bytes(self) -> int:
        """The memory of its requests in flight."""

    @property
    def waits_with(self) -> object | None:
        """The request that holds up its others; None if none waits, or if it waits for Redis."""


One = TypeVar("One", bound=Queueing)


class StalledRequests(Generic[One]):
    """The connections whose requests make no progress."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._seen: dict[One, tuple[object, float]] = {}

    def find_in_the_way(self, connections: Iterable[One], excess_bytes: int, stall_s: float) -> list[One]:
        """The stalled connections, largest first, until their requests add up to ``excess_bytes``."""
        if excess_bytes <= 0:
            self._seen.clear()
            return []
        found = []
        for connection in sorted(self._look(connections, stall_s), key=lambda one: -one.charged_bytes):
            if excess_bytes <= 0:
                break
            found.append(connection)
            excess_bytes -= connection.charged_bytes
        return found

    def _look(self, connections: Iterable[One], stall_s: float) -> list[One]:
        now, before, self._seen = self._now(), self._seen, {}
        for connection in connections:
            if (head := connection.waits_with) is not None:
                seen = before.get(connection)
                self._seen[connection] = seen if seen is not None and seen[0] is head else (head, now)
        return [connection for connection, (_, since) in self._seen.items() if now - since >= stall_s]
