"""Connections whose clients do not read their answers, and so hold memory that others need.

An answer that a client has not taken counts against the bound on answers (`korvet.store.log.memory.budget`). While
others wait for memory, or the bound is exceeded, connections that stand still are cut off, until enough memory is free.
A connection stands still if its client took less than a sixtieth of an answer, or less than 32 KiB, in ``stall_s``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

_LEAST_PROGRESS_BYTES = 32 << 10
_MOST_STALLS = 60


class Answered(Protocol):
    """A connection with an answer that its client has not read."""

    @property
    def unsent_bytes(self) -> int:
        """The bytes that its client has to read before it gets more answers."""


One = TypeVar("One", bound=Answered)


class Unread(Generic[One]):
    """Connections whose clients have not read all answers."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._seen: dict[One, tuple[float, int]] = {}

    def add(self, connection: One) -> None:
        """Watch a connection whose answer could not be sent at once."""
        self._seen[connection] = (self._now(), 0)

    def discard(self, connection: One) -> None:
        """Stop watching a connection: its answer was sent, or the connection has ended."""
        self._seen.pop(connection, None)

    def find_in_the_way(self, missing_bytes: int, stall_s: float) -> list[One]:
        """The stalled connections, largest first, until their unread answers add up to ``missing_bytes``."""
        found = []
        for connection, unsent_bytes in sorted(self._look(stall_s), key=lambda pair: -pair[1]):
            if missing_bytes <= 0:
                break
            found.append(connection)
            missing_bytes -= unsent_bytes
        return found

    def _look(self, stall_s: float) -> list[tuple[One, int]]:
        """The stalled connections, and the bytes that each holds. Progress restarts a connection's time."""
        now, still = self._now(), []
        for connection, (since, before) in list(self._seen.items()):
            unsent_bytes = connection.unsent_bytes
            if not before:
                self._seen[connection] = (since, unsent_bytes)
            elif now - since >= stall_s:
                if before - unsent_bytes < max(_LEAST_PROGRESS_BYTES, before // _MOST_STALLS):
                    still.append((connection, unsent_bytes))
                else:
                    self._seen[connection] = (now, unsent_bytes)
        return still
