"""Offsets and sizes of all partitions of a namespace.

`korvet_log_describe` returns a log's size, and its meta hash holds the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from korvet.errors import StoreError
from korvet.metrics.rounds.pace import Pace
from korvet.metrics.samples import Samples
from korvet.redis.client import Purpose
from korvet.store.groups.types import TopicPartition
from korvet.store.log.log import Log
from korvet.store.log.state.epochs import parse_epochs
from korvet.store.log.state.partition import Meta, Partition

_SLICE: Final = 50
_FIELDS: Final = ("topic_id", "start", "end", "epoch", "epochs", "first_open", "totals")


class Seen(NamedTuple):
    """A partition as a round saw it; ``first_open`` is the first offset of its open transactions, -1 without one."""

    topic_id: str
    meta: Meta
    first_open: int


class _Read(NamedTuple):
    """A partition as a round reads it; ``appended_bytes`` counts all bytes ever appended."""

    seen: Seen
    size_bytes: int
    appended_bytes: int
    leader_epochs: int


async def read_partitions(
    log: Log, namespace: str, partitions: Iterator[Partition], pace: Pace, samples: Samples
) -> Mapping[TopicPartition, Seen]:
    """Read partitions, and set their figures. Returns all that could be read."""
    seen: dict[TopicPartition, Seen] = {}

    def ask(partition: Partition) -> asyncio.Future[Any]:
        return asyncio.ensure_future(_fetch(log, partition))

    while some := list(islice(partitions, _SLICE)):
        for partition, found in await pace.ask(some, ask):
            if found is None:
                # The topic was deleted a moment ago, or its keys are being made.
                continue
            one = seen[partition.topic.name, partition.index] = found.seen
            labels = namespace, partition.topic.name, str(partition.index)
            samples.set("korvet_partition_start_offset", one.meta.start, *labels)
            samples.set("korvet_partition_end_offset", one.meta.end, *labels)
            samples.set("korvet_partition_size_bytes", found.size_bytes, *labels)
            samples.set("korvet_partition_appended_bytes_total", found.appended_bytes, *labels)
            samples.set("korvet_partition_leader_epochs", found.leader_epochs, *labels)
    return seen


async def _fetch(log: Log, partition: Partition) -> _Read | None:
    """Read a partition; None if its keys do not exist.

    :raises KorvetError: it cannot be read.
    """
    keys = partition.keys
    described = log.store.call_function(Purpose.READ, "korvet_log_describe", (keys.log, keys.meta), without_groups=1)
    reply, meta = await asyncio.gather(described, log.store.call(Purpose.READ, keys.meta, "HMGET", keys.meta, *_FIELDS))
    if reply[0] != 0 or meta[0] is None or meta[0].decode() != partition.topic_id:
        return None
    try:
        return _read(partition, reply, meta)
    except (ValueError, TypeError, AttributeError, LookupError):
        raise StoreError(f"{keys.meta} has a field that is missing or no number: {meta}") from None


def _read(partition: Partition, reply: Sequence[Any], meta: Sequence[Any]) -> _Read:
    _, start, end, epoch, epochs, first_open, totals = meta
    opened = -1 if first_open is None else int(first_open)
    stable = int(end) if opened < 0 else max(int(start), opened)
    known = Meta(int(start), int(end), int(epoch), epochs or b"", stable, -1, -1)
    return _Read(
        seen=Seen(partition.topic_id, known, opened),
        size_bytes=int(dict(zip(reply[1::2], reply[2::2], strict=True))[b"bytes"]),
        appended_bytes=int(totals.split()[1]),
        leader_epochs=len(parse_epochs(known.epochs)),
    )
