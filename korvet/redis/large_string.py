"""A large string in Redis's replies, received straight into memory of its own. This module does no I/O.

hiredis copies each byte twice, into its buffer and out of it, and uvloop copies it once before. For a batch of a
megabyte these copies are a third of a Fetch's cost. So the connection receives a GET's string without them.
"""

from __future__ import annotations

LEAST_BYTES = 16 << 10
"""The size below which hiredis reads a string."""
_LONGEST_HEAD = 16
_END = b"\r\n"


class Bulk:
    """A string of known length whose bytes are still arriving."""

    __slots__ = ("_buffer", "_size_bytes", "_view", "room")

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._buffer = bytearray(size_bytes + len(_END))
        self._view = memoryview(self._buffer)
        self.room = self._view
        """The memory for the next bytes; empty when all have arrived."""

    def received(self, size_bytes: int) -> bool:
        """Count bytes that were written into `room`; true if they were the last."""
        self.room = self.room[size_bytes:]
        return not self.room

    def feed(self, data: memoryview) -> int:
        """Copy the bytes of ``data`` that belong to this string; their number."""
        size_bytes = min(len(data), len(self.room))
        self.room[:size_bytes] = data[:size_bytes]
        self.received(size_bytes)
        return size_bytes

    def value(self) -> memoryview:
        """The string, read-only.

        :raises ValueError: the bytes after it do not end a string.
        """
        if self._buffer[self._size_bytes :] != _END:
            raise ValueError(f"a string of {self._size_bytes} bytes does not end there")
        return self._view[: self._size_bytes].toreadonly()


def begun(data: memoryview) -> tuple[Bulk, int] | None:
    """The large string at the start of ``data``, and the size of its head in bytes.

    None if ``data`` begins with another reply, or holds only a part of the head.
    """
    head = bytes(data[:_LONGEST_HEAD])
    digits, end, _ = head.partition(_END)
    if not end or digits[:1] != b"$" or not digits[1:].isdigit():
        return None
    size_bytes = int(digits[1:])
    return None if size_bytes < LEAST_BYTES else (Bulk(size_bytes), len(digits) + len(_END))
