"""Recovery of a namespace from its objects, into a Redis that is empty or came back without its last writes.

Each step may be repeated, and so may the whole after a crash between any two: a partition's keys first, by
`korvet_tier_restore`, then its topic's entry. So no front-end sees a topic whose records are not there yet. Redis keeps
what it has, but for entries that went back below the tier's end, and for topics that were deleted since.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple
from uuid import UUID

import anyio

from korvet.errors import KorvetError
from korvet.redis.client import Purpose, Store
from korvet.redis.wakeup import Wakeups
from korvet.store.catalog.catalog import Catalog
from korvet.store.catalog.settings import ConfigChange
from korvet.store.catalog.topic import Topic
from korvet.store.keys import Namespace
from korvet.store.log.log import Log
from korvet.store.log.tier_restore import Restored, Wanted, restore
from korvet.store.topics import delete_topic
from korvet.tier.adoption import adopted
from korvet.tier.identity import checked_identity
from korvet.tier.objects import Objects, OtherTier
from korvet.tier.ownership import LOOK_S, WAIT_S, NotOwner, Ownership
from korvet.tier.series import Series
from korvet.tier.snapshot import Snapshot, TieredTopic, Topics
from korvet.tier.survey import Survey

LOST: Final = (
    "records that were only in Redis (from the tier's end on)",
    "consumer groups and their offsets",
    "sequences of idempotent producers, transactional ids and open transactions",
    "users, access rules and quotas",
    "topics without remote.storage.enable, and settings of the cluster",
)
"""What the tier does not hold."""


class Done(NamedTuple):
    """What was done, or would be, to a partition; or to a topic, if ``partition`` is None."""

    topic: str
    partition: int | None
    status: str
    """create, move, list, whole, conflict, gone, enter, update, delete, taken, unknown"""
    text: str = ""

    @property
    def is_refused(self) -> bool:
        """True if an operator has to do something first."""
        return self.status in ("conflict", "gone", "taken", "unknown")


class Recovery:
    """The recovery of a namespace in a store.

    :param only_looks: says what it would do, and changes nothing.
    """

    def __init__(
        self, store: Store, namespace: Namespace, survey: Survey, objects: Objects, *, only_looks: bool
    ) -> None:
        wakeups = Wakeups(store)
        self._store, self._namespace, self._survey = store, namespace, survey
        self._catalog = Catalog(namespace, store, wakeups)
        self._log = Log(namespace, store, self._catalog, wakeups)
        self._objects, self._only_looks = objects, only_looks
        self._went_back = False

    async def open(self) -> str:
        """Read the catalog; an empty Redis gets the cluster id of the tier. Returns the cluster id; '' without one.

        :raises StoreUnavailable, StoreFull, StoreError:
        """
        topics = self._survey.topics
        if not await self._catalog.read() and not self._only_looks:
            await self._store.call_function(
                Purpose.COORDINATE, "korvet_catalog_init", self._namespace.catalog, cluster_id=topics.cluster_id
            )
            await self._catalog.read()
        self._went_back = self._catalog.version < topics.version
        return self._catalog.cluster_id

    async def hindrance(self) -> str | None:
        """Why this Redis may not write to the tier without further ado; None if it owns it, or may come to own it.

        :raises TierAway:
        """
        owner = await self._objects.owner(self._namespace.name)
        try:
            await checked_identity(self._objects, self._namespace.name, self._catalog)
        except OtherTier as error:
            return str(error)
        own = self._catalog.cluster_id or self._survey.topics.cluster_id
        if owner is None or owner.cluster_id == own:
            return None
        return (
            f"{self._objects.name} belongs to the cluster {owner.cluster_id}, and this Redis is {own}: stop that one, "
            "and give --take-over, or recover into an empty Redis"
        )

    async def own(self, *, takes_over: bool) -> None:
        """Let this Redis own the objects. A former owner is waited for, in case that it still runs.

        :param takes_over: at once, whoever the owner is. That one only reads from then on.
        :raises KorvetError: another one is the owner, and runs.
        :raises TierAway, StoreUnavailable, StoreError:
        """
        objects, name = self._objects, self._namespace.name
        run_id = self._store.run_id(self._namespace.catalog.meta)
        owner = await objects.owner(name)
        own = self._catalog.cluster_id, run_id
        if takes_over and (owner is None or (owner.cluster_id, owner.incarnation) != own):
            await objects.claim(name, *own, owner, await self._catalog.tier())
        ownership = Ownership(objects, self._namespace, self._catalog, self._store)
        problem = "unknown"
        with anyio.move_on_after(WAIT_S + LOOK_S):
            while not ownership.is_sure:
                try:
                    await ownership.look()
                except NotOwner as error:
                    problem = str(error)
                    await anyio.sleep(1.0)
        if not ownership.is_sure:
            raise KorvetError(f"the owner of the tier still runs: stop it, or give --take-over ({problem})")

    async def run(self) -> Sequence[Done]:
        """Recover all topics.

        :raises TierAway, StoreUnavailable, StoreFull, StoreError:
        """
        done: list[Done] = []
        deleting = {one.name for one in self._catalog.deleting()}
        deleted = {one.id for one in await self._catalog.deleted()}
        for topic in self._survey.topics.topics:
            if topic.id in deleted:
                # Its objects go. The newest snapshot may be from before its deletion.
                continue
            known = self._catalog.topic(topic.name)
            if topic.name in deleting:
                done.append(Done(topic.name, None, "taken", "Redis is deleting a topic of this name: try again"))
                continue
            if known is not None and known.id != UUID(hex=topic.id):
                text = f"Redis has another topic of this name, {known.id.hex}: delete that one, then recover again"
                done.append(Done(topic.name, None, "taken", text))
                continue
            parts = [
                Done(name, number, "unknown", why)
                for (name, number), why in self._survey.unreadable.items()
                if name == topic.name
            ]
            parts += [await self._restored(one) for one in self._survey.of(topic)]
            done += parts
            if not any(one.is_refused for one in parts):
                done += await self._entered(topic, known)
        done += await self._deleted()
        if self._went_back and not self._only_looks and not any(one.is_refused for one in done):
            await self._publish()
        return done

    async def _restored(self, one: Snapshot) -> Done:
        try:
            found = await self._restore(one, only_looks=True)
            if found.status in ("create", "move"):
                one = await adopted(self._objects, one)
                found = await self._restore(one, only_looks=True)
            if not self._only_looks:
                await self._store.call_function(
                    Purpose.COORDINATE, "korvet_producer_id", self._namespace.catalog, above=one.max_producer_id
                )
                found = await self._restore(one, only_looks=False)
        except KorvetError as error:
            return Done(one.topic, one.partition, "unknown", str(error))
        return Done(one.topic, one.partition, found.status, _told(one, found))

    def _restore(self, one: Snapshot, *, only_looks: bool) -> Awaitable[Restored]:
        wanted = Wanted(
            one.topic, one.topic_id, one.partition, one.token, one.leader_epoch, one.epochs, one.log_start,
            one.tier_end, [(member.next_offset, member.text()) for member in one.members],
        )  # fmt: skip
        return restore(self._store, self._namespace, wanted, only_looks=only_looks)

    async def _entered(self, topic: TieredTopic, known: Topic | None) -> Sequence[Done]:
        """Enter a topic in the catalog, or bring an entry that went back up to date."""
        if known is None:
            if not self._only_looks:
                await self._enter(topic)
                await self._complete(topic)
            return [Done(topic.name, None, "enter", f"{topic.partitions} partitions, its id and settings")]
        is_old = known.partitions < topic.partitions or dict(known.configs) != dict(topic.configs)
        is_old = is_old and self._went_back
        if not self._only_looks and is_old:
            if known.partitions < topic.partitions:
                await self._catalog.grow(known, topic.partitions)
            await self._catalog.configure(known, ConfigChange(set=topic.configs, replace=True))
        if not self._only_looks:
            await self._complete(topic)
        return [Done(topic.name, None, "update", f"{topic.partitions} partitions, its settings")] if is_old else []

    async def _enter(self, topic: TieredTopic) -> None:
        entry = {"id": topic.id, "partitions": topic.partitions, "configs": dict(topic.configs), "deleting": False}
        await self._store.call_function(
            Purpose.COORDINATE, "korvet_catalog_restore", self._namespace.catalog,
            version=-1, hash="topics", is_last="true", fields=[topic.name, json.dumps(entry)],
        )  # fmt: skip
        await self._catalog.refresh()

    async def _complete(self, topic: TieredTopic) -> None:
        """Partitions that never had a segment begin at 0, and records of Redis users get their rules."""
        entered = self._catalog.topic(topic.name)
        if entered is not None and entered.id == UUID(hex=topic.id):
            await self._log.create_partitions(entered)

    async def _publish(self) -> None:
        """Let the newest snapshot of topics be one of this catalog, whose version is lower. Else tierers would publish
        no new topic, and the next recovery would take it for one that was deleted.

        :raises TierAway, StoreUnavailable, StoreError:
        """
        await self._catalog.refresh()
        series = Series(self._objects, self._survey.topics.folder, Topics.decoded)
        found = await series.newest()
        if found is not None and found[1] == self._survey.topics:
            await series.add(found[0], replace(found[1], version=self._catalog.version).encoded())

    async def _deleted(self) -> Sequence[Done]:
        """Delete topics again that a Redis which went back does not know as deleted."""
        if not self._went_back:
            return []
        there = {UUID(hex=one.id) for one in self._survey.topics.topics}
        done = []
        for topic in tuple(self._catalog.topics()):
            if self._catalog.setting(topic, "remote.storage.enable") != "true" or topic.id in there:
                continue
            if not self._only_looks:
                await delete_topic(self._catalog, self._log, topic)
            text = "the tier lists it no more: it was deleted after this state of Redis, unless it was made since"
            done.append(Done(topic.name, None, "delete", text))
        return done


def _told(one: Snapshot, found: Restored) -> str:
    tiered = f"offsets {one.log_start} to {one.tier_end} are in the tier"
    texts: Mapping[str, str] = {
        "create": f"{tiered}; the log goes on at {max(one.tier_end, one.log_start)}",
        "move": f"{tiered}; Redis had {found.log_start} to {found.log_end}; the log goes on at "
        f"{max(one.tier_end, one.log_start)}",
        "list": f"{tiered}; Redis has them up to {found.log_end}, and gets the list of segments",
        "whole": f"{tiered}; Redis has them, up to {found.log_end}",
        "conflict": f"{tiered}, and Redis has other records up to {found.log_end}, written since it went back: copy "
        "what you need of them, delete the partition's keys, and recover again",
        "gone": "Redis has keys of another topic, or of one that is being deleted, or a log without its meta hash",
    }
    return texts[found.status]
