"""The memory of Redis: what is usable, and the bytes of partitions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

from korvet.errors import StoreError
from korvet.redis.client import Purpose, Store
from korvet.store.catalog.catalog import Catalog
from korvet.store.groups.call import chunks
from korvet.store.groups.groups import Groups
from korvet.store.keys import GROUP_INDEX_SHARDS, TRANSACTION_SHARDS, Namespace, share_partition
from korvet.store.log.partitions.partitions import Partitions
from korvet.store.log.state.partition import Partition
from korvet.store.memory import UNLIMITED, ServerMemory, read_memory, request_memory
from korvet.store.transactions.listing import ids_of

_PIPELINED = 500
_KEYS_AT_ONCE = 100
_EMPTY_PARTITION_BYTES = 2048
"""The least bytes of a partition's keys beside its batches. The limit of partitions counts these."""
_MOST_LOOKED_AT = 2000
_SHOWN = 3


async def memory_of_primaries(store: Store) -> ServerMemory:
    """The memory of all primaries together.

    :raises StoreUnavailable, StoreError: a primary fails.
    """
    servers = [read_memory(await answer) for answer in [request_memory(link) for link in store.primaries]]
    if any(one.total_bytes == UNLIMITED for one in servers):
        return ServerMemory(UNLIMITED, UNLIMITED)
    return ServerMemory(sum(one.total_bytes for one in servers), sum(one.usable_bytes for one in servers))


async def memory_at(store: Store, key: str) -> ServerMemory:
    """The memory of the server that has a key.

    :raises StoreUnavailable, StoreError:
    """
    return read_memory(await store.call(Purpose.APPEND, key, "INFO", "memory"))


async def log_bytes(store: Store, partitions: Sequence[Partition]) -> list[int]:
    """The bytes of the batches in each partition's log; 0 if its keys are missing, or are another topic's.

    :raises StoreUnavailable, StoreError:
    """
    found: list[int] = []
    for start in range(0, len(partitions), _PIPELINED):
        some = partitions[start : start + _PIPELINED]
        replies = [
            store.call_function(Purpose.READ, "korvet_log_describe", (one.keys.log, one.keys.meta), without_groups=1)
            for one in some
        ]
        for partition, answer in zip(some, replies, strict=True):
            try:
                found.append(_bytes_of(await answer, partition.topic_id))
            except StoreError:
                found.append(0)
    return found


async def stored_bytes(namespace: Namespace, catalog: Catalog, log: Partitions, groups: Groups) -> tuple[int, int, int]:
    """The bytes of a namespace's partitions, the bytes of its other keys, and the number of its units.

    Only readers that this front-end noted are counted.

    :raises StoreUnavailable, StoreError:
    """
    partitions = [log.partition(topic, index) for topic in catalog.topics() for index in range(topic.partitions)]
    partition_bytes = sum(await log_bytes(log.store, partitions))
    sizes = await _sizes(log.store, [_keys_beside(log, partition) for partition in partitions])
    partition_bytes += sum(max(0, size - _EMPTY_PARTITION_BYTES) for size in sizes)

    units: list[Sequence[str]] = [namespace.security]
    units.append([*namespace.catalog, *map(namespace.group_index, range(GROUP_INDEX_SHARDS))])
    units += [namespace.group(group_id) for group_ids in await groups.index.group_ids() for group_id in group_ids]
    for shard in range(TRANSACTION_SHARDS):
        ids = [namespace.transaction(one).id for one in await ids_of(namespace, log.store, shard)]
        units += chunks([namespace.transaction_deadlines(shard), *ids], _KEYS_AT_ONCE)
    units += [unit async for unit in _share_partitions(log.store, partitions)]
    other_bytes = groups.readers.noted_bytes + sum(await _sizes(log.store, units))
    return partition_bytes, other_bytes, len(partitions) + len(units)


def _keys_beside(log: Partitions, partition: Partition) -> Sequence[str]:
    keys = partition.transaction_keys
    return keys.producers, keys.open, keys.aborted, keys.transactions, log.tier_keys(partition).tier


async def _share_partitions(store: Store, partitions: Sequence[Partition]) -> AsyncIterator[Sequence[str]]:
    """The keys of the partitions' share groups."""
    for some in chunks(partitions, _PIPELINED):
        names = [share_partition(partition.keys, "").shares for partition in some]
        replies = [store.call(Purpose.READ, name, "HGETALL", name) for name in names]
        for partition, name, reply in zip(some, names, replies, strict=True):
            try:
                group_ids = (await reply)[::2]
            except StoreError:
                # A foreign key of that name.
                continue
            # A worker's group may have any bytes as its id; one that is no text is not counted.
            texts = [group_id.decode(errors="replace") for group_id in group_ids]
            ranges = [share_partition(partition.keys, group_id).ranges for group_id in texts]
            for unit in chunks([name, *ranges] if ranges else [], _KEYS_AT_ONCE):
                yield unit


async def _sizes(store: Store, units: Sequence[Sequence[str]]) -> list[int]:
    """The memory of some keys of each unit."""
    found: list[int] = []
    for some in chunks(units, _PIPELINED):
        replies = [store.call_function(Purpose.COORDINATE, "korvet_unit_size", keys) for keys in some]
        found += [await one for one in replies]
    return found


async def largest_topics(logs: Iterable[tuple[Catalog, Partitions]]) -> str:
    """The largest topics with the bytes of their batches, in words; samples very many partitions.

    :raises StoreUnavailable, StoreError:
    """
    sizes: list[tuple[int, str]] = []
    for catalog, log in logs:
        partitions = [log.partition(topic, index) for topic in catalog.topics() for index in range(topic.partitions)]
        partitions = partitions[:_MOST_LOOKED_AT]
        by_topic: dict[str, int] = {}
        for partition, size_bytes in zip(partitions, await log_bytes(log.store, partitions), strict=True):
            by_topic[partition.topic.name] = by_topic.get(partition.topic.name, 0) + size_bytes
        sizes += [(size_bytes, name) for name, size_bytes in by_topic.items()]
    return ", ".join(f"{name} {size_bytes >> 20} MiB" for size_bytes, name in sorted(sizes, reverse=True)[:_SHOWN])


def _bytes_of(reply: Sequence[Any], topic_id: str) -> int:
    described = dict(zip(reply[1::2], reply[2::2], strict=True))
    return int(described[b"bytes"]) if described.get(b"topic_id") == topic_id.encode() else 0
