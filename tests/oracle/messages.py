"""Requests from plain mappings and answers to plain values, for every version of an API through kio's schemas.

A request is one mapping for all versions: it may have names that a version does not know, which are left out. A field
that the mapping lacks gets the schema's default or zero. A name that no version knows is a mistake in the script.
Durations and times are int milliseconds, error codes their Kafka names, ids uuid.UUID (None for the zero id).
"""

import dataclasses
import datetime
import functools
import io
import struct
import uuid
from collections.abc import Iterator, Mapping
from types import UnionType
from typing import Any, get_args, get_origin

from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import Records, i16, i32, i32Timedelta, i64Timedelta

from korvet.wire.newer import CHANGES, request_class, response_class

CLIENT_ID = "oracle"
_KEYS = {name: key for key, name in api_key_map.items()}
Value = Any  # a tree of dict, list, str, int, bool, bytes, None and uuid.UUID


class ScriptError(Exception):
    """A script names a field that no version of the API has, or gives a value of the wrong shape."""


def _is_entity(kind: object) -> bool:
    return isinstance(kind, type) and dataclasses.is_dataclass(kind)


def _inner(kind: Any) -> Any:
    """The type inside Optional[...], or the type itself."""
    if get_origin(kind) is UnionType:
        return next(a for a in get_args(kind) if a is not type(None))
    return kind


def _convert(kind: Any, value: Value, path: str) -> Any:
    if value is None:
        return None
    kind = _inner(kind)
    if get_origin(kind) is tuple:
        return tuple(_convert(get_args(kind)[0], item, f"{path}[{i}]") for i, item in enumerate(value))
    if _is_entity(kind):
        return entity(kind, value, path)
    if kind in (i32Timedelta, i64Timedelta):
        return datetime.timedelta(milliseconds=value)
    if kind is ErrorCode:
        return ErrorCode(value)
    return value


def _zero(kind: Any) -> Any:
    if get_origin(kind) is UnionType:
        return None
    if get_origin(kind) is tuple:
        return ()
    if _is_entity(kind):
        return entity(kind, {}, kind.__name__)
    if kind in (i32Timedelta, i64Timedelta):
        return datetime.timedelta(0)
    if kind is ErrorCode:
        return ErrorCode.none
    if kind is bool:
        return False
    if kind is uuid.UUID or kind is Records:
        return None
    return next(zero for base, zero in ((int, 0), (str, ""), (bytes, b"")) if issubclass(kind, base))


def entity(schema: Any, values: Mapping[str, Value], path: str) -> Any:
    """An entity of a schema from a mapping; `path` names the place in error messages."""
    fields = {}
    for field in dataclasses.fields(schema):
        if field.name in values:
            fields[field.name] = _convert(field.type, values[field.name], f"{path}.{field.name}")
        elif field.default is dataclasses.MISSING:
            fields[field.name] = _zero(field.type)
    return schema(**fields)


def _names(schema: Any) -> Iterator[str]:
    for field in dataclasses.fields(schema):
        yield field.name
        kind = _inner(field.type)
        if get_origin(kind) is tuple:
            kind = _inner(get_args(kind)[0])
        if _is_entity(kind):
            yield from _names(kind)


@functools.cache
def _known_names(api: str) -> frozenset[str]:
    key = _KEYS[api]
    versions = {*schema_name_map[api], *(version for changed, version in CHANGES if changed == key)}
    return frozenset(name for version in versions for name in _names(request_class(key, version)))


def _check_names(api: str, values: Value) -> None:
    if isinstance(values, Mapping):
        unknown = set(values) - _known_names(api)
        if unknown:
            raise ScriptError(f"{api} has no field {', '.join(sorted(unknown))} in any version")
        for value in values.values():
            _check_names(api, value)
    elif isinstance(values, list | tuple):
        for value in values:
            _check_names(api, value)


def request_frame(
    api: str, version: int, values: Mapping[str, Value], correlation_id: int, sent_version: int | None = None
) -> bytes:
    """A whole frame, size first. `sent_version` goes into the header instead of the version of the body."""
    _check_names(api, values)
    schema = request_class(_KEYS[api], version)
    buffer = io.BytesIO()
    header_schema: Any = schema.__header_schema__
    header = {
        "request_api_key": i16(_KEYS[api]),
        "request_api_version": i16(version if sent_version is None else sent_version),
        "correlation_id": i32(correlation_id),
        "client_id": CLIENT_ID,
    }
    entity_writer(header_schema)(buffer, header_schema(**header))
    body_values: Any = entity(schema, values, api)
    entity_writer(schema)(buffer, body_values)
    body = buffer.getvalue()
    return struct.pack(">i", len(body)) + body


def _milliseconds(value: datetime.timedelta) -> int:
    return value // datetime.timedelta(milliseconds=1)


def plain(value: Any) -> Value:
    """A decoded entity as a tree of plain values."""
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    if isinstance(value, ErrorCode):
        return value.name.upper()
    if isinstance(value, datetime.timedelta):
        return _milliseconds(value)
    if isinstance(value, datetime.datetime):
        return _milliseconds(value - datetime.datetime.fromtimestamp(0, datetime.UTC))
    return value


def parse_answer(api: str, version: int, frame: bytes, correlation_id: int) -> Value:
    """The tree of an answer's body. Raises ValueError for a wrong correlation id or bytes left over."""
    schema = response_class(_KEYS[api], version)
    if api == "describe_transactions":
        # kio refuses times below 0, and the time of a transactional id without a transaction is -1.
        frame = frame.replace(b"\xff" * 8, bytes(8))
    buffer = memoryview(frame).toreadonly()
    header_schema: Any = schema.__header_schema__
    header, header_size = entity_reader(header_schema)(buffer, 0)
    if header.correlation_id != correlation_id:
        raise ValueError(f"correlation id {header.correlation_id}, sent {correlation_id}")
    body, body_size = entity_reader(schema)(buffer, header_size)
    if header_size + body_size != len(frame):
        raise ValueError(f"{len(frame) - header_size - body_size} bytes after the answer")
    return plain(body)
