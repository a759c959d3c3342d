"""Hanging transactions: open in a partition or a group, but over or unknown at their coordinator.

They remain after a rollback of history. A partition shows one by a last stable offset below its end, a group by the
number of open transactions in its hash. If the coordinator knows how the transaction ended, it ends the same way here;
if not, it is aborted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import Final

import structlog

from korvet.errors import KorvetError, StoreError
from korvet.store.catalog.catalog import Catalog
from korvet.store.groups.groups import Groups
from korvet.store.log.appending.markers import Ending
from korvet.store.log.log import Log
from korvet.store.log.state.partition import Partition
from korvet.store.outcomes import Failures
from korvet.store.transactions.types import TransactionDescription

log = structlog.get_logger()

_COMMITTED: Final = "CompleteCommit"
_AT_ONCE: Final = 200
"""The number of partitions to read together."""
_ENDED: Final = frozenset({"Empty", _COMMITTED, "CompleteAbort"})


Describe = Callable[[str], Awaitable[TransactionDescription | None]]
"""Reads a transactional id at its coordinator."""


class Hanging:
    """One search of all partitions and groups of a namespace.

    It continues after a failure of one partition or group.
    """

    def __init__(
        self, describe: Describe, tend: Callable[[str], Awaitable[None]], catalog: Catalog, log: Log, groups: Groups
    ) -> None:
        self._describe = describe
        self._tend = tend
        self._catalog = catalog
        self._log = log
        self._groups = groups
        self._failures: Failures = []

    async def close(self) -> None:
        """Close the hanging transactions. One log line reports all unreadable partitions and groups.

        :raises StoreUnavailable, StoreFull: at the end.
        """
        topics = tuple(self._catalog.topics())
        left = (self._log.partition(topic, index) for topic in topics for index in range(topic.partitions))
        # A read for each topic alone would cost a round trip, which is most of its price.
        while some := list(islice(left, _AT_ONCE)):
            for partition in await self._open(some):
                await self._try(self._close_in_partition(partition))
        for group_id in await self._groups.held_offsets.holding(self._failures):
            await self._try(self._close_in_group(group_id))
        unreadable = [failure for failure in self._failures if isinstance(failure, StoreError)]
        if unreadable:
            count, reason = len(unreadable), str(unreadable[0])
            log.error("the look for open transactions cannot read some keys", unreadable=count, reason=reason)
        for failure in self._failures:
            if not isinstance(failure, StoreError):
                raise failure

    async def _try(self, closing: Awaitable[None]) -> None:
        try:
            await closing
        except KorvetError as error:
            self._failures.append(error)

    async def _open(self, partitions: Sequence[Partition]) -> Sequence[Partition]:
        """The partitions whose last stable offset is below their end."""
        hanging = []
        for partition, meta in zip(partitions, await self._log.metas(partitions), strict=True):
            if isinstance(meta, KorvetError):
                self._failures.append(meta)
            elif meta is not None and meta.stable < meta.end:
                hanging.append(partition)
        return hanging

    async def _close_in_partition(self, partition: Partition) -> None:
        for producer in await self._log.producers(partition, only_open=True) or ():
            if producer.ordinal < 0:
                continue
            is_commit = await self._outcome(producer.transactional_id, producer.ordinal)
            if is_commit is not None:
                ending = Ending(producer.ordinal, producer.producer_id, producer.epoch, is_commit)
                log.warning("a transaction that was left open is closed", log=partition.keys.log, ending=ending)
                await self._log.mark(partition, ending)

    async def _close_in_group(self, group_id: str) -> None:
        for held in await self._groups.held_offsets.transactions_of(group_id):
            is_commit = await self._outcome(held.transactional_id, held.ordinal)
            if is_commit is not None:
                log.warning("offsets that were left open are closed", group=group_id, held=held, is_commit=is_commit)
                await self._groups.held_offsets.release(group_id, held.producer_id, held.ordinal, is_commit=is_commit)

    async def _outcome(self, transactional_id: str, ordinal: int) -> bool | None:
        """True if a transaction was committed; None while it is open at its coordinator.

        Call this after finding it in a partition or group, because the coordinator has it first.
        """
        known = await self._describe(transactional_id)
        if known is None or known.ordinal != ordinal:
            return False
        if known.state in _ENDED:
            return known.state == _COMMITTED
        # Its shard may have lost its deadline to an edit by hand. Then no sweep would find it.
        await self._tend(transactional_id)
        return None
