"""The check before a commit that the transaction is still whole.

A dying Redis may lose its last writes, and which ones is unknown. But its history then changes: a member of the
transaction has another replication id than when it joined. So the coordinator stores that id with each member. Before
the decision, a front-end checks each member: its server must still have that id, and the producer's open transaction
there, if any, must be wholly this one. Writes lost after the check are lost as if after the commit.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final

import structlog

from korvet.errors import KorvetError, StoreError
from korvet.store.catalog.catalog import Catalog
from korvet.store.contract import GONE
from korvet.store.groups.groups import Groups
from korvet.store.groups.replies import text, topic_partition
from korvet.store.groups.types import TopicPartition
from korvet.store.log.log import Log
from korvet.store.outcomes import outcomes

log = structlog.get_logger()

_PARTITION: Final = "p"


class Check:
    """The check of one open transaction's members."""

    def __init__(self, catalog: Catalog, log: Log, groups: Groups, producer_id: int, ordinal: int) -> None:
        self._catalog = catalog
        self._log = log
        self._groups = groups
        self._producer_id = producer_id
        self._ordinal = ordinal

    async def lost(self, members: Mapping[bytes, bytes]) -> str:
        """The name of a member that may have lost writes; empty if there is none.

        :param members: the coordinator's text for each member, by name, as in korvet_txn_members.
        :raises StoreUnavailable: a member's server fails.
        """
        calls: list[tuple[str, Callable[[], Awaitable[int]]]] = []
        for name, kept in members.items():
            kind, _, rest = text(name).partition(":")
            topic_id, _, joined = text(kept).partition(" ")
            if kind == _PARTITION:
                calls.append((rest, partial(self._ask_partition, topic_partition(rest.encode()), topic_id, joined)))
            else:
                calls.append((rest, partial(self._groups.held_offsets.check, rest, joined)))
        found = await outcomes([call for _, call in calls])
        for (member, _), outcome in zip(calls, found, strict=True):
            if isinstance(outcome, StoreError):
                log.error("a member of a transaction cannot be read", member=member, reason=str(outcome))
            elif isinstance(outcome, KorvetError):
                raise outcome
            if outcome != 0:
                return member
        return ""

    async def _ask_partition(self, name: TopicPartition, topic_id: str, joined: str) -> int:
        """A partition's code; 0 if it was deleted, because its part of the transaction no longer matters.

        If its topic was made again since it joined, its history at that time proves nothing.
        """
        for is_fresh in (False, True):
            topic = self._catalog.topic(name[0])
            if topic is not None and name[1] < topic.partitions:
                partition, known = self._log.partition(topic, name[1]), joined if topic.id.hex == topic_id else ""
                code = await self._log.check(partition, known, self._producer_id, self._ordinal)
                if code != GONE or is_fresh:
                    return code
            if not is_fresh:
                await self._catalog.refresh()
        return 0
