"""Carrying out decisions: each partition gets a marker, each group its offsets, and the shard records both.

Any front-end may repeat each step. Each carries the transaction's ordinal, so none affects a later transaction.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, Protocol

import structlog

from korvet.errors import KorvetError
from korvet.store.catalog.catalog import Catalog
from korvet.store.contract import GONE
from korvet.store.groups.groups import Groups
from korvet.store.groups.types import TopicPartition
from korvet.store.log.appending.markers import Ending
from korvet.store.log.log import Log
from korvet.store.outcomes import outcomes
from korvet.store.transactions.types import Decision

log = structlog.get_logger()

_FAILURES_KEPT: Final = 1000


class Complete(Protocol):
    """Note the finished members at the shard. Returns the decision about the others; None if there are none."""

    async def __call__(self, transactional_id: str, ordinal: int, done: Sequence[str]) -> Decision | None: ...


class Decisions:
    """Carries out the decisions of one namespace."""

    def __init__(self, complete: Complete, catalog: Catalog, log: Log, groups: Groups) -> None:
        self._complete = complete
        self._catalog = catalog
        self._log = log
        self._groups = groups
        self._failures: OrderedDict[str, str] = OrderedDict()
        """By transactional id, the last failure to finish it; the oldest first."""

    async def try_to_finish(self, transactional_id: str, decision: Decision) -> bool:
        """Finish a decision; true if done. If Redis fails, this logs it, and the sweep continues."""
        try:
            await self.finish(transactional_id, decision)
        except KorvetError as error:
            self.note_failure(transactional_id, error)
            return False
        return True

    def note_failure(self, transactional_id: str, error: KorvetError) -> None:
        """Log that a transaction could not be ended, once for each reason."""
        reason = str(error)
        if self._failures.get(transactional_id) != reason:
            log.warning("a transaction cannot be ended yet", transactional_id=transactional_id, reason=reason)
        self._failures[transactional_id] = reason
        if len(self._failures) > _FAILURES_KEPT:
            self._failures.popitem(last=False)

    async def finish(self, transactional_id: str, decision: Decision) -> None:
        """Finish a decision: markers, offsets, completion. A member that cannot be written does not delay others.

        :raises StoreUnavailable, StoreFull, StoreError: a step failed; the decision stands.
        """
        left: Decision | None = decision
        while left is not None:
            done, failures = await self._carry_out(left)
            if failures and not done:
                raise failures[0]
            left = await self._complete(transactional_id, decision.ordinal, done)
        self._failures.pop(transactional_id, None)

    async def _carry_out(self, decision: Decision) -> tuple[Sequence[str], Sequence[KorvetError]]:
        """End the transaction in each member that the decision names. Returns the finished members and the failures."""
        ending = Ending(
            decision.ordinal, decision.producer_id, decision.producer_epoch, decision.is_commit, decision.now_ms
        )
        await self._know(decision.partitions)
        names: list[str] = []
        calls: list[Callable[[], Awaitable[object]]] = []
        for partition, _ in decision.partitions:
            names.append(f"p:{partition[0]}:{partition[1]}")
            calls.append(partial(self._mark, *partition, ending))
        for group_id in decision.groups:
            names.append(f"g:{group_id}")
            release = partial(self._groups.held_offsets.release, is_commit=decision.is_commit)
            calls.append(partial(release, group_id, decision.producer_id, decision.ordinal))
        found = list(zip(names, await outcomes(calls), strict=True))
        done = [name for name, outcome in found if not isinstance(outcome, KorvetError)]
        return done, [outcome for _, outcome in found if isinstance(outcome, KorvetError)]

    async def _mark(self, name: str, index: int, ending: Ending) -> None:
        """End the transaction in a partition, if it exists: as in Kafka by its name, even if its topic was deleted and
        made again."""
        for is_fresh in (False, True):
            topic = self._catalog.topic(name)
            if topic is None or index >= topic.partitions:
                return
            code = await self._log.mark(self._log.partition(topic, index), ending)
            if code != GONE or is_fresh:
                return
            await self._catalog.refresh()

    async def _know(self, partitions: Sequence[tuple[TopicPartition, str]]) -> None:
        """Read the catalog if its cache lacks topics of the transaction."""
        for (name, index), topic_id in partitions:
            topic = self._catalog.topic(name)
            if topic is None or topic.id.hex != topic_id or index >= topic.partitions:
                await self._catalog.refresh()
                return
