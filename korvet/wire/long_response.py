"""Long answers, encoded in steps; other connections are served between two steps.

kio's writer takes 5 to 6 µs for an entity, and a tenth of a second for an answer of twenty thousand partitions. This
writer pauses after each `STEP` elements. kio writes every small entity, so the bytes are the same.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Generator, Mapping
from dataclasses import MISSING, fields
from functools import cache
from typing import Any, Final

from kio.serial import entity_writer
from kio.serial._serialize import get_field_writer
from kio.serial.writers import write_int32, write_unsigned_varint

from korvet.wire.codec import (
    Fields,
    builder,
    converter,
    default_of,
    is_tuple,
    nested_schema,
    response_header,
    response_schema,
)

STEP: Final = 500

Write = Callable[[io.BytesIO, Any], None]
Steps = Generator[None, None, None]


def is_long(answer: Fields) -> bool:
    """Whether an answer has more elements than `STEP`."""
    return _count(answer, STEP) > STEP


def _count(values: Mapping[str, Any], enough: int) -> int:
    """The number of elements in all arrays within; the count stops above ``enough``."""
    count = 0
    for value in values.values():
        if isinstance(value, list | tuple):
            count += len(value)
            if count > enough:
                break
            count += sum(_count(item, enough) for item in value if isinstance(item, dict))
    return count


def encode_in_steps(api_key: int, version: int, correlation_id: int, answer: Fields) -> Generator[None, None, bytes]:
    """Encode a whole response frame as `encode_response` does, in steps; the generator returns it."""
    buffer = io.BytesIO()
    buffer.write(bytes(4) + response_header(api_key, version, correlation_id))
    yield from _Writer(buffer).entity(response_schema(api_key, version), answer)
    size = buffer.tell()
    buffer.seek(0)
    buffer.write((size - 4).to_bytes(4, "big"))
    return buffer.getvalue()


class _Writer:
    """A buffer, and the number of elements written since the last step."""

    def __init__(self, buffer: io.BytesIO) -> None:
        self._buffer = buffer
        self._since = 0

    def entity(self, schema: Any, values: Mapping[str, Any]) -> Steps:
        size = _count(values, STEP)
        if size <= STEP or _has_tags(schema):
            entity_writer(schema)(self._buffer, builder(schema)(values))
            self._since += 1 + size
            if self._since >= STEP:
                self._since = 0
                yield
            return
        for name, nested, default, convert, write in _writers(schema):
            value = values.get(name, default)
            if value is MISSING:
                raise TypeError(f"{schema.__module__}.{schema.__name__} needs a value for {name}")
            if nested is not None and value is not None:
                yield from self._array(nested, value, schema.__flexible__)
            else:
                write(self._buffer, value if convert is None or value is default else convert(value))
        if schema.__flexible__:
            self._buffer.write(b"\x00")

    def _array(self, schema: Any, items: Any, flexible: bool) -> Steps:
        if flexible:
            write_unsigned_varint(self._buffer, len(items) + 1)  # type: ignore[arg-type]
        else:
            write_int32(self._buffer, len(items))  # type: ignore[arg-type]
        for item in items:
            yield from self.entity(schema, item)


@cache
def _has_tags(schema: Any) -> bool:
    """Whether an entity may have tagged fields. Such entities are small, and kio writes them at once."""
    return any("tag" in field.metadata for field in fields(schema))


@cache
def _writers(schema: Any) -> list[tuple[str, Any, Any, Callable[[Any], Any] | None, Write]]:
    """For each field: its name, the schema of its elements if it is an array, its default, converter and writer."""
    return [
        (
            field.name,
            nested_schema(field.type) if is_tuple(field.type) else None,
            default_of(field),
            converter(field),
            get_field_writer(field, schema.__flexible__, is_request_header=False, is_tag=False),
        )
        for field in fields(schema)
    ]
