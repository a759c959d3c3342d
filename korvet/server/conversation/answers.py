"""A connection's answers: gathered, written, and counted until the client has read them."""

from __future__ import annotations

import asyncio

from kio.schema.errors import ErrorCode

from korvet.errors import StoreFull, StoreUnavailable
from korvet.server.conversation.states import Conversation
from korvet.store.log.memory.budget import Share

_WRITE_BUFFER_BYTES = 1 << 20
_RECORD_BYTES = 16 << 10
"""The largest payload of a TLS record."""


class Answers:
    """The answers of one connection. ``share`` is its part of the bound on the bytes of answers."""

    def __init__(self, share: Share, conversation: Conversation) -> None:
        self.share = share
        self.transport: asyncio.Transport | None = None
        self._conversation = conversation
        self._loop = asyncio.get_running_loop()
        self.joins_small = False
        """True if small buffers are joined: under TLS each buffer would cost a record and a call of OpenSSL."""
        self.sent_at = self._loop.time()
        self._out: list[bytes | memoryview] = []
        self._out_bytes = 0

    def write(self, frame: list[bytes | memoryview], *, is_last: bool) -> int:
        """Queue an answer. Without a later request it is sent at once. Returns its bytes.

        Otherwise one write sends all answers of a turn of the loop, or each megabyte of them.
        """
        size_bytes = sum(map(len, frame))
        if is_last and not self._out:
            self._out = frame
        else:
            if not self._out:
                self._loop.call_soon(self.flush)
            self._out += frame
            self._out_bytes += size_bytes
        if self.share.held_bytes:
            self.share.leave()
            self.flush()
        elif is_last or self._out_bytes >= _WRITE_BUFFER_BYTES:
            self.flush()
        return size_bytes

    def flush(self) -> None:
        """Write the queued answers."""
        out, self._out, self._out_bytes = self._out, [], 0
        transport = self.transport
        if out and transport is not None and not transport.is_closing():
            self.sent_at = self._loop.time()
            transport.writelines(_joined(out) if self.joins_small else out)
            if self._conversation.is_unread:
                self.share.note_unsent(transport.get_write_buffer_size())
            elif self.share.leaving_bytes:
                self.share.note_unsent(0)

    def release(self) -> None:
        """Give back the share: no Fetch of the client is left, and nothing more is sent to it."""
        self.share.let_go()
        self.share.note_unsent(0)

    @property
    def unsent_bytes(self) -> int:
        """The bytes that the client has to read before it gets more answers."""
        return (
            self.transport.get_write_buffer_size() if self.transport is not None and self._conversation.is_unread else 0
        )


def _joined(buffers: list[bytes | memoryview]) -> list[bytes | memoryview]:
    """The same bytes, with adjacent buffers joined up to the size of a TLS record."""
    joined: list[bytes | memoryview] = []
    small: list[bytes | memoryview] = []
    size = 0
    for buffer in buffers:
        if small and size + len(buffer) > _RECORD_BYTES:
            joined.append(b"".join(small))
            small, size = [], 0
        if len(buffer) >= _RECORD_BYTES:
            joined.append(buffer)
        else:
            small.append(buffer)
            size += len(buffer)
    if small:
        joined.append(b"".join(small))
    return joined


def error_code(error: Exception) -> ErrorCode:
    """The error code for a request whose handler raised an exception."""
    if isinstance(error, StoreUnavailable):
        return ErrorCode.request_timed_out
    if isinstance(error, StoreFull):
        return ErrorCode.kafka_storage_error
    return ErrorCode.unknown_server_error
