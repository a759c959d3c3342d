"""The tier of a process: the store that ``--tier`` names, and what all readers and writers of it here share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import anyio
import structlog
from anyio.abc import TaskGroup

from korvet.store.catalog.catalog import Catalog
from korvet.store.keys import Namespace
from korvet.store.log.partitions.partitions import Partitions
from korvet.store.threads import Turns
from korvet.tier.blocks import Blocks, Gets
from korvet.tier.disk import Disk
from korvet.tier.guard import Guard
from korvet.tier.objects import Challenge, Objects, TierAway, open_objects
from korvet.tier.source import ColdReads

log = structlog.get_logger()

DEFAULT_CACHE_BYTES: Final = 64 << 20
MOST_SEALED: Final = 8
SEALED_OF_ONE: Final = 4
MOST_SETTLED: Final = 128
MOST_COMPARED: Final = 64
"""After a restart of Redis all partitions that clients use are due, each with some requests."""
_RETRY_S: Final = 5.0


class Tier:
    """The store, the requests to it, and its blocks in memory. ``tasks`` run until the process ends.

    :param cache_bytes: the most bytes of blocks and footers in memory.
    :param disk: where they are beside the memory.
    """

    def __init__(
        self, objects: Objects, tasks: TaskGroup, cache_bytes: int = DEFAULT_CACHE_BYTES, disk: Disk | None = None
    ) -> None:
        self.objects = objects
        self.tasks = tasks
        self.gets = Gets(objects)
        self.blocks = Blocks(cache_bytes, disk)
        self.cold = ColdReads(self.gets, self.blocks, tasks)
        self.seals = Turns(lambda: MOST_SEALED, SEALED_OF_ONE)
        """Of namespaces whose partitions are sealed or merged, each with a segment in memory."""
        self.settlements = Turns(lambda: MOST_SETTLED, MOST_SETTLED // 2)
        """Of namespaces whose partitions are settled: most of them wait for Redis's disk."""
        self.comparisons = Turns(lambda: MOST_COMPARED, MOST_COMPARED // 2)
        """Of namespaces whose partitions are compared with the store."""
        self.written_segments = self.written_bytes = self.deleted_objects = self.write_failures = 0
        """What this process put and deleted, and how often a partition's turn failed."""
        self.waiting_bytes: dict[str, int] = {}
        """The bytes of batches that are not in a segment yet, by the logs that this process seals."""
        self.challenges: dict[str, Challenge] = {}
        """Of the owners of namespaces, from one visit to the next."""
        self.clocks: dict[str, tuple[float, float]] = {}
        """How far Redis's clock was ahead of this machine's in namespaces, and the time here from which on each doomed
        object that is due was listed, if it ever is."""
        self.usable = anyio.Event()
        """Set once the store passed its trial. Nothing is written before, and reads need not wait for it."""

    def serve(self, namespace: Namespace, catalog: Catalog, logs: Partitions) -> None:
        """Let a namespace's logs read segments, and compare them with the store before they go on."""
        logs.tier = self.cold.of(namespace.name, catalog, logs)
        logs.guard = Guard(self.objects, self.tasks, self.comparisons, namespace, catalog, logs)

    async def try_out(self) -> None:
        """Try the store out until it passes. One log line says why it does not, and what to do."""
        logged = ""
        while True:
            try:
                await self.objects.try_out()
            except TierAway as error:
                if logged != str(error):
                    logged = str(error)
                    log.error(
                        "the tier cannot be used yet, so no records go there; check its address, its credentials and "
                        "their rights to read, write and delete",
                        tier=self.objects.name, reason=logged,
                    )  # fmt: skip
                await anyio.sleep(_RETRY_S)
                continue
            log.info("the tier can be used", tier=self.objects.name)
            self.usable.set()
            return


@asynccontextmanager
async def open_tier(where: str, cache: Path | None = None, cache_bytes: int = 0) -> AsyncIterator[Tier]:
    """The tier at a directory or URL, for the time of the block; see `korvet.tier.objects.open_objects`.

    :param cache: the directory of `korvet.tier.disk`, with its most bytes.
    :raises TierAway: a directory that cannot be used, or a URL that is none of a store.
    :raises ConfigError: the cache cannot be used.
    """
    objects = open_objects(where)
    disk = None if cache is None else Disk(cache, cache_bytes)
    async with anyio.create_task_group() as tasks:
        tier = Tier(objects, tasks, disk=disk)
        tasks.start_soon(tier.try_out)
        yield tier
        tasks.cancel_scope.cancel()
    if disk is not None:
        disk.close()
