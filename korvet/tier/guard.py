"""The comparison of Redis with the tier, before a front-end lets a log go on there or a topic begin.

A Redis that was restored from a backup, or that lost its last writes, would give offsets out again whose records are in
segments. So the first use of a tiered partition at a server whose history changed since the partition's leader epoch
began waits for the newest snapshot. Meanwhile clients retry; the store never holds up a request. In the same history
the store is not asked.

Topics are compared by name when one is created. So after FLUSHALL a client does not begin a topic anew at 0 that
``korvet tier recover`` would restore.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import anyio
import structlog
from anyio.abc import TaskGroup

from korvet.configs.types import is_tiered
from korvet.errors import KorvetError, LostTier, NotCompared
from korvet.rate_limited_log import RateLimitedLog
from korvet.redis.client import Purpose
from korvet.redis.reply import in_task
from korvet.store.catalog.catalog import Catalog
from korvet.store.keys import Namespace
from korvet.store.log.partitions.partitions import Partitions
from korvet.store.log.state.partition import Partition
from korvet.store.threads import Turns
from korvet.tier.identity import checked_identity
from korvet.tier.manifest import folder_of
from korvet.tier.objects import Objects
from korvet.tier.series import Series
from korvet.tier.snapshot import Snapshot, Topics, topics_folder

log = structlog.get_logger()

RECOVER: Final = "korvet tier recover"
_WITHIN_S: Final = 5.0
_AGAIN_S: Final = 2.0
_NAMED_WITHIN_S: Final = 20.0
_LOOK_S: Final = 0.02
_MOST_VERDICTS: Final = 20_000
_FIELDS: Final = ("topic_id", "run_id", "replid", "start", "end", "tier_end")


@dataclass(slots=True)
class _Verdict:
    """What was found out about a partition at a server."""

    server: tuple[str, str]
    at: float = 0.0
    problem: str | None = None
    is_known: bool = False


class Guard:
    """The comparisons of a namespace by one front-end."""

    def __init__(
        self,
        objects: Objects,
        tasks: TaskGroup,
        turns: Turns,
        namespace: Namespace,
        catalog: Catalog,
        logs: Partitions,
    ) -> None:
        self._objects, self._tasks, self._namespace, self._catalog, self._logs = (
            objects,
            tasks,
            namespace,
            catalog,
            logs,
        )
        self._verdicts: dict[tuple[str, int], _Verdict] = {}
        self._turns = turns
        self._named_by = logs.now() + _NAMED_WITHIN_S
        self._topics_number = 0
        """Of the newest snapshot of topics: from it on, few reads find the next one."""
        self._lines = RateLimitedLog()

    # ------------------------------------------------------------------ partitions

    def admit(self, partition: Partition) -> None:
        """As `korvet.store.log.source.TierGuard.admit`."""
        if not is_tiered(partition.topic.configs):
            return
        key, name = partition.keys.log, f"{partition.topic.name}-{partition.index}"
        server = self._logs.store.run_id(key), self._logs.store.replid(key)
        verdict = self._verdicts.get((partition.topic_id, partition.index))
        is_due = verdict is None or verdict.server != server
        if verdict is not None and verdict.is_known and not is_due:
            if verdict.problem is None:
                return
            is_due = self._logs.now() - verdict.at > _AGAIN_S
            if not is_due:
                raise LostTier(verdict.problem)
        if is_due:
            if len(self._verdicts) >= _MOST_VERDICTS:
                self._verdicts.clear()
            verdict = self._verdicts[partition.topic_id, partition.index] = _Verdict(server)
            self._tasks.start_soon(self._find_out, partition, verdict)
        raise NotCompared(f"whether Redis has all of {name} that the tier has is being found out")

    async def _find_out(self, partition: Partition, verdict: _Verdict) -> None:
        try:
            async with self._turns.turn(self._namespace.name):
                verdict.problem = await self._problem(partition, verdict.server)
        except KorvetError as error:
            verdict.problem = f"whether Redis has all that the tier has is unknown: {error}"
        except Exception as error:
            # Damaged keys of one partition must not end the tasks of all others.
            log.exception("a log could not be compared with the tier", log=partition.keys.log)
            verdict.problem = f"whether Redis has all that the tier has is unknown: {error!r}"
        verdict.at, verdict.is_known = self._logs.now(), True
        if verdict.problem is not None:
            self._report(f"{partition.topic.name}-{partition.index}", verdict.problem)

    async def _problem(self, partition: Partition, server: tuple[str, str]) -> str | None:
        """Why a log may not go on at a server.

        :raises KorvetError: unknown.
        """
        key = partition.keys.meta
        reply: list[Any] = await self._logs.store.call(Purpose.APPEND, key, "HMGET", key, *_FIELDS)
        topic_id, run_id, replid, start, end, tier_end = reply
        if topic_id != partition.topic_id.encode():
            # Whether its keys may be made is judged elsewhere (`TierSource.holds`).
            return None
        if ((run_id or b"").decode(), (replid or b"").decode()) == server:
            return None
        there = await self._newest(partition)
        if there is None:
            return None
        own_end = int(tier_end or -1)
        if there.tier_end <= own_end and there.log_start <= int(end):
            above = max(int(start), there.log_start)
            if there.tier_end < own_end or there.segments_above(above) >= await self._listed(partition, above):
                return None
            # A list from before a merge names objects that may be gone.
            return f"Redis went back: its list of segments is older than the tier's; restore it: {RECOVER}"
        return (
            f"Redis went back: it has offsets {int(start)} to {int(end)}, and the tier has {there.log_start} to "
            f"{there.tier_end}; restore them: {RECOVER}"
        )

    async def _listed(self, partition: Partition, above: int) -> int:
        """The number of segments that Redis lists above an offset."""
        key = self._logs.tier_keys(partition).tier
        count: int = await self._logs.store.call(Purpose.APPEND, key, "ZCOUNT", key, f"({above}", "+inf")
        return count

    async def _newest(self, partition: Partition) -> Snapshot | None:
        folder = folder_of(self._namespace.name, partition.topic.name, partition.topic_id, partition.index)
        with anyio.move_on_after(_WITHIN_S):
            if (found := await Series(self._objects, folder, Snapshot.decoded).newest()) is not None:
                return found[1]
            await checked_identity(self._objects, self._namespace.name, self._catalog)
            return None
        raise KorvetError(f"{self._objects.name} does not answer within {_WITHIN_S:g} s")

    # ------------------------------------------------------------------ names

    async def tier(self) -> str:
        """As `korvet.store.log.source.TierGuard.tier`."""
        await in_task()
        while True:
            named = await self._catalog.tier()
            if named:
                return named
            if self._logs.now() >= self._named_by:
                raise LostTier(f"the tier at {self._objects.name} cannot be used yet; the front-end's log says why")
            await anyio.sleep(_LOOK_S)

    async def check_name(self, name: str) -> None:
        """As `korvet.store.log.source.TierGuard.check_name`."""
        await in_task()
        try:
            with anyio.fail_after(_WITHIN_S):
                series = Series(self._objects, topics_folder(self._namespace.name), Topics.decoded)
                if (found := await series.newest(self._topics_number)) is None:
                    await checked_identity(self._objects, self._namespace.name, self._catalog)
        except TimeoutError:
            raise self._lost(name, f"{self._objects.name} does not answer within {_WITHIN_S:g} s") from None
        except KorvetError as error:
            raise self._lost(name, f"whether the tier has a topic of this name is unknown: {error}") from None
        self._topics_number, there = (found[0], found[1].named(name)) if found is not None else (0, None)
        if there is None:
            return
        if any(UUID(hex=there.id) == one.id for one in (*self._catalog.topics(), *self._catalog.deleting())):
            return
        if not any(one.id == there.id for one in await self._catalog.deleted()):
            raise self._lost(name, f"the tier has a topic of this name that Redis does not know: {RECOVER}")

    def _lost(self, name: str, problem: str) -> LostTier:
        self._report(name, problem)
        return LostTier(f"{name}: {problem}")

    def _report(self, name: str, problem: str) -> None:
        self._lines.write(
            "error", "records of the tier are not in redis's care, so clients are refused", name=name, reason=problem
        )
