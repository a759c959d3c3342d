"""Partitions whose oldest batches are only in segments."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from uuid import UUID

import anyio

from korvet.redis.client import Purpose
from korvet.store.log import tier
from korvet.store.log.memory.room import PartitionRead, Want
from korvet.store.log.state.partition import Partition
from korvet.tier.manifest import Manifest, folder_of, object_path, shelf
from korvet.tier.merging import merged
from korvet.tier.objects import Objects
from korvet.tier.publishing import manifest
from korvet.tier.segment import Aborted, Footer, Writer, batches
from korvet.tier.tier import Tier
from tests.store.logs import EVERYTHING, NAMESPACE, Front


async def index_at(one: Front, partition: Partition, next_offset: int) -> bytes:
    """The index text of the entry that ends at an offset."""
    name = partition.keys.log
    found = await one.store.call(Purpose.READ, name, "XRANGE", name, f"{next_offset}-0", f"{next_offset}-0")
    return bytes(found[0][1][1])


def path_of(namespace: str, partition: Partition, first: int, name: str) -> str:
    """The path of a segment."""
    folder = folder_of(namespace, partition.topic.name, partition.topic_id, partition.index)
    return object_path(folder, "segment", first, name)


async def seal(
    one: Front,
    objects: Objects,
    partition: Partition,
    bounds: Sequence[int],
    *,
    local_start: int | None = None,
    namespace: str = NAMESPACE.name,
) -> list[str]:
    """Put the batches between each two bounds into a segment, and trim Redis. Returns the objects' paths.

    :param local_start: by default the last bound.
    """
    (read,) = await one.log.read([Want(partition, bounds[0], EVERYTHING, is_committed=True)], EVERYTHING)
    whole, paths, footer = b"".join(read.records), [], None
    aborted = await _aborted(one, partition)
    for number, (first, next_offset) in enumerate(pairwise(bounds)):
        data, ends, footer = _segment(partition, whole, first, next_offset, aborted, footer)
        name = f"segment{number}-{first}"
        paths.append(path_of(namespace, partition, first, name))
        await objects.put(paths[-1], data)
        indexes = [await index_at(one, partition, end) for end in (ends[0], ends[-1])]
        sizes = footer.size_bytes, footer.footer_bytes, footer.crc, footer.max_timestamp
        added = await tier.add(one.log, partition, tier.Upload(name, first, next_offset, *sizes, *indexes), "token")
        assert added is not None
        assert added.status == "added"
    epoch = partition.epoch
    until = bounds[-1] if local_start is None else local_start
    assert await tier.trim(one.log, partition, until, epoch) == (0, until)
    return paths


async def _listed(one: Front, partition: Partition) -> Manifest:
    found = await manifest(one.log, partition)
    assert found is not None
    return found[1]


async def shelve(one: Front, objects: Objects, partition: Partition, count: int) -> None:
    """Put the oldest segments on a shelf."""
    some = [each for each in (await _listed(one, partition)).members if each.kind == "segment"][:count]
    data, member = shelf(some, "shelf")
    folder = folder_of(NAMESPACE.name, partition.topic.name, partition.topic_id, partition.index)
    await objects.put(member.path(folder), [data])
    texts = [each.text().encode() for each in some]
    assert await tier.shelve(one.log, partition, texts, "shelf", len(data), member.crc)


async def merge(one: Front, objects: Objects, partition: Partition) -> None:
    """Put one segment in the place of all."""
    target_bytes = sum(each.size_bytes for each in (await _listed(one, partition)).members)
    async with anyio.create_task_group() as tasks:
        made = await merged(Tier(objects, tasks), NAMESPACE, one.log, partition, target_bytes)
    assert made is not None
    footer, texts = made.footer, [each.text().encode() for each in made.members]
    await objects.put(path_of(NAMESPACE.name, partition, footer.first_offset, "merged"), made.parts)
    assert await tier.shelve(one.log, partition, texts, "merged", footer.footer_bytes, footer.crc, "segment")
    assert len((await _listed(one, partition)).members) == 1


def _segment(
    partition: Partition, whole: bytes, first: int, next_offset: int, aborted: Sequence[Aborted], after: Footer | None
) -> tuple[list[bytes | memoryview], list[int], Footer]:
    before = {"chain": after.chain, "max_producer_id": after.max_producer_id} if after else {}
    writer = Writer(UUID(hex=partition.topic_id), partition.index, first, **before)
    ends: list[int] = []
    for batch, data in batches(whole):
        if first <= batch.base_offset < next_offset:
            writer.add([data], batch.max_timestamp)
            ends.append(batch.base_offset + batch.last_offset_delta + 1)
    parts, footer = writer.finish(aborted, next_offset)
    return parts, ends, footer


async def _aborted(one: Front, partition: Partition) -> list[Aborted]:
    name = partition.transaction_keys.aborted
    members = await one.store.call(Purpose.READ, name, "ZRANGE", name, 0, -1)
    rows = [tuple(map(int, member.split())) for member in members if member]
    return [Aborted(producer, first, last, stable) for first, last, producer, stable in rows]


def joined(reads: Sequence[PartitionRead]) -> bytes:
    """The bytes of some reads."""
    return b"".join(bytes(part) for read in reads for part in read.records)
