"""Segments that no snapshot lists yet, found for a recovery: Redis was lost between their upload and the next snapshot.

A listing only gives candidates. One counts if its chain of checksums follows the snapshot's, all its bytes are right,
and none of its batches is older than the leader epoch that the snapshot has for its offset. So an object of a history
that Redis had lost before is left alone, as far as the snapshot knows of that loss.
"""

from __future__ import annotations

from dataclasses import replace

from korvet.errors import KorvetError
from korvet.store.log.state.epochs import Epochs, epoch_of_offset, parse_epochs
from korvet.tier.blocks import Gets
from korvet.tier.manifest import MOST_MEMBERS, Member
from korvet.tier.objects import Objects
from korvet.tier.segment import MOST_FOOTER_BYTES, Footer, read_footer
from korvet.tier.snapshot import Snapshot
from korvet.tier.survey import check_segment


async def adopted(objects: Objects, snapshot: Snapshot) -> Snapshot:
    """A snapshot with the segments that follow it.

    :raises TierAway:
    """
    gets = Gets(objects)
    # Without a chain, or a running sum of bytes, nothing shows what follows.
    while snapshot.chain and snapshot.members and len(snapshot.members) < MOST_MEMBERS:
        if snapshot.log_start > snapshot.tier_end or (found := await _next(objects, gets, snapshot)) is None:
            break
        snapshot = found
    return snapshot


async def _next(objects: Objects, gets: Gets, snapshot: Snapshot) -> Snapshot | None:
    epochs = parse_epochs(snapshot.epochs.encode())
    fits: list[tuple[Footer, str]] = []
    begin = f"{snapshot.tier_end:020d}-"
    for path, size in await objects.beginning(snapshot.folder, begin):
        if not path.endswith(".segment") or not size:
            continue
        try:
            end = await gets.get(snapshot.folder, path, max(0, size - MOST_FOOTER_BYTES), size, bytes)
            footer = read_footer(end)
        except KorvetError:
            continue
        if _follows(snapshot, footer) and not _is_older(epochs, footer):
            fits.append((footer, path))
    # The latest history first, and of one history the longest segment.
    for footer, path in sorted(fits, key=lambda one: (one[0].epochs[-1].epoch, one[0].next_offset), reverse=True):
        name = path.rpartition("/")[2].removeprefix(begin).removesuffix(".segment")
        member = _member(snapshot.members[-1], footer, name)
        try:
            await check_segment(gets, snapshot, path, member, snapshot.chain)
        except KorvetError:
            continue
        return _with(snapshot, member, footer)
    return None


def _follows(snapshot: Snapshot, footer: Footer) -> bool:
    whose = footer.topic_id.hex, footer.partition, footer.first_offset, footer.chain_before
    return (
        whose == (snapshot.topic_id, snapshot.partition, snapshot.tier_end, snapshot.chain) and len(footer.epochs) > 0
    )


def _is_older(epochs: Epochs, footer: Footer) -> bool:
    """True if some batches have an older leader epoch than the snapshot has for their offsets."""
    ends = [*[row.first_offset for row in footer.epochs][1:], footer.next_offset]
    return any(row.epoch < epoch_of_offset(epochs, last - 1) for row, last in zip(footer.epochs, ends, strict=True))


def _member(before: Member, footer: Footer, name: str) -> Member:
    return Member(
        "segment",
        footer.first_offset,
        footer.next_offset,
        footer.size_bytes,
        footer.footer_bytes,
        footer.max_timestamp,
        max(before.running_max_timestamp, footer.max_timestamp),
        before.running_bytes + footer.size_bytes,
        footer.crc,
        name,
    )


def _with(snapshot: Snapshot, member: Member, footer: Footer) -> Snapshot:
    later = [row for row in footer.epochs if row.epoch > snapshot.leader_epoch]
    return replace(
        snapshot,
        leader_epoch=max(snapshot.leader_epoch, footer.epochs[-1].epoch),
        epochs=",".join([snapshot.epochs, *(f"{row.epoch}:{row.first_offset}" for row in later)]),
        tier_end=footer.next_offset,
        max_producer_id=max(snapshot.max_producer_id, footer.max_producer_id),
        chain=footer.chain,
        members=(*snapshot.members, member),
    )
