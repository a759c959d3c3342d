"""Dead letters of share groups: their copies in a group's dead-letter topic (KIP-1191).

A record that failed is ARCHIVING in Redis, and holds its group's start. A front-end that sees such records leases them
(`lua/7-shares/dead_letters.lua`), appends a copy of each, and has Redis finish them. If it dies in between, another one
copies them again when the lease is over. So each comes to the topic at least once, whatever fails. Kafka gives a record
up when its copy fails.

Source: DefaultShareGroupDLQManager, ShareGroupDLQStateManager
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Final

import anyio
import structlog
from ulid import ULID

from korvet.codes import OFFSET_OUT_OF_RANGE
from korvet.errors import KorvetError, StoreUnavailable, forget_frames
from korvet.rate_limited_log import RateLimitedLog
from korvet.store.catalog.catalog import Catalog
from korvet.store.catalog.topic import Topic
from korvet.store.log.appending.opened import opened_for
from korvet.store.log.log import Log
from korvet.store.log.memory.room import Want
from korvet.store.log.state.partition import Partition
from korvet.store.shares.shares import Shares
from korvet.store.shares.types import DeadLetters
from korvet.store.topics import colliding_topics, create_topic, name_problem
from korvet.wire.batch import Refusal, headers_in
from korvet.wire.contents import NOTHING, Content, contents
from korvet.wire.dead_letters import copy_of, headers
from korvet.wire.record_entries import arguments
from korvet.wire.records import UndecodableRecords

log = structlog.get_logger()

TOPIC: Final = "errors.deadletterqueue.topic.name"
COPIES: Final = "errors.deadletterqueue.copy.record.enable"
ENABLED: Final = "errors.deadletterqueue.group.enable"
PREFIX: Final = "errors.deadletterqueue.topic.name.prefix"
CREATES: Final = "errors.deadletterqueue.auto.create.topics.enable"
_READ_BYTES: Final = 1 << 20
_MOST_READS: Final = 6
_TIER_S: Final = 10.0
_TURN_S: Final = 1.0
_AGAIN_S: Final = 5.0


class DeadLetterCopies:
    """The copies that one front-end makes in a namespace. `Shares.on_dead_letters` calls `note`."""

    def __init__(self, log: Log, shares: Shares, catalog: Catalog) -> None:
        self._log = log
        self._shares = shares
        self._catalog = catalog
        self._owner = str(ULID())
        self._due: dict[tuple[str, str], Partition] = {}
        """By the partition's key and the group."""
        self._vain_at: dict[tuple[str, str], float] = {}
        """When a share partition's dead letters were not copied, because that failed or others lease them."""
        self._later: set[tuple[str, str]] = set()
        """Those of these that were noted since."""
        self._copied = 0
        self._has_due = anyio.Event()
        self._lines = RateLimitedLog()
        self._loop = asyncio.get_running_loop()
        shares.on_dead_letters = self.note

    def note(self, partition: Partition, group_id: str) -> None:
        """Have `run` copy a share partition's dead letters. One for which it did nothing a moment ago waits."""
        name = partition.keys.log, group_id
        left_s = self._vain_at.get(name, -_AGAIN_S) + _AGAIN_S - self._loop.time()
        if left_s <= 0:
            self._due[name] = partition
            self._has_due.set()
        elif name not in self._later:
            # If the group's members leave now, nobody else notes it.
            self._later.add(name)
            self._loop.call_later(left_s, self._note_again, name, partition)

    def _note_again(self, name: tuple[str, str], partition: Partition) -> None:
        self._later.discard(name)
        self.note(partition, name[1])

    async def run(self) -> None:
        """Copy what is due, for ever. What fails is tried again at a later `note`."""
        while True:
            await self._has_due.wait()
            self._has_due = anyio.Event()
            while self._due:
                name = next(iter(self._due))
                partition, problem, before = self._due.pop(name), "", self._copied
                try:
                    problem = await self.copy(partition, name[1])
                except KorvetError as error:
                    forget_frames(error)
                    problem = str(error)
                except Exception as error:
                    # What fails unforeseen ends no other task: the records would make it fail again and again.
                    log.exception("dead letters of a share group could not be copied", group=name[1])
                    problem = repr(error)
                if problem or self._copied == before:
                    now = self._loop.time()
                    self._vain_at = {at: when for at, when in self._vain_at.items() if now - when < _AGAIN_S}
                    self._vain_at[name] = now
                if problem:
                    event = "dead letters of a share group wait: they cannot be copied into their topic"
                    topic, index = partition.topic.name, partition.index
                    self._lines.write("warning", event, group=name[1], topic=topic, partition=index, problem=problem)

    async def copy(self, partition: Partition, group_id: str) -> str:
        """Copy a share partition's dead letters until there are none. Returns a problem, or an empty text.

        :raises StoreUnavailable, StoreFull, StoreError:
        """
        # The group's setting may be newer than this front-end's view of it.
        await self._catalog.refresh()
        name = self._catalog.group_setting(group_id, TOPIC)
        target = await self._target(name) if name else None
        if isinstance(target, str):
            return target
        while letters := await self._shares.dead_letters(partition, group_id, self._owner):
            copied: list[DeadLetters] = []
            try:
                for one in letters:
                    problem = "" if target is None else await self._copy(partition, group_id, one, target, copied)
                    if problem:
                        return problem
            finally:
                # Else those before one that cannot be copied would come again with each attempt.
                if finished := letters if target is None else copied:
                    await self._shares.finish_copied(partition, group_id, self._owner, finished)
                    self._copied += len(finished)
        return ""

    async def _target(self, name: str) -> Topic | str:
        """The topic for dead letters, which is created if it may be, or why it cannot have them.

        :raises StoreUnavailable, StoreFull, StoreError:
        """
        catalog, prefix = self._catalog, self._catalog.setting(None, PREFIX)
        if not name.startswith(prefix):
            return f"the topic {name}, which {TOPIC} names, does not begin with {prefix}: see {PREFIX}"
        topic = catalog.topic(name)
        if topic is None and catalog.boolean(None, CREATES):
            if name_problem(name) or colliding_topics(name, catalog.unified()):
                return f"no topic can be created with the name {name}, which {TOPIC} has: change it"
            configs = {ENABLED: "true", "message.timestamp.type": "CreateTime"}
            code, made = await create_topic(catalog, self._log, name, catalog.integer(None, "num.partitions"), configs)
            # Another front-end may have been faster.
            topic = made or catalog.topic(name)
            if topic is None:
                return f"the topic {name} cannot be created: {code.name.upper()}"
        if topic is None:
            return f"there is no topic {name}, which {TOPIC} names: create it with {ENABLED}=true"
        if not catalog.boolean(topic, ENABLED):
            return f"the topic {name} has no {ENABLED}=true: set it"
        return topic

    async def _copy(
        self, partition: Partition, group_id: str, letters: DeadLetters, target: Topic, copied: list[DeadLetters]
    ) -> str:
        """Append a copy of each of some records, and note these. Returns a problem, or an empty text."""
        wanted, found = range(letters.first, letters.last + 1), dict[int, Content]()
        read_to = wanted.start if self._catalog.group_setting(group_id, COPIES) == "true" else wanted.stop
        into = self._log.partition(target, partition.index % target.partitions)
        for offset in wanted:
            if offset == read_to:
                found, read_to = await self._contents(partition, range(offset, wanted.stop))
            added = headers(partition.topic.name, partition.index, offset, group_id, letters.deliveries, letters.cause)
            batch, data = copy_of(found.get(offset, NOTHING), added, int(time.time() * 1000))
            opened = await opened_for(self._log, into, batch, data)
            if isinstance(opened, Refusal):
                return f"the topic {target.name} refuses the copy of offset {offset}: {opened.message}"
            entries = None if opened.split is None else arguments(opened.batch, opened.split)
            if not await self._has_room(into, len(opened.records)):
                return "redis is nearly at maxmemory, or the tenant has as many bytes as it may have"
            appended = await self._log.append(into, opened.batch, opened.records, None, entries)
            if appended.code != 0:
                return f"the copy of offset {offset} gets the error code {appended.code} of the topic {target.name}"
            if offset > wanted.start:
                copied[-1] = copied[-1]._replace(last=offset)
            else:
                copied.append(letters._replace(last=offset))
        return ""

    async def _has_room(self, into: Partition, size_bytes: int) -> bool:
        """True if a producer might append so many bytes, which then count."""
        reserve, key = self._log.reserve, into.keys.log
        if reserve.is_used_up(key):
            await reserve.ask(key)
        return reserve.take(key, size_bytes)

    async def _contents(self, partition: Partition, wanted: range) -> tuple[dict[int, Content], int]:
        """The records at the first of some offsets, about 1 MiB, and the offset up to which these are all.

        :raises StoreUnavailable, StoreError: they cannot be read now.
        """
        for _ in range(_MOST_READS):
            want = Want(partition, wanted.start, _READ_BYTES, until=wanted.stop)
            (read,) = await self._log.read([want], _READ_BYTES)
            if read.records or read.code or wanted.start >= partition.local_start:
                break
            if read.pending is not None:
                await asyncio.wait([read.pending], timeout=_TIER_S)
            else:
                # The tier has no turn for one more read.
                await asyncio.sleep(_TURN_S)
        else:
            raise StoreUnavailable("the tier does not answer", outcome_unknown=False)
        if read.code == OFFSET_OUT_OF_RANGE:
            # Those below the log start are gone.
            meta = await self._log.meta(partition)
            return {}, wanted.stop if meta is None else max(wanted.start + 1, min(meta.start, wanted.stop))
        if read.code != 0:
            raise StoreUnavailable(f"a read gets the error code {read.code}", outcome_unknown=False)
        # A few kilobytes can hold millions of records.
        found = await self._log.in_thread(partial(_contents, read.records, wanted))
        ends = [batch.base_offset + batch.last_offset_delta + 1 for batch in headers_in(read.records)]
        return found, min(ends[-1], wanted.stop) if ends else wanted.stop


def _contents(records: Iterable[bytes | memoryview], wanted: range) -> dict[int, Content]:
    """The contents of wanted records. Of those that cannot be decoded there are none, as of those that are gone."""
    found: dict[int, Content] = {}
    with suppress(UndecodableRecords):
        found.update(contents(b"".join(records), wanted))
    return found
