"""Whether a request's lengths fit its bytes, found out before kio reads it.

kio's decoder makes room for as many elements as an array says it has, and the process ends where there is not that much
memory: thirty bytes from anybody would do. So each request is walked first, by the same schemas. As in Kafka, no
collection may have more elements than there are bytes left for them ("Tried to allocate a collection of size …",
org.apache.kafka.message.MessageDataGenerator).

A schema becomes a few steps; each takes the frame and an offset, and returns the offset behind what it stepped over.
Fields of a fixed size are added to the next step, so a Produce of one record takes six.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import Field, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, NamedTuple, get_args, get_origin

from korvet.errors import MalformedRequest

Step = Callable[[memoryview, int], int]

_FIXED_BYTES = {
    "bool": 1, "int8": 1, "int16": 2, "uint16": 2, "error_code": 2, "int32": 4, "uint32": 4, "timedelta_i32": 4,
    "int64": 8, "float64": 8, "timedelta_i64": 8, "datetime_i64": 8, "uuid": 16,
}  # fmt: skip
_read_int16 = struct.Struct(">h").unpack_from
_read_int32 = struct.Struct(">i").unpack_from


class _Shape(NamedTuple):
    """How to step over something: its size where that is fixed, else its steps, and the least it can take."""

    fixed_bytes: int | None
    steps: tuple[Step, ...]
    least_bytes: int


def check_shape(schema: Any, frame: memoryview, at: int) -> int:
    """Walk a body from ``at``; where it ends. What lies behind it does not matter.

    :raises MalformedRequest: when a length does not fit the bytes, or a tagged field is unknown.
    """
    try:
        for step in _steps_of(schema):
            at = step(frame, at)
    except (struct.error, IndexError):
        at = len(frame) + 1
    if at > len(frame):
        raise MalformedRequest(f"the frame ends before {schema.__name__} does")
    return at


@cache
def _steps_of(schema: Any) -> tuple[Step, ...]:
    shape = _entity(schema)
    return shape.steps if shape.fixed_bytes is None else (_skip(shape.fixed_bytes),)


@cache
def _entity(schema: Any) -> _Shape:
    flexible = bool(schema.__flexible__)
    plain = [field for field in fields(schema) if "tag" not in field.metadata]
    tagged = {field.metadata["tag"]: _steps(_field(field, True), 0) for field in fields(schema) if field not in plain}
    steps: list[Step] = []
    lead, least = 0, 0
    for shape in (_field(field, flexible) for field in plain):
        least += shape.least_bytes
        if shape.fixed_bytes is not None:
            lead += shape.fixed_bytes
        else:
            steps += _steps(shape, lead)
            lead = 0
    if flexible:
        steps.append(_tags(lead, tagged))
        return _Shape(None, tuple(steps), least + 1)
    if not steps:
        return _Shape(lead, (), max(least, 1))
    if lead:
        steps.append(_skip(lead))
    return _Shape(None, tuple(steps), max(least, 1))


def _steps(shape: _Shape, lead: int) -> tuple[Step, ...]:
    """The steps of something that lies behind ``lead`` bytes of no interest."""
    if shape.fixed_bytes is not None:
        return (_skip(lead + shape.fixed_bytes),)
    return (_skip(lead), *shape.steps) if lead else shape.steps


def _field(field: Field[Any], flexible: bool) -> _Shape:
    kind, nullable = _without_none(field.type)
    kafka_type = str(field.metadata.get("kafka_type", ""))
    if get_origin(kind) is tuple:
        element, _ = _without_none(get_args(kind)[0])
        return _array(_single(element, kafka_type, flexible), flexible)
    if nullable and _is_entity(kind):
        return _Shape(None, (_nullable(_steps(_single(kind, kafka_type, flexible), 0)),), 1)
    return _single(kind, kafka_type, flexible)


def _single(kind: Any, kafka_type: str, flexible: bool) -> _Shape:
    if _is_entity(kind):
        return _entity(kind)
    if kafka_type in _FIXED_BYTES:
        return _Shape(_FIXED_BYTES[kafka_type], (), _FIXED_BYTES[kafka_type])
    if flexible:
        return _Shape(None, (_compact,), 1)
    if kafka_type == "string":
        return _Shape(None, (_short_string,), 2)
    return _Shape(None, (_long_bytes,), 4)


def _is_entity(kind: Any) -> bool:
    return is_dataclass(kind)


def _without_none(kind: Any) -> tuple[Any, bool]:
    if isinstance(kind, UnionType):
        return next(option for option in get_args(kind) if option is not type(None)), True
    return kind, False


def _skip(size_bytes: int) -> Step:
    return lambda _frame, at: at + size_bytes


def _short_string(frame: memoryview, at: int) -> int:
    size: int = _read_int16(frame, at)[0]
    return at + 2 + size if size > 0 else at + 2


def _long_bytes(frame: memoryview, at: int) -> int:
    size: int = _read_int32(frame, at)[0]
    return at + 4 + size if size > 0 else at + 4


def _compact(frame: memoryview, at: int) -> int:
    size = frame[at]
    if size < 0x80:
        return at + size if size else at + 1
    size, at = _unsigned_varint(frame, at)
    return at + size - 1 if size else at


def _unsigned_varint(frame: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 35, 7):
        byte = frame[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise MalformedRequest("unterminated varint")


def _array(element: _Shape, flexible: bool) -> _Shape:
    fixed, steps, least = element

    def count_and_start(frame: memoryview, at: int) -> tuple[int, int]:
        if flexible:
            count, at = _unsigned_varint(frame, at)
            count -= 1
        else:
            count, at = _read_int32(frame, at)[0], at + 4
        if count * least > len(frame) - at:
            raise MalformedRequest(f"a collection of {count} elements in {max(0, len(frame) - at)} bytes")
        return max(count, 0), at

    def of_fixed(frame: memoryview, at: int) -> int:
        count, at = count_and_start(frame, at)
        return at + count * (fixed or 0)

    def of_steps(frame: memoryview, at: int) -> int:
        count, at = count_and_start(frame, at)
        for _ in range(count):
            for step in steps:
                at = step(frame, at)
        return at

    return _Shape(None, (of_steps if fixed is None else of_fixed,), 1 if flexible else 4)


def _nullable(steps: tuple[Step, ...]) -> Step:
    """A struct behind a byte that is negative where there is none."""

    def step(frame: memoryview, at: int) -> int:
        present = frame[at] < 0x80
        at += 1
        if present:
            for inner in steps:
                at = inner(frame, at)
        return at

    return step


def _tags(lead: int, tagged: Mapping[int, tuple[Step, ...]]) -> Step:
    def step(frame: memoryview, at: int) -> int:
        at += lead
        if frame[at] == 0:
            return at + 1
        count, at = _unsigned_varint(frame, at)
        for _ in range(count):
            at = one(frame, at)
        return at

    def one(frame: memoryview, at: int) -> int:
        tag, at = _unsigned_varint(frame, at)
        size, at = _unsigned_varint(frame, at)
        end = at + size
        if tag not in tagged:
            # Kafka would skip it. kio cannot, and no client sends any.
            raise MalformedRequest(f"unknown tagged field {tag}")
        for inner in tagged[tag]:
            at = inner(frame, at)
        if at != end:
            raise MalformedRequest(f"tagged field {tag} of {size} bytes does not fit them")
        return at

    return step
