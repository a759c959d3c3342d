"""How much room there is: what Redis may use, and what partitions take of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from korvet.store.client import Purpose, Store
from korvet.store.log import Partition
from korvet.store.memory import UNLIMITED, Room, ask_memory, read_room

_PIPELINED = 500


async def room(store: Store) -> Room:
    """The sums over all primaries.

    :raises StoreUnavailable, StoreError: when one cannot be asked.
    """
    rooms = [read_room(await answer) for answer in [ask_memory(link) for link in store.primaries]]
    if any(one.total_bytes == UNLIMITED for one in rooms):
        return Room(UNLIMITED, UNLIMITED)
    return Room(sum(one.total_bytes for one in rooms), sum(one.usable_bytes for one in rooms))


async def room_at(store: Store, key: str) -> Room:
    """The room of the server that has a key.

    :raises StoreUnavailable, StoreError:
    """
    return read_room(await store.call(Purpose.APPEND, key, "INFO", "memory"))


async def log_bytes(store: Store, partitions: Sequence[Partition]) -> list[int]:
    """The bytes of the batches in each partition's log; 0 where its keys are not there, or are another topic's.

    :raises StoreUnavailable, StoreError:
    """
    found: list[int] = []
    for start in range(0, len(partitions), _PIPELINED):
        some = partitions[start : start + _PIPELINED]
        asked = [store.fcall(Purpose.READ, "korvet_log_describe", (one.keys.log, one.keys.meta)) for one in some]
        for partition, answer in zip(some, asked, strict=True):
            found.append(_bytes_of(await answer, partition.topic_id))
    return found


def _bytes_of(reply: Sequence[Any], topic_id: str) -> int:
    described = dict(zip(reply[1::2], reply[2::2], strict=True))
    return int(described[b"bytes"]) if described.get(b"topic_id") == topic_id.encode() else 0
