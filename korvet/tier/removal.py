"""The removal of objects that nobody needs: first what refers to them, durably, then some time for readers, then they.

- Segments below the log start stay listed until their objects are gone (`Removal.below_start`).
- A tierer enters each object that may come to nothing in the list of doomed objects before it puts it, and takes it
  out once the partition lists it. So the objects of refused uploads and of crashes go a week later.
- The catalog notes each deleted topic of the tier (`Catalog.deleted`), whose id never comes back.

A doomed object that its partition lists is none. No listing of the store says what may go: it only gives the names in
the folder of a deleted topic's id.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from math import inf
from typing import Final
from uuid import UUID

import structlog

from korvet.errors import KorvetError
from korvet.redis.client import Purpose
from korvet.store.catalog.catalog import Catalog
from korvet.store.keys import Namespace
from korvet.store.log import tier as calls
from korvet.store.log.log import Log
from korvet.store.log.state.partition import Partition
from korvet.tier.blocks import Stored
from korvet.tier.manifest import Manifest, Member, topic_folder
from korvet.tier.objects import ObjectMissing
from korvet.tier.ownership import Ownership, clock
from korvet.tier.publishing import PERSISTED_WITHIN_S, Published, PublishedTopics, folder, manifest
from korvet.tier.tier import Tier

log = structlog.get_logger()

QUARANTINE_MS: Final = 7 * 86_400_000
MERGED_MS: Final = 86_400_000
"""The quarantine of merged segments: their entries fill Redis, and whoever misses one reads the list again."""
GRACE_S: Final = 60.0
"""The time that readers of removed segments have, as file.delete.delay.ms by default."""
LISTED_WITHIN_S: Final = 3600.0
"""The time in which an object is listed that was doomed and put."""
_AT_ONCE: Final = 64
_COMPARED_S: Final = 5.0
_MOST_ROUNDS: Final = 1000
_UNKNOWN: Final = inf, -inf


class Removal:
    """The removal of a namespace's objects by one front-end."""

    def __init__(
        self,
        tier: Tier,
        namespace: Namespace,
        catalog: Catalog,
        log: Log,
        ownership: Ownership,
        topics: PublishedTopics,
    ) -> None:
        self._tier, self._namespace, self._catalog, self._log = tier, namespace, catalog, log
        self._ownership, self._topics = ownership, topics
        self._compared: tuple[Partition, float, Manifest, Manifest] | None = None
        """The last partition of a sweep, with the time, and the members that Redis and the newest snapshot list."""

    # ------------------------------------------------------------------ doomed objects

    async def doom(self, partition: Partition, paths: Sequence[str], after_ms: int = QUARANTINE_MS) -> None:
        """Enter objects that may go some time from now, unless the partition lists them by then.

        :raises StoreUnavailable, StoreError:
        """
        await self._doom([f"{partition.topic_id} {partition.index} {path}" for path in paths], after_ms)

    async def spare(self, partition: Partition, paths: Sequence[str]) -> None:
        """Take objects out that the partition lists now.

        :raises StoreUnavailable, StoreError:
        """
        await self.doom(partition, paths, -1)

    async def _doom(self, texts: Sequence[str], after_ms: int) -> None:
        await self._log.store.call_function(
            Purpose.COORDINATE, "korvet_tier_doom", [self._namespace.doomed], after_ms=after_ms, texts=texts
        )

    def note_time(self, now_ms: int) -> None:
        """Learn Redis's time, now and then. After a jump ahead, doomed objects that are still being put are due."""
        now_s, name = clock(), self._namespace.name
        ahead_s, (before_s, steady_at) = now_ms / 1000 - now_s, self._tier.clocks.get(name, _UNKNOWN)
        if ahead_s > before_s + GRACE_S:
            steady_at = now_s + LISTED_WITHIN_S
        self._tier.clocks[name] = ahead_s, steady_at

    async def is_due(self) -> bool:
        """True if there may be something to delete, so that the owner has to be known.

        :raises StoreUnavailable, StoreError:
        """
        return bool(await self._due(1) or await self._catalog.deleted())

    async def _due(self, most: int = _AT_ONCE) -> Sequence[str]:
        _, texts = await self._log.store.call_function(
            Purpose.COORDINATE, "korvet_tier_doomed", [self._namespace.doomed], most=most
        )
        return [text.decode(errors="replace") for text in texts]

    async def sweep(self, now_ms: int) -> None:
        """Delete doomed objects that are due, some of them, and those of topics that were deleted a while ago. One that
        cannot be deleted does not stop the others.

        :param now_ms: Redis's time.
        :raises TierAway, StoreUnavailable, StoreError: of the last one that failed.
        """
        failure: KorvetError | None = None
        await self._catalog.refresh()
        await self._topics.publish()
        for deleted in await self._catalog.deleted():
            id = UUID(hex=deleted.id)
            # A topic in the newest snapshot would be recovered, and a catalog that went back publishes none.
            is_known = self._catalog.topic_by_id(id) or self._topics.may_have(id)
            if now_ms - deleted.deleted_ms < GRACE_S * 1000 or is_known:
                continue
            try:
                if await self._delete_topic(topic_folder(self._namespace.name, deleted.name, deleted.id)):
                    await self._catalog.clear_deleted(deleted)
            except KorvetError as error:
                failure = error
        if clock() >= self._tier.clocks.get(self._namespace.name, _UNKNOWN)[1]:
            failure = await self._sweep_doomed() or failure
        if failure is not None:
            raise failure

    async def _sweep_doomed(self) -> KorvetError | None:
        """Let all objects go that are due. Returns an error, after which the rest waits for the next sweep."""
        failure: KorvetError | None = None
        for _ in range(_MOST_ROUNDS):
            texts, self._compared = await self._due(), None
            for text in texts:
                try:
                    await self._doom([text], -1 if await self._go(text) else QUARANTINE_MS)
                except (ValueError, IndexError):
                    log.error("an entry of doomed objects is not one of korvet's and is left out", entry=text[:200])
                    await self._doom([text], -1)
                except KorvetError as error:
                    failure = error
                    with suppress(KorvetError):
                        await self._doom([text], int(GRACE_S * 1000))
            if failure is not None or len(texts) < _AT_ONCE:
                break
        return failure

    async def _go(self, text: str) -> bool:
        """Delete the object of a text, unless its partition lists it; false if that is unknown."""
        topic_id, index, path = text.split(" ")
        topic = self._catalog.topic_by_id(UUID(hex=topic_id))
        if topic is None and not self._topics.may_have(UUID(hex=topic_id)):
            # The catalog knew the topic when it got this entry, so it was deleted since.
            await self._delete(path)
            return True
        if topic is None or int(index) >= topic.partitions:
            return False
        partition = self._log.partition(topic, int(index))
        now, known = clock(), self._compared
        if known is None or known[0] is not partition or now - known[1] > _COMPARED_S:
            # The objects of a merge are due together. Meanwhile a recovery may list some.
            newest = await Published(self._tier, self._namespace, partition, self._log).check(self._catalog.cluster_id)
            found = await manifest(self._log, partition)
            if found is None:
                return False
            known = partition, now, found[1], Manifest(newest.members if newest is not None else ())
            self._compared = known
        _, _, listed, published = known
        if await self._lists(partition, listed, path):
            return True
        if await self._lists(partition, published, path):
            # Another history may list it, and a recovery would miss it.
            return False
        await self._delete(path)
        return True

    async def _lists(self, partition: Partition, members: Manifest, path: str) -> bool:
        """True if a partition lists an object, also in its shelves."""
        where, first_offset = folder(self._namespace, partition), int(path.rpartition("/")[2].partition("-")[0])
        one = members.at(first_offset)
        if one is not None and one.kind == "shelf" and not path.endswith(".shelf"):
            one = (await self._tier.blocks.shelf(Stored(self._tier.gets, one.path(where), one))).at(first_offset)
        return one is not None and one.path(where) == path

    async def _delete_topic(self, where: str) -> bool:
        """Delete a topic's objects; true if there were none. A listing may be stale, so the next sweep looks again."""
        rounds = 0
        while rounds < _MOST_ROUNDS and (paths := await self._tier.objects.names(where)):
            for path in paths:
                await self._delete(path)
            rounds += 1
        if rounds:
            return False
        await self._tier.objects.remove_folder(where)
        return True

    async def _delete(self, path: str) -> None:
        if not self._ownership.is_sure:
            raise KorvetError("the owner of the tier is not certain any more")
        await self._tier.objects.delete(path)
        self._tier.deleted_objects += 1

    # ------------------------------------------------------------------ below the log start

    async def below_start(self, partition: Partition, start: int) -> int:
        """Delete the segments below a log start that has been there for `GRACE_S`; returns the number of members that
        the list lost. A bounded number of them: call again.

        :raises TierAway, DamagedManifest, LostTier, StoreUnavailable, StoreError:
        """
        listed = await calls.listed(self._log, partition, 0, _AT_ONCE)
        if listed is None or not listed.segments or listed.segments[0][0] > min(start, listed.start):
            return 0
        if not await self._log.replicas.persisted(partition, PERSISTED_WITHIN_S):
            return 0
        where, texts = folder(self._namespace, partition), dict(listed.segments)
        gone = Manifest.of_listed(listed.segments).below(min(start, listed.start))
        for member in gone:
            await self._delete_member(where, member)
        removed = await calls.forget(self._log, partition, [texts[member.next_offset] for member in gone])
        log.debug("segments below the log start were deleted", log=partition.keys.log, segments=len(gone))
        return removed

    async def _delete_member(self, where: str, member: Member) -> None:
        if member.kind == "shelf":
            # The shelf goes last, so without it nothing is left of what it listed.
            with suppress(ObjectMissing):
                inner = await self._tier.blocks.shelf(Stored(self._tier.gets, member.path(where), member))
                for one in inner.members:
                    await self._delete(one.path(where))
        await self._delete(member.path(where))
