"""The check that a request's lengths fit its bytes, before kio reads it.

kio's decoder allocates as many elements as an array claims. Thirty bytes from any client could so end the process. So a
walk over each request comes first, by the same schemas. It refuses the same as Kafka:

- a collection with more elements than bytes are left ("Tried to allocate a collection of size …",
  org.apache.kafka.message.MessageDataGenerator);
- a string of more than 32,767 bytes ("string field … had invalid length");
- a null that the schema does not allow ("non-nullable field … was serialized as null"), which kio notices for strings
  and bytes alone.

A correct request may still be too large. Three million partitions fit into 12 MB, and all clients of the process wait
while it reads and answers them. So a request has at most `MOST_ELEMENTS` elements in all its collections together, and
each of its entities at most `MOST_TAGGED_FIELDS`. Kafka has no such bounds. No client library comes near them, for it
names a partition once.

Every request takes this walk, so each schema becomes the source of one function with plain loops. For a Produce of one
record that takes a third of the time of functions that call each other. Metadata v1, whose only field is an array of
names, becomes::

    def walk(frame, at, left):
        end = len(frame)
        count = int32(frame, at)[0]; at += 4
        if count * 2 > end - at: refuse(count, end - at)
        if count > 0:
            left -= count
            if left < 0: refuse_elements()
        for _ in range(count):
            size = int16(frame, at)[0]; at += 2
            if size > 0: at += size
        return at, left
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import Field, fields
from functools import cache
from typing import Any, NoReturn

from korvet.errors import MalformedRequest
from korvet.wire.schema import FIXED_BYTES, element_of, is_array, is_nullable

Walk = Callable[[memoryview, int, int], tuple[int, int]]
"""A step over a part of a frame from a position: returns its end and the number of elements still allowed."""

_INDENT = "    "
LONGEST_STRING_BYTES = 32_767
"""The longest string that a length of two bytes allows, in versions without compact lengths."""
LONGEST_ID_BYTES = 1024
"""The bound on every string of a request except `_LONGER`; Kafka has none but the format's. Ids become parts of keys
of Redis, several times and percent-encoded, and stay in a front-end's memory after the request."""
_LONGER = frozenset(
    {
        # Names of topics, settings and users: a handler refuses only the wrong one, with Kafka's error, before Redis.
        "name", "topic", "topic_name", "topic_names", "configuration_keys",
        # offset.metadata.max.bytes, each setting's own check, and the bounds of access rules and quotas are for these.
        "committed_metadata", "value", "principal", "host", "entity_name",
        # `consumer_group_heartbeat.MOST_SUBSCRIBED_BYTES` is for these two together.
        "subscribed_topic_names", "subscribed_topic_regex",
        # These end with their request.
        "reason", "path", "principal_filter", "host_filter", "resource_name_filter",
    }
)  # fmt: skip
MOST_ELEMENTS = 30_000
"""The bound on the elements of a request's collections together; kio reads so many entities in 18 ms."""
MOST_OF_PRODUCE = 12_000
"""The same bound for Produce: all partitions of the largest topic, and some. Its batches are found in Python, which
takes 11 ms for so many, and no turn of the loop comes before that."""
MOST_OF_SHARES = 40_000
"""The same bound for ShareFetch and ShareAcknowledge, which acknowledge in each partition."""
MOST_TAGGED_FIELDS = 64
"""The bound on tagged fields of an entity or a header. Clients send those of the schema, at most four."""


def check_shape(schema: Any, frame: memoryview, at: int, most: int = MOST_ELEMENTS) -> int:
    """Walk a body from ``at``; returns the position of its end. Trailing bytes are ignored.

    :param most: the most elements that the body may have.
    :raises MalformedRequest: if a length does not fit the bytes, a tagged field is unknown, or there are too many
        elements.
    """
    try:
        at, _ = walker(schema)(frame, at, most)
    except TooManyElements:
        raise too_many(most) from None
    except (struct.error, IndexError):
        at = len(frame) + 1
    if at > len(frame):
        raise MalformedRequest(f"the frame ends before {schema.__name__} does")
    return at


@cache
def walker(schema: Any) -> Walk:
    """The function that steps over an entity. Past the end it may go on, or raise IndexError or struct.error."""
    source = _Source()
    source.entity(schema)
    return source.compiled()


class _Source:
    """The source lines of one function, and the names that they use."""

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
            "refuse_elements": _refuse_elements,
            "refuse_id": refuse_id,
        }

    def compiled(self) -> Walk:
        self._take_skipped()
        head = ("def walk(frame, at, left):", f"{_INDENT}end = len(frame)")
        source = "\n".join((*head, *self._lines, f"{_INDENT}return at, left"))
        exec(source, self._names)  # the source comes from schemas: no word of it is a client's
        walk: Walk = self._names["walk"]
        return walk

    def _add(self, *lines: str) -> None:
        self._take_skipped()
        self._lines += [_INDENT * self._depth + line for line in lines]

    def _take_skipped(self) -> None:
        """Step over the fields of fixed size together, before the next field with a length."""
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
            self._block("if frame[at]:", lambda: self._add(f"at, left = {name}(frame, at, left)"))
            self._add("else: at += 1")

    def field(self, field: Field[Any], flexible: bool) -> None:
        element, nullable = element_of(field.type), is_nullable(field.type)
        kafka_type = str(field.metadata.get("kafka_type", ""))
        if is_array(field.type):
            self._array(field.name, element, kafka_type, flexible, nullable)
        elif nullable and element is not None:
            self._add("at += 1")
            self._block("if frame[at - 1] < 128:", lambda: self.entity(element))
        else:
            self._single(field.name, element, kafka_type, flexible)

    def _array(self, name: str, element: Any, kafka_type: str, flexible: bool, nullable: bool) -> None:
        self._length("count", "int32", 4, flexible)
        least = _least_bytes(element, kafka_type, flexible)
        too_large = f"count * {least} > end - at" if nullable else f"not 0 <= count * {least} <= end - at"
        self._add(
            f"if {too_large}: refuse(count, end - at)",
            "if count > 0:",
            f"{_INDENT}left -= count",
            f"{_INDENT}if left < 0: refuse_elements()",
        )
        if kafka_type in FIXED_BYTES:
            self._add(f"if count > 0: at += count * {FIXED_BYTES[kafka_type]}")
        else:
            self._block("for _ in range(count):", lambda: self._single(name, element, kafka_type, flexible))

    def _single(self, name: str, kind: Any, kafka_type: str, flexible: bool) -> None:
        if kind is not None:
            self.entity(kind)
        elif kafka_type in FIXED_BYTES:
            self._skipped += FIXED_BYTES[kafka_type]
        else:
            if kafka_type == "string":
                self._length("size", "int16", 2, flexible, "string_varint")
                if name not in _LONGER:
                    self._add(f"if size > {LONGEST_ID_BYTES}: refuse_id({name!r}, size)")
            else:
                self._length("size", "int32", 4, flexible)
            self._add("if size > 0: at += size")

    def _length(self, name: str, read: str, size_bytes: int, flexible: bool, varint: str = "varint") -> None:
        """Add the lines that read a length. A compact one is stored plus 1, mostly in a single byte."""
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
    """The fewest bytes that an element takes, at least 1."""
    if element is None:
        return FIXED_BYTES.get(kafka_type, 1 if flexible else 2 if kafka_type == "string" else 4)
    least = 1 if element.__flexible__ else 0
    for field in fields(element):
        inner = element_of(field.type)
        if "tag" in field.metadata:
            continue
        if is_array(field.type):
            least += 1 if flexible else 4
        elif is_nullable(field.type) and inner is not None:
            least += 1
        else:
            least += _least_bytes(inner, str(field.metadata.get("kafka_type", "")), flexible)
    return max(least, 1)


def _tag_walker(field: Field[Any]) -> Walk:
    source = _Source()
    source.field(field, flexible=True)
    return source.compiled()


def _tags(tagged: Mapping[int, Walk]) -> Walk:
    """A step over the tagged fields of an entity that has some."""

    def step(frame: memoryview, at: int, left: int) -> tuple[int, int]:
        count, at = _unsigned_varint(frame, at)
        bound_tagged_fields(count)
        for _ in range(count):
            tag, at = _unsigned_varint(frame, at)
            size, at = _unsigned_varint(frame, at)
            if tag not in tagged:
                # Kafka would skip it. kio cannot, and no client sends one.
                raise MalformedRequest(f"unknown tagged field {tag}")
            end, left = tagged[tag](frame, at, left)
            if end != at + size:
                raise MalformedRequest(f"tagged field {tag} of {size} bytes does not fit them")
            at = end
        return at, left

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
    """A string's compact length that takes three or more bytes."""
    value, at = _unsigned_varint(frame, at)
    if value - 1 > LONGEST_STRING_BYTES:
        raise MalformedRequest(f"a string of {value - 1} bytes")
    return value, at


def _refuse(count: int, left_bytes: int) -> NoReturn:
    if count < 0:
        # kio would read a null.
        raise MalformedRequest("null instead of a collection that cannot be null")
    raise MalformedRequest(f"a collection of {count} elements in {max(0, left_bytes)} bytes")


class TooManyElements(Exception):
    """A request has more elements than its bound."""


def too_many(most: int) -> MalformedRequest:
    """The error for a request with too many elements."""
    return MalformedRequest(f"more than {most} elements in one request")


def _refuse_elements() -> NoReturn:
    raise TooManyElements


def refuse_id(name: str, size_bytes: int) -> NoReturn:
    """Refuse a request whose id is too long.

    :raises MalformedRequest: always.
    """
    raise MalformedRequest(f"{name} of {size_bytes} bytes; up to {LONGEST_ID_BYTES} are taken")


def bound_tagged_fields(count: int) -> None:
    """Refuse an entity with too many tagged fields.

    :raises MalformedRequest: if there are more than `MOST_TAGGED_FIELDS`.
    """
    if count > MOST_TAGGED_FIELDS:
        raise MalformedRequest(f"{count} tagged fields in one entity; up to {MOST_TAGGED_FIELDS} are taken")
