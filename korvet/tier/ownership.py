"""Who may write a namespace's objects: one run of one Redis.

The owner is an object with the cluster id of the namespace and the run id of its catalog's server. Another cluster id
is another Redis, or one that was emptied: it only reads. Another run id is a restart, a failover, or a *copy* of the
Redis beside it. So the new run puts a challenge first. The owner looks for one every few seconds, and answers it by
taking the next generation. If no answer came within `WAIT_S`, the new run takes that. So of a Redis and its copy the
running owner stays the owner, and after a restart tiering goes on within a minute.

An owner is sure of it for less time than a challenge waits, and only one that is sure deletes objects.
"""

from __future__ import annotations

import time
from contextlib import suppress
from math import inf
from typing import Final

from korvet.errors import KorvetError
from korvet.redis.client import Store
from korvet.store.catalog.catalog import Catalog
from korvet.store.keys import Namespace
from korvet.tier.identity import checked_identity, other_tier
from korvet.tier.objects import Challenge, ObjectExists, ObjectMissing, Objects, OtherTier, Owner, owner_path

LOOK_S: Final = 10.0
SURE_S: Final = 25.0
WAIT_S: Final = 40.0
_MOST_PAUSES: Final = 15
"""A copy of a running Redis asks every ten minutes in the end."""


class NotOwner(KorvetError):
    """Another Redis owns the namespace's objects, or nobody knows who does."""


class Succeeding(NotOwner):
    """A former run of this Redis, or one that it is a copy of, has some seconds left to answer."""


def clock() -> float:
    """Seconds that go on while the machine is suspended, in which others may have done anything."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Ownership:
    """The ownership of a namespace's objects, as one front-end knows it.

    :param challenges: those of the process, by namespace.
    """

    def __init__(
        self,
        objects: Objects,
        namespace: Namespace,
        catalog: Catalog,
        store: Store,
        challenges: dict[str, Challenge] | None = None,
    ) -> None:
        self._objects = objects
        self._namespace = namespace
        self._catalog = catalog
        self._store = store
        self._identity = ""
        self._owner: Owner | None = None
        self._challenges = {} if challenges is None else challenges
        self.wait_s = WAIT_S
        """The time that a challenged owner has to answer."""
        self._sure_until = -inf

    @property
    def is_sure(self) -> bool:
        """True if this Redis is the owner, and no other one can have become it yet."""
        return clock() < self._sure_until

    async def look(self) -> None:
        """Find out who the owner is, become it if there is none, and defend it. Topics may be in the tier from then on.

        :raises NotOwner: another one is, or may still be.
        :raises OtherTier: the namespace has another tier.
        :raises TierAway: unknown.
        :raises StoreUnavailable, StoreError:
        """
        began = clock()
        run_id, cluster_id = self._store.run_id(self._namespace.catalog.meta), self._catalog.cluster_id
        if not run_id or not cluster_id:
            return
        name = self._namespace.name
        try:
            named, self._identity = await checked_identity(self._objects, name, self._catalog, self._identity)
        except OtherTier:
            self._sure_until = -inf
            raise
        owner = await self._objects.owner(name, self._owner)
        if owner is None:
            owner = await self._objects.claim(name, cluster_id, run_id, None)
        elif owner.cluster_id == cluster_id and owner.incarnation != run_id:
            owner = await self._succeed(owner, cluster_id, run_id)
        elif owner.cluster_id == cluster_id and await self._is_challenged(owner):
            owner = await self._objects.claim(name, cluster_id, run_id, owner)
        self._owner = owner
        if owner.cluster_id != cluster_id:
            raise NotOwner(
                f"the objects of namespace {name} in {self._objects.name} belong to the cluster {owner.cluster_id}, "
                f"and this one is {cluster_id}: give --tier another prefix, or use the Redis that wrote them"
            )
        if owner.incarnation != run_id:
            raise Succeeding(
                f"another run of this Redis wrote the objects of namespace {name} in {self._objects.name}; tiering "
                f"goes on in {self.wait_s:g} s, unless that one still runs"
            )
        self._identity = self._identity or await self._objects.identity(name)
        if named != self._identity and await self._catalog.name_tier(named, self._identity) != self._identity:
            raise OtherTier(other_tier(self._objects, name))
        self._sure_until = began + SURE_S

    async def confirm(self) -> None:
        """Compare the tier once more: the last look may be older than a topic, and so than its tier.

        :raises OtherTier, TierAway, StoreUnavailable, StoreError:
        """
        await checked_identity(self._objects, self._namespace.name, self._catalog, self._identity)

    async def _succeed(self, owner: Owner, cluster_id: str, run_id: str) -> Owner:
        """Challenge the owner, and take its place if it did not answer."""
        name = self._namespace.name
        known = self._challenges.get(name)
        answers = known.answers + (known.owner != owner) if known else 0
        if known and known.owner != owner and clock() - known.at < min(answers, _MOST_PAUSES) * WAIT_S:
            # It answered, so this Redis may be its copy, which need not ask again and again.
            return owner
        with suppress(ObjectExists):
            await self._objects.put(self._challenge(owner), [run_id.encode()])
        now = clock()
        if known is None or known.owner != owner:
            self._challenges[name] = known = Challenge(owner, now, answers)
        if now - known.at < self.wait_s:
            return owner
        return await self._objects.claim(name, cluster_id, run_id, owner)

    async def _is_challenged(self, owner: Owner) -> bool:
        try:
            await self._objects.read(self._challenge(owner), 0, 1)
        except ObjectMissing:
            return False
        return True

    def _challenge(self, owner: Owner) -> str:
        """The object by which another run asks to be the owner after this one."""
        return owner_path(self._namespace.name, owner.generation + 1).removesuffix(".json") + ".challenge"
