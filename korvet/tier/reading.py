"""Sealed batches of a partition for readers that are no brokers: in order, or from a time on."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from anyio.from_thread import start_blocking_portal

from korvet.tier.blocks import Blocks, Gets, Stored
from korvet.tier.manifest import Manifest, Member
from korvet.tier.objects import open_objects
from korvet.tier.segment import INDEX_BYTES, Aborted, Footer, batches
from korvet.wire.batch import CONTROL, Batch
from korvet.wire.records import first_at_or_after

_READ_BYTES: Final = 8 << 20
_KEPT_BYTES: Final = 12 << 20
"""A footer, and the last block of a read, with which the next one begins."""


class Read(NamedTuple):
    """Some batches, the footer of their segment, and the offset after them."""

    footer: Footer
    batches: memoryview
    next_offset: int


class Committed:
    """Which batches a reader of committed records leaves out, by the aborted transactions of a segment."""

    def __init__(self, aborted: Iterable[Aborted]) -> None:
        self._aborted: dict[int, list[Aborted]] = {}
        for one in sorted(aborted, key=lambda one: one.first_offset):
            self._aborted.setdefault(one.producer_id, []).append(one)

    def has(self, batch: Batch) -> bool:
        """False if the batch is of an aborted transaction."""
        if not batch.is_transactional:
            return True
        those = self._aborted.get(batch.producer_id, ())
        # A producer has one transaction at a time.
        at = bisect_right(those, batch.base_offset, key=lambda one: one.first_offset)
        return not at or those[at - 1].last_offset < batch.base_offset


def sealed_batches(url: str, folder: str, members: Sequence[Member], start: int, end: int) -> Iterator[Read]:
    """The batches of segments from an offset on, up to the first offset that none of them has, or ``end``.

    The next ones are read while the caller works on these.

    :raises ObjectMissing, TierAway, DamagedSegment:
    """
    with start_blocking_portal() as portal:
        segments = _Segments(url, folder, members, end)
        future = portal.start_task_soon(segments.read, start)
        while (read := future.result()) is not None:
            future = portal.start_task_soon(segments.read, read.next_offset)
            yield read


class _Segments:
    def __init__(self, url: str, folder: str, members: Sequence[Member], end: int) -> None:
        self._end, self._folder = end, folder
        self._manifest = Manifest(members)
        self._gets = Gets(open_objects(url, is_read_only=True))
        self._blocks = Blocks(_KEPT_BYTES)

    async def read(self, offset: int) -> Read | None:
        """Some batches from an offset on; None if no segment has it."""
        member = self._manifest.at(offset) if offset < self._end else None
        if member is None:
            return None
        stored = Stored(self._gets, member.path(self._folder), member)
        footer = await self._blocks.footer(stored)
        wanted_bytes = footer.span(self._end, 0)[1] - footer.span(offset, 0)[0]
        data = await self._blocks.batches(stored, offset, min(_READ_BYTES, wanted_bytes))
        after = offset
        for batch, _ in batches(data):
            after = batch.base_offset + batch.last_offset_delta + 1
        return Read(footer, data, after if after > offset else member.next_offset)


async def offset_from_time(gets: Gets, folder: str, members: Sequence[Member], timestamp: int) -> int | None:
    """The offset of the first record that is not older than a time (ms); None if there is none.

    :raises ObjectMissing, TierAway, DamagedSegment, UndecodableRecords:
    """
    blocks = Blocks(_KEPT_BYTES)
    for member in Manifest(members).from_time(timestamp):
        stored = Stored(gets, member.path(folder), member)
        footer = await blocks.footer(stored)
        position = footer.position_of_time(timestamp)
        if position is None:
            continue
        offset = footer.index[bisect_left(footer.index, position, key=lambda one: one.position)].offset
        while data := await blocks.batches(stored, offset, INDEX_BYTES):
            for batch, whole in batches(data):
                offset = batch.base_offset + batch.last_offset_delta + 1
                if batch.max_timestamp >= timestamp and not batch.attributes & CONTROL:
                    found = first_at_or_after(batch, bytes(whole), timestamp)
                    if found is not None:
                        return batch.base_offset + found[0]
    return None
