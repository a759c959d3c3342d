"""Kafka's frames in a byte stream, without I/O: a size as int32, then that many bytes.

The splitter serves an ``asyncio.BufferedProtocol``: the transport writes into `get_buffer`, and passes the number of
bytes to `received`.

- Small frames pass through a scratch buffer, which all connections of a loop may share. They are copied out of it as
  bytes; the splitter keeps only the beginning of an unfinished frame.
- A frame larger than half of the scratch buffer gets its own buffer as soon as its size is known. The transport
  receives straight into that, and its bytes are never copied again.
- A size that is too large is refused before memory is allocated for it.
- An announced size is not trusted: beyond `TRUSTED_BYTES` a buffer grows, by doubling, only as the bytes arrive. After
  a large frame, its size is trusted for the next one, up to `MOST_TRUSTED_BYTES`. So steady producers pay for no
  growth.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from korvet.errors import MalformedRequest

_read_size = struct.Struct(">i").unpack_from
SCRATCH_BYTES = 1 << 16
TRUSTED_BYTES = 128 << 10
MOST_TRUSTED_BYTES = 2 << 20
"""The memory that is given to an announced frame at once, after frames of that size."""


_PROXY = "a PROXY protocol header, which only a listener with proxy-protocol takes"
_OTHER_PROTOCOLS = {
    b"PROX": _PROXY,
    b"\r\n\r\n": _PROXY,
    b"\x16\x03\x01": "TLS, which this listener does not speak",
    b"GET ": "HTTP",
    b"POST": "HTTP",
}
"""Other protocols, by the first bytes of a connection."""


def _nobody(_frame: bytes | memoryview) -> None:
    """Drop a frame of a connection that has ended."""


class FrameSplitter:
    """The splitter of one connection's bytes. Whole frames, without their size, go to ``deliver``: small ones as bytes,
    large ones as read-only views. If it returns true, the frames that have arrived wait for `go_on`, and until then no
    bytes may be received."""

    __slots__ = (
        "_begun", "_deliver", "_got", "_large_bytes", "_max_frame_bytes", "_trusted_bytes", "_view", "large",
    )  # fmt: skip

    def __init__(
        self,
        deliver: Callable[[bytes | memoryview], object],
        *,
        max_frame_bytes: int,
        scratch: memoryview | None = None,
    ) -> None:
        self._deliver = deliver
        self._max_frame_bytes = max_frame_bytes
        self._view = memoryview(bytearray(SCRATCH_BYTES)) if scratch is None else scratch
        self._begun = b""
        self._trusted_bytes = TRUSTED_BYTES
        self.large: bytearray | None = None
        """The buffer of a large frame that has begun and not ended."""
        self._large_bytes = 0
        self._got = 0

    @property
    def missing_bytes(self) -> int:
        """The bytes of a large frame that have not arrived; 0 outside of one."""
        return 0 if self.large is None else self._large_bytes - self._got

    @property
    def begun(self) -> bytes:
        """The received bytes of undelivered frames, except of a large one."""
        return self._begun

    def bound(self, max_frame_bytes: int) -> None:
        """Accept frames of up to so many bytes from now on."""
        self._max_frame_bytes = max_frame_bytes

    def discard(self) -> None:
        """Let go of all buffers and of ``deliver``. No bytes may be received later.

        A connection and its splitter hold each other, so without this the memory would wait for a collection of cycles.
        """
        self._deliver = _nobody
        self.large = None
        self._view, self._begun = memoryview(bytearray(1)), b""

    def get_buffer(self) -> memoryview:
        """The memory for the next bytes, never empty. It is valid until another connection gets the same buffer."""
        if self.large is None:
            if not self._begun:
                return self._view
            self._view[: len(self._begun)] = self._begun
            return self._view[len(self._begun) :]
        if self._got == len(self.large):
            self._grow(self.large)
        return memoryview(self.large)[self._got :]

    def received(self, size_bytes: int) -> None:
        """Take bytes that were written into `get_buffer`, and deliver every complete frame.

        :raises MalformedRequest: if a frame's size is negative or too large. Earlier frames have been delivered, and no
            more bytes may be received.
        """
        if self.large is None:
            self._split(len(self._begun) + size_bytes)
            return
        self._got += size_bytes
        if self._got == self._large_bytes:
            frame, self.large = self.large, None
            self._trusted_bytes = min(max(self._trusted_bytes, self._large_bytes), MOST_TRUSTED_BYTES)
            self._deliver(memoryview(frame).toreadonly())

    def go_on(self) -> None:
        """Deliver the frames that were held back.

        :raises MalformedRequest: as `received` does.
        """
        have = len(self._begun)
        self._view[:have] = self._begun
        self._split(have)

    def _split(self, have: int) -> None:
        view, at, self._begun = self._view, 0, b""
        is_held: object = False
        while have - at >= 4 and not is_held:
            size: int = _read_size(view, at)[0]
            if not 0 <= size <= self._max_frame_bytes:
                raise MalformedRequest(self._refusal(view[at : at + 4].tobytes(), size))
            end = at + 4 + size
            if end > have:
                if size > SCRATCH_BYTES // 2:
                    self._begin_large(size, view[at + 4 : have])
                    return
                break
            is_held = self._deliver(bytes(view[at + 4 : end]))
            at = end
        if at < have:
            self._begun = bytes(view[at:have])

    def _refusal(self, begun: bytes, size_bytes: int) -> str:
        other = _OTHER_PROTOCOLS.get(begun) or _OTHER_PROTOCOLS.get(begun[:3])
        hint = f"; this looks like {other}" if other else ""
        return f"frame of {size_bytes} bytes; up to {self._max_frame_bytes} are taken{hint}"

    def _begin_large(self, size_bytes: int, begun: memoryview) -> None:
        self.large = bytearray(min(size_bytes, self._trusted_bytes))
        self._large_bytes = size_bytes
        self._got = len(begun)
        self.large[: self._got] = begun

    def _grow(self, full: bytearray) -> None:
        self.large = bytearray(min(self._large_bytes, 2 * len(full)))
        self.large[: len(full)] = full
