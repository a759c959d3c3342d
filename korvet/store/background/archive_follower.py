"""Retention soon after an archive's commit.

So a topic with ``korvet.retention=archived`` keeps in memory only the records within its limits and the unarchived
ones.

A commit names partitions. The follower trims them off the commit's path, each once however often it was committed
meanwhile. If Redis was away or a front-end died, the next commit makes up for it, or the next regular retention
(``log.retention.check.interval.ms``).
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
from korvet.store.log.limits import keeps_unarchived
from korvet.store.log.log import Log

logger = structlog.get_logger()

INTERVAL_S: Final = 1.0
MOST_PENDING: Final = 10_000
"""Partitions that wait to be trimmed, at most; beyond that the one that waits longest is left to regular retention."""


class ArchiveFollower:
    """The partitions of a namespace that have to be trimmed because they were archived."""

    def __init__(self, namespace: Namespace, catalog: Catalog, log: Log) -> None:
        self._namespace = namespace
        self._catalog = catalog
        self._log = log
        self._pending: dict[TopicPartition, None] = {}
        self._due = anyio.Event()

    def committed(self, partitions: Iterable[TopicPartition]) -> None:
        """Have partitions trimmed soon, if their topics keep unarchived records."""
        for partition in partitions:
            topic = self._catalog.topic(partition[0])
            if topic is not None and keeps_unarchived(self._catalog, topic):
                self._pending[partition] = None
        while len(self._pending) > MOST_PENDING:
            del self._pending[next(iter(self._pending))]
        if self._pending:
            self._due.set()

    async def follow(self) -> None:
        """Trim committed partitions until cancelled; this takes at most half of the time."""
        await whenever(self._wait_until_due, self.flush, INTERVAL_S)

    async def _wait_until_due(self) -> None:
        await self._due.wait()

    async def flush(self) -> None:
        """Trim the partitions that wait. One line in the log tells of failures, which are left to regular retention."""
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
