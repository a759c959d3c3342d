"""The assignment that a consumer group's leader made for a member, as clients encode it.

Source: ConsumerProtocolAssignment.json; versions 0 to 3 are the same but for what comes behind.
"""

from __future__ import annotations

import struct

_COUNT = struct.Struct(">i")
_HEAD = struct.Struct(">hi")
_LENGTH = struct.Struct(">h")


def assigned_places(data: bytes) -> list[tuple[str, int]]:
    """The topics and partitions of a ConsumerProtocolAssignment; none where the bytes are not one.

    What it takes is bounded by the length of the data, whatever the counts in it say.
    """
    places: list[tuple[str, int]] = []
    try:
        version, topics = _HEAD.unpack_from(data)
        at = _HEAD.size
        for _ in range(topics if version >= 0 else 0):
            (length,) = _LENGTH.unpack_from(data, at)
            at += _LENGTH.size
            name = data[at : at + max(length, 0)].decode()
            at += max(length, 0)
            (count,) = _COUNT.unpack_from(data, at)
            at += _COUNT.size
            if not 0 <= count <= (len(data) - at) // _COUNT.size:
                return []
            places += ((name, partition) for partition in struct.unpack_from(f">{count}i", data, at))
            at += count * _COUNT.size
    except (struct.error, UnicodeDecodeError):
        return []
    return places
