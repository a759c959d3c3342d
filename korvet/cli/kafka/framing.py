"""Requests and answers as frames on a blocking socket."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode
from kio.serial import entity_reader
from kio.serial.errors import DecodeError, SerialError

from korvet.errors import KorvetError
from korvet.wire.schema import element_of
from korvet.wire.writer import Fields, compiled, default_of, run

MAX_FRAME_BYTES: Final = 100 * 1024 * 1024
_PIECE_BYTES: Final = 1 << 20
_HEADER: Final = struct.Struct(">hhih")


class Request(NamedTuple):
    """A request: kio's class of it, and its fields by their names."""

    schema: Any
    fields: Fields


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


def request(api: str, version: int, **fields: Any) -> Request:
    """A request by kio's names of its fields: mappings for nested ones, times in ms, and records as a list of buffers.

    A text, a flag or an array that is left out is empty. Names that the version does not know are left out.
    """
    return Request(schema(api, version, "Request"), fields)


@cache
def answer_class(api: str, version: int) -> Any:
    """kio's class of an API's answers. A field that only later versions have is at its default, as in Kafka."""

    def default(part: Any, name: str) -> Any:
        try:
            return _defaults(api)[type(part).__name__, name]
        except KeyError:
            raise AttributeError(f"{type(part).__name__} of {api} has no {name} in any version") from None

    answer = schema(api, version, "Response")
    for part in _parts(answer):
        part.__getattr__ = default
    return answer


@cache
def _defaults(api: str) -> Mapping[tuple[str, str], Any]:
    """The defaults of the fields of an API's newest answers, by the names of their classes and their own."""
    versions = iter_modules(import_module(f"kio.schema.{api}").__path__)
    newest = schema(api, max(int(version.name[1:]) for version in versions), "Response")
    found = {(part.__name__, field.name): _default_of(field) for part in _parts(newest) for field in fields(part)}
    return {names: default for names, default in found.items() if default is not MISSING}


def _default_of(field: Field[Any]) -> Any:
    if field.metadata.get("kafka_type") == "error_code":
        return ErrorCode.none
    return default_of(field) if field.default is MISSING else field.default


def _parts(entity: Any) -> Iterator[Any]:
    """A class of kio's, and those of its fields."""
    yield entity
    for field in fields(entity):
        if (element := element_of(field.type)) is not None:
            yield from _parts(element)


def answer_to(request: Request) -> Any:
    """The class of a request's answers."""
    _, _, api, version, _ = request.schema.__module__.split(".")
    return answer_class(api, int(version[1:]))


def encode(request: Request, correlation_id: int, client_id: str) -> bytes:
    """The frame of a request.

    :raises KeyError: if a number is missing.
    :raises KorvetError: if a number or a text is too large, or a text has no UTF-8.
    """
    schema, name = request.schema, client_id.encode()
    header = _HEADER.pack(schema.__api_key__, schema.__version__, correlation_id, len(name)) + name
    try:
        fields = run(compiled(schema)(request.fields, []))
    except (struct.error, OverflowError, UnicodeEncodeError) as error:
        api = schema.__name__.removesuffix("Request")
        raise KorvetError(f"a name or number that was given does not fit into {api}: {error}") from None
    body = b"".join((header, bytes(bool(schema.__flexible__)), *fields))
    return len(body).to_bytes(4) + body


def decode(answer: Any, frame: bytes) -> Any:
    """The answer of a class in a frame without its size.

    :raises DecodeError: if it is none.
    """
    try:
        _, at = entity_reader(answer.__header_schema__)(frame, 0)
        return entity_reader(answer)(frame, at)[0]
    except (SerialError, ValueError) as error:
        # kio has a ValueError for an error code that is newer than its own.
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
