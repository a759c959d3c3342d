"""Produce answers packed by hand, versions 3 to 13: a front-end writes one for each request, and kio takes 20 µs.

tests/wire/test_produce_response.py compares them with kio's at every version. They name no leaders, because every
front-end serves every partition.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple
from uuid import UUID

from korvet.wire.packing import compact_string, nullable_string, string, unsigned_varint

LOG_START_SINCE = 5
MESSAGES_SINCE = 8
FLEXIBLE_SINCE = 9
TOPIC_ID_SINCE = 13
_NO_THROTTLE = bytes(4)


class PartitionAnswer(NamedTuple):
    """The outcome for one partition; offsets and the append time (milliseconds) are -1 if there are none.

    ``record_errors`` are the refused records by their index in the batch, each with a reason.
    """

    partition: int
    code: int
    base_offset: int = -1
    log_append_time: int = -1
    log_start: int = -1
    message: str | None = None
    record_errors: tuple[tuple[int, str], ...] = ()


@cache
def _partition_struct(version: int) -> struct.Struct:
    return struct.Struct(">ihqqq" if version >= LOG_START_SINCE else ">ihqq")


@cache
def _without_message(version: int) -> bytes:
    """No record errors, no message, and in flexible versions no tagged fields."""
    if version < MESSAGES_SINCE:
        return b""
    return b"\x01\x00\x00" if version >= FLEXIBLE_SINCE else b"\x00\x00\x00\x00\xff\xff"


def _with_message(version: int, message: str, record_errors: Sequence[tuple[int, str]]) -> bytes:
    if version < MESSAGES_SINCE:
        return b""
    flexible = version >= FLEXIBLE_SINCE
    errors = [
        index.to_bytes(4, "big") + (compact_string(why) + b"\x00" if flexible else nullable_string(why))
        for index, why in record_errors
    ]
    told = compact_string(message) + b"\x00" if flexible else nullable_string(message)
    return _count(len(errors), flexible) + b"".join(errors) + told


def _partition(version: int, answer: PartitionAnswer) -> bytes:
    partition, code, base_offset, log_append_time, log_start, message, record_errors = answer
    if version >= LOG_START_SINCE:
        fixed = _partition_struct(version).pack(partition, code, base_offset, log_append_time, log_start)
    else:
        fixed = _partition_struct(version).pack(partition, code, base_offset, log_append_time)
    return fixed + (_without_message(version) if message is None else _with_message(version, message, record_errors))


def _topic(version: int, topic: str | UUID) -> bytes:
    if isinstance(topic, UUID):
        return topic.bytes
    return compact_string(topic) if version >= FLEXIBLE_SINCE else string(topic)


def pack(version: int, topics: Sequence[tuple[str | UUID, Sequence[PartitionAnswer]]]) -> bytes:
    """The body of an answer. Topics have ids from version 13 on, and names before."""
    flexible = version >= FLEXIBLE_SINCE
    parts = [_count(len(topics), flexible)]
    for topic, partitions in topics:
        parts.append(_topic(version, topic))
        parts.append(_count(len(partitions), flexible))
        parts.extend([_partition(version, answer) for answer in partitions])
        if flexible:
            parts.append(b"\x00")
    parts.append(_NO_THROTTLE + b"\x00" if flexible else _NO_THROTTLE)
    return b"".join(parts)


def _count(items: int, flexible: bool) -> bytes:
    return unsigned_varint(items + 1) if flexible else items.to_bytes(4, "big")
