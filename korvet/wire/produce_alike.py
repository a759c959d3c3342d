"""Small Produce requests for one partition, most of which differ from one before in nothing but their records.

A producer that sends much for a partition repeats everything in front of the records: transactional id, acks, timeout,
topic and index. So these bytes are remembered with what they mean, and a request that begins with them is read by one
look-up. Whatever is unlike is read as any other request.

Held against kio at every version by tests/wire/test_produce_alike.py.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

from korvet.wire.codec import RequestHeader, decode_request
from korvet.wire.packing import unsigned_varint
from korvet.wire.produce_request import (
    FLEXIBLE_SINCE,
    LARGE_BYTES,
    TOPIC_ID_SINCE,
    ProduceData,
    ProduceRequest,
    TopicData,
)

_MOST_HEADS = 256
_MOST_LENGTHS = 4
"""Heads of one length are found by one look-up."""
_NO_TAGS = bytes(3)  # of the partition, the topic and the request
_new: Callable[[type[Any], tuple[Any, ...]], Any] = tuple.__new__
"""A named tuple in half the time."""
_read_int32: Callable[[bytes, int], tuple[int]] = struct.Struct(">i").unpack_from


class _Head(NamedTuple):
    """What is in front of the records."""

    transactional_id: str | None
    acks: int
    timeout: timedelta
    name: str
    topic_id: UUID | None
    partition: int


class Alikes:
    """The heads of one connection's requests of one version."""

    def __init__(self, version: int) -> None:
        self.version = version
        self._is_flexible = version >= FLEXIBLE_SINCE
        self._tail = _NO_TAGS if self._is_flexible else b""
        self._has_topic_ids = version >= TOPIC_ID_SINCE
        self._heads: dict[int, dict[bytes, _Head]] = {}
        self.heads = 0
        """How many are remembered."""

    def decode(self, header: RequestHeader, frame: bytes) -> Any:
        """The request in a frame of less than `LARGE_BYTES`, as `decode_request` reads it; it may hold views of it.

        :raises MalformedRequest: when the bytes do not fit the schema.
        """
        at = header.body_at
        for size, heads in self._heads.items():
            head = heads.get(frame[at : at + size])
            if head is not None and (records := self._records(frame, at + size)) is not None:
                transactional_id, acks, timeout, name, topic_id, partition = head
                topic = _new(TopicData, (name, topic_id, [ProduceData(partition, records)]))
                return _new(ProduceRequest, (transactional_id, acks, timeout, [topic]))
        request = decode_request(header, memoryview(frame))
        if len(frame) < LARGE_BYTES:
            self._learn(request, frame, at)
        return request

    def _records(self, frame: bytes, at: int) -> memoryview | None:
        """The records whose length stands at a place; None where they are not all that is left of the frame."""
        end = len(frame) - len(self._tail)
        size = 0
        if self._is_flexible:
            for shift in (0, 7, 14):
                if at >= end:
                    return None
                byte = frame[at]
                at += 1
                size |= (byte & 0x7F) << shift
                if byte < 0x80:
                    break
            size -= 1
        elif at + 4 <= end:
            size = _read_int32(frame, at)[0]
            at += 4
        if size <= 0 or at + size != end or frame[end:] != self._tail:
            return None
        return memoryview(frame)[at:end]

    def _learn(self, request: Any, frame: bytes, at: int) -> None:
        # Arrays may be null, as kio reads them.
        topics = request.topic_data
        parts = topics[0].partition_data if topics and len(topics) == 1 else None
        if not parts or len(parts) != 1 or not parts[0].records:
            return
        topic, part = topics[0], parts[0]
        size = len(part.records)
        length = unsigned_varint(size + 1) if self._is_flexible else size.to_bytes(4, "big")
        end = len(frame) - len(self._tail) - size - len(length)
        # Where tagged fields, or bytes behind the body, are in the way, the request is like no other.
        if end <= at or frame[end:] != length + part.records + self._tail:
            return
        if self.heads >= _MOST_HEADS or (len(self._heads) >= _MOST_LENGTHS and end - at not in self._heads):
            self._heads.clear()
            self.heads = 0
        name, topic_id = ("", topic.topic_id) if self._has_topic_ids else (topic.name, None)
        self.heads += 1
        self._heads.setdefault(end - at, {})[frame[at:end]] = _Head(
            request.transactional_id, request.acks, request.timeout, name, topic_id, part.index
        )
