"""What the objects of a namespace say by themselves: its topics and partitions by their snapshots, and all checks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

import anyio
from crc32c import crc32c

from korvet.errors import KorvetError
from korvet.tier.blocks import MOST_GET_BYTES, Gets
from korvet.tier.manifest import Member, folder_of, read_shelf
from korvet.tier.objects import Objects
from korvet.tier.segment import BLOCK_BYTES, DamagedSegment, Footer, check_block, read_footer
from korvet.tier.series import Series
from korvet.tier.snapshot import Snapshot, TieredTopic, Topics, topics_folder

_AT_ONCE: Final = 16
_TRIES: Final = 4


@dataclass(slots=True)
class Survey:
    """A namespace by its newest snapshots."""

    topics: Topics
    partitions: Mapping[tuple[str, int], Snapshot]
    """By topic and number; one that never had a segment has no snapshot."""
    unreadable: Mapping[tuple[str, int], str]
    """The partitions whose newest snapshot cannot be read, and why."""

    @property
    def problems(self) -> list[str]:
        """A line for each unreadable partition."""
        return [f"{topic}-{number}: {why}" for (topic, number), why in self.unreadable.items()]

    def of(self, topic: TieredTopic) -> Sequence[Snapshot]:
        """The snapshots of a topic, by partition."""
        found = (self.partitions.get((topic.name, number)) for number in range(topic.partitions))
        return [one for one in found if one is not None]


async def newest_topics(objects: Objects, namespace: str) -> Topics:
    """The tiered topics of a namespace.

    :raises KorvetError: there is no snapshot of them, or it cannot be read.
    """
    found = await Series(objects, topics_folder(namespace), Topics.decoded).newest()
    if found is None:
        raise KorvetError(
            f"{objects.name} has no topics of namespace {namespace!r}: see --tier and --namespace; their snapshot is "
            "written soon after the first topic got remote.storage.enable=true"
        )
    return found[1]


async def survey(objects: Objects, namespace: str, only: str | None = None) -> Survey:
    """The newest snapshots of all topics of a namespace, or of one.

    :raises KorvetError: the topics are unknown, or there is no such topic, or the store is away.
    """
    topics = await newest_topics(objects, namespace)
    if only is not None and topics.named(only) is None:
        raise KorvetError(f"{objects.name} has no topic {only!r} of namespace {namespace!r}; see korvet tier list")
    wanted = [(one, number) for one in topics.topics if only in (None, one.name) for number in range(one.partitions)]
    found: dict[tuple[str, int], Snapshot] = {}
    unreadable: dict[tuple[str, int], str] = {}
    turns = anyio.CapacityLimiter(_AT_ONCE)

    async def read(topic: TieredTopic, number: int) -> None:
        folder = folder_of(namespace, topic.name, topic.id, number)
        async with turns:
            try:
                newest = await Series(objects, folder, Snapshot.decoded).newest()
            except KorvetError as error:
                unreadable[topic.name, number] = str(error)
                return
        if newest is not None:
            found[topic.name, number] = newest[1]

    async with anyio.create_task_group() as tasks:
        for one, number in wanted:
            tasks.start_soon(read, one, number)
    return Survey(topics, dict(sorted(found.items())), dict(sorted(unreadable.items())))


@dataclass(slots=True)
class Verified:
    """The outcome of a check of a partition."""

    segments: int = 0
    size_bytes: int = 0
    """All bytes that were read and are right."""
    problems: list[str] = field(default_factory=list)


class _Stored(NamedTuple):
    path: str
    member: Member


async def segments(gets: Gets, snapshot: Snapshot, problems: list[str]) -> AsyncIterator[_Stored]:
    """The segments from the log start on, with those that shelves list. An unreadable shelf is a problem."""
    for one in snapshot.readable():
        path = one.path(snapshot.folder)
        if one.kind == "segment":
            yield _Stored(path, one)
            continue
        try:
            start, end = 0, one.footer_bytes
            shelf = await gets.get(snapshot.folder, path, start, end, partial(read_shelf, member=one))
        except KorvetError as error:
            problems.append(f"{path}: {error}")
            continue
        for listed in shelf.members:
            if listed.next_offset > snapshot.log_start:
                yield _Stored(listed.path(snapshot.folder), listed)


async def verify_newest(objects: Objects, snapshot: Snapshot) -> Verified:
    """As `verify`, and once more by the newest snapshot while that changes: retention deletes objects meanwhile.

    :raises TierAway, DamagedSnapshot:
    """
    found = await verify(objects, snapshot)
    for _ in range(_TRIES):
        if not found.problems:
            break
        newest = await Series(objects, snapshot.folder, Snapshot.decoded).newest()
        if newest is None or newest[1] == snapshot:
            break
        snapshot = newest[1]
        found = await verify(objects, snapshot)
    return found


async def verify(objects: Objects, snapshot: Snapshot) -> Verified:
    """Read all segments of a partition, and check each byte, and that they follow each other."""
    gets, found = Gets(objects), Verified()
    reached, chain = snapshot.log_start, None
    async for path, member in segments(gets, snapshot, found.problems):
        if member.first_offset > reached:
            found.problems.append(f"{snapshot.folder}: no segment from offset {reached} to {member.first_offset}")
            chain = None
        reached = member.next_offset
        try:
            footer = await check_segment(gets, snapshot, path, member, chain)
        except KorvetError as error:
            text = str(error)
            found.problems.append(text if path in text else f"{path}: {text}")
            chain = None
            continue
        chain = footer.chain
        found.segments += 1
        found.size_bytes += member.object_bytes
    if reached < snapshot.tier_end:
        found.problems.append(f"{snapshot.folder}: no segment from offset {reached} to {snapshot.tier_end}")
    elif chain is not None and chain != snapshot.chain:
        found.problems.append(f"{snapshot.folder}: the last segment's chain is not the snapshot's")
    return found


async def check_segment(gets: Gets, snapshot: Snapshot, path: str, member: Member, chain: int | None) -> Footer:
    """Read a segment and check each byte.

    :param chain: of the segments before it; None if that is unknown.
    :raises DamagedSegment, ObjectMissing, TierAway:
    """

    def checked(data: memoryview) -> Footer:
        if len(data) != member.footer_bytes:
            raise DamagedSegment("it is shorter or longer than it was")
        return read_footer(bytes(data), crc=member.crc)

    # One byte more shows an object that is longer.
    footer = await gets.get(snapshot.folder, path, member.size_bytes, member.object_bytes + 1, checked)
    facts = footer.topic_id.hex, footer.partition, footer.first_offset, footer.next_offset, footer.size_bytes
    wanted = snapshot.topic_id, snapshot.partition, member.first_offset, member.next_offset, member.size_bytes
    if facts != wanted:
        raise DamagedSegment("the footer does not fit the snapshot")
    # Behind a segment that was lost another chain begins.
    if footer.chain_before and chain not in (None, footer.chain_before):
        raise DamagedSegment("it does not follow the segment before it: another history lies between them")
    running = footer.chain_before
    for start in range(0, footer.size_bytes, MOST_GET_BYTES):
        end = min(footer.size_bytes, start + MOST_GET_BYTES)
        data = await gets.get(snapshot.folder, path, start, end, partial(_checked_blocks, footer, start, end))
        running = crc32c(data, running)
    if running != footer.chain:
        raise DamagedSegment("its batches do not make its chain")
    return footer


def _checked_blocks(footer: Footer, start: int, end: int, data: memoryview) -> memoryview:
    for at in range(start, end, BLOCK_BYTES):
        check_block(footer, at // BLOCK_BYTES, data[at - start : min(end, at + BLOCK_BYTES) - start])
    return data
