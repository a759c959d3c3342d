"""Seals a topic's batches by hand, so that tests of readers choose the segments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from uuid import UUID

import anyio

from korvet.pipeline.broker import Broker
from korvet.pipeline.source.tier import _hex
from korvet.tier.manifest import Member, shelf
from korvet.tier.objects import Directory
from korvet.tier.segment import Aborted, Writer
from korvet.tier.segment import batches as batches_in
from korvet.tier.series import Series
from korvet.tier.snapshot import Snapshot
from korvet.wire.batch import CONTROL, HEADER_BYTES, Batch
from tests.api.data import fetch, wanted
from tests.support.broker import KorvetServer

Held = list[tuple[Batch, bytes]]


def held(server: KorvetServer, topic: str, partition: int) -> Held:
    """The batches of a partition, as a Fetch serves them."""
    found: Held = []
    while True:
        after = found[-1][0].base_offset + found[-1][0].last_offset_delta + 1 if found else 0
        (part,) = fetch(server.port, topic, wanted(after, partition))
        if not part["records"]:
            return found
        found += [(batch, bytes(whole)) for batch, whole in batches_in(part["records"])]


def aborted(log: Held) -> list[Aborted]:
    """The aborted transactions of a log, by their markers."""
    found: list[Aborted] = []
    begun: dict[int, int] = {}
    for batch, data in log:
        if batch.attributes & CONTROL:
            first, is_abort = begun.pop(batch.producer_id, None), data[HEADER_BYTES + 8] == 0
            if first is not None and is_abort:
                open_ = min(begun.values(), default=batch.base_offset + 1)
                found.append(Aborted(batch.producer_id, first, batch.base_offset, open_))
        elif batch.is_transactional:
            begun.setdefault(batch.producer_id, batch.base_offset)
    return found


def seal(
    server: KorvetServer,
    topic: str,
    root: Path,
    segments: int,
    *,
    partition: int = 0,
    left: int = 0,
    shelved: int = 0,
) -> Snapshot:
    """Put a partition's batches into segments, and a snapshot that lists them.

    :param left: the last batches that stay out.
    :param shelved: the first segments that a shelf lists.
    """
    with Broker({"bootstrap.servers": server.bootstrap}) as admin:
        topic_id = UUID(hex=_hex(admin.topics([topic])[topic].id))
        position = admin.latest([(topic, partition)], committed_only=False)[topic, partition]
        start = admin.earliest([(topic, partition)])[topic, partition].offset
    log = held(server, topic, partition)
    sealed = log[: len(log) - left]
    cuts = [len(sealed) * at // segments for at in range(segments + 1)]
    those = aborted(log)
    objects = Directory(root)
    members: list[Member] = []
    snapshot = Snapshot(
        cluster_id="c", namespace="default", topic=topic, topic_id=topic_id.hex, partition=partition, token="t",
        leader_epoch=position.leader_epoch or 0, epochs="0:0", log_start=start, tier_end=0, max_producer_id=-1,
        chain=0, members=(),
    )  # fmt: skip

    async def put() -> Snapshot:
        next_offset, listed = 0, members
        for at, (first, after) in enumerate(pairwise(cuts)):
            writer = Writer(topic_id, partition, next_offset)
            for batch, data in sealed[first:after]:
                writer.add([data], batch.max_timestamp)
            own = [one for one in those if one.first_offset < writer.next_offset and one.last_offset >= next_offset]
            parts, footer = writer.finish(own)
            facts = footer.size_bytes, footer.footer_bytes, footer.max_timestamp, footer.max_timestamp, 0, footer.crc
            one = Member("segment", footer.first_offset, footer.next_offset, *facts, f"{at}")
            await objects.put(one.path(snapshot.folder), parts)
            members.append(one)
            next_offset = footer.next_offset
        if shelved:
            data, one = shelf(members[:shelved], "shelf")
            await objects.put(one.path(snapshot.folder), [data])
            listed = [one, *members[shelved:]]
        made = replace(snapshot, tier_end=next_offset, members=listed)
        await publish(root, made)
        return made

    return anyio.run(put)


async def publish(root: Path, snapshot: Snapshot, number: int = 1) -> None:
    """Put a snapshot into the tier, with a number that follows the last one."""
    series = Series(Directory(root), snapshot.folder, Snapshot.decoded)
    assert await series.add(number - 1, snapshot.encoded()) == number


def paths(root: Path, snapshot: Snapshot) -> Sequence[Path]:
    """The files of its segments, in order."""
    return sorted((root / snapshot.folder).glob("*.segment"))
