"""The inlets of partitions: front-ends move their records into the logs, and keep the rules for Redis users.

**Rules.** A topic's settings live in the catalog, its partitions perhaps on other servers. The functions that take
records from Redis read ``records`` in the partition's meta hash. Every front-end copies it from the catalog: when it
makes partitions, when the catalog changes, and every few minutes for all partitions, because another front-end may have
died in between. Until then the former rules apply.

**Inlets.** Every front-end polls each inlet's length. If there are entries, it calls the function that moves them, each
exactly once with any number of callers. Polling works on every topology and after every loss. A blocking read of many
streams does not: a cluster refuses one across slots.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, TypeVar

import anyio
import structlog

from korvet.errors import KorvetError, StoreError, StoreFull, StoreUnavailable
from korvet.redis.client import Purpose
from korvet.store.catalog.catalog import Catalog
from korvet.store.contract import GONE
from korvet.store.every import every
from korvet.store.keys import InletKeys, Namespace
from korvet.store.log.log import Log
from korvet.store.log.state.partition import Partition
from korvet.store.log.state.rules import rules_of

logger = structlog.get_logger()

_Item = TypeVar("_Item")

SHORTEST_S = 0.1
"""Seconds between two rounds over all inlets, or `PER_INLET_S` for each if that is more."""
PER_INLET_S = 0.0005
_EVERYTHING_S = 300.0
_PIPELINED = 200
_MOST_CALLS = 100


class RecordInlets:
    """The inlets of a namespace's topics of records, as one front-end tends them."""

    def __init__(self, namespace: Namespace, catalog: Catalog, log: Log) -> None:
        self._namespace = namespace
        self._catalog = catalog
        self._log = log
        self._generation = -1
        self._everything_at = -1e9
        self._configured: dict[tuple[Any, int], str] = {}
        """The last written rules, by topic id and partition, without partitions that have none."""
        self._failure: KorvetError | None = None
        """The first failure of this round that a retry may cure: of one server, or of a moving slot."""
        self._broken: set[str] = set()
        """Keys of logs reported as broken, for some minutes."""

    async def tend(self) -> None:
        """Keep the rules and empty the inlets until cancelled."""
        complaint = "records that were added in redis have to wait"
        await every(self._pause_s, self._step, complaint, at_once=True, has_reported=self._log.store.has_reported)

    def _pause_s(self) -> float:
        return max(SHORTEST_S, PER_INLET_S * len(self._configured))

    async def _step(self) -> None:
        """Keep the rules and move the inlets' entries; without an inlet, wait until the rules may have changed."""
        if not self._configured:
            with anyio.move_on_after(self._everything_at - self._log.now()):
                await self._catalog.changed(self._generation)
        failures = [await _failure_of(self.keep_rules), await _failure_of(self.move)]
        for failure in filter(None, failures):
            raise failure

    # ------------------------------------------------------------------ rules

    async def keep_rules(self) -> None:
        """Write the rules of partitions whose topics changed since the last call, and sometimes of all.

        :raises StoreUnavailable, StoreFull, StoreError: some partitions must wait; the others' rules are written.
        """
        is_everything = self._log.now() >= self._everything_at
        if not is_everything and self._generation == self._catalog.generation:
            return
        await self._catalog.refresh()
        generation = self._catalog.generation
        ids = {topic_id for topic_id, _ in self._configured}
        wanted = {
            (topic.id, index): (self._log.partition(topic, index), rules)
            for topic in self._catalog.topics()
            if (rules := rules_of(self._catalog, topic)) or is_everything or topic.id in ids
            for index in range(topic.partitions)
        }
        former = {key: self._configured[key] for key in self._configured.keys() & wanted.keys()}
        if is_everything:
            former |= await self._found([partition for partition, _ in wanted.values()])
        changed = [(key, *pair) for key, pair in wanted.items() if former.get(key, "") != pair[1]]
        self._configured = former
        for some in _slices(changed):
            questions = [self._log.configure_records(partition, rules) for _, partition, rules in some]
            for (key, partition, rules), question in zip(some, questions, strict=True):
                if await self._settled(partition, question) is None:
                    continue
                self._configured[key] = rules
        self._configured = {key: rules for key, rules in self._configured.items() if rules}
        self._raise_failure()
        self._generation = generation
        if is_everything:
            self._everything_at = self._log.now() + _EVERYTHING_S
            self._broken.clear()

    async def _found(self, partitions: Sequence[Partition]) -> dict[tuple[Any, int], str]:
        """The partitions' rules in Redis."""
        found = {}
        for some in _slices(partitions):
            questions = [
                self._log.store.call(Purpose.READ, one.keys.meta, "HGET", one.keys.meta, "records") for one in some
            ]
            for partition, question in zip(some, questions, strict=True):
                rules = await self._settled(partition, question)
                found[partition.topic.id, partition.index] = rules.decode() if rules else ""
        return found

    # ------------------------------------------------------------------ inlets

    async def move(self) -> None:
        """Move the entries of the inlets into the logs.

        :raises StoreUnavailable, StoreFull, StoreError: some inlets must wait; the others were moved.
        """
        partitions = [
            self._log.partition(topic, index)
            for topic_id, index in self._configured
            if (topic := self._catalog.topic_by_id(topic_id)) is not None and index < topic.partitions
        ]
        for some in _slices(partitions):
            inlets = [self._namespace.inlet(one.topic.name, one.index) for one in some]
            lengths = [self._log.store.call(Purpose.READ, keys.inlet, "XLEN", keys.inlet) for keys in inlets]
            for partition, keys, length in zip(some, inlets, lengths, strict=True):
                if await self._settled(partition, length):
                    await self._drain(partition, keys)
        self._raise_failure()

    async def _drain(self, partition: Partition, keys: InletKeys) -> None:
        """Move one inlet's entries while Redis has room for producers."""
        for _ in range(_MOST_CALLS):
            if self._log.reserve.is_used_up(keys.log):
                return
            run_id = partition.run_id or self._log.find_run_id(partition)
            reply = await self._settled(
                partition,
                self._log.store.call_function(
                    Purpose.APPEND, "korvet_record_drain", keys, topic_id=partition.topic_id, run_id=run_id
                ),
            )
            if reply is None:
                return
            code, _, refused, more = reply
            if code == GONE:
                await self._settled(partition, self._log.restore(partition))
                return
            if refused:
                logger.warning("records that were added in redis are refused", stream=keys.refused, records=refused)
            if not more:
                return

    async def _settled(self, partition: Partition, question: Awaitable[Any]) -> Any:
        """The reply. None if this partition is broken, which is logged once; or if a retry is needed, which
        `_raise_failure` reports at the end of the round."""
        name = partition.keys.log
        try:
            return await question
        except StoreError as error:
            if name not in self._broken:
                logger.error("records cannot be added in redis", log=name, reason=str(error))
            self._broken.add(name)
        except (StoreUnavailable, StoreFull) as error:
            self._failure = self._failure or error
        return None

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure


async def _failure_of(step: Callable[[], Awaitable[None]]) -> KorvetError | None:
    try:
        await step()
    except KorvetError as error:
        return error
    return None


def _slices(items: Sequence[_Item]) -> Iterator[Sequence[_Item]]:
    return (items[at : at + _PIPELINED] for at in range(0, len(items), _PIPELINED))
