"""Large Produce requests, read without a copy of their batches.

kio's reader copies each batch. For a batch of a megabyte that costs as much as all other work of a front-end. kio reads
the small requests. tests/wire/test_produce_request.py compares this reader with kio's at every version.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple
from uuid import UUID

from korvet.errors import MalformedRequest
from korvet.wire.shape import (
    LONGEST_ID_BYTES,
    LONGEST_STRING_BYTES,
    MOST_OF_PRODUCE,
    bound_tagged_fields,
    refuse_id,
    too_many,
)

LARGE_BYTES = 1 << 15
FLEXIBLE_SINCE = 9
TOPIC_ID_SINCE = 13
_HEAD = struct.Struct(">hi")
_INT32 = struct.Struct(">i")
_INT16 = struct.Struct(">h")
_SMALLEST_TOPIC_BYTES = 2  # an array cannot have more elements than fit


@dataclass(slots=True)
class ProduceData:
    """A partition's batches, as a view of the frame. The class is not frozen: that would double its construction."""

    index: int
    records: memoryview | None


class TopicData(NamedTuple):
    """A topic: it has an id from version 13 on, and a name before. The zero id is None, as in kio."""

    name: str
    topic_id: UUID | None
    partition_data: list[ProduceData]


class ProduceRequest(NamedTuple):
    """The fields of kio's entity of the same name that `korvet.api.produce` needs."""

    transactional_id: str | None
    acks: int
    timeout: timedelta
    topic_data: list[TopicData]


def decode(version: int, body: memoryview) -> ProduceRequest:
    """Read a request's body. ``body`` must not change while the request is in use.

    :raises MalformedRequest: if the bytes do not fit the schema.
    """
    reader = _Reader(body, version >= FLEXIBLE_SINCE)
    try:
        transactional_id = reader.string()
        if transactional_id is not None and len(transactional_id.encode()) > LONGEST_ID_BYTES:
            refuse_id("transactional_id", len(transactional_id.encode()))
        acks, timeout_ms = reader.unpack(_HEAD)
        topics = [_topic(reader, version) for _ in range(reader.count())]
        reader.skip_tags()
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise MalformedRequest(f"body does not fit the schema: {error}") from None
    return ProduceRequest(transactional_id, acks, timedelta(milliseconds=timeout_ms), topics)


def _topic(reader: _Reader, version: int) -> TopicData:
    name, topic_id = "", None
    if version >= TOPIC_ID_SINCE:
        raw = bytes(reader.take(16))
        topic_id = UUID(bytes=raw) if any(raw) else None
    else:
        name = reader.name()
    partitions = [_partition(reader) for _ in range(reader.count())]
    reader.skip_tags()
    return TopicData(name, topic_id, partitions)


def _partition(reader: _Reader) -> ProduceData:
    (index,) = reader.unpack(_INT32)
    data = ProduceData(index, reader.records())
    reader.skip_tags()
    return data


class _Reader:
    """A reader of Kafka's primitive types, one after the other."""

    def __init__(self, body: memoryview, flexible: bool) -> None:
        self._body = body
        self._flexible = flexible
        self._at = 0
        self._left = MOST_OF_PRODUCE

    def unpack(self, shape: struct.Struct) -> tuple[int, ...]:
        values = shape.unpack_from(self._body, self._at)
        self._at += shape.size
        return values

    def take(self, size: int) -> memoryview:
        at, end = self._at, self._at + size
        if size < 0 or end > len(self._body):
            raise IndexError(f"{size} bytes at {at} of {len(self._body)}")
        self._at = end
        return self._body[at:end]

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 35, 7):
            byte = self._body[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise IndexError("unterminated varint")

    def _length(self, shape: struct.Struct) -> int:
        """A length; -1 stands for null."""
        return self._varint() - 1 if self._flexible else self.unpack(shape)[0]

    def string(self) -> str | None:
        length = self._length(_INT16)
        if length > LONGEST_STRING_BYTES:
            raise IndexError(f"a string of {length} bytes")
        return None if length == -1 else str(self.take(length), "utf-8")

    def name(self) -> str:
        value = self.string()
        if value is None:
            raise IndexError("null instead of a string")
        return value

    def records(self) -> memoryview | None:
        length = self._length(_INT32)
        return None if length == -1 else self.take(length)

    def count(self) -> int:
        """The number of elements of an array that may not be null."""
        length = self._length(_INT32)
        if not 0 <= length <= len(self._body) // _SMALLEST_TOPIC_BYTES:
            raise IndexError(f"array of {length} elements")
        self._left -= length
        if self._left < 0:
            raise too_many(MOST_OF_PRODUCE)
        return length

    def skip_tags(self) -> None:
        if self._flexible:
            count = self._varint()
            bound_tagged_fields(count)
            for _ in range(count):
                self._varint()
                self.take(self._varint())
