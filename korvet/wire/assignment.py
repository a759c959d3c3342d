"""The assignment that a classic group's leader made for a member, as clients encode it.

Source: ConsumerProtocolAssignment.json; versions 0 to 3 differ only after the partitions.
"""

from __future__ import annotations

import struct

_COUNT = struct.Struct(">i")
_HEAD = struct.Struct(">hi")
_LENGTH = struct.Struct(">h")
MOST_PARTITIONS = 10_000
"""The most partitions that a front-end reads of an assignment."""


def assigned_partitions(data: bytes, most: int = MOST_PARTITIONS) -> list[tuple[str, int]]:
    """The topics and partitions of a ConsumerProtocolAssignment; none if the bytes are not one.

    The data's length bounds the work, whatever counts it claims. Of a larger assignment only the first ``most``
    partitions are read.
    """
    partitions: list[tuple[str, int]] = []
    try:
        version, topics = _HEAD.unpack_from(data)
        at = _HEAD.size
        for _ in range(min(topics, most) if version >= 0 else 0):
            (length,) = _LENGTH.unpack_from(data, at)
            at += _LENGTH.size
            name = data[at : at + max(length, 0)].decode()
            at += max(length, 0)
            (count,) = _COUNT.unpack_from(data, at)
            at += _COUNT.size
            if not 0 <= count <= (len(data) - at) // _COUNT.size:
                return []
            count = min(count, most - len(partitions))
            partitions += ((name, partition) for partition in struct.unpack_from(f">{count}i", data, at))
            if len(partitions) >= most:
                break
            at += count * _COUNT.size
    except (struct.error, UnicodeDecodeError):
        return []
    return partitions
