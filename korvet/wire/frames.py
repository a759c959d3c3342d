"""Kafka's frames out of a byte stream, without I/O: a size as int32, then that many bytes.

Made for ``asyncio.BufferedProtocol``: the transport writes into what `get_buffer` returns, `received` is told how much.
Small frames pass through a scratch buffer that is reused, and are copied out of it as bytes. A frame that is larger
than half of it gets a buffer of its own as soon as its size is known, and the transport receives straight into that;
its bytes are never copied again. A size that is refused is refused before anything is allocated for it. What is
announced is not believed: beyond `TRUSTED_BYTES` a buffer grows, by doubling, only as the bytes arrive. Who has sent a
large frame is believed that much at the next one, up to `MOST_TRUSTED_BYTES`, so that steady producers pay for no
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
DEFAULT_MAX_FRAME_BYTES = 104857600
"""Kafka's socket.request.max.bytes."""


_PROXY = "a PROXY protocol header, which only a listener with proxy-protocol takes"
_OTHER_PROTOCOLS = {
    b"PROX": _PROXY,
    b"\r\n\r\n": _PROXY,
    b"\x16\x03\x01": "TLS, which is not served here",
    b"GET ": "HTTP",
    b"POST": "HTTP",
}
"""What else a connection may begin with, by its first bytes."""


def _nobody(_frame: bytes | memoryview) -> None:
    """Take a frame for a connection that is gone."""


class FrameSplitter:
    """Splits one connection's bytes; whole frames (without their size) go to ``deliver``: small ones as bytes, large
    ones as read-only views."""

    __slots__ = (
        "_deliver", "_got", "_have", "_large", "_large_bytes", "_max_frame_bytes", "_scratch", "_trusted_bytes", "_view"
    )  # fmt: skip

    def __init__(
        self, deliver: Callable[[bytes | memoryview], None], *, max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES
    ) -> None:
        self._deliver = deliver
        self._max_frame_bytes = max_frame_bytes
        self._scratch = bytearray(SCRATCH_BYTES)
        self._view = memoryview(self._scratch)
        self._have = 0
        self._trusted_bytes = TRUSTED_BYTES
        self._large: bytearray | None = None
        self._large_bytes = 0
        self._got = 0

    @property
    def is_inside_large_frame(self) -> bool:
        """Whether the rest of a large frame is awaited."""
        return self._large is not None

    @property
    def missing_bytes(self) -> int:
        """How much of a large frame is awaited; 0 outside of one."""
        return 0 if self._large is None else self._large_bytes - self._got

    @property
    def is_inside_frame(self) -> bool:
        """Whether a frame has begun and not ended: a connection that closes now was cut off."""
        return self._large is not None or self._have > 0

    def discard(self) -> None:
        """Let go of all buffers and of ``deliver``; nothing may be received any more.

        A connection and its splitter hold each other, so without this the memory would wait for a collection of cycles.
        """
        self._deliver = _nobody
        self._large = None
        self._view, self._scratch = memoryview(b""), bytearray()

    def get_buffer(self) -> memoryview:
        """Where the next bytes go; never empty."""
        if self._large is None:
            return self._view[self._have :]
        if self._got == len(self._large):
            self._grow(self._large)
        return memoryview(self._large)[self._got :]

    def received(self, size_bytes: int) -> None:
        """Take note of bytes written into `get_buffer`; delivers every frame that is complete.

        :raises MalformedRequest: for a negative or too large frame size; frames before it have been delivered, and
            nothing more may be received.
        """
        if self._large is None:
            self._have += size_bytes
            try:
                self._split()
            except BaseException:
                # What still comes on a refused connection needs room.
                self._have = 0
                raise
            return
        self._got += size_bytes
        if self._got == self._large_bytes:
            frame, self._large = self._large, None
            self._trusted_bytes = min(max(self._trusted_bytes, self._large_bytes), MOST_TRUSTED_BYTES)
            self._deliver(memoryview(frame).toreadonly())

    def _split(self) -> None:
        view, have, at = self._view, self._have, 0
        while have - at >= 4:
            size: int = _read_size(view, at)[0]
            if not 0 <= size <= self._max_frame_bytes:
                raise MalformedRequest(self._refusal(view[at : at + 4].tobytes(), size))
            end = at + 4 + size
            if end > have:
                if size > SCRATCH_BYTES // 2:
                    self._begin_large(size, view[at + 4 : have])
                    return
                break
            self._deliver(bytes(view[at + 4 : end]))
            at = end
        if at:
            view[: have - at] = view[at:have]
            self._have = have - at

    def _refusal(self, begun: bytes, size_bytes: int) -> str:
        other = _OTHER_PROTOCOLS.get(begun) or _OTHER_PROTOCOLS.get(begun[:3])
        hint = f"; this looks like {other}" if other else ""
        return f"frame of {size_bytes} bytes; up to {self._max_frame_bytes} are taken{hint}"

    def _begin_large(self, size_bytes: int, begun: memoryview) -> None:
        self._large = bytearray(min(size_bytes, self._trusted_bytes))
        self._large_bytes = size_bytes
        self._got = len(begun)
        self._large[: self._got] = begun
        self._have = 0

    def _grow(self, full: bytearray) -> None:
        self._large = bytearray(min(self._large_bytes, 2 * len(full)))
        self._large[: len(full)] = full
