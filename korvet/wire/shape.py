"""Whether a request's lengths fit its bytes, found out before kio reads it.

kio's decoder makes room for as many elements as an array says it has, and the process ends where there is not that much
memory: thirty bytes from anybody would do. So each request is walked first, by the same schemas. As in Kafka, no
collection may have more elements than there are bytes left for them ("Tried to allocate a collection of size …",
org.apache.kafka.message.MessageDataGenerator), no string may have more than 32,767 bytes ("string field … had invalid
length"), and only those may be null that the schema says so of ("non-nullable field … was serialized as null"), which
kio tells of strings and bytes alone.

This is on the way of every request, so a schema is made into the source of one function that has its loops
and nothing else: for a Produce of one record it takes a third of what steps that call each other took. Metadata v1,
whose only field is an array of names, becomes::

    def walk(frame, at):
        end = len(frame)
        count = int32(frame, at)[0]; at += 4
        if count * 2 > end - at: refuse(count, end - at)
        for _ in range(count):
            size = int16(frame, at)[0]; at += 2
            if size > 0: at += size
        return at
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import Field, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, NoReturn, get_args, get_origin

from korvet.errors import MalformedRequest

Walk = Callable[[memoryview, int], int]

_FIXED_BYTES = {
    "bool": 1, "int8": 1, "int16": 2, "uint16": 2, "error_code": 2, "int32": 4, "uint32": 4, "timedelta_i32": 4,
    "int64": 8, "float64": 8, "timedelta_i64": 8, "datetime_i64": 8, "uuid": 16,
}  # fmt: skip
_INDENT = "    "
LONGEST_STRING_BYTES = 32_767
"""Which two bytes say in versions without compact lengths."""


def check_shape(schema: Any, frame: memoryview, at: int) -> int:
    """Walk a body from ``at``; where it ends. What lies behind it does not matter.

    :raises MalformedRequest: when a length does not fit the bytes, or a tagged field is unknown.
    """
    try:
        at = walker(schema)(frame, at)
    except (struct.error, IndexError):
        at = len(frame) + 1
    if at > len(frame):
        raise MalformedRequest(f"the frame ends before {schema.__name__} does")
    return at


@cache
def walker(schema: Any) -> Walk:
    """The function that steps over an entity; it may step past the end, and raises IndexError or struct.error there."""
    source = _Source()
    source.entity(schema)
    return source.compiled()


class _Source:
    """The lines of one function, and the names they use."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._depth = 1
        self._skipped = 0
        self._names: dict[str, Any] = {
            "int16": struct.Struct(">h").unpack_from,
            "int32": struct.Struct(">i").unpack_from,
            "varint": _unsigned_varint,
            "string_varint": _string_varint,
            "refuse": _refuse,
        }

    def compiled(self) -> Walk:
        self._take_skipped()
        source = "\n".join(("def walk(frame, at):", f"{_INDENT}end = len(frame)", *self._lines, f"{_INDENT}return at"))
        exec(source, self._names)  # of our own making: no word of it comes from a client
        walk: Walk = self._names["walk"]
        return walk

    def _add(self, *lines: str) -> None:
        self._take_skipped()
        self._lines += [_INDENT * self._depth + line for line in lines]

    def _take_skipped(self) -> None:
        """Fields of a fixed size are stepped over together, before what has a length."""
        if self._skipped:
            skipped, self._skipped = self._skipped, 0
            self._lines.append(f"{_INDENT * self._depth}at += {skipped}")

    def _block(self, head: str, body: Callable[[], None]) -> None:
        self._add(head)
        self._depth += 1
        body()
        self._take_skipped()
        self._depth -= 1

    def entity(self, schema: Any) -> None:
        flexible = bool(schema.__flexible__)
        tagged: dict[int, Walk] = {}
        for field in fields(schema):
            if "tag" in field.metadata:
                tagged[field.metadata["tag"]] = _tag_walker(field)
            else:
                self.field(field, flexible)
        if flexible:
            name = f"tags_{len(self._names)}"
            self._names[name] = _tags(tagged)
            self._add(f"at = {name}(frame, at) if frame[at] else at + 1")

    def field(self, field: Field[Any], flexible: bool) -> None:
        kind, nullable = _without_none(field.type)
        kafka_type = str(field.metadata.get("kafka_type", ""))
        if get_origin(kind) is tuple:
            element, _ = _without_none(get_args(kind)[0])
            self._array(element, kafka_type, flexible, nullable)
        elif nullable and _is_entity(kind):
            self._add("at += 1")
            self._block("if frame[at - 1] < 128:", lambda: self.entity(kind))
        else:
            self._single(kind, kafka_type, flexible)

    def _array(self, element: Any, kafka_type: str, flexible: bool, nullable: bool) -> None:
        self._length("count", "int32", 4, flexible)
        least = _least_bytes(element, kafka_type, flexible)
        too_large = f"count * {least} > end - at" if nullable else f"not 0 <= count * {least} <= end - at"
        self._add(f"if {too_large}: refuse(count, end - at)")
        if kafka_type in _FIXED_BYTES:
            self._add(f"if count > 0: at += count * {_FIXED_BYTES[kafka_type]}")
        else:
            self._block("for _ in range(count):", lambda: self._single(element, kafka_type, flexible))

    def _single(self, kind: Any, kafka_type: str, flexible: bool) -> None:
        if _is_entity(kind):
            self.entity(kind)
        elif kafka_type in _FIXED_BYTES:
            self._skipped += _FIXED_BYTES[kafka_type]
        else:
            if kafka_type == "string":
                self._length("size", "int16", 2, flexible, "string_varint")
            else:
                self._length("size", "int32", 4, flexible)
            self._add("if size > 0: at += size")

    def _length(self, name: str, read: str, size_bytes: int, flexible: bool, varint: str = "varint") -> None:
        """A length; a compact one is one more than what it says, and mostly a single byte."""
        if flexible:
            self._add(
                f"{name} = frame[at] - 1; at += 1",
                f"if {name} > 126:",
                f"{_INDENT}if frame[at] < 128: {name} += (frame[at] - 1) << 7; at += 1",
                f"{_INDENT}else: {name}, at = {varint}(frame, at - 1); {name} -= 1",
            )
        else:
            self._add(f"{name} = {read}(frame, at)[0]; at += {size_bytes}")


def _least_bytes(element: Any, kafka_type: str, flexible: bool) -> int:
    """The least that an element takes, and at least 1."""
    if not _is_entity(element):
        return _FIXED_BYTES.get(kafka_type, 1 if flexible else 2 if kafka_type == "string" else 4)
    least = 1 if element.__flexible__ else 0
    for field in fields(element):
        kind, nullable = _without_none(field.type)
        if "tag" in field.metadata:
            continue
        if get_origin(kind) is tuple:
            least += 1 if flexible else 4
        elif nullable and _is_entity(kind):
            least += 1
        else:
            least += _least_bytes(kind, str(field.metadata.get("kafka_type", "")), flexible)
    return max(least, 1)


def _tag_walker(field: Field[Any]) -> Walk:
    source = _Source()
    source.field(field, flexible=True)
    return source.compiled()


def _tags(tagged: Mapping[int, Walk]) -> Walk:
    """A step over tagged fields, where there are some."""

    def step(frame: memoryview, at: int) -> int:
        count, at = _unsigned_varint(frame, at)
        for _ in range(count):
            tag, at = _unsigned_varint(frame, at)
            size, at = _unsigned_varint(frame, at)
            if tag not in tagged:
                # Kafka would skip it. kio cannot, and no client sends any.
                raise MalformedRequest(f"unknown tagged field {tag}")
            if tagged[tag](frame, at) != at + size:
                raise MalformedRequest(f"tagged field {tag} of {size} bytes does not fit them")
            at += size
        return at

    return step


def _unsigned_varint(frame: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 35, 7):
        byte = frame[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise MalformedRequest("unterminated varint")


def _string_varint(frame: memoryview, at: int) -> tuple[int, int]:
    """A string's compact length, of three bytes and more."""
    value, at = _unsigned_varint(frame, at)
    if value - 1 > LONGEST_STRING_BYTES:
        raise MalformedRequest(f"a string of {value - 1} bytes")
    return value, at


def _refuse(count: int, left_bytes: int) -> NoReturn:
    if count < 0:
        # kio would take it for null.
        raise MalformedRequest("null in the place of a collection that cannot be null")
    raise MalformedRequest(f"a collection of {count} elements in {max(0, left_bytes)} bytes")


def _is_entity(kind: Any) -> bool:
    return is_dataclass(kind)


def _without_none(kind: Any) -> tuple[Any, bool]:
    if isinstance(kind, UnionType):
        return next(option for option in get_args(kind) if option is not type(None)), True
    return kind, False
