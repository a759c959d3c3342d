"""Requests and answers as frames on a blocking socket."""

from __future__ import annotations

import io
import socket
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, Final

from kio.serial import entity_reader, entity_writer
from kio.serial.errors import DecodeError, SerialError
from kio.static.protocol import RequestPayload

from korvet.wire.codec import builder

MAX_FRAME_BYTES: Final = 100 * 1024 * 1024
_PIECE_BYTES: Final = 1 << 20


class NoFrame(Exception):
    """The peer sent something else than a frame of Kafka's protocol; ``start`` has its first bytes, if it sent any."""

    def __init__(self, start: bytes) -> None:
        super().__init__(start)
        self.start = start


@cache
def schema(api: str, version: int, kind: str) -> Any:
    """kio's class of an API's requests or responses: ``schema("list_groups", 5, "Request")``."""
    name = "".join(part.capitalize() for part in api.split("_"))
    return getattr(import_module(f"kio.schema.{api}.v{version}"), f"{name}{kind}")


def request(api: str, version: int, **fields: Any) -> RequestPayload:
    """A request by kio's names of its fields: mappings for nested ones, and times in ms.

    A text, a flag or an array that is left out is empty. Names that the version does not know are left out.

    :raises TypeError: if a number is missing.
    """
    made: RequestPayload = builder(schema(api, version, "Request"))(fields)
    return made


def answer_to(request: RequestPayload) -> Any:
    """The class of a request's answers."""
    _, _, api, version, _ = type(request).__module__.split(".")
    return schema(api, int(version[1:]), "Response")


def encode(request: RequestPayload, correlation_id: int, client_id: str) -> bytes:
    """The frame of a request."""
    buffer = io.BytesIO()
    # kio's header types of versions 1 and 2 take the same fields, but mypy sees only their common base.
    header_schema: Any = request.__header_schema__
    header = header_schema(
        request_api_key=request.__api_key__,
        request_api_version=request.__version__,
        correlation_id=correlation_id,
        client_id=client_id,
    )
    _writer(header_schema)(buffer, header)
    _writer(type(request))(buffer, request)
    body = buffer.getvalue()
    return len(body).to_bytes(4) + body


def decode(answer: Any, frame: bytes) -> Any:
    """The answer of a class in a frame without its size.

    :raises DecodeError: if it is none.
    """
    try:
        _, at = _reader(answer.__header_schema__)(frame, 0)
        return _reader(answer)(frame, at)[0]
    except SerialError as error:
        raise DecodeError(str(error)) from error


def receive_frame(peer: socket.socket, most_bytes: int = MAX_FRAME_BYTES) -> bytes:
    """The next frame without its size.

    :raises NoFrame: if the connection ends, or no frame has the size.
    :raises OSError: if the connection breaks.
    """
    start = _receive(peer, 4)
    size = int.from_bytes(start)
    if not 4 <= size <= most_bytes:
        raise NoFrame(start)
    return _receive(peer, size)


def _receive(peer: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = peer.recv(min(size - len(parts), _PIECE_BYTES))
        if not part:
            raise NoFrame(b"")
        parts += part
    return bytes(parts)


@cache
def _writer(schema: Any) -> Callable[[io.BytesIO, Any], None]:
    writer: Callable[[io.BytesIO, Any], None] = entity_writer(schema)
    return writer


@cache
def _reader(schema: Any) -> Callable[[bytes, int], tuple[Any, int]]:
    reader: Callable[[bytes, int], tuple[Any, int]] = entity_reader(schema)
    return reader
