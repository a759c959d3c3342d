"""Offsets and sizes of all partitions of a namespace.

A call of `korvet_log_describe` tells a log's size, and its meta hash tells the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from korvet.metrics.rounds.pace import Pace
from korvet.metrics.samples import Samples
from korvet.redis.client import Purpose
from korvet.store.groups.types import TopicPartition
from korvet.store.log.epochs import parse_epochs
from korvet.store.log.log import Log
from korvet.store.log.partition import Meta, Partition

_SLICE: Final = 50
_FIELDS: Final = ("topic_id", "start", "end", "epoch", "epochs", "first_open", "totals")


class Seen(NamedTuple):
    """A partition as a round saw it; ``first_open`` is the first offset of its open transactions, -1 without one."""

    topic_id: str
    meta: Meta
    first_open: int


async def read_partitions(
    log: Log, namespace: str, partitions: Iterator[Partition], pace: Pace, samples: Samples
) -> Mapping[TopicPartition, Seen]:
    """Read partitions, and set their figures. Returns all that could be read."""
    seen: dict[TopicPartition, Seen] = {}

    def ask(partition: Partition) -> asyncio.Future[Any]:
        return asyncio.ensure_future(_ask(log, partition))

    while some := list(islice(partitions, _SLICE)):
        for partition, found in await pace.ask(some, ask):
            if found is None:
                # The topic was deleted a moment ago, or its keys are being made.
                continue
            one, size_bytes, appended_bytes = found
            seen[partition.topic.name, partition.index] = one
            labels = namespace, partition.topic.name, str(partition.index)
            samples.set("korvet_partition_start_offset", one.meta.start, *labels)
            samples.set("korvet_partition_end_offset", one.meta.end, *labels)
            samples.set("korvet_partition_size_bytes", size_bytes, *labels)
            samples.set("korvet_partition_appended_bytes_total", appended_bytes, *labels)
            samples.set("korvet_partition_leader_epochs", len(parse_epochs(one.meta.epochs)), *labels)
    return seen


async def _ask(log: Log, partition: Partition) -> tuple[Seen, int, int] | None:
    """What is there of a partition, its size, and the bytes that were ever appended; None if there is nothing.

    :raises KorvetError: it cannot be read.
    """
    keys = partition.keys
    described = log.store.call_function(Purpose.READ, "korvet_log_describe", (keys.log, keys.meta), without_groups=1)
    reply, meta = await asyncio.gather(described, log.store.call(Purpose.READ, keys.meta, "HMGET", keys.meta, *_FIELDS))
    if reply[0] != 0 or meta[0] is None or meta[0].decode() != partition.topic_id:
        return None
    _, start, end, epoch, epochs, first_open, totals = meta
    opened = -1 if first_open is None else int(first_open)
    stable = int(end) if opened < 0 else max(int(start), opened)
    known = Meta(int(start), int(end), int(epoch), epochs or b"", stable, -1, -1)
    return Seen(partition.topic_id, known, opened), _bytes_of(reply), int(totals.split()[1])


def _bytes_of(reply: Sequence[Any]) -> int:
    return int(dict(zip(reply[1::2], reply[2::2], strict=True))[b"bytes"])
