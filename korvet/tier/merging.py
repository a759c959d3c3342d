"""Merges of small neighbouring segments into one. Their objects stay for readers of older lists and snapshots, until
the quarantine of doomed objects ends."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial as bound
from typing import NamedTuple

from korvet.store.keys import Namespace
from korvet.store.log.log import Log
from korvet.store.log.state.partition import Partition
from korvet.tier.manifest import Manifest, Member
from korvet.tier.objects import TierAway
from korvet.tier.publishing import folder, footer_of, manifest
from korvet.tier.segment import Bytes, Footer, Writer
from korvet.tier.tier import Tier


class Merged(NamedTuple):
    """The parts of a segment's object, and the members whose batches it has."""

    parts: list[Bytes]
    footer: Footer
    members: tuple[Member, ...]


async def merged(tier: Tier, namespace: Namespace, log: Log, partition: Partition, target_bytes: int) -> Merged | None:
    """The oldest small segments from the log start on that are worth a merge, as one; None if there are none.

    :raises ObjectMissing, TierAway, DamagedSegment, FooterTooLarge:
    :raises LostTier, StoreUnavailable, StoreError, DamagedManifest:
    """
    found = await manifest(log, partition)
    if found is None:
        return None
    listed, whole = found
    run = tuple(Manifest(one for one in whole.members if one.first_offset >= listed.start).to_merge(target_bytes))
    if not run:
        return None
    where = folder(namespace, partition)
    footers = [await footer_of(tier, namespace, partition, member) for member in run]
    begin, end = _chained(footers)
    if end - begin < 2:
        return None
    writer = Writer(partition.topic.id, partition.index, run[begin].first_offset, chain=footers[begin].chain_before)
    aborted = []
    for member, footer in zip(run[begin:end], footers[begin:end], strict=True):
        data = await tier.objects.read(member.path(where), 0, member.size_bytes)
        if len(data) < member.size_bytes:
            raise TierAway(f"{tier.objects.name}/{member.path(where)}: only {len(data)} of {member.size_bytes} bytes")
        await log.in_thread(bound(writer.join, footer, [data]))
        aborted += list(footer.aborted)
    parts, footer = await log.in_thread(bound(writer.finish, aborted, run[end - 1].next_offset))
    return Merged(parts, footer, run[begin:end])


def _chained(footers: Sequence[Footer]) -> tuple[int, int]:
    """The first segments, at least two, of which each has the chain of the one before it: where they begin and end.

    Behind a segment that was lost or damaged another chain began.
    """
    begin = end = 0
    for end in range(1, len(footers) + 1):
        if end == len(footers) or footers[end].chain_before != footers[end - 1].chain:
            if end - begin > 1:
                break
            begin = end
    return begin, end
