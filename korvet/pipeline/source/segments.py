"""A task reads the part of its range that segments hold straight from the bucket, and leaves the rest to the broker."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from typing import Final, TypeVar

from korvet.pipeline.source.decoded import decode
from korvet.pipeline.source.fetch import CHUNK_BYTES, CHUNK_ROWS
from korvet.pipeline.source.ranges import OffsetRange
from korvet.pipeline.source.rows import Columns
from korvet.pipeline.source.tier import explained
from korvet.tier.objects import ObjectMissing
from korvet.tier.reading import Committed, sealed_batches
from korvet.tier.segment import batches
from korvet.wire.records import UndecodableRecords

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
