"""How much room there is: what Redis may use, and what partitions take of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

from korvet.store.client import Purpose, Store
from korvet.store.link import Link
from korvet.store.log import Partition
from korvet.store.resp import pack_command

_PIPELINED = 500
UNLIMITED = -1


class Room(NamedTuple):
    """Bytes of memory that the servers may use in all, and what they may still take; -1 where one has no maxmemory."""

    total_bytes: int
    usable_bytes: int


async def room(store: Store) -> Room:
    """The sums over all primaries.

    :raises StoreUnavailable, StoreError: when one cannot be asked.
    """
    rooms = [_room(await answer) for answer in [_ask(link) for link in store.primaries]]
    if any(one.total_bytes == UNLIMITED for one in rooms):
        return Room(UNLIMITED, UNLIMITED)
    return Room(sum(one.total_bytes for one in rooms), sum(one.usable_bytes for one in rooms))


async def room_at(store: Store, key: str) -> Room:
    """The room of the server that has a key.

    :raises StoreUnavailable, StoreError:
    """
    return _room(await store.call(Purpose.APPEND, key, "INFO", "memory"))


def _room(info: bytes) -> Room:
    memory = _fields(info)
    limit = int(memory.get("maxmemory", 0))
    if limit == 0:
        return Room(UNLIMITED, UNLIMITED)
    # What is buffered for replicas and the AOF is in use, but does not count against the limit.
    used = int(memory["used_memory"]) - int(memory.get("mem_not_counted_for_evict", 0))
    return Room(limit, max(0, limit - used))


def _ask(link: Link) -> asyncio.Future[bytes]:
    future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    link.send(future, pack_command(("INFO", "memory")))
    return future


def _fields(info: bytes) -> dict[str, str]:
    return {name: value for name, found, value in (line.partition(":") for line in info.decode().split()) if found}


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
