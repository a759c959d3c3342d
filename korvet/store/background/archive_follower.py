"""Retention soon after an archive's commit.

So a topic with ``korvet.retention=archived`` keeps in memory only the records within its limits and the unarchived
ones.

The follower trims the partitions of a commit in the background, each once for all commits meanwhile. If Redis was away
or a front-end died, the next commit or the next regular retention (``log.retention.check.interval.ms``) makes up for
it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import anyio
import structlog

from korvet.errors import KorvetError
from korvet.store.background.retention import enforce_settings, time_ms
from korvet.store.catalog.catalog import Catalog
from korvet.store.every import whenever
from korvet.store.groups.types import TopicPartition
from korvet.store.keys import Namespace
from korvet.store.log.log import Log
from korvet.store.log.state.limits import keeps_unarchived

logger = structlog.get_logger()

INTERVAL_S: Final = 1.0
MOST_PENDING: Final = 10_000
"""The most partitions that wait; beyond it, regular retention gets the one that has waited longest."""


class ArchiveFollower:
    """The partitions of a namespace to trim after their archive committed."""

    def __init__(self, namespace: Namespace, catalog: Catalog, log: Log) -> None:
        self._namespace = namespace
        self._catalog = catalog
        self._log = log
        self._pending: dict[TopicPartition, None] = {}
        self._due = anyio.Event()

    def committed(self, partitions: Iterable[TopicPartition]) -> None:
        """Schedule a trim of partitions if their topics keep unarchived records."""
        for partition in partitions:
            topic = self._catalog.topic(partition[0])
            if topic is not None and keeps_unarchived(self._catalog, topic):
                self._pending[partition] = None
        while len(self._pending) > MOST_PENDING:
            del self._pending[next(iter(self._pending))]
        if self._pending:
            self._due.set()

    async def follow(self) -> None:
        """Trim committed partitions until cancelled, for at most half of the time."""
        await whenever(self._wait_until_due, self.flush, INTERVAL_S)

    async def _wait_until_due(self) -> None:
        await self._due.wait()

    async def flush(self) -> None:
        """Trim the waiting partitions. One log line reports failures, which regular retention makes up for."""
        pending, self._pending, self._due = self._pending, {}, anyio.Event()
        failures: list[KorvetError] = []
        for name, index in pending:
            topic = self._catalog.topic(name)
            if topic is None or index >= topic.partitions:
                continue
            try:
                now_ms = await time_ms(self._namespace, self._log)
                await enforce_settings(self._namespace, self._catalog, self._log, topic, index, now_ms)
            except KorvetError as error:
                failures.append(error)
        if failures:
            logger.warning("archived records stay for now", partitions=len(failures), reason=str(failures[0]))
