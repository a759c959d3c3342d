"""The check of a request's lengths before kio reads it, for all of Kafka's request schemas."""

from __future__ import annotations

import contextlib
import datetime
import io
import random
import struct
import uuid
from collections.abc import Callable
from dataclasses import Field, fields, is_dataclass, replace
from types import UnionType
from typing import Any, get_args, get_origin

import pytest
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import Records

from korvet.errors import MalformedRequest
from korvet.wire.codec import RequestHeader, decode_request
from korvet.wire.newer import request_class
from korvet.wire.schema import is_known
from korvet.wire.shape import LONGEST_ID_BYTES, LONGEST_STRING_BYTES, MOST_ELEMENTS, check_shape

REQUESTS = [(key, version) for key in range(100) for version in range(20) if is_known(key, version)]
ROUNDS = 5
VALUES: dict[str, Callable[[random.Random], Any]] = {
    "string": lambda chance: "x" * chance.choice([0, 1, 130]),
    "bytes": lambda chance: bytes(chance.choice([0, 1, 70, 200])),
    "records": lambda chance: Records(bytes(chance.choice([0, 1, 70, 200]))),
    "bool": lambda chance: chance.random() < 0.5,
    "uuid": lambda chance: uuid.UUID(int=chance.getrandbits(128)),
    "float64": lambda chance: chance.random(),
    "timedelta_i32": lambda chance: datetime.timedelta(milliseconds=chance.randrange(1000)),
    "timedelta_i64": lambda chance: datetime.timedelta(milliseconds=chance.randrange(1000)),
}


def _a_number(chance: random.Random) -> int:
    return chance.randrange(100)


def a_request(schema: Any, chance: random.Random) -> Any:
    """An entity with random values: arrays of up to three elements, and optional fields present or absent."""
    return schema(**{field.name: _value(field, field.type, chance) for field in fields(schema)})


def _value(field: Field[Any], kind: Any, chance: random.Random) -> Any:
    if isinstance(kind, UnionType):
        if chance.random() < 0.4:
            return None
        kind = next(option for option in get_args(kind) if option is not type(None))
    if get_origin(kind) is tuple:
        return tuple(_value(field, get_args(kind)[0], chance) for _ in range(chance.randrange(4)))
    if is_dataclass(kind) and isinstance(kind, type):
        return a_request(kind, chance)
    return VALUES.get(str(field.metadata["kafka_type"]), _a_number)(chance)


def encoded(schema: Any, entity: Any) -> bytes:
    buffer = io.BytesIO()
    write: Callable[..., None] = entity_writer(schema)
    write(buffer, entity)
    return buffer.getvalue()


@pytest.mark.parametrize("version", [0, 9])
def test_overlong_id_is_refused_in_every_field(version: int) -> None:
    schema: Any = request_class(11, version)
    request = a_request(schema, random.Random(1))
    for name in ("group_id", "member_id"):
        for size in (LONGEST_ID_BYTES, LONGEST_ID_BYTES + 1):
            body = memoryview(encoded(schema, replace(request, **{name: "x" * size})))
            if size == LONGEST_ID_BYTES:
                assert check_shape(schema, body, 0) == len(body)
            else:
                with pytest.raises(MalformedRequest, match=f"{name} of 1025 bytes"):
                    check_shape(schema, body, 0)
    sasl_handshake: Any = request_class(17, 1)
    with pytest.raises(MalformedRequest, match="mechanism of 1025 bytes"):
        check_shape(sasl_handshake, memoryview(encoded(sasl_handshake, sasl_handshake(mechanism="x" * 1025))), 0)
    describe_groups: Any = request_class(15, 0)
    with pytest.raises(MalformedRequest, match="groups of 1025 bytes"):
        check_shape(describe_groups, memoryview(encoded(describe_groups, describe_groups(groups=("g", "x" * 1025)))), 0)


@pytest.mark.parametrize("version", [0, 1])
def test_string_longer_than_kafka_takes_is_refused(version: int) -> None:
    schema: Any = request_class(68, version)
    told = {field.name: _value(field, field.type, random.Random(1)) for field in fields(schema)}
    for size in (16_382, 16_383, LONGEST_STRING_BYTES):
        body = memoryview(encoded(schema, schema(**{**told, "subscribed_topic_names": ("x" * size,)})))
        assert check_shape(schema, body, 0) == len(body)
    longest = "x" * (LONGEST_STRING_BYTES + 1)
    body = memoryview(encoded(schema, schema(**{**told, "subscribed_topic_names": ("x", longest)})))
    with pytest.raises(MalformedRequest, match="string of 32768 bytes"):
        check_shape(schema, body, 0)


@pytest.mark.parametrize(("key", "version"), REQUESTS)
def test_whole_requests_pass_and_truncated_ones_do_not(key: int, version: int) -> None:
    schema: Any = request_class(key, version)
    chance = random.Random(key * 100 + version)
    for _ in range(ROUNDS):
        body = encoded(schema, a_request(schema, chance))
        frame = memoryview(b"head" + body + b"behind")
        assert check_shape(schema, frame, 4) == 4 + len(body)
        assert entity_reader(schema)(frame[4:], 0)[1] == len(body)
        if body:
            with pytest.raises(MalformedRequest):
                check_shape(schema, memoryview(body)[: chance.randrange(len(body))], 0)


@pytest.mark.parametrize("count", [2**31 - 1, 1 << 20, 3])
def test_collection_larger_than_its_bytes_is_refused(count: int) -> None:
    metadata: Any = request_class(3, 1)
    with pytest.raises(MalformedRequest, match=str(count)):
        check_shape(metadata, memoryview(struct.pack(">i", count) + b"\x00\x00" * 2), 0)


def test_compact_collection_larger_than_its_bytes_is_refused() -> None:
    list_groups: Any = request_class(16, 4)
    for length in (b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x7f", b"\xff\xff\xff\xff\xff\xff", b"\x09"):
        with pytest.raises(MalformedRequest):
            check_shape(list_groups, memoryview(length + b"\x01\x01\x00"), 0)


@pytest.mark.parametrize(("key", "version"), REQUESTS)
def test_null_is_refused_if_the_schema_has_none(key: int, version: int) -> None:
    """A request with one changed byte is refused, or has a value in every field that cannot be null."""
    schema: Any = request_class(key, version)
    header, chance = RequestHeader(key, version, 1, None, 0), random.Random(key * 100 + version)
    body = encoded(schema, a_request(schema, chance))
    for at in range(len(body)):
        for number in (b"\xff" * 4, b"\xff" * 2, b"\x00", b"\xff\xff\xff\xfe"):
            frame = body[:at] + number + body[at + len(number) :]
            with contextlib.suppress(MalformedRequest):
                assert not nulls_in(decode_request(header, memoryview(frame)))


def nulls_in(entity: Any) -> list[str]:
    """The fields of an entity, and of its inner ones, that are null although the schema forbids it."""
    nulls = []
    for field in fields(entity):
        value = getattr(entity, field.name)
        if value is None and not isinstance(field.type, UnionType):
            nulls.append(f"{type(entity).__name__}.{field.name}")
        for inner in value if isinstance(value, tuple) else (value,):
            if is_dataclass(inner):
                nulls += nulls_in(inner)
    return nulls


@pytest.mark.parametrize("count", [-1, -2])
def test_collection_that_cannot_be_null_is_refused_as_null(count: int) -> None:
    metadata: Any = request_class(3, 0)
    with pytest.raises(MalformedRequest, match="null instead of a collection"):
        check_shape(metadata, memoryview(struct.pack(">i", count)), 0)
    assert check_shape(request_class(3, 1), memoryview(struct.pack(">i", -1)), 0) == 4


def test_unknown_tagged_field_and_one_that_does_not_fit_are_refused() -> None:
    list_groups: Any = request_class(16, 3)
    assert check_shape(list_groups, memoryview(b"\x00"), 0) == 1
    with pytest.raises(MalformedRequest, match="unknown tagged field 5"):
        check_shape(list_groups, memoryview(b"\x01\x05\x01x"), 0)
    fetch: Any = request_class(1, 12)
    body = encoded(fetch, a_request(fetch, random.Random(1)))
    untagged = body[: body.rindex(b"\x00")] if body.endswith(b"\x00") else body
    for tags in (b"\x01\x00\x09\x02x", b"\x01\x00\x01\x02x"):
        with pytest.raises(MalformedRequest):
            check_shape(fetch, memoryview(untagged + tags), 0)


def test_request_of_too_many_elements_is_refused_in_every_array() -> None:
    offset_fetch: Any = request_class(9, 1)
    half = MOST_ELEMENTS // 2
    indexes = struct.pack(">i", half - 1) + bytes(4 * (half - 1))
    for topics, is_taken in ((2, True), (3, False)):
        body = memoryview(b"\x00\x01g" + struct.pack(">i", topics) + (b"\x00\x01t" + indexes) * topics)
        if is_taken:
            assert check_shape(offset_fetch, body, 0) == len(body)
        else:
            with pytest.raises(MalformedRequest, match="elements in one request"):
                check_shape(offset_fetch, body, 0)
    metadata: Any = request_class(3, 1)
    with pytest.raises(MalformedRequest, match="elements in one request"):
        names = struct.pack(">i", MOST_ELEMENTS + 1) + b"\x00\x00" * (MOST_ELEMENTS + 1)
        check_shape(metadata, memoryview(names), 0)


def test_entity_of_more_than_64_known_tagged_fields_is_refused() -> None:
    fetch: Any = request_class(1, 12)
    body = encoded(fetch, replace(a_request(fetch, random.Random(2)), cluster_id=None))[:-1]
    for count, is_taken in ((64, True), (65, False), (4000, False)):
        head = bytes([count]) if count < 128 else bytes([count & 127 | 128, count >> 7])
        tagged = memoryview(body + head + b"\x00\x02\x02x" * count)
        if is_taken:
            assert check_shape(fetch, tagged, 0) == len(tagged)
        else:
            with pytest.raises(MalformedRequest, match=f"{count} tagged fields in one entity"):
                check_shape(fetch, tagged, 0)
