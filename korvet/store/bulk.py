"""A large string out of Redis's replies, received straight into memory of its own, without I/O.

hiredis copies each byte twice, into its buffer and out of it, and uvloop a third time before. For a batch of a megabyte
that is a third of all that a Fetch costs, so the connection takes the strings that GET answers past all three.
"""

from __future__ import annotations

LEAST_BYTES = 16 << 10
"""Below this a string is hiredis's."""
_LONGEST_HEAD = 16
_END = b"\r\n"


class Bulk:
    """A string whose length is known and whose bytes come."""

    __slots__ = ("_buffer", "_got", "_size_bytes", "_view")

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._buffer = bytearray(size_bytes + len(_END))
        self._view = memoryview(self._buffer)
        self._got = 0

    def room(self) -> memoryview:
        """Where the next bytes go; not empty before all are there."""
        return self._view[self._got :]

    def received(self, size_bytes: int) -> bool:
        """Take note of bytes that were written into `room`; whether these were the last."""
        self._got += size_bytes
        return self._got == len(self._buffer)

    def take(self, data: memoryview) -> int:
        """Copy what belongs here; how many bytes these are."""
        size_bytes = min(len(data), len(self._buffer) - self._got)
        self._view[self._got : self._got + size_bytes] = data[:size_bytes]
        self._got += size_bytes
        return size_bytes

    @property
    def is_whole(self) -> bool:
        """Whether all bytes are there."""
        return self._got == len(self._buffer)

    def value(self) -> memoryview:
        """The string, read-only.

        :raises ValueError: when it is not followed by what ends a string.
        """
        if self._buffer[self._size_bytes :] != _END:
            raise ValueError(f"a string of {self._size_bytes} bytes does not end there")
        return self._view[: self._size_bytes].toreadonly()


def begun(data: memoryview) -> tuple[Bulk, int] | None:
    """The large string with which ``data`` begins, and how many bytes its head takes; None where it is anything else,
    or its head is not whole."""
    head = bytes(data[:_LONGEST_HEAD])
    digits, end, _ = head.partition(_END)
    if not end or digits[:1] != b"$" or not digits[1:].isdigit():
        return None
    size_bytes = int(digits[1:])
    return None if size_bytes < LEAST_BYTES else (Bulk(size_bytes), len(digits) + len(_END))
