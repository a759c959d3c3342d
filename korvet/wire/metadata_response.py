"""Metadata answers packed by hand, versions 0 to 13: kio takes 9 µs for a partition, and an answer may have thousands.

tests/wire/test_metadata_response.py compares them with kio's at every version. Each partition has one replica, at the
node that clients take for its leader.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterable, Sequence
from typing import NamedTuple
from uuid import UUID

from korvet.wire.packing import (
    compact_nullable_string,
    compact_string,
    nullable_string,
    string,
    unsigned_varint,
)

RACK_SINCE = 1
CLUSTER_ID_SINCE = 2
THROTTLE_SINCE = 3
OFFLINE_SINCE = 5
EPOCH_SINCE = 7
OPERATIONS_SINCE = 8
FLEXIBLE_SINCE = 9
TOPIC_ID_SINCE = 10
NO_CLUSTER_OPERATIONS_SINCE = 11
NULLABLE_NAME_SINCE = 12
ERROR_SINCE = 13
_NO_THROTTLE = bytes(4)
_STEP = 2000
"""The partitions and topics between two pauses, in 2 to 5 ms."""
_flexible = struct.Struct(">hiiiBiBiBB").pack
_with_epoch = struct.Struct(">hiiiiiiii").pack
_with_offline = struct.Struct(">hiiiiiii").pack
_oldest = struct.Struct(">hiiiiii").pack
_code = struct.Struct(">h").pack
_int32 = struct.Struct(">i").pack


class BrokerAnswer(NamedTuple):
    """A broker without a rack."""

    node_id: int
    host: str
    port: int


class PartitionAnswer(NamedTuple):
    """A partition; ``leader`` is -1 if it has none, and ``node`` has its only replica."""

    code: int
    partition: int
    leader: int
    epoch: int
    node: int


class TopicAnswer(NamedTuple):
    """A topic, or the error for one that cannot be described. ``name`` is None for an unknown id."""

    code: int
    name: str | None
    topic_id: UUID
    is_internal: bool
    operations: int
    partitions: Iterable[PartitionAnswer]
    partition_count: int


class ClusterAnswer(NamedTuple):
    """The rest of an answer."""

    brokers: Sequence[BrokerAnswer]
    cluster_id: str | None
    controller_id: int
    operations: int
    code: int = 0


def pack(
    version: int, cluster: ClusterAnswer, topics: Iterable[TopicAnswer], count: int
) -> Generator[None, None, bytes]:
    """The body of an answer about so many topics, packed in steps of some milliseconds; the generator returns it."""
    flexible = version >= FLEXIBLE_SINCE
    parts = [_head(version, cluster), _count(flexible, count)]
    done = 0
    for topic in topics:
        parts.append(_topic(version, topic))
        for answer in topic.partitions:
            parts.append(_partition(version, answer))
            done += 1
            if done % _STEP == 0:
                yield
        parts.append(_topic_end(version, topic))
        done += 1
        if done % _STEP == 0:
            yield
    if OPERATIONS_SINCE <= version < NO_CLUSTER_OPERATIONS_SINCE:
        parts.append(_int32(cluster.operations))
    if version >= ERROR_SINCE:
        parts.append(_code(cluster.code))
    if flexible:
        parts.append(b"\x00")
    return b"".join(parts)


def _head(version: int, cluster: ClusterAnswer) -> bytes:
    flexible = version >= FLEXIBLE_SINCE
    parts = [_NO_THROTTLE if version >= THROTTLE_SINCE else b"", _count(flexible, len(cluster.brokers))]
    for node_id, host, port in cluster.brokers:
        parts += (_int32(node_id), compact_string(host) if flexible else string(host), _int32(port))
        # No rack, and no tagged fields.
        parts.append(b"\x00\x00" if flexible else b"\xff\xff" if version >= RACK_SINCE else b"")
    if version >= CLUSTER_ID_SINCE:
        parts.append((compact_nullable_string if flexible else nullable_string)(cluster.cluster_id))
    if version >= RACK_SINCE:
        parts.append(_int32(cluster.controller_id))
    return b"".join(parts)


def _topic(version: int, topic: TopicAnswer) -> bytes:
    flexible = version >= FLEXIBLE_SINCE
    name = topic.name if version >= NULLABLE_NAME_SINCE else topic.name or ""
    return b"".join((
        _code(topic.code),
        compact_nullable_string(name) if flexible else nullable_string(name),
        topic.topic_id.bytes if version >= TOPIC_ID_SINCE else b"",
        bytes([topic.is_internal]) if version >= RACK_SINCE else b"",
        _count(flexible, topic.partition_count),
    ))  # fmt: skip


def _topic_end(version: int, topic: TopicAnswer) -> bytes:
    operations = _int32(topic.operations) if version >= OPERATIONS_SINCE else b""
    return operations + b"\x00" if version >= FLEXIBLE_SINCE else operations


def _partition(version: int, answer: PartitionAnswer) -> bytes:
    """Code, index, leader, perhaps the epoch, two arrays of one node, and perhaps an empty one."""
    code, index, leader, epoch, node = answer
    if version >= FLEXIBLE_SINCE:
        return _flexible(code, index, leader, epoch, 2, node, 2, node, 1, 0)
    if version >= EPOCH_SINCE:
        return _with_epoch(code, index, leader, epoch, 1, node, 1, node, 0)
    if version >= OFFLINE_SINCE:
        return _with_offline(code, index, leader, 1, node, 1, node, 0)
    return _oldest(code, index, leader, 1, node, 1, node)


def _count(flexible: bool, items: int) -> bytes:
    return unsigned_varint(items + 1) if flexible else _int32(items)
