"""Responses as bytes. Each schema of kio becomes one function that writes a handler's `Fields`.

A writer takes the fields of its version, and fills in Kafka's defaults for missing ones. Fields of fixed size that
follow each other become one call of `struct`. Batches are not copied. So Heartbeat v4 becomes::

    def write(v0, codes):
        done, out, left = [], [], STEP
        add = out.append
        c1 = v0['error_code']
        add(pack_2(v0.get('throttle_time', 0), c1))
        if c1: codes.append(c1)
        done.append(join(out))
        return done
        yield

A writer is a generator, which pauses after each `STEP` elements, so a long answer does not hold up other clients. It
joins their bytes before: thousands of small objects take eight times the memory, and long to join at the end.
"""

from __future__ import annotations

import datetime
import struct
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from typing import Any, Final
from uuid import UUID

from korvet.wire.packing import compact_nullable_string, compact_string, nullable_string, string, unsigned_varint
from korvet.wire.schema import FORMATS, element_of, has_tagged_response_header, is_array, is_nullable, response_schema

Fields = Mapping[str, Any]
"""A response by the newest version's field names. Error codes are `ErrorCode` or int, times and durations are
milliseconds as int, and records are a list of buffers."""
Buffers = list[bytes | memoryview]
"""The parts of a response, in their order."""
Steps = Generator[None, None, Buffers]
Write = Callable[[Fields, list[int]], Steps]
"""Writes a body. It notes each error code in it, and returns the body's parts."""

STEP: Final = 500
"""The elements between two pauses, in about half a millisecond."""

_HEAD: Final = struct.Struct(">ii")
_TAGGED_HEAD: Final = struct.Struct(">iib")
_SMALL_BYTES = 1024
_INDENT = "    "
_NO_VALUES: Final = {
    "string": "", "bytes": b"", "records": (), "bool": False, "uuid": None, "error_code": 0, "timedelta_i32": 0,
}  # fmt: skip
"""The values of missing fields without a default. Numbers must be given."""
_ZEROS: Final = bytes(16)
_SHORT: Final = 64
"""The longest array of fixed values whose packing is kept."""


@cache
def writer(api_key: int, version: int) -> Write:
    """The function that writes a response's body."""
    return compiled(response_schema(api_key, version))


@cache
def compiled(schema: Any) -> Write:
    """The function that writes an entity of one of kio's classes."""
    source = _Source()
    source.entity(schema, "v0")
    return source.compiled()


def _uuid(value: UUID | None) -> bytes:
    return _ZEROS if value is None else value.bytes


def _size_of(records: Sequence[bytes | memoryview]) -> int:
    return sum(map(len, records))


class _Source:
    """The source lines of one function, and the names that they use."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._depth = 1
        self._fixed: list[tuple[str, str]] = []
        """The formats and values of fields to pack together."""
        self._codes: list[str] = []
        self._names: dict[str, Any] = {
            "STEP": STEP, "join": b"".join, "varint": unsigned_varint, "uuid": _uuid,
            "size_of": _size_of, "string": string, "nullable_string": nullable_string,
            "compact_string": compact_string, "compact_nullable_string": compact_nullable_string,
        }  # fmt: skip
        self._count = 0

    def compiled(self) -> Write:
        self._flush()
        head = ("def write(v0, codes):", f"{_INDENT}done, out, left = [], [], STEP", f"{_INDENT}add = out.append")
        end = (f"{_INDENT}done.append(join(out))", f"{_INDENT}return done", f"{_INDENT}yield")
        exec("\n".join((*head, *self._lines, *end)), self._names)  # the source comes from schemas alone
        write: Write = self._names["write"]
        return write

    def _add(self, *lines: str) -> None:
        self._flush()
        self._lines += [_INDENT * self._depth + line for line in lines]

    def _named(self, prefix: str, value: Any = None) -> str:
        """A new name, for a value that the source uses or for a variable."""
        self._count += 1
        name = f"{prefix}{self._count}"
        if value is not None:
            self._names[name] = value
        return name

    def _flush(self) -> None:
        """Pack the pending fields of fixed size together, before a field with a length."""
        if not self._fixed:
            return
        fixed, self._fixed = self._fixed, []
        codes, self._codes = self._codes, []
        pack = self._named("pack_", struct.Struct(">" + "".join(form for form, _ in fixed)).pack)
        values = ", ".join(value for _, value in fixed if value)
        self._lines.append(f"{_INDENT * self._depth}add({pack}({values}))")
        self._lines += [f"{_INDENT * self._depth}if {code}: codes.append({code})" for code in codes]

    def _block(self, head: str, body: Callable[[], None]) -> None:
        self._add(head)
        self._depth += 1
        body()
        self._flush()
        self._depth -= 1

    def entity(self, schema: Any, at: str) -> None:
        """Add the lines that write an entity from the mapping of that name."""
        flexible = bool(schema.__flexible__)
        tagged = {}
        for field in fields(schema):
            if "tag" in field.metadata:
                tagged[field.metadata["tag"]] = field
            else:
                self._field(field, self._value(field, at), flexible)
        if tagged:
            self._tags(tagged, at)
        elif flexible:
            self._fixed.append(("x", ""))

    def _value(self, field: Field[Any], at: str) -> str:
        """The expression of a field's value."""
        default = default_of(field)
        if default is MISSING:
            return f"{at}[{field.name!r}]"
        is_plain = default is None or isinstance(default, int | str | bytes) or default == ()
        return f"{at}.get({field.name!r}, {repr(default) if is_plain else self._named('default_', default)})"

    def _field(self, field: Field[Any], value: str, flexible: bool) -> None:
        kafka_type, nullable = str(field.metadata.get("kafka_type", "")), is_nullable(field.type)
        element = element_of(field.type)
        if is_array(field.type):
            self._array(element, kafka_type, value, flexible, nullable)
        elif element is not None:
            name = self._named("v")
            self._add(f"{name} = {value}")
            if nullable:
                self._add(f"add(b'\\xff' if {name} is None else b'\\x01')")
                self._block(f"if {name} is not None:", lambda: self.entity(element, name))
            else:
                self.entity(element, name)
        else:
            self._single(kafka_type, value, flexible, nullable)

    def _single(self, kafka_type: str, value: str, flexible: bool, nullable: bool) -> None:
        if kafka_type == "error_code":
            code = self._named("c")
            self._fixed.append(("h", f"({code} := {value})"))
            self._codes.append(code)
        elif kafka_type == "uuid":
            self._fixed.append(("16s", f"uuid({value})"))
        elif kafka_type == "datetime_i64" and nullable:
            time = self._named("t")
            self._fixed.append(("q", f"-1 if ({time} := {value}) is None else {time}"))
        elif kafka_type in FORMATS:
            self._fixed.append((FORMATS[kafka_type], value))
        elif kafka_type == "string":
            kind = f"{'compact_' if flexible else ''}{'nullable_' if nullable else ''}string"
            self._add(f"add({kind}({value}))")
        else:
            self._bytes(kafka_type, value, flexible, nullable)

    def _bytes(self, kafka_type: str, value: str, flexible: bool, nullable: bool) -> None:
        data = self._named("d")
        self._add(f"{data} = {value}")

        def some() -> None:
            self._length(f"size_of({data})" if kafka_type == "records" else f"len({data})", flexible)
            if kafka_type == "records":
                self._add("done.append(join(out))", "out.clear()", f"done += {data}")
            else:
                self._add(f"add({data})")

        if nullable:
            self._add(f"if {data} is None: add({_null(flexible)})")
            self._block("else:", some)
        else:
            some()

    def _length(self, length: str, flexible: bool) -> None:
        if flexible:
            self._add(f"add(varint({length} + 1))")
        else:
            self._fixed.append(("i", length))

    def _array(self, element: Any, kafka_type: str, value: str, flexible: bool, nullable: bool) -> None:
        items, one = self._named("a"), self._named("v")
        self._add(f"{items} = {value}")

        def some() -> None:
            if element is None and kafka_type in FORMATS:
                packs = self._named("packs_", _Packs(FORMATS[kafka_type], flexible))
                self._add(f"add({packs}[len({items})](*{items}))")
                return
            self._length(f"len({items})", flexible)
            self._block(f"for {one} in {items}:", each)

        def each() -> None:
            if element is None:
                self._single(kafka_type, one, flexible, False)
            else:
                self.entity(element, one)
            pause = ("left = STEP", "done.append(join(out))", "out.clear()", "yield")
            self._add("left -= 1", "if not left:", *(_INDENT + line for line in pause))

        if nullable:
            self._add(f"if {items} is None: add({_null(flexible, 4)})")
            self._block("else:", some)
        else:
            some()

    def _tags(self, tagged: Mapping[int, Field[Any]], at: str) -> None:
        """Add the lines that write the tagged fields that the handler gave, if they are not the default."""
        names = " or ".join(f"{field.name!r} in {at}" for field in tagged.values())

        def some() -> None:
            tags = self._named("tags_", _tag_writer(tagged))
            self._add(f"add({tags}({at}, codes))")

        self._block(f"if {names}:", some)
        self._add("else: add(b'\\x00')")


class _Packs(dict[int, Callable[..., bytes]]):
    """The functions that pack an array of fixed-size values with its length, by length."""

    def __init__(self, form: str, flexible: bool) -> None:
        super().__init__()
        self._form, self._flexible = form, flexible

    def __missing__(self, length: int) -> Callable[..., bytes]:
        head = unsigned_varint(length + 1) if self._flexible else length.to_bytes(4, "big")
        pack = struct.Struct(f">{length}{self._form}").pack

        def packed(*values: Any) -> bytes:
            return head + pack(*values)

        if length <= _SHORT:
            self[length] = packed
        return packed


def _tag_writer(tagged: Mapping[int, Field[Any]]) -> Callable[[Fields, list[int]], bytes]:
    """A function that writes the tagged fields of an entity."""
    writers = []
    for tag, field in sorted(tagged.items()):
        source = _Source()
        source._field(field, f"v0[{field.name!r}]", True)
        writers.append((tag, field.name, default_of(field), source.compiled()))

    def write(values: Fields, codes: list[int]) -> bytes:
        parts = []
        for tag, name, default, write_one in writers:
            value = values.get(name)
            if value is not None and (value if default == () else value != default):
                body = b"".join(run(write_one(values, codes)))
                parts.append(unsigned_varint(tag) + unsigned_varint(len(body)) + body)
        return unsigned_varint(len(parts)) + b"".join(parts)

    return write


class Rows:
    """An array whose elements are made while they are written. ``make`` returns them anew each time."""

    def __init__(self, count: int, make: Callable[[], Iterator[Fields]]) -> None:
        self._count, self._make = count, make

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Fields]:
        return self._make()


def framed(api_key: int, version: int, correlation_id: int, body: Buffers) -> Buffers:
    """A whole response frame, with its size and header: v1 for flexible versions, else v0.

    ApiVersions always has header v0 (KIP-511).
    """
    size = sum(map(len, body))
    if has_tagged_response_header(api_key, version):
        head = _TAGGED_HEAD.pack(size + 5, correlation_id, 0)
    else:
        head = _HEAD.pack(size + 4, correlation_id)
    # A small copy costs less than a second buffer in each step of the write.
    return [head + body[0]] if len(body) == 1 and size <= _SMALL_BYTES else [head, *body]


def encode_response(
    api_key: int, version: int, correlation_id: int, answer: Fields, codes: list[int] | None = None
) -> Buffers:
    """A whole response frame, written without pauses. The error codes in it are added to ``codes``."""
    body = run(writer(api_key, version)(answer, [] if codes is None else codes))
    return framed(api_key, version, correlation_id, body)


def error_answer(api_key: int, version: int, code: int) -> Fields:
    """An answer with an error and nothing else. As in Kafka, numbers without a default are zero, and arrays are
    empty."""
    return {**_zeros(api_key, version), "error_code": code}


@cache
def _zeros(api_key: int, version: int) -> Fields:
    return {field.name: 0 for field in fields(response_schema(api_key, version)) if default_of(field) is MISSING}


def run(steps: Steps) -> Buffers:
    """Run a writer to its end without pauses."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            body: Buffers = end.value
            return body


def _null(flexible: bool, size_bytes: int = 4) -> str:
    return repr(b"\x00" if flexible else b"\xff" * size_bytes)


def default_of(field: Field[Any]) -> Any:
    """The default of a missing field, in a handler's form; MISSING if the handler must give it."""
    if field.default is not MISSING:
        return _plain(field.default)
    if is_array(field.type):
        return ()
    return _NO_VALUES.get(str(field.metadata.get("kafka_type")), MISSING)


def _plain(value: Any) -> Any:
    """kio's value as a handler gives it."""
    if isinstance(value, datetime.timedelta):
        return value // datetime.timedelta(milliseconds=1)
    if isinstance(value, datetime.datetime):
        return int(value.timestamp() * 1000)
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    return value
