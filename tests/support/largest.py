"""Requests of every API and version that are as small as possible, except one array, string or tagged section.

The bytes come from kio's schemas without kio's entities, because some requests here have millions of elements.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import Field, fields, is_dataclass
from types import UnionType
from typing import Any, NamedTuple, get_args, get_origin
from uuid import UUID

from korvet.api import registry
from korvet.wire.newer import request_class

Path = tuple[str, ...]
Values = Mapping[str, Any]
_FIXED = {
    "bool": ">?", "int8": ">b", "int16": ">h", "uint16": ">H", "int32": ">i", "uint32": ">I", "int64": ">q",
    "float64": ">d", "timedelta_i32": ">i", "timedelta_i64": ">q", "datetime_i64": ">q", "error_code": ">h",
}  # fmt: skip


class Location(NamedTuple):
    """An array or a string of a version of an API, named by the fields that lead there."""

    key: int
    version: int
    path: Path
    is_array: bool
    is_entity: bool = False
    """Whether its elements have tagged fields, in versions that know tagged fields."""


def versions() -> list[tuple[int, int]]:
    """All served versions of all APIs."""
    return [
        (api.key, version) for _, api in sorted(registry().items()) for version in range(api.lowest, api.highest + 1)
    ]


def locations(key: int, version: int) -> Iterator[Location]:
    """All arrays and strings of a request, also those inside elements of arrays."""
    yield from _locations(Location(key, version, (), False), request_class(key, version))


def _locations(above: Location, schema: Any) -> Iterator[Location]:
    for field in fields(schema):
        if "tag" in field.metadata:
            continue
        kind, is_array = _element(field)
        here = Location(above.key, above.version, (*above.path, field.name), is_array, is_dataclass(kind))
        if is_array or field.metadata.get("kafka_type") == "string":
            yield here
        if is_dataclass(kind):
            yield from _locations(here, kind)


def _element(field: Field[Any]) -> tuple[Any, bool]:
    kind = _plain(field.type)
    return (_plain(get_args(kind)[0]), True) if get_origin(kind) is tuple else (kind, False)


def _plain(kind: Any) -> Any:
    return next(one for one in get_args(kind) if one is not type(None)) if isinstance(kind, UnionType) else kind


def body(location: Location, count: int, values: Values, *, are_distinct: bool = False) -> bytes:
    """A request's body with ``count`` elements, or bytes of a string, at a location; without a path, the smallest body.

    :param values: the values of the other fields, by name; a function of a number gives each element's value.
    """
    return _Body(values, are_distinct).entity(request_class(location.key, location.version), location.path, count, 0)


def tagged(location: Location, count: int, values: Values) -> bytes:
    """A request's body with ``count`` empty tagged fields, all of number 0, in the entity that a path leads to."""
    return _Body(values, False, tags=(location.path, varint(count) + b"\x00\x00" * count)).entity(
        request_class(location.key, location.version), location.path, 1, 0
    )


def varint(value: int) -> bytes:
    data = bytearray()
    while value > 127:
        data.append(value & 127 | 128)
        value >>= 7
    return bytes((*data, value))


class _Body:
    def __init__(self, values: Values, are_distinct: bool, tags: tuple[Path, bytes] = ((), b"\x00")) -> None:
        self._values = values
        self._are_distinct = are_distinct
        self._tags_path, self._tags = tags

    def entity(self, schema: Any, path: Path, count: int, number: int) -> bytes:
        parts = [
            self._field(field, schema.__flexible__, path[1:] if path[:1] == (field.name,) else None, count, number)
            for field in fields(schema)
            if "tag" not in field.metadata
        ]
        if schema.__flexible__:
            parts.append(b"\x00" if path else self._tags)
        return b"".join(parts)

    def _field(self, field: Field[Any], flexible: bool, path: Path | None, count: int, number: int) -> bytes:
        kind, is_array = _element(field)
        if not is_array:
            if is_dataclass(kind):
                is_null = isinstance(field.type, UnionType) and path is None
                return (
                    b"\xff"
                    if is_null
                    else b"\x01" * isinstance(field.type, UnionType) + self.entity(kind, path or (), count, 0)
                )
            return self._single(field, flexible, path, count, number)
        if path is None:
            return _length(0, flexible, 4)
        if path:
            return _length(1, flexible, 4) + self._of_array(field, kind, flexible, path, count, 0)
        numbers = range(count if self._are_distinct else min(1, count))
        elements = b"".join(self._of_array(field, kind, flexible, (), 0, at) for at in numbers)
        return _length(count, flexible, 4) + (elements if self._are_distinct else elements * count)

    def _of_array(self, field: Field[Any], kind: Any, flexible: bool, path: Path, count: int, number: int) -> bytes:
        if is_dataclass(kind):
            return self.entity(kind, path, count, number)
        return self._single(field, flexible, None, 0, number)

    def _single(self, field: Field[Any], flexible: bool, path: Path | None, count: int, number: int) -> bytes:
        kafka_type, value = str(field.metadata["kafka_type"]), self._values.get(field.name, 0)
        value = value(number) if callable(value) else value
        if kafka_type in _FIXED:
            return struct.pack(_FIXED[kafka_type], value)
        if kafka_type == "uuid":
            return value.bytes if isinstance(value, UUID) else bytes(16)
        text = b"x" * count if path == () else value.encode() if isinstance(value, str) else value or b""
        return _length(len(text), flexible, 2 if kafka_type == "string" else 4) + text


def _length(size: int, flexible: bool, size_bytes: int) -> bytes:
    if flexible:
        return varint(size + 1)
    return min(size, (1 << 8 * size_bytes - 1) - 1).to_bytes(size_bytes, "big")
