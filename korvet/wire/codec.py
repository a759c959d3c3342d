"""Requests and responses between bytes and Python, by kio's schemas.

A handler reads a request as kio's entity of the request's own version. It lacks the fields of other versions:
``getattr(request, "topic_id", None)``. The handler answers with `Fields`, a mapping by the field names of the newest
version. `encode_response` drops the fields that the answered version lacks, and fills in Kafka's defaults for missing
ones. So one handler serves all versions.
"""

from __future__ import annotations

import datetime
import io
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache, lru_cache
from types import UnionType
from typing import Any, NamedTuple, get_args, get_origin

from kio.index import UnknownEntity, load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from kio.serial.errors import DecodeError
from kio.static.primitive import i16

from korvet.errors import MalformedRequest
from korvet.wire import produce_request
from korvet.wire.shape import (
    LONGEST_ID_BYTES,
    MOST_ELEMENTS,
    MOST_OF_PRODUCE,
    bound_tagged_fields,
    check_shape,
    refuse_id,
)

Fields = Mapping[str, Any]
"""A response by field names; errors are `ErrorCode` or int, times and durations are milliseconds as int."""
Buffers = list[bytes | memoryview]
"""The parts of a response body that was packed by hand; they are written as they are."""


class Refusals(list[bytes | memoryview]):
    """Such a body with errors in it; ``codes`` are their codes."""

    __slots__ = ("codes",)

    def __init__(self, parts: Buffers, codes: Sequence[int]) -> None:
        super().__init__(parts)
        self.codes = codes


def with_codes(parts: Buffers, codes: Sequence[int]) -> Buffers:
    """A body, and the codes of the errors in it, if there are any."""
    return Refusals(parts, codes) if codes else parts


def with_code(body: bytes, code: int) -> Buffers:
    """A body, and the code of the one error in it; 0 is none."""
    return Refusals([body], (code,)) if code else [body]


MOST_LOOKED_AT = 1000
"""The elements of an answer at which `error_codes` looks."""


def error_codes(answer: Mapping[str, Any]) -> Iterator[int]:
    """The error codes of an answer and of the elements within, as far as it looks."""
    waiting: list[Mapping[str, Any]] = [answer]
    for _ in range(MOST_LOOKED_AT):
        if not waiting:
            return
        for name, value in waiting.pop().items():
            if name == "error_code":
                if value:
                    yield int(value)
            elif isinstance(value, list | tuple) and len(waiting) < MOST_LOOKED_AT:
                waiting += [one for one in value[:MOST_LOOKED_AT] if isinstance(one, Mapping)]


API_VERSIONS_KEY = 18
PRODUCE_KEY = 0
FETCH_KEY = 1
MOST_TAG_BYTES = 4096
"""The bound on a header's tagged fields: a connection keeps the header, to compare it with the next one. Real clients
send none there."""
_FIXED_HEADER = struct.Struct(">hhih")
_CORRELATION_ID = struct.Struct(">i")
_HEAD = struct.Struct(">ii")
_TAGGED_HEAD = struct.Struct(">iib")
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class RequestHeader(NamedTuple):
    """The header of a request (RequestHeader v1 and v2); the body starts at ``body_at`` in the frame."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    body_at: int


def is_known(api_key: int, version: int) -> bool:
    """Whether kio has a schema for this request, so that korvet can read and answer it."""
    try:
        _request_schema(api_key, version)
    except (UnknownEntity, KeyError, RuntimeError):
        return False
    return True


@cache
def _request_schema(api_key: int, version: int) -> Any:
    return load_request_schema(api_key, version)


@cache
def response_schema(api_key: int, version: int) -> Any:
    """kio's entity class of a response."""
    return load_response_schema(api_key, version)


@cache
def _request_reader(api_key: int, version: int) -> tuple[Any, Callable[[memoryview, int], tuple[Any, int]]]:
    schema = _request_schema(api_key, version)
    return schema, entity_reader(schema)


@cache
def is_flexible(api_key: int, version: int) -> bool:
    """Whether the version uses compact lengths and tagged fields (KIP-482)."""
    return bool(_request_schema(api_key, version).__flexible__)


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
    if _has_tagged_header(api_key, version):
        at = _skip_tagged_fields(frame, at)
    return RequestHeader(api_key, version, correlation_id, client_id, at)


@lru_cache(maxsize=1024)
def _has_tagged_header(api_key: int, version: int) -> bool:
    return is_known(api_key, version) and is_flexible(api_key, version)


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
    """An UNSIGNED_VARINT (KIP-482) at an index, and the index behind it.

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
    return MOST_OF_PRODUCE if api_key == PRODUCE_KEY else MOST_ELEMENTS


def decode_request(header: RequestHeader, frame: memoryview) -> Any:
    """Read a request's body as kio's entity of its version. ``frame`` must be read-only.

    A large Produce is a `produce_request.ProduceRequest`, whose batches are views of the frame.

    Bytes behind the body do not matter, as in Kafka: librdkafka 2.16 sends three with Metadata v13 for all topics.

    :raises MalformedRequest: when the bytes do not fit the schema.
    """
    if header.api_key == PRODUCE_KEY and len(frame) >= produce_request.LARGE_BYTES:
        return produce_request.decode(header.version, frame[header.body_at :])
    schema, reader = _request_reader(header.api_key, header.version)
    check_shape(schema, frame, header.body_at, most_elements(header.api_key))
    try:
        request, _ = reader(frame[header.body_at :], 0)
    except (DecodeError, ValueError, OverflowError, TypeError) as error:
        raise MalformedRequest(f"body does not fit the schema: {error}") from None
    return request


def encode_response(api_key: int, version: int, correlation_id: int, answer: Fields) -> bytes:
    """A whole response frame, size prefix and header included."""
    write = _response_encoder(api_key, version)
    buffer = io.BytesIO()
    buffer.write(bytes(4) + response_header(api_key, version, correlation_id))
    write(buffer, answer)
    size = buffer.tell()
    buffer.seek(0)
    buffer.write((size - 4).to_bytes(4, "big"))
    return buffer.getvalue()


def encode_error(api_key: int, version: int, correlation_id: int, code: ErrorCode) -> bytes:
    """A whole response frame with an error and nothing else. As in Kafka, numbers without a default are zero, and
    arrays are empty."""
    return encode_response(api_key, version, correlation_id, {**_zeros(api_key, version), "error_code": code})


@cache
def _zeros(api_key: int, version: int) -> Fields:
    without_default = (field for field in fields(response_schema(api_key, version)) if default_of(field) is MISSING)
    return {field.name: () if is_tuple(field.type) else 0 for field in without_default}


def frame_response(api_key: int, version: int, correlation_id: int, body: Buffers) -> Buffers:
    """A whole response frame around a body that was packed by hand."""
    size = sum(map(len, body))
    if has_tagged_response_header(api_key, version):
        return [_TAGGED_HEAD.pack(size + 5, correlation_id, 0), *body]
    return [_HEAD.pack(size + 4, correlation_id), *body]


def response_header(api_key: int, version: int, correlation_id: int) -> bytes:
    """The header of a response: v1 for flexible versions, else v0. ApiVersions always has v0 (KIP-511)."""
    packed = _CORRELATION_ID.pack(correlation_id)
    return packed + b"\x00" if has_tagged_response_header(api_key, version) else packed


@cache
def has_tagged_response_header(api_key: int, version: int) -> bool:
    """Whether the header of a response ends with tagged fields, of which it has none."""
    return api_key != API_VERSIONS_KEY and is_flexible(api_key, version)


@cache
def _response_encoder(api_key: int, version: int) -> Callable[[io.BytesIO, Fields], None]:
    schema = response_schema(api_key, version)
    build, write = builder(schema), entity_writer(schema)
    return lambda buffer, answer: write(buffer, build(answer))


@cache
def has_top_level_error(api_key: int, version: int) -> bool:
    """Whether the response of this version has an error code for the whole request."""
    return any(field.name == "error_code" for field in fields(response_schema(api_key, version)))


Convert = Callable[[Any], Any]


@cache
def builder(schema: type[Any]) -> Callable[[Fields], Any]:
    """A function that makes an entity of ``schema`` from `Fields`."""
    converters: list[tuple[str, Convert | None, Any]] = [
        (field.name, converter(field), default_of(field)) for field in fields(schema)
    ]

    def build(values: Fields) -> Any:
        arguments = {}
        for name, convert, default in converters:
            value = values.get(name, default)
            if value is MISSING:
                raise TypeError(f"{schema.__module__}.{schema.__name__} needs a value for {name}")
            arguments[name] = value if convert is None or value is default else convert(value)
        return schema(**arguments)

    return build


def default_of(field: Field[Any]) -> Any:
    """The value of a field that the handler left out; MISSING if the handler has to give it."""
    if field.default is not MISSING:
        return field.default
    if get_origin(field.type) is tuple:
        return ()
    return _DEFAULTS.get(str(field.metadata.get("kafka_type")), MISSING)


def converter(field: Field[Any]) -> Convert | None:
    """The function that turns a handler's value into kio's; None if both are the same."""
    nested = nested_schema(field.type)
    if nested is not None:
        build = builder(nested)  # type: ignore[arg-type]
        if is_tuple(field.type):
            return lambda items: None if items is None else tuple(map(build, items))
        return lambda value: None if value is None else build(value)
    kafka_type = str(field.metadata.get("kafka_type", ""))
    if is_tuple(field.type):
        return _as_tuple
    return _CONVERTERS.get(kafka_type)


def _as_tuple(items: Sequence[Any] | None) -> tuple[Any, ...] | None:
    return None if items is None else tuple(items)


def _error_code(value: int) -> ErrorCode:
    return ErrorCode(i16(value))


def _timedelta(milliseconds: int) -> datetime.timedelta:
    return datetime.timedelta(milliseconds=milliseconds)


def _datetime(milliseconds: int) -> datetime.datetime:
    # An unknown time is -1, for not every schema's field may be None.
    return _EPOCH + datetime.timedelta(milliseconds=milliseconds)


_CONVERTERS: dict[str, Convert] = {
    "error_code": _error_code,
    "timedelta_i32": _timedelta,
    "timedelta_i64": _timedelta,
    "datetime_i64": _datetime,
}


_DEFAULTS: dict[str, Any] = {
    "string": "",
    "bytes": b"",
    "bool": False,
    "uuid": None,
    "error_code": ErrorCode.none,
    "timedelta_i32": datetime.timedelta(0),
}


def is_tuple(kind: Any) -> bool:
    """Whether a field's type is an array, nullable or not."""
    return any(get_origin(option) is tuple for option in _options(kind))


def nested_schema(kind: Any) -> type[Any] | None:
    """The entity class of a field's type, or of its elements; None if it has none."""
    for option in _options(kind):
        inner = get_args(option)[0] if get_origin(option) is tuple else option
        if is_dataclass(inner) and isinstance(inner, type):
            return inner
    return None


def _options(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if isinstance(kind, UnionType) else (kind,)
