"""The tierer: it moves a namespace's sealed batches out of Redis into segments, partition after partition.

A partition's turn has these steps. Anyone may repeat them after a crash between two, or at the same time:

1. take the partition's lease, and see that Redis did not go back behind the newest snapshot (`publishing`)
2. build a segment of the batches from the tier's end up to the last stable offset (`building`)
3. enter its object as doomed, put it, list it by `korvet_tier_add`, and take it out of the doomed ones (`removal`)
4. shelve the oldest segments of a long list
5. publish a snapshot of what is durable in Redis
6. delete the segments below the log start
7. merge small neighbours (`merging`)

The last three steps wait for Redis's disk, so the next segment is built beside them. Sealed batches stay in Redis until
retention trims them locally, or until memory is short.

A partition whose turn fails waits longer each time, and no other one waits for it but for one of `Tier.seals`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Final

import anyio
import structlog
from anyio.abc import TaskGroup
from ulid import ULID

from korvet.configs.types import is_tiered
from korvet.errors import KorvetError
from korvet.rate_limited_log import RateLimitedLog
from korvet.redis.client import Purpose
from korvet.store.activity import Activity
from korvet.store.background.retention import enforce_settings
from korvet.store.catalog.catalog import Catalog
from korvet.store.catalog.topic import Topic
from korvet.store.keys import Namespace
from korvet.store.log import tier as calls
from korvet.store.log.log import Log
from korvet.store.log.state.partition import Meta, Partition
from korvet.store.memory import Reserve
from korvet.tier.building import Built, Gone, build, first_entry, last_entry
from korvet.tier.manifest import object_path, shelf
from korvet.tier.merging import merged
from korvet.tier.objects import ObjectMissing, OtherTier, TierAway
from korvet.tier.ownership import LOOK_S, NotOwner, Ownership, Succeeding, clock
from korvet.tier.publishing import Published, PublishedTopics, folder, last_footer, manifest
from korvet.tier.removal import GRACE_S, LISTED_WITHIN_S, MERGED_MS, Removal
from korvet.tier.segment import Bytes, DamagedSegment, Footer, FooterTooLarge
from korvet.tier.tier import Tier

log = structlog.get_logger()

SEGMENT_BYTES: Final = 32 << 20
"""The bytes of a segment, unless segment.bytes or local.retention.bytes are less."""
LEAST_BYTES: Final = 1 << 20
LEASE_MS: Final = 30_000
VISIT_S: Final = 10.0
SILENT_S: Final = 3600.0
"""The time that an owner has to answer a visit's challenge: of a namespace without clients it may make visits alone."""
_LOOK_S: Final = 1.0
_MOST_REST_S: Final = 4.0
_IDLE_LOOK_S: Final = 30.0
_AGAIN_S: Final = 30.0
"""The time after which a partition without changes is looked at again: batches grow old."""
_BUSY_S: Final = 5.0
_LEAST_AGE_S: Final = 10.0
_MERGE_EVERY_S: Final = 60.0
_FIRST_BACKOFF_S: Final = 1.0
_MOST_BACKOFF_S: Final = 60.0
_MANY_FAILURES: Final = 5
_PUT_WITHIN_S: Final = 120.0
_SEALED_WITHIN_MS: Final = 150_000
_MOST_HALVINGS: Final = 5
"""From 32 MiB to one."""
_SLOW_PUT_S: Final = 10.0
"""The time after which a line says that an object is still not in the store."""
_PUT_PAUSES_S: Final = (0.5, 1.0, 2.0, 4.0)
_SEGMENTS_OF_A_TURN: Final = 8
_SHORT: Final = 1 / 4
"""The share of a server's memory below which the tier hurries: four times what is closed to producers."""
_METAS: Final = 200


class SlowStore(TierAway):
    """An object did not arrive within `_PUT_WITHIN_S`."""


@dataclass(slots=True)
class _Work:
    """What this front-end knows of a partition's tier. It can be dropped at any time."""

    topic_id: str
    published: Published
    look_at: float = -inf
    rest_s: float = _LOOK_S
    """The pause until the next look; it grows while nothing changes."""
    has_turn: bool = False
    failures: int = 0
    halvings: int = 0
    """How often the size of segments is halved, because larger ones do not arrive in time."""
    seen: tuple[int, ...] = ()
    """The values at the last turn that left nothing to do, but batches that are too few or too young."""
    again_at: float = inf
    """The time from which these may be old enough."""
    is_settling: bool = False
    merge_at: float = -inf
    settled: tuple[int, ...] = ()
    """The values when all was published and deleted."""
    checked_epoch: int = -1
    """The leader epoch in which Redis was compared with the newest snapshot, under the lease."""
    footer: Footer | None = None
    """The last segment's."""
    start: int = -1
    start_since: float = inf
    sealed_at: float = -inf


class Tierer:
    """The tierer of a namespace in one process.

    :param activity: the namespace's; in an idle one it looks less often.
    :param reserve: the memory of the servers.
    """

    def __init__(
        self, tier: Tier, namespace: Namespace, catalog: Catalog, log: Log, activity: Activity, reserve: Reserve
    ) -> None:
        self._tier, self._namespace, self._catalog, self._log = tier, namespace, catalog, log
        self._activity, self._reserve = activity, reserve
        self._token = str(ULID())
        self._ownership = Ownership(tier.objects, namespace, catalog, log.store, tier.challenges)
        self._topics = PublishedTopics(tier, namespace, catalog)
        self._removal = Removal(tier, namespace, catalog, log, self._ownership, self._topics)
        self._works: dict[str, _Work] = {}
        self._lines = RateLimitedLog()
        self._is_needed = anyio.Event()

    async def run(self) -> None:
        """Tier and remove until cancelled. Without a tiered topic the store is asked and told nothing more once it is
        the namespace's."""
        await self._tier.usable.wait()
        while True:
            if await self.own():
                break
            await anyio.sleep(LOOK_S)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._keep_ownership)
            tasks.start_soon(self._keep_removing)
            while True:
                if topics := self._tiered():
                    self._is_needed.set()
                    if self._ownership.is_sure:
                        with self._failures_logged("not all of the tier's work can be done now"):
                            await self._give_turns(topics, tasks)
                await self._activity.sleep(_LOOK_S, _IDLE_LOOK_S)

    # ------------------------------------------------------------------ the namespace

    def _tiered(self) -> Sequence[Topic]:
        """The topics in the tier. None ever leaves it."""
        return [topic for topic in self._catalog.topics() if is_tiered(topic.configs)]

    async def own(self) -> bool:
        """Give the namespace this tier, if it owns the objects there; false if not now."""
        await self._look()
        return self._ownership.is_sure

    async def _keep_ownership(self) -> None:
        await self._is_needed.wait()
        while True:
            await self._look()
            await anyio.sleep(LOOK_S)

    async def _look(self) -> None:
        try:
            await self._ownership.look()
        except Succeeding as error:
            self._lines.write("info", "the tier waits for its former owner", reason=str(error))
        except NotOwner as error:
            self._tier.write_failures += 1
            self._lines.write("error", "this korvet only reads the tier", reason=str(error))
        except OtherTier as error:
            self._tier.write_failures += 1
            self._lines.write("error", "this korvet neither writes nor reads its tier", reason=str(error))
        except KorvetError as error:
            self._tier.write_failures += 1
            self._report("the tier cannot be reached", error)

    async def _keep_removing(self) -> None:
        while True:
            # Also for a namespace that has no tiered topic any more.
            await anyio.sleep(GRACE_S / 2)
            with self._failures_logged(_NOT_REMOVED):
                await self.sweep()

    @contextmanager
    def _failures_logged(self, event: str) -> Iterator[None]:
        try:
            yield
        except KorvetError as error:
            self._report(event, error)
        except Exception:
            # Damaged keys must not end the front-end.
            where = {"tier": self._tier.objects.name, "namespace": self._namespace.name}
            self._lines.write("error", f"{event}: an unexpected error", exc_info=True, **where)

    async def visit(self) -> None:
        """Sweep once in a namespace without clients: a tenant may delete a topic and leave. Other tenants wait for
        their visits. So one with many objects, or with a slow store, goes on at the next one.
        """
        self._ownership.wait_s = SILENT_S
        with anyio.move_on_after(VISIT_S), self._failures_logged(_NOT_REMOVED):
            self._removal.note_time(await self._now_ms())
            if self._tier.usable.is_set() and await self._removal.is_due() and await self.own():
                await self.sweep()

    async def sweep(self) -> None:
        """Delete objects of deleted topics, and those that came to nothing, if this Redis owns them.

        :raises TierAway, StoreUnavailable, StoreError:
        """
        now_ms = await self._now_ms()
        self._removal.note_time(now_ms)
        if await self._removal.is_due():
            self._is_needed.set()
            if self._ownership.is_sure:
                await self._removal.sweep(now_ms)

    def _report(self, event: str, error: KorvetError) -> None:
        if not self._log.store.has_reported(error):
            self._lines.write("warning", event, tier=self._tier.objects.name, reason=str(error))

    async def _give_turns(self, topics: Sequence[Topic], tasks: TaskGroup) -> None:
        """Begin the turns that are due.

        :raises KorvetError: Redis is away.
        """
        now = anyio.current_time()
        partitions = [self._log.partition(topic, at) for topic in topics for at in range(topic.partitions)]
        keys = {partition.keys.log for partition in partitions}
        for former in self._works.keys() - keys:
            del self._works[former]
            self._tier.waiting_bytes.pop(former, None)
        due = [one for one in partitions if not (work := self._work(one)).has_turn and work.look_at <= now]
        for begin in range(0, len(due), _METAS):
            some = due[begin : begin + _METAS]
            for one, meta in zip(some, await self._log.metas(some), strict=True):
                work = self._work(one)
                if not isinstance(meta, Meta):
                    continue
                values, is_due = self._values(meta), work.again_at <= now or self._is_short(one)
                if is_due or values != work.seen:
                    work.has_turn = True
                    tasks.start_soon(self._turn, one, work)
                is_checked = work.checked_epoch == meta.epoch
                if is_checked and not work.is_settling and self._sealed_values(meta) != work.settled:
                    work.is_settling = True
                    tasks.start_soon(self._settle_beside, one, work)
                work.rest_s = _LOOK_S if work.has_turn or work.is_settling else min(_MOST_REST_S, 2 * work.rest_s)
                work.look_at = max(work.look_at, now + work.rest_s)
        await self._topics.publish()

    def _work(self, partition: Partition) -> _Work:
        work = self._works.get(partition.keys.log)
        if work is None or work.topic_id != partition.topic_id:
            published = Published(self._tier, self._namespace, partition, self._log)
            work = self._works[partition.keys.log] = _Work(partition.topic_id, published)
        return work

    # ------------------------------------------------------------------ a partition's turn

    async def _turn(self, partition: Partition, work: _Work) -> None:
        try:
            async with self._tier.seals.turn(self._namespace.name):
                work.look_at = anyio.current_time() + await self._move(partition, work)
        except Exception as error:
            self._failed(partition, work, error)
        finally:
            work.has_turn = False

    async def _settle_beside(self, partition: Partition, work: _Work) -> None:
        """Settle while the partition's next segments are built: Redis's disk takes a second."""
        try:
            async with self._tier.settlements.turn(self._namespace.name):
                await self._settle(partition, work)
        except Exception as error:
            self._failed(partition, work, error)
        finally:
            work.is_settling = False

    def _failed(self, partition: Partition, work: _Work, error: Exception) -> None:
        work.footer, work.checked_epoch, work.seen = None, -1, ()
        work.failures += 1
        if isinstance(error, SlowStore):
            work.halvings = min(_MOST_HALVINGS, work.halvings + 1)
        backoff_s = min(_MOST_BACKOFF_S, _FIRST_BACKOFF_S * 2 ** min(work.failures - 1, 10))
        work.look_at = anyio.current_time() + backoff_s
        if isinstance(error, Gone) and work.failures < _MANY_FAILURES:
            # Records were deleted meanwhile, or another tierer was faster.
            return
        self._tier.write_failures += 1
        name = f"{partition.topic.name}-{partition.index}"
        if not isinstance(error, KorvetError):
            # A defect in one partition's turn must not end the front-end.
            log.error("a partition's turn in the tier failed", partition=name, exc_info=error)
        elif not self._log.store.has_reported(error):
            self._lines.write(
                "warning", "a partition's records stay in redis for now", partition=name, reason=str(error)
            )

    async def tend(self, partition: Partition) -> None:
        """Do once all that is due for a partition.

        :raises Gone, KorvetError:
        """
        work = self._work(partition)
        await self._move(partition, work)
        await self._settle(partition, work)

    async def _move(self, partition: Partition, work: _Work) -> float:
        """Seal what is due. Returns the seconds until the next look.

        :raises Gone, KorvetError:
        """
        if not await self._lease(partition):
            self._tier.waiting_bytes.pop(partition.keys.log, None)
            work.checked_epoch = -1
            return _BUSY_S
        meta = await self._log.meta(partition)
        if meta is None:
            return _BUSY_S
        if work.checked_epoch != meta.epoch:
            await self._ownership.confirm()
            await work.published.check(self._catalog.cluster_id)
        if work.checked_epoch != meta.epoch or meta.tier_end != (work.footer.next_offset if work.footer else -1):
            work.footer = await self._last_footer(partition, meta)
            work.checked_epoch = meta.epoch
        is_on = not self._catalog.boolean(partition.topic, "remote.log.copy.disable")
        for _ in range(_SEGMENTS_OF_A_TURN):
            if not await self._lease(partition):
                return _BUSY_S
            has_sealed = is_on and await self._seal(partition, work, meta)
            is_short = self._is_short(partition)
            if has_sealed or (is_short and meta.local_start < meta.tier_end):
                where = self._namespace, self._catalog, self._log, partition.topic, partition.index
                await enforce_settings(*where, await self._now_ms(), is_short=is_short)
            if not has_sealed:
                work.seen, work.failures = self._values(meta), 0
                has_waiting = self._tier.waiting_bytes.get(partition.keys.log)
                work.again_at = anyio.current_time() + _AGAIN_S if has_waiting else inf
                return _LOOK_S
            now = await self._log.meta(partition)
            if now is None or now.epoch != work.checked_epoch:
                return _LOOK_S
            meta = now
        return 0.0

    async def _settle(self, partition: Partition, work: _Work) -> None:
        """Publish what is durable, and delete what is below the log start.

        :raises KorvetError:
        """
        meta = await self._log.meta(partition)
        # Else another tierer has the lease, or Redis was not compared with the newest snapshot yet.
        if meta is None or work.checked_epoch != meta.epoch:
            return
        last = work.footer if work.footer and work.footer.next_offset == meta.tier_end else None
        if last is None:
            last = await self._last_footer(partition, meta)
        is_published = await work.published.publish(self._catalog.cluster_id, last, meta.tier_end)
        # A snapshot that lists an object whose records were not deleted yet would be recovered without it.
        if is_published and await self._remove(partition, work, meta) and not await self._merge(partition, work):
            work.settled = self._sealed_values(meta)

    def _sealed_values(self, meta: Meta) -> tuple[int, ...]:
        """Without the end of the log: while nothing is sealed, the list of all segments is not read for each batch."""
        return meta.epoch, meta.start, meta.tier_end

    def _values(self, meta: Meta) -> tuple[int, ...]:
        return self._catalog.version, meta.epoch, meta.start, meta.stable, meta.tier_end

    async def _lease(self, partition: Partition, lease_ms: int = LEASE_MS) -> bool:
        code, status = await self._log.store.call_function(
            Purpose.APPEND,
            "korvet_tier_lease",
            [partition.keys.meta],
            topic_id=partition.topic_id,
            token=self._token,
            lease_ms=lease_ms,
        )
        return bool(code == 0 and status == b"ready")

    async def _last_footer(self, partition: Partition, meta: Meta) -> Footer | None:
        try:
            return await last_footer(self._tier, self._namespace, partition, meta.tier_end, self._log)
        except (ObjectMissing, DamagedSegment) as error:
            self._lines.write(
                "error", "a segment is lost or damaged; run korvet tier verify",
                partition=f"{partition.topic.name}-{partition.index}", reason=str(error),
            )  # fmt: skip
            return None

    async def _remove(self, partition: Partition, work: _Work, meta: Meta) -> bool:
        """Delete the segments below the log start, once it has been there for a while; false if some are left."""
        if meta.tier_end < 0 or meta.start <= 0:
            return True
        now = anyio.current_time()
        if work.start_since == inf:
            work.start, work.start_since = meta.start, now
        if now - work.start_since >= GRACE_S:
            if not self._ownership.is_sure or await self._removal.below_start(partition, work.start):
                return False
            # Only now: a start that rises all the time must not put the removal off.
            work.start, work.start_since = meta.start, now
        listed = await calls.listed(self._log, partition, 0, 1)
        return listed is None or not listed.segments or listed.segments[0][0] > meta.start

    def _is_short(self, partition: Partition) -> bool:
        """True if the partition's server has little memory left."""
        return self._reserve.is_low(partition.keys.log, _SHORT)

    async def _merge(self, partition: Partition, work: _Work) -> bool:
        """Merge some small segments, now and then; true if it did, so that the next snapshot lists the merged one.

        :raises TierAway, LostTier, StoreUnavailable, StoreError, DamagedManifest:
        """
        if anyio.current_time() < work.merge_at or not self._ownership.is_sure:
            return False
        work.merge_at = anyio.current_time() + _MERGE_EVERY_S
        async with self._tier.seals.turn(self._namespace.name):
            return await self._merge_some(partition, work)

    async def _merge_some(self, partition: Partition, work: _Work) -> bool:
        try:
            target_bytes = self._target_bytes(partition.topic, is_merged=True) >> work.halvings
            one = await merged(self._tier, self._namespace, self._log, partition, target_bytes)
        except (ObjectMissing, DamagedSegment, FooterTooLarge) as error:
            self._lines.write(
                "error", "segments cannot be merged; run korvet tier verify",
                partition=f"{partition.topic.name}-{partition.index}", reason=str(error),
            )  # fmt: skip
            return False
        if one is None:
            return False
        where, name = folder(self._namespace, partition), str(ULID())
        path = object_path(where, "segment", one.footer.first_offset, name)
        await self._removal.doom(partition, [member.path(where) for member in one.members], MERGED_MS)
        await self._put(partition, path, one.parts)
        texts = [member.text().encode() for member in one.members]
        footer = one.footer
        if await calls.shelve(self._log, partition, texts, name, footer.footer_bytes, footer.crc, "segment"):
            await self._removal.spare(partition, [path])
            if work.footer is not None and work.footer.next_offset == footer.next_offset:
                work.footer = footer
        return True

    # ------------------------------------------------------------------ sealing

    async def _seal(self, partition: Partition, work: _Work, meta: Meta) -> bool:
        """Seal a segment if enough batches wait for it, or if they are old or memory is short; true if it did.

        :raises Gone, KorvetError:
        """
        first, waiting_bytes, is_old = await self._waiting(partition, meta)
        self._tier.waiting_bytes[partition.keys.log] = waiting_bytes
        target_bytes = self._target_bytes(partition.topic)
        is_short = self._is_short(partition)
        is_urgent = is_short and waiting_bytes >= LEAST_BYTES
        if is_short or is_old:
            # Memory may be short for months, and each small segment costs two PUTs and a place in the list.
            is_urgent = is_urgent or anyio.current_time() - work.sealed_at >= _LEAST_AGE_S
        if not waiting_bytes or (waiting_bytes < target_bytes and not is_urgent) or not self._ownership.is_sure:
            return False
        # To a slow store the object takes longer than a lease lasts, and another front-end would send it, too.
        if work.halvings and not await self._lease(partition, _SEALED_WITHIN_MS):
            return False
        target_bytes = max(min(LEAST_BYTES, target_bytes), target_bytes >> work.halvings)
        built = await build(self._log, partition, meta, first, target_bytes, work.footer)
        began = clock()
        added = await self._enter(partition, built)
        if clock() - began < _PUT_WITHIN_S / 4:
            work.halvings = max(0, work.halvings - 1)
        if added is None or added.status != "added":
            # Records were deleted, another tierer was faster, or Redis lost its last writes.
            work.checked_epoch = -1
            raise Gone(f"the segment of {partition.keys.log} from {first} on was refused: {added}")
        work.footer, work.sealed_at = built.footer, anyio.current_time()
        self._tier.written_segments += 1
        self._tier.written_bytes += built.footer.size_bytes
        self._tier.waiting_bytes[partition.keys.log] = max(0, waiting_bytes - built.footer.size_bytes)
        return True

    async def _waiting(self, partition: Partition, meta: Meta) -> tuple[int, int, bool]:
        """The offset at which the next segment begins, the bytes from there to the last stable offset, and whether the
        first batch is older than the topic keeps records in Redis."""
        first = max(meta.local_start, meta.tier_end)
        begin = await first_entry(self._log, partition, first)
        last = await last_entry(self._log, partition, meta.stable)
        if begin is None or last is None or last.next_offset < begin.next_offset:
            return first, 0, False
        if meta.tier_end < meta.local_start:
            # The log may begin within a batch, and a segment does not.
            first = min(first, begin.next_offset - begin.records)
        age_ms = self._local_ms(partition.topic)
        written_ms = begin.max_timestamp if begin.max_timestamp >= 0 else begin.running_max_timestamp
        is_old = 0 <= age_ms <= await self._now_ms() - written_ms
        return first, last.running_bytes - (begin.running_bytes - begin.size_bytes), is_old

    async def _now_ms(self) -> int:
        seconds, us = await self._log.store.call(Purpose.COORDINATE, self._namespace.catalog.meta, "TIME")
        return int(seconds) * 1000 + int(us) // 1000

    def _local_ms(self, topic: Topic) -> int:
        """The time that records stay in Redis, -1 for any."""
        local_ms = self._catalog.integer(topic, "local.retention.ms")
        return self._catalog.integer(topic, "retention.ms") if local_ms == _AS_RETENTION else local_ms

    def _target_bytes(self, topic: Topic, *, is_merged: bool = False) -> int:
        """The size of a segment. One that waits for more batches takes room in Redis, and a merged one does not."""
        kept_bytes = _AS_RETENTION if is_merged else self._catalog.integer(topic, "local.retention.bytes")
        if kept_bytes == _AS_RETENTION:
            kept_bytes = self._catalog.integer(topic, "retention.bytes")
        least = min(SEGMENT_BYTES, self._catalog.integer(topic, "segment.bytes"))
        return least if kept_bytes < 0 else min(least, max(LEAST_BYTES, kept_bytes))

    async def _enter(self, partition: Partition, built: Built) -> calls.Added | None:
        """Put a segment and list it.

        :raises TierAway, LostTier, StoreUnavailable, StoreError:
        :raises KorvetError: the list is full of shelves.
        """
        footer, name = built.footer, str(ULID())
        path = object_path(folder(self._namespace, partition), "segment", footer.first_offset, name)
        await self._put(partition, path, built.parts)
        upload = calls.Upload(
            name=name,
            first=footer.first_offset,
            next=footer.next_offset,
            size=footer.size_bytes,
            footer_bytes=footer.footer_bytes,
            crc=footer.crc,
            max_timestamp=footer.max_timestamp,
            first_index=built.first_index,
            last_index=built.last_index,
        )
        token = self._log.next_token()
        added = await calls.add(self._log, partition, upload, token)
        if added is not None and added.status == "full":
            await self._shelve(partition)
            added = await calls.add(self._log, partition, upload, token)
            if added is not None and added.status == "full":
                raise KorvetError(
                    "its list of segments is full: let retention delete some, or copy the topic to another one with a "
                    "larger segment.bytes or local.retention.bytes"
                )
        if added is not None and added.status == "added":
            await self._removal.spare(partition, [path])
        return added

    async def _put(self, partition: Partition, path: str, parts: Sequence[Bytes]) -> None:
        """Put an object that Redis shall list, again and again for some seconds. Until it is listed it is doomed.

        :raises Gone: that took so long that it may be deleted before it is listed.
        :raises TierAway: it may be there nevertheless.
        :raises StoreUnavailable, StoreError:
        """
        began = clock()
        await self._removal.doom(partition, [path])
        with self._slowness_logged(path):
            for pause_s in (*_PUT_PAUSES_S, inf):
                try:
                    with anyio.fail_after(_PUT_WITHIN_S):
                        await self._tier.objects.put(path, parts)
                    break
                except TimeoutError:
                    where = f"{self._tier.objects.name}/{path}"
                    raise SlowStore(f"{where}: no answer within {_PUT_WITHIN_S:g} s") from None
                except TierAway:
                    if pause_s == inf:
                        raise
                await anyio.sleep(pause_s)
        if clock() - began > LISTED_WITHIN_S:
            # The machine was suspended.
            raise Gone(f"{path} was put too late")

    @contextmanager
    def _slowness_logged(self, path: str) -> Iterator[None]:
        where = f"{self._tier.objects.name}/{path}"
        event = "the tier's store is slow; records stay in redis until it has them"
        write = partial(self._lines.write, "warning", event, object=where, seconds=_SLOW_PUT_S)
        timer = asyncio.get_running_loop().call_later(_SLOW_PUT_S, write)
        try:
            yield
        finally:
            timer.cancel()

    async def _shelve(self, partition: Partition) -> None:
        """Put the oldest segments of a long list into a shelf.

        :raises TierAway, DamagedManifest, LostTier, StoreUnavailable, StoreError:
        """
        found = await manifest(self._log, partition)
        if found is None or not (some := found[1].to_shelve()):
            return
        data, member = shelf(some, str(ULID()))
        path = member.path(folder(self._namespace, partition))
        await self._put(partition, path, [data])
        texts = [one.text().encode() for one in some]
        if await calls.shelve(self._log, partition, texts, member.name, len(data), member.crc):
            await self._removal.spare(partition, [path])


_NOT_REMOVED: Final = "objects of the tier that nobody needs cannot be deleted yet"
_AS_RETENTION: Final = -2
"""local.retention.ms and .bytes: as retention.ms and .bytes."""
