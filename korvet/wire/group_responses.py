"""Answers packed by hand for requests that members send all the time. Their throttle time is always zero.

These are Heartbeat (0 to 4), ConsumerGroupHeartbeat (0 and 1), OffsetCommit (2 to 9), JoinGroup (0 to 9) and SyncGroup
(0 to 5). A rebalance sends the last two to all members at once.
tests/wire/test_group_responses.py compares them with kio's at every version.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import cache

from korvet.wire.packing import (
    compact_bytes,
    compact_nullable_string,
    compact_string,
    int32_bytes,
    nullable_string,
    string,
    unsigned_varint,
)

_HEARTBEAT_THROTTLE_SINCE = 1
_HEARTBEAT_FLEXIBLE_SINCE = 4
_COMMIT_THROTTLE_SINCE = 3
_COMMIT_FLEXIBLE_SINCE = 8
_NO_THROTTLE = bytes(4)
_NOTHING_WRONG = _NO_THROTTLE + b"\x00\x00" + b"\x00"
"""No throttle time, no error and no message."""
_JOIN_THROTTLE_SINCE = 2
_JOIN_STATIC_SINCE = 5
_JOIN_FLEXIBLE_SINCE = 6
_JOIN_TYPE_SINCE = 7
_JOIN_SKIP_SINCE = 9
_SYNC_THROTTLE_SINCE = 1
_SYNC_FLEXIBLE_SINCE = 4
_SYNC_TYPE_SINCE = 5
_CODE_AND_GENERATION = struct.Struct(">hi").pack
_EPOCH_AND_INTERVAL = struct.Struct(">iibx").pack
"""The member epoch and the interval, and behind them -1 for no assignment."""
_PARTITION = struct.Struct(">ih").pack
_TAGGED_PARTITION = struct.Struct(">ihx").pack

_PLAIN = (string, nullable_string, int32_bytes)
_COMPACT = (compact_string, compact_nullable_string, compact_bytes)

MemberAnswer = tuple[str, str | None, bytes]
"""A member's id, instance id and metadata."""
TopicAnswer = tuple[str, Sequence[tuple[int, int]]]
"""A topic's name, and its partitions with the code of each."""


@cache
def heartbeat(version: int, code: int) -> bytes:
    """A body with an error code and nothing else."""
    throttle = _NO_THROTTLE if version >= _HEARTBEAT_THROTTLE_SINCE else b""
    tags = b"\x00" if version >= _HEARTBEAT_FLEXIBLE_SINCE else b""
    return throttle + code.to_bytes(2, "big", signed=True) + tags


def consumer_heartbeat(member_id: str, member_epoch: int, interval_ms: int) -> bytes:
    """A body without an error and without an assignment."""
    return b"".join((_NOTHING_WRONG, compact_string(member_id), _EPOCH_AND_INTERVAL(member_epoch, interval_ms, -1)))


def join_group(
    version: int,
    *,
    code: int,
    generation: int,
    protocol_type: str | None,
    protocol: str | None,
    leader: str,
    skip_assignment: bool,
    member_id: str,
    members: Sequence[MemberAnswer],
) -> bytes:
    """A body with the new generation, and for the leader with all members."""
    is_flexible = version >= _JOIN_FLEXIBLE_SINCE
    text, nullable, data = _COMPACT if is_flexible else _PLAIN
    has_type, has_static = version >= _JOIN_TYPE_SINCE, version >= _JOIN_STATIC_SINCE
    end = b"\x00" if is_flexible else b""
    parts = [
        _NO_THROTTLE if version >= _JOIN_THROTTLE_SINCE else b"",
        _CODE_AND_GENERATION(code, generation),
        nullable(protocol_type) if has_type else b"",
        # Before this version it cannot be null.
        nullable(protocol or (None if has_type else "")),
        text(leader),
        bytes([skip_assignment]) if version >= _JOIN_SKIP_SINCE else b"",
        text(member_id),
        _length(is_flexible, len(members)),
    ]
    for id, instance_id, metadata in members:
        parts += (text(id), nullable(instance_id) if has_static else b"", data(metadata), end)
    parts.append(end)
    return b"".join(parts)


def sync_group(version: int, *, code: int, protocol_type: str | None, protocol: str | None, assignment: bytes) -> bytes:
    """A body with a member's assignment."""
    is_flexible = version >= _SYNC_FLEXIBLE_SINCE
    _, nullable, data = _COMPACT if is_flexible else _PLAIN
    parts = [
        _NO_THROTTLE if version >= _SYNC_THROTTLE_SINCE else b"",
        code.to_bytes(2, "big", signed=True),
        nullable(protocol_type) + nullable(protocol) if version >= _SYNC_TYPE_SINCE else b"",
        data(assignment),
        b"\x00" if is_flexible else b"",
    ]
    return b"".join(parts)


def offset_commit(version: int, topics: Iterable[TopicAnswer]) -> bytes:
    """A body with a code for each partition."""
    is_flexible = version >= _COMMIT_FLEXIBLE_SINCE
    pack, name_of = (_TAGGED_PARTITION, compact_string) if is_flexible else (_PARTITION, string)
    parts = [b""]
    count = 0
    for name, partitions in topics:
        count += 1
        parts += (name_of(name), _length(is_flexible, len(partitions)))
        parts += [pack(index, code) for index, code in partitions]
        if is_flexible:
            parts.append(b"\x00")
    throttle = _NO_THROTTLE if version >= _COMMIT_THROTTLE_SINCE else b""
    parts[0] = throttle + _length(is_flexible, count)
    if is_flexible:
        parts.append(b"\x00")
    return b"".join(parts)


def _length(is_flexible: bool, length: int) -> bytes:
    return unsigned_varint(length + 1) if is_flexible else length.to_bytes(4, "big")
