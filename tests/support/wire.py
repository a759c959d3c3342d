"""A client that sends raw frames, also frames that no real client sends."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

WITHIN_S = 60.0


def frame(body: bytes) -> bytes:
    """A body with its size in front of it."""
    return struct.pack(">i", len(body)) + body


def request(
    api_key: int, version: int, correlation_id: int, client_id: str | None = "test", body: bytes = b""
) -> bytes:
    """A framed request with a header of version 1 (no tagged fields)."""
    name = b"\xff\xff" if client_id is None else struct.pack(">h", len(client_id)) + client_id.encode()
    return frame(struct.pack(">hhi", api_key, version, correlation_id) + name + body)


class RawClient:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self) -> tuple[int, bytes]:
        """The next answer: its correlation id, and the bytes behind it.

        :raises EOFError: if the server closes the connection instead.
        """
        with anyio.fail_after(WITHIN_S):
            try:
                (size,) = struct.unpack(">i", await self.reader.readexactly(4))
                data = await self.reader.readexactly(size)
            except (asyncio.IncompleteReadError, ConnectionError):
                raise EOFError("the server closed the connection") from None
        return struct.unpack_from(">i", data)[0], data[4:]

    async def is_closed_by_server(self) -> bool:
        """Whether the server closes the connection without another byte, within `WITHIN_S`."""
        with anyio.move_on_after(WITHIN_S):
            try:
                return await self.reader.read(1) == b""
            except ConnectionError:
                return True
        return False


@asynccontextmanager
async def raw_client(port: int, *, receive_buffer_bytes: int = 1 << 16) -> AsyncIterator[RawClient]:
    """A connection, until the block ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=receive_buffer_bytes)
    try:
        yield RawClient(reader, writer)
    finally:
        writer.transport.abort()
