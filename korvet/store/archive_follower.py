"""Retention soon after the archive came further.

So a topic with ``korvet.retention=archived`` takes no more memory than what its limits keep and what is not archived.

A commit says which partitions; they are trimmed off its path, each once however often it was committed meanwhile. What
is missed here, for want of Redis or because a front-end died, is found by the next commit or by the sweep that
``log.retention.check.interval.ms`` spaces.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import anyio
import structlog

from korvet.errors import KorvetError
from korvet.store.catalog import Catalog
from korvet.store.group_types import Place
from korvet.store.keys import Namespace
from korvet.store.log import Log
from korvet.store.log.archived import keeps_unarchived
from korvet.store.retention import enforce_settings, time_ms

logger = structlog.get_logger()

INTERVAL_S: Final = 1.0
MOST_PENDING: Final = 10_000
"""Partitions that wait to be trimmed; the one that waits longest is left to the sweep."""


class ArchiveFollower:
    """What is to be trimmed of a namespace because it was archived."""

    def __init__(self, namespace: Namespace, catalog: Catalog, log: Log) -> None:
        self._namespace = namespace
        self._catalog = catalog
        self._log = log
        self._pending: dict[Place, None] = {}
        self._due = anyio.Event()

    def committed(self, places: Iterable[Place]) -> None:
        """Have partitions trimmed soon, of topics that ask for it."""
        for place in places:
            topic = self._catalog.topic(place[0])
            if topic is not None and keeps_unarchived(self._catalog, topic):
                self._pending[place] = None
        while len(self._pending) > MOST_PENDING:
            del self._pending[next(iter(self._pending))]
        if self._pending:
            self._due.set()

    async def follow(self) -> None:
        """Trim what was committed, until cancelled; at least half of the time is left to others."""
        while True:
            await self._due.wait()
            began = anyio.current_time()
            await self.flush()
            await anyio.sleep(max(INTERVAL_S, anyio.current_time() - began))

    async def flush(self) -> None:
        """Trim what waits. Partitions that fail are told of in the log, in one line, and left to the sweep."""
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
