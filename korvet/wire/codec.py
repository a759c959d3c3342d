"""Requests between bytes and Python, by kio's schemas.

A handler reads a request as the type of all its versions (`korvet.wire.requests`), and answers by the newest version's
field names (`korvet.wire.writer`). So one handler serves all versions.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, cast

from kio.serial import entity_reader
from kio.serial.errors import DecodeError

from korvet.errors import MalformedRequest
from korvet.wire import produce_request
from korvet.wire.requests import Entity
from korvet.wire.schema import (
    PRODUCE_KEY,
    SHARE_ACKNOWLEDGE_KEY,
    SHARE_FETCH_KEY,
    is_flexible,
    is_known,
    request_schema,
)
from korvet.wire.shape import (
    LONGEST_ID_BYTES,
    MOST_ELEMENTS,
    MOST_OF_PRODUCE,
    MOST_OF_SHARES,
    bound_tagged_fields,
    check_shape,
    refuse_id,
)

MOST_TAG_BYTES = 4096
"""The bound on a header's tagged fields: a connection keeps the header, to compare it with the next one. Real clients
send none there."""
_MOST_ELEMENTS = {
    PRODUCE_KEY: MOST_OF_PRODUCE, SHARE_FETCH_KEY: MOST_OF_SHARES, SHARE_ACKNOWLEDGE_KEY: MOST_OF_SHARES
}  # fmt: skip
_FIXED_HEADER = struct.Struct(">hhih")


class RequestHeader(NamedTuple):
    """The header of a request (RequestHeader v1 and v2); the body starts at ``body_at`` in the frame."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    body_at: int


@cache
def _request_reader(api_key: int, version: int) -> tuple[Any, int, Callable[[memoryview, int], tuple[Entity, int]]]:
    schema = request_schema(api_key, version)
    return schema, most_elements(api_key), entity_reader(schema)


def decode_header(frame: memoryview) -> RequestHeader:
    """Read the header of a frame (without its size prefix).

    If the version has no schema, ``body_at`` is just past the client id.

    :raises MalformedRequest: if the frame is shorter than its header, an id is too long, or there are too many tagged
        fields.
    """
    try:
        api_key, version, correlation_id, length = _FIXED_HEADER.unpack_from(frame)
    except struct.error:
        raise MalformedRequest(f"a frame of {len(frame)} bytes is too short for a request header") from None
    at = 10 + max(length, 0)
    if length < -1 or at > len(frame):
        raise MalformedRequest(f"client id of {length} bytes in a frame of {len(frame)}")
    if length > LONGEST_ID_BYTES:
        refuse_id("client_id", length)
    try:
        client_id = None if length < 0 else str(frame[10:at], "utf-8")
    except UnicodeDecodeError:
        raise MalformedRequest("client id is not UTF-8") from None
    if is_known(api_key, version) and is_flexible(api_key, version):
        at = _skip_tagged_fields(frame, at)
    return RequestHeader(api_key, version, correlation_id, client_id, at)


def _skip_tagged_fields(frame: memoryview, at: int) -> int:
    if at < len(frame) and frame[at] == 0:
        return at + 1
    start = at
    count, at = read_unsigned_varint(frame, at)
    bound_tagged_fields(count)
    for _ in range(count):
        _, at = read_unsigned_varint(frame, at)
        size, at = read_unsigned_varint(frame, at)
        at += size
        if at > len(frame):
            raise MalformedRequest("tagged field runs past the end of the frame")
    if at - start > MOST_TAG_BYTES:
        raise MalformedRequest(f"tagged fields of {at - start} bytes in a header; up to {MOST_TAG_BYTES} are taken")
    return at


def read_unsigned_varint(frame: memoryview, at: int) -> tuple[int, int]:
    """An UNSIGNED_VARINT (KIP-482) at an index, and the index after it.

    :raises MalformedRequest: it does not end.
    """
    value = 0
    for shift in range(0, 35, 7):
        if at >= len(frame):
            break
        byte = frame[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise MalformedRequest("unterminated varint in a request header")


def most_elements(api_key: int) -> int:
    """The bound on the elements of an API's request."""
    return _MOST_ELEMENTS.get(api_key, MOST_ELEMENTS)


def decode_request(header: RequestHeader, frame: memoryview) -> Entity:
    """Read a request's body as kio's entity of its version. ``frame`` must be read-only.

    A large Produce is a `produce_request.ProduceRequest`, whose batches are views of the frame.

    As in Kafka, trailing bytes are ignored: librdkafka 2.16 sends three with Metadata v13 for all topics.

    :raises MalformedRequest: when the bytes do not fit the schema.
    """
    if header.api_key == PRODUCE_KEY and len(frame) >= produce_request.LARGE_BYTES:
        return cast(Entity, produce_request.decode(header.version, frame[header.body_at :]))
    schema, most, reader = _request_reader(header.api_key, header.version)
    check_shape(schema, frame, header.body_at, most)
    try:
        request, _ = reader(frame[header.body_at :], 0)
    except (DecodeError, ValueError, OverflowError, TypeError) as error:
        raise MalformedRequest(f"body does not fit the schema: {error}") from None
    return request
