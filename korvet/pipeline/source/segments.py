"""A task reads the part of its range that segments hold straight from the bucket, and leaves the rest to the broker."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Final, TypeVar

from anyio.from_thread import start_blocking_portal

from korvet.pipeline.source.decoded import Committed, decode
from korvet.pipeline.source.fetch import CHUNK_BYTES, CHUNK_ROWS
from korvet.pipeline.source.ranges import OffsetRange
from korvet.pipeline.source.rows import Columns
from korvet.pipeline.source.tier import explained
from korvet.tier.blocks import Blocks, Gets, Stored
from korvet.tier.manifest import Manifest
from korvet.tier.objects import ObjectMissing, open_objects
from korvet.tier.segment import Footer, batches
from korvet.wire.records import UndecodableRecords

_READ_BYTES: Final = 8 << 20
_KEPT_BYTES: Final = 12 << 20
"""A footer, and the last block of a read, with which the next one begins."""
T = TypeVar("T")
_log: Final = logging.getLogger(__name__)


def read_sealed(
    wanted: OffsetRange, url: str, build: Callable[[Columns], T], *, read_committed: bool, headers: bool
) -> Generator[T, None, int]:
    """What is built of the records of a range that segments hold, in order. Returns where they end.

    The broker has to serve from there on: also records of a segment that was deleted meanwhile, and of a batch that
    the client's own reader has to judge.

    :raises TierUnreachable, PipelineError:
    """
    position, found = wanted.start, Columns()
    try:
        with explained(), start_blocking_portal() as portal:
            segments = _Segments(wanted, url)
            future: Future[_Read | None] | None = portal.start_task_soon(segments.read, position)
            while future is not None and (read := future.result()) is not None:
                footer, data, after = read
                # The next part comes while this one is decoded.
                future = portal.start_task_soon(segments.read, after) if after < wanted.end else None
                committed = Committed(footer.aborted_within(position, after) if read_committed else ())
                size_bytes = 0
                for batch, whole in batches(data):
                    if batch.base_offset >= wanted.end:
                        break
                    if committed.has(batch):
                        size_bytes += decode(batch, whole, wanted.start, wanted.end, found, headers=headers)
                    position = min(batch.base_offset + batch.last_offset_delta + 1, wanted.end)
                    if len(found.offsets) >= CHUNK_ROWS or size_bytes >= CHUNK_BYTES:
                        if found.offsets:
                            yield build(found)
                        found, size_bytes = Columns(), 0
                position = min(after, wanted.end)
    except ObjectMissing as missing:
        _log.warning("%s: the broker is asked for the records from %s on", missing, position)
    except UndecodableRecords:
        pass
    if found.offsets:
        yield build(found)
    return position


_Read = tuple[Footer, memoryview, int]


class _Segments:
    """The segments of a range, as one task reads them."""

    def __init__(self, wanted: OffsetRange, url: str) -> None:
        assert wanted.sealed is not None
        self._end, self._folder = min(wanted.end, wanted.sealed.end), wanted.sealed.folder
        self._manifest = Manifest(wanted.sealed.members)
        self._gets = Gets(open_objects(url, is_read_only=True))
        self._blocks = Blocks(_KEPT_BYTES)

    async def read(self, offset: int) -> _Read | None:
        """Some batches from an offset on, and the offset after them; None if no segment has it.

        :raises ObjectMissing, TierAway, DamagedSegment:
        """
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
        return footer, data, after if after > offset else member.next_offset
