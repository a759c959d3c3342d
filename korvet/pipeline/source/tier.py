"""The tier as a query sees it: which offsets lie in segments, by the newest snapshots in the bucket, and their records.

A snapshot may be some seconds old. So the broker has the last word: where the log starts, and whether it still has the
history that was sealed. A task reads what segments hold straight from the bucket. What is in no segment, or in one that
is gone meanwhile, comes from the broker.
"""

from __future__ import annotations

import base64
import logging
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, NamedTuple, TypeVar

import anyio

from korvet.errors import KorvetError
from korvet.pipeline.broker import Broker, Partition
from korvet.pipeline.errors import Passing, PipelineError
from korvet.pipeline.plan.proofs import Proven
from korvet.pipeline.source import history
from korvet.pipeline.source.decoded import decode
from korvet.pipeline.source.fetch import CHUNK_BYTES, CHUNK_ROWS
from korvet.pipeline.source.ranges import OffsetRange, Sealed
from korvet.pipeline.source.rows import Columns
from korvet.tier.blocks import Blocks, Gets, Stored
from korvet.tier.manifest import DamagedManifest, Member, folder_of
from korvet.tier.objects import ObjectMissing, Objects, TierAway, open_objects
from korvet.tier.reading import Committed, sealed_batches
from korvet.tier.segment import DamagedSegment, batches
from korvet.tier.series import Series
from korvet.tier.snapshot import DamagedSnapshot, Snapshot
from korvet.wire.records import UndecodableRecords

_AT_ONCE: Final = 32
_ATTEMPTS: Final = 4
_DEADLINE_S: Final = 30.0
_log: Final = logging.getLogger(__name__)
T = TypeVar("T")


class TierUnreachable(Passing):
    """The bucket does not answer, or refuses."""


class _Found(NamedTuple):
    """The newest snapshot of a partition at a time, and its number; None and 0 if there was none."""

    at: float
    number: int
    snapshot: Snapshot | None


class Tier:
    """A tier's snapshots.

    :param url: a directory, or a bucket and prefix.
    :param namespace: the one of the brokers' listener.
    :param fresh_s: how long a snapshot counts as the newest one.
    """

    def __init__(self, url: str, namespace: str, fresh_s: float = 0) -> None:
        self._url, self._namespace, self._fresh_s = url, namespace, fresh_s
        self._found: dict[str, _Found] = {}

    def sealed(
        self, broker: Broker, client: Mapping[str, str], ranges: Iterable[OffsetRange]
    ) -> dict[Partition, Sealed]:
        """Of the ranges' partitions, what segments hold.

        :param client: librdkafka's settings.
        :raises TierUnreachable, BrokerUnreachable, PipelineError:
        """
        begins: dict[Partition, int] = {}
        for one in ranges:
            at = one.topic, one.partition
            begins[at] = min(one.start, begins.get(at, one.start))
        if not begins:
            return {}
        ids = {name: _hex(topic.id) for name, topic in broker.topics(sorted({name for name, _ in begins})).items()}
        folders = {at: folder_of(self._namespace, at[0], ids[at[0]], at[1]) for at in begins}
        with explained():
            members = anyio.run(self._read, folders, begins)
        if not members:
            return {}
        starts = {at: found.offset for at, found in broker.earliest(members).items()}
        ends = self._same_history(broker, client, folders, members)
        sealed = {}
        for at, those in members.items():
            kept = tuple(one for one in those if one.next_offset > starts[at] and one.next_offset <= ends[at])
            if kept:
                start = max(starts[at], kept[0].first_offset)
                sealed[at] = Sealed(start, kept[-1].next_offset, folders[at], kept)
        return sealed

    def _same_history(
        self,
        broker: Broker,
        client: Mapping[str, str],
        folders: Mapping[Partition, str],
        partitions: Iterable[Partition],
    ) -> dict[Partition, int]:
        """The offsets up to which the broker has the records that were sealed.

        They are above those of segments, unless Redis came back without its last writes.
        """
        found: dict[Partition, int] = {}
        topics: dict[str, dict[int, Snapshot]] = {}
        for topic, number in partitions:
            snapshot = self._found[folders[topic, number]].snapshot
            assert snapshot is not None
            topics.setdefault(topic, {})[number] = snapshot
        for topic, those in topics.items():
            offsets = {number: one.tier_end for number, one in those.items()}
            epochs = {number: one.leader_epoch for number, one in those.items()}
            sealed = Proven(
                topic=topic, topic_id="", generation=0, batch_id=-1, offsets=offsets, leader_epochs=epochs
            )  # fmt: skip
            parted = history.lost(client, broker, sealed, history.latest(broker, topic, tuple(those)))
            for number, offset in parted.items():
                _log.warning("%s-%s has another history than its segments from %s on", topic, number, offset)
            found |= {(topic, number): parted.get(number, offset) for number, offset in offsets.items()}
        return found

    async def _read(
        self, folders: Mapping[Partition, str], begins: Mapping[Partition, int]
    ) -> dict[Partition, tuple[Member, ...]]:
        """The segments of partitions that end above a begin, where there are some."""
        objects = open_objects(self._url, is_read_only=True)
        gets, limit = Gets(objects, deadline_s=_DEADLINE_S), anyio.CapacityLimiter(_AT_ONCE)
        members: dict[Partition, tuple[Member, ...]] = {}
        is_first = not self._found

        async def read(at: Partition) -> None:
            async with limit:
                snapshot = await self._newest(objects, folders[at], begins[at])
                if snapshot is None or snapshot.tier_end <= begins[at]:
                    return
                try:
                    those = [each for one in snapshot.members for each in await _listed(gets, folders[at], one)]
                except ObjectMissing as missing:
                    _log.warning("%s: the broker is asked for the records of %s-%s", missing, *at)
                    return
                members[at] = tuple(one for one in those if one.next_offset > begins[at])

        async with anyio.create_task_group() as tasks:
            for at in begins:
                tasks.start_soon(read, at)
        if is_first and not any(self._found[folder].snapshot for folder in folders.values()):
            names = ", ".join(sorted({topic for topic, _ in begins}))
            _log.warning("%s has no segments of %s in the namespace %s", objects.name, names, self._namespace)
        return members

    async def _newest(self, objects: Objects, folder: str, begin: int) -> Snapshot | None:
        """The newest snapshot, with those of its members that end above an offset."""
        found = self._found.get(folder)
        if found is None or time.monotonic() - found.at >= self._fresh_s:
            try:
                number, snapshot = await _look(objects, folder, 0 if found is None else found.number)
                found = _Found(time.monotonic(), number, snapshot)
            except TierAway as error:
                if found is None:
                    raise
                # A stream that keeps up needs no newer one.
                _log.warning("%s: no newer snapshot is read", error)
                found = found._replace(at=time.monotonic())
        if found.snapshot is not None:
            # The next query of a stream begins there. All members of many partitions would take much memory.
            needed = [one for one in found.snapshot.members if one.next_offset > begin]
            found = found._replace(snapshot=replace(found.snapshot, members=needed))
        self._found[folder] = found
        return found.snapshot


def read_sealed(
    wanted: OffsetRange, url: str, build: Callable[[Columns], T], *, read_committed: bool, headers: bool
) -> Generator[T, None, int]:
    """What is built of the records of a range that segments hold, in order. Returns where they end.

    The broker has to serve from there on: also records of a segment that was deleted meanwhile, and of a batch that
    the client's own reader has to judge.

    :raises TierUnreachable, PipelineError:
    """
    assert wanted.sealed is not None
    position, found, sealed = wanted.start, Columns(), wanted.sealed
    try:
        with explained():
            for read in sealed_batches(url, sealed.folder, sealed.members, position, min(wanted.end, sealed.end)):
                aborted = read.footer.aborted_within(position, read.next_offset) if read_committed else ()
                committed = Committed(aborted)
                size_bytes = 0
                for batch, whole in batches(read.batches):
                    if batch.base_offset >= wanted.end:
                        break
                    if committed.has(batch):
                        size_bytes += decode(batch, whole, wanted.start, wanted.end, found, headers=headers)
                    position = min(batch.base_offset + batch.last_offset_delta + 1, wanted.end)
                    if len(found.offsets) >= CHUNK_ROWS or size_bytes >= CHUNK_BYTES:
                        if found.offsets:
                            yield build(found)
                        found, size_bytes = Columns(), 0
                position = min(read.next_offset, wanted.end)
    except ObjectMissing as missing:
        _log.warning("%s: the broker is asked for the records from %s on", missing, position)
    except UndecodableRecords:
        pass
    if found.offsets:
        yield build(found)
    return position


async def _look(objects: Objects, folder: str, at_least: int) -> tuple[int, Snapshot | None]:
    """The number of the newest snapshot, and what it holds; 0 and None if there is none.

    :raises TierAway: all tries failed, or took too long.
    """
    error = TierAway(f"{objects.name}/{folder}: no answer within {_DEADLINE_S:g} s")
    with anyio.move_on_after(_DEADLINE_S):
        for attempt in range(_ATTEMPTS):
            try:
                return await Series(objects, folder, Snapshot.decoded).newest(at_least) or (0, None)
            except TierAway as away:
                error = away
                await anyio.sleep(attempt + 1)
    raise error


async def _listed(gets: Gets, folder: str, member: Member) -> Sequence[Member]:
    """The segments of a member."""
    if member.kind == "segment":
        return (member,)
    return (await Blocks(0).shelf(Stored(gets, member.path(folder), member))).members


@contextmanager
def explained() -> Iterator[None]:
    """The tier's errors as the pipeline's, with what to do.

    :raises TierUnreachable, PipelineError:
    """
    try:
        yield
    except (KorvetError, ExceptionGroup) as error:
        match first := _first(error):
            case TierAway():
                raise TierUnreachable(
                    f"The tier cannot be read: {first}; see tier.url, and the store's credentials in the environment "
                    "of Spark's driver and executors"
                ) from None
            case DamagedSegment() | DamagedManifest() | DamagedSnapshot():
                raise PipelineError(
                    f"The tier cannot be read: {first}; without tier.url all records come from the broker"
                ) from None
        raise


def _first(error: Exception) -> Exception:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


def _hex(topic_id: str) -> str:
    """A topic's id as the names of objects have it."""
    return base64.b64decode(topic_id.translate(_URL_SAFE) + "==").hex()


_URL_SAFE: Final = str.maketrans("-_", "+/")
