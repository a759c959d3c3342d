"""Turns for connections that receive large frames, because unfinished frames take the process's memory.

Small frames pass through a buffer that all connections share. Large frames get turns by their announced sizes. Turns
go alternately to the frame that has waited longest and to the newest one, so a crowd keeps no newcomer out. A
connection reads nothing until its turn comes. While others wait, a connection is closed if it has a turn and stands
still, the longest still first. A connection that hardly sends is closed too: some bytes a minute would keep all large
frames out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

_STEP_BYTES = 4 << 10
"""A connection with less progress than this counts as stalled."""
_LEAST_PROGRESS_BYTES = 32 << 10
"""The minimum that a connection with a turn has to send between two calls of `LargeFrames.find_stalled`."""
_MOST_LOOKS = 60
"""The most such calls for one frame; otherwise the largest frames would keep others out for hours."""


class Receiving(Protocol):
    """A connection inside a large frame."""

    @property
    def missing_bytes(self) -> int:
        """The bytes of the frame that have not arrived."""

    @property
    def is_reading(self) -> bool:
        """True if it reads from its client."""

    def read_on(self) -> None:
        """Read from the client if that is allowed now."""

    def begin_large_frame(self) -> None:
        """Begin to read the frame: its turn has come."""


@dataclass(slots=True)
class _FrameWithTurn:
    """A frame with a turn: its size, and its missing bytes when it was last seen to move."""

    size_bytes: int
    missing_bytes: int
    moved_at: float


class LargeFrames:
    """The turns of large frames. One frame always has a turn, however large it is."""

    def __init__(self, bound_bytes: int) -> None:
        self._bound_bytes = bound_bytes
        self._taken_bytes = 0
        self._turns: dict[Receiving, _FrameWithTurn] = {}
        self._missing: dict[Receiving, int] = {}
        self._waiting: dict[Receiving, int] = {}
        self._is_newest_next = False

    @property
    def taken_bytes(self) -> int:
        """The bytes of all frames with a turn."""
        return self._taken_bytes

    def enter(self, connection: Receiving, size_bytes: int) -> None:
        """Begin a frame. `Receiving.begin_large_frame` is called when its turn comes, which may be at once."""
        self._waiting[connection] = size_bytes
        self._admit()

    def leave(self, connection: Receiving) -> None:
        """End a connection's frame, or give it up; nothing happens if it has none."""
        self._waiting.pop(connection, None)
        self._missing.pop(connection, None)
        if (turn := self._turns.pop(connection, None)) is not None:
            self._taken_bytes -= turn.size_bytes
        self._admit()

    def _admit(self) -> None:
        while self._waiting:
            connection = next(reversed(self._waiting) if self._is_newest_next else iter(self._waiting))
            size_bytes = self._waiting[connection]
            if self._turns and self._taken_bytes + size_bytes > self._bound_bytes:
                return
            del self._waiting[connection]
            self._turns[connection] = _FrameWithTurn(size_bytes, size_bytes, float("inf"))
            self._is_newest_next = not self._is_newest_next
            self._taken_bytes += size_bytes
            connection.begin_large_frame()

    def find_still(self, now: float, still_s: float) -> list[Receiving]:
        """Connections without progress for ``still_s``, longest first: enough to make room for all that wait."""
        still = []
        for connection, turn in self._turns.items():
            missing_bytes = connection.missing_bytes
            if turn.moved_at > now or turn.missing_bytes - missing_bytes >= _STEP_BYTES or not connection.is_reading:
                turn.missing_bytes, turn.moved_at = missing_bytes, now
            elif now - turn.moved_at >= still_s:
                still.append((turn.moved_at, turn.size_bytes, connection))
        wanted_bytes = self._taken_bytes + sum(self._waiting.values()) - self._bound_bytes if self._waiting else 0
        found = []
        for _, size_bytes, connection in sorted(still, key=lambda one: one[0]):
            if wanted_bytes <= 0:
                break
            found.append(connection)
            wanted_bytes -= size_bytes
        return found

    def find_stalled(self) -> list[Receiving]:
        """The connections that sent hardly anything since the last call; none while no connection waits."""
        before, self._missing = self._missing, {one: one.missing_bytes for one in self._turns if one.is_reading}
        if not self._waiting:
            return []
        return [
            one
            for one, missing in self._missing.items()
            if before.get(one, 1 << 62) - missing
            < max(_LEAST_PROGRESS_BYTES, self._turns[one].size_bytes // _MOST_LOOKS)
        ]
