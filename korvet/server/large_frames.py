"""Who may receive a large frame now, for what has arrived of unfinished ones is memory of the process.

Small frames pass through a buffer of each connection. Large ones are let in by their announced sizes, first come first
served; a connection whose turn has not come reads nothing. One that has its turn and hardly sends, while others
wait, loses it with its connection: or some bytes a minute would keep everybody's large frames out.
"""

from __future__ import annotations

from typing import Protocol

_LEAST_PROGRESS_BYTES = 32 << 10
"""What one whose turn it is sends at least between two looks at it, where others wait."""
_MOST_LOOKS = 60
"""And at least so great a part of its frame, or the largest frames would be in the way of others for hours."""


class Receiving(Protocol):
    """A connection inside a large frame."""

    @property
    def missing_bytes(self) -> int:
        """How much of the frame is to come."""

    @property
    def is_reading(self) -> bool:
        """Whether it takes what its client sends."""

    def read_on(self) -> None:
        """Read, for the turn has come."""


class LargeFrames:
    """The turns. One frame may always be received, however large."""

    def __init__(self, bound_bytes: int) -> None:
        self._bound_bytes = bound_bytes
        self._taken_bytes = 0
        self._turns: dict[Receiving, int] = {}
        self._missing: dict[Receiving, int] = {}
        self._waiting: dict[Receiving, int] = {}

    def enter(self, connection: Receiving, size_bytes: int) -> bool:
        """Begin a frame; False where the connection has to wait until `Receiving.read_on` is called."""
        self._waiting[connection] = size_bytes
        self._admit(call=False)
        return connection in self._turns

    def holds(self, connection: Receiving) -> bool:
        """Whether the connection's turn has not come."""
        return connection in self._waiting

    def leave(self, connection: Receiving) -> None:
        """End a frame, or give it up; nothing happens where none was begun."""
        self._waiting.pop(connection, None)
        self._missing.pop(connection, None)
        self._taken_bytes -= self._turns.pop(connection, 0)
        self._admit(call=True)

    def _admit(self, *, call: bool) -> None:
        while self._waiting:
            connection, size_bytes = next(iter(self._waiting.items()))
            if self._turns and self._taken_bytes + size_bytes > self._bound_bytes:
                return
            del self._waiting[connection]
            self._turns[connection] = size_bytes
            self._taken_bytes += size_bytes
            if call:
                connection.read_on()

    def find_stalled(self) -> list[Receiving]:
        """Those that are in the way of others and hardly sent since they were last looked at."""
        before, self._missing = self._missing, {one: one.missing_bytes for one in self._turns if one.is_reading}
        if not self._waiting:
            return []
        return [
            one
            for one, missing in self._missing.items()
            if before.get(one, 1 << 62) - missing < max(_LEAST_PROGRESS_BYTES, self._turns[one] // _MOST_LOOKS)
        ]
