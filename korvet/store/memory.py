"""The memory of Redis's servers, and the reserve that is closed to producers.

A completely full server could not make room again: compaction builds a stream before it drops one, and groups and
transactions take memory too. So producers wait when less than `RESERVED` of maxmemory is left. When nothing is left,
Redis itself refuses all calls that add data.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import NamedTuple, Protocol

import anyio
import structlog

from korvet.errors import KorvetError
from korvet.redis.client import Purpose, Store
from korvet.redis.link import Link
from korvet.redis.resp import pack_command

logger = structlog.get_logger()

UNLIMITED = -1
RESERVED = 1 / 16
"""The share of maxmemory that is closed to producers."""
_INTERVAL_S = 0.25
_QUIET_S = 2.0
"""Seconds between two queries while no producer writes here. The first write queries the servers at once."""
_CALM_S = 3.0
"""Refusals within this time count as one shortage."""
_MEMORY = pack_command(("INFO", "memory"))


class ServerMemory(NamedTuple):
    """Bytes of memory that a server may use in all, and may still take; -1 if it has no maxmemory."""

    total_bytes: int
    usable_bytes: int
    used_bytes: int = 0

    @property
    def for_producers(self) -> float:
        """Bytes that producers may take; negative if they must wait."""
        return math.inf if self.total_bytes == UNLIMITED else self.usable_bytes - self.total_bytes * RESERVED


def read_memory(info: bytes) -> ServerMemory:
    """The memory in an answer to INFO memory."""
    memory = {name: value for name, found, value in (line.partition(":") for line in info.decode().split()) if found}
    limit = int(memory.get("maxmemory", 0))
    # Buffers for replicas and the AOF are in use, but do not count against the limit.
    used = int(memory.get("used_memory", 0)) - int(memory.get("mem_not_counted_for_evict", 0))
    return ServerMemory(UNLIMITED, UNLIMITED, used) if limit == 0 else ServerMemory(limit, max(0, limit - used), used)


def request_memory(link: Link) -> asyncio.Future[bytes]:
    """Request the reply that `read_memory` reads."""
    reply: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    link.send(reply, _MEMORY)
    return reply


class ProducerRoom(Protocol):
    """The room that producers have left; `Reserve` documents the methods."""

    @property
    def is_full(self) -> bool: ...

    def note_full(self, is_full: bool) -> None: ...

    async def shortage(self) -> None: ...

    def is_used_up(self, key: str) -> bool: ...

    def take(self, key: str, size_bytes: int) -> bool: ...

    async def ask(self, key: str) -> None: ...


async def _nothing() -> str:
    return ""


class Reserve:
    """The bytes that producers may write until the next query of each server. `watch` runs with the store.

    They are half of the memory left beyond the reserve, because other front-ends write as well.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._left: dict[Link | None, float] = {}
        """The bytes that producers may write before the next reply, for each server with a maxmemory."""
        self._short: set[Link] = set()
        self._shortage = anyio.Event()
        self._replies: dict[Link, asyncio.Future[bytes]] = {}
        self._now = asyncio.get_running_loop().time
        self.by_server: dict[Link, ServerMemory] = {}
        """The servers' last replies."""
        self._is_used = False
        self._use = anyio.Event()
        self._refused_at = -math.inf
        self._is_to_announce = False
        self.is_full = False
        """True if Redis has just refused an append for lack of memory."""
        self.largest: Callable[[], Awaitable[str]] = _nothing
        """Returns the largest topics, in words."""

    def note_full(self, is_full: bool) -> None:
        """Note that Redis refused an append for lack of memory, or accepted one. Logs each shortage once."""
        if is_full:
            self._refused_at = self._now()
            self._is_to_announce = self._is_to_announce or not self.is_full
            self.is_full = True
        elif self.is_full and self._now() - self._refused_at > _CALM_S:
            self.is_full = False
            logger.warning("redis takes appends again")

    async def _announce(self) -> None:
        # The server's last reply may predate its maxmemory.
        for link in self._store.primaries:
            with suppress(KorvetError):
                await asyncio.shield(self._ask(link))
        limited = [memory for memory in self.by_server.values() if memory.total_bytes != UNLIMITED]
        short = [memory for memory in limited if memory.for_producers <= 0] or limited
        used = ", ".join(
            f"{memory.total_bytes - memory.usable_bytes >> 20} of {memory.total_bytes >> 20} MiB" for memory in short
        )
        largest = ""
        with suppress(KorvetError):
            largest = await self.largest()
        logger.warning(
            "redis is nearly at maxmemory; producers must wait",
            used=used, largest_topics=largest, remedy="korvet topics trim, or a higher maxmemory",
        )  # fmt: skip

    @property
    def is_short(self) -> bool:
        """True if a server had nothing left for producers at its last reply."""
        return bool(self._short)

    def is_low(self, key: str, share: float) -> bool:
        """True if a key's server had less than a share of its maxmemory left at its last reply."""
        link = self._store.link(Purpose.COORDINATE, key)
        memory = None if link is None else self.by_server.get(link)
        return memory is not None and 0 <= memory.usable_bytes < share * memory.total_bytes

    async def shortage(self) -> None:
        """Wait until `is_short`."""
        await self._shortage.wait()

    def is_used_up(self, key: str) -> bool:
        """True if producers must wait at a key's server, by its last reply. The caller then calls `ask` first."""
        self._note_use()
        return bool(self._left) and self._left.get(self._store.link(Purpose.COORDINATE, key), 1) <= 0

    def take(self, key: str, size_bytes: int) -> bool:
        """Reserve bytes that a producer writes to a key's server; false, reserving nothing, if it must wait."""
        self._note_use()
        if not self._left:
            return True
        link = self._store.link(Purpose.COORDINATE, key)
        left = self._left.get(link)
        if left is None:
            return True
        if left <= 0:
            return False
        self._left[link] = left - size_bytes
        return True

    def _note_use(self) -> None:
        if not self._is_used:
            self._is_used = True
            self._use.set()

    async def ask(self, key: str) -> None:
        """Ask the server of a key for its memory.

        :raises StoreUnavailable, StoreError:
        """
        link = self._store.coordination(key)
        if link is not None:
            await asyncio.shield(self._ask(link))

    async def watch(self) -> None:
        """Query every server periodically, until cancelled."""
        async with anyio.create_task_group() as announcements:
            while True:
                self._is_used, self._use = False, anyio.Event()
                for link in self._store.primaries:
                    self._ask(link)
                await anyio.sleep(_INTERVAL_S)
                with anyio.move_on_after(_QUIET_S - _INTERVAL_S):
                    await self._use.wait()
                if self._is_to_announce:
                    self._is_to_announce = False
                    announcements.start_soon(self._announce)

    def _ask(self, link: Link) -> asyncio.Future[bytes]:
        reply = self._replies.get(link)
        if reply is None or reply.done():
            reply = self._replies[link] = request_memory(link)
            reply.add_done_callback(partial(self._answered, link))
        return reply

    def _answered(self, link: Link, reply: asyncio.Future[bytes]) -> None:
        is_answered = not reply.cancelled() and reply.exception() is None
        memory = read_memory(reply.result()) if is_answered else ServerMemory(UNLIMITED, UNLIMITED)
        left = memory.for_producers / 2
        if is_answered:
            self.by_server[link] = memory
        else:
            self.by_server.pop(link, None)
        if left <= 0:
            self._short.add(link)
            self._shortage.set()
        elif link in self._short:
            self._short.discard(link)
            self._shortage = self._shortage if self._short else anyio.Event()
        if left < math.inf:
            self._left[link] = left
        else:
            # A server that does not answer accepts no appends either. This forgets a server that left a cluster.
            self._left.pop(link, None)
            self._replies.pop(link, None)
