"""Snapshots of what Redis knows, put into the store for readers without Redis: `korvet.tier.snapshot`.

A snapshot leaves Redis, so everything in it is durable there before. So Redis is never behind the newest one, unless it
went back to an older state: from a backup, or because somebody emptied it. Then it must not write here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final
from uuid import UUID

from korvet.configs.types import is_tiered
from korvet.errors import KorvetError
from korvet.store.catalog.catalog import Catalog
from korvet.store.keys import Namespace
from korvet.store.log import tier as calls
from korvet.store.log.log import Log
from korvet.store.log.state.partition import Partition
from korvet.tier.blocks import Stored
from korvet.tier.manifest import Manifest, Member, folder_of, parse_member
from korvet.tier.segment import Footer
from korvet.tier.series import Series
from korvet.tier.snapshot import Snapshot, TieredTopic, Topics, topics_folder
from korvet.tier.tier import Tier

PERSISTED_WITHIN_S: Final = 20.0
_PAGES: Final = 64
_TRIES: Final = 4


class WentBack(KorvetError):
    """The store knows of more than Redis does."""


def folder(namespace: Namespace, partition: Partition) -> str:
    """The path of a partition's objects."""
    return folder_of(namespace.name, partition.topic.name, partition.topic_id, partition.index)


async def manifest(log: Log, partition: Partition, offset: int = 0) -> tuple[calls.Listed, Manifest] | None:
    """The members that end above an offset, as of one moment, and what Redis says beside them; None if the topic is
    gone.

    :raises LostTier, StoreUnavailable, StoreError, DamagedManifest:
    """
    for _ in range(_TRIES):
        first = await calls.listed(log, partition, offset, 512)
        if first is None:
            return None
        page, found = first, Manifest.of_listed(first.segments)
        for _ in range(_PAGES):
            if not page.has_more:
                break
            more = await calls.listed(log, partition, found.members[-1].next_offset, 512)
            if more is None:
                return None
            page, found = more, found.extended(more.segments)
        if page[:5] == first[:5]:
            return first, found
    raise WentBack(f"the segments of {partition.keys.log} change faster than they are listed")


async def last_footer(tier: Tier, namespace: Namespace, partition: Partition, tier_end: int, log: Log) -> Footer | None:
    """The footer of the partition's last segment; None if it has none.

    :raises ObjectMissing, TierAway, DamagedSegment:
    :raises LostTier, StoreUnavailable, StoreError, DamagedManifest:
    """
    if tier_end < 0:
        return None
    listed = await calls.listed(log, partition, tier_end - 1, 1)
    if listed is None or not listed.segments:
        return None
    next_offset, text = listed.segments[-1]
    return await footer_of(tier, namespace, partition, parse_member(text.decode(errors="replace"), next_offset))


async def footer_of(tier: Tier, namespace: Namespace, partition: Partition, member: Member) -> Footer:
    """
    :raises ObjectMissing, TierAway, DamagedSegment:
    """
    return await tier.blocks.footer(Stored(tier.gets, member.path(folder(namespace, partition)), member))


class Published:
    """The newest snapshot of a partition."""

    def __init__(self, tier: Tier, namespace: Namespace, partition: Partition, log: Log) -> None:
        self._tier, self._namespace, self._partition, self._log = tier, namespace, partition, log
        self._series = Series(tier.objects, folder(namespace, partition), Snapshot.decoded)
        self._newest: tuple[int, Snapshot] | None = None
        """Its number, and the facts without the members, which take half a megabyte."""
        self._members = 0
        """The hash of its members."""

    async def check(self, cluster_id: str) -> Snapshot | None:
        """Read the newest snapshot, compare Redis with it, and return it.

        :raises WentBack: Redis is behind it.
        :raises TierAway, DamagedSnapshot:
        :raises LostTier, StoreUnavailable, StoreError, DamagedManifest:
        """
        found = await self._series.newest(self._newest[0] if self._newest else 0)
        if found is None:
            self._newest = None
            return None
        self._keep(*found)
        now = await self._now(cluster_id, None)
        if now is not None and found[1].is_ahead_of(now):
            there = found[1]
            raise WentBack(
                f"{self._tier.objects.name} has {there.topic}-{there.partition} up to offset {there.tier_end} from log "
                f"start {there.log_start}, and Redis up to {now.tier_end} from {now.log_start}: Redis went back to an "
                "older state. Nothing of this partition is written there or deleted until it is restored"
            )
        return found[1]

    async def publish(self, cluster_id: str, last: Footer | None, tier_end: int) -> bool:
        """Put a snapshot of what is durable in Redis now, if it is new; false if that could not be done yet.

        :param last: the footer of the last segment, if there is one.
        :param tier_end: the offset after that: with another segment behind it, the snapshot needs another footer.
        :raises WentBack: another process published what Redis does not know.
        :raises TierAway, DamagedSnapshot:
        :raises LostTier, StoreUnavailable, StoreError, DamagedManifest:
        """
        now = await self._now(cluster_id, last)
        if now is None or not now.token or (self._newest is not None and self._is_newest(self._newest[1], now)):
            return True
        if now.tier_end != tier_end or not await self._log.replicas.persisted(self._partition, PERSISTED_WITHIN_S):
            return False
        number = await self._series.add(self._newest[0] if self._newest else 0, now.encoded())
        if number is None:
            await self.check(cluster_id)
            return False
        self._keep(number, now)
        return True

    def _keep(self, number: int, newest: Snapshot) -> None:
        self._newest, self._members = (number, replace(newest, members=())), hash(tuple(newest.members))

    def _is_newest(self, there: Snapshot, now: Snapshot) -> bool:
        return there == replace(now, members=()) and self._members == hash(tuple(now.members))

    async def _now(self, cluster_id: str, last: Footer | None) -> Snapshot | None:
        found, meta = await manifest(self._log, self._partition), await self._log.meta(self._partition)
        if found is None or meta is None:
            return None
        listed, members = found
        former = self._newest[1] if self._newest else None
        return Snapshot(
            cluster_id=cluster_id,
            namespace=self._namespace.name,
            topic=self._partition.topic.name,
            topic_id=self._partition.topic_id,
            partition=self._partition.index,
            token=listed.token.decode(errors="replace"),
            leader_epoch=listed.epoch,
            epochs=meta.epochs.decode(errors="replace"),
            log_start=listed.start,
            tier_end=listed.tier_end,
            # After a damaged footer the next segment knows of none before it.
            max_producer_id=max((one.max_producer_id for one in (last, former) if one), default=-1),
            chain=last.chain if last else former.chain if former else 0,
            members=members.members,
        )


class PublishedTopics:
    """The newest snapshot of a namespace's tiered topics."""

    def __init__(self, tier: Tier, namespace: Namespace, catalog: Catalog) -> None:
        self._namespace, self._catalog = namespace, catalog
        self._series = Series(tier.objects, topics_folder(namespace.name), Topics.decoded)
        self._newest: tuple[int, Topics] | None = None
        self._version = -1
        """The catalog's, as of which the newest one is right."""

    def may_have(self, topic_id: UUID) -> bool:
        """False if the newest snapshot does not have a topic."""
        return self._newest is None or any(UUID(hex=one.id) == topic_id for one in self._newest[1].topics)

    async def publish(self) -> None:
        """Put a snapshot of the tiered topics, if the catalog changed. One of an older catalog is not put.

        A topic that Redis does not know stays, unless Redis notes its deletion: it may be lost, and not deleted.

        :raises TierAway, DamagedSnapshot:
        :raises StoreUnavailable, StoreError:
        """
        version, cluster_id = self._catalog.version, self._catalog.cluster_id
        if version == self._version:
            return
        own = {
            one.name: TieredTopic(one.name, one.id.hex, one.partitions, one.configs)
            for one in self._catalog.topics()
            if is_tiered(one.configs)
        }
        gone = {one.id for one in await self._catalog.deleted()}
        for _ in range(_TRIES):
            self._newest = await self._series.newest(self._newest[0] if self._newest else 0)
            number, there = self._newest or (0, None)
            if there is not None and there.cluster_id == cluster_id and there.version > version:
                return
            kept = {one.name: one for one in (there.topics if there else ()) if one.id not in gone}
            topics = list({**own, **{name: one for name, one in kept.items() if _is_lost(one, own)}}.values())
            now = Topics(cluster_id=cluster_id, namespace=self._namespace.name, version=version, topics=topics)
            if there is None or (there.cluster_id, list(there.topics)) != (cluster_id, topics):
                if await self._series.add(number, now.encoded()) is None:
                    continue
                self._newest = number + 1, now
            self._version = version
            return


def _is_lost(there: TieredTopic, own: Mapping[str, TieredTopic]) -> bool:
    """True if Redis has no topic of this name, or another one under it."""
    known = own.get(there.name)
    return known is None or known.id != there.id
