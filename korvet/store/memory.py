"""The memory of Redis's servers, and the share of it that is kept from producers.

A server that is full to the last byte could not make room again: compaction builds a stream before it drops one, and
what groups and transactions do takes memory too. So producers have to wait from the moment on at which less than
`RESERVED` of maxmemory is left. Redis itself refuses them, and all else that adds data, when nothing is left.
"""

from __future__ import annotations

import asyncio
import math
from functools import partial
from typing import NamedTuple

import anyio
import structlog

from korvet.store.client import Purpose, Store
from korvet.store.link import Link
from korvet.store.resp import pack_command

logger = structlog.get_logger()

UNLIMITED = -1
RESERVED = 1 / 16
"""Of maxmemory."""
_INTERVAL_S = 0.25
_TOLD_EVERY_S = 10.0
_MEMORY = pack_command(("INFO", "memory"))


class Room(NamedTuple):
    """Bytes of memory that the servers may use in all, and what they may still take; -1 where one has no maxmemory."""

    total_bytes: int
    usable_bytes: int

    @property
    def for_producers(self) -> float:
        """Bytes that producers may take; below zero where they have to wait."""
        return math.inf if self.total_bytes == UNLIMITED else self.usable_bytes - self.total_bytes * RESERVED


def read_room(info: bytes) -> Room:
    """The answer to INFO memory."""
    memory = {name: value for name, found, value in (line.partition(":") for line in info.decode().split()) if found}
    limit = int(memory.get("maxmemory", 0))
    if limit == 0:
        return Room(UNLIMITED, UNLIMITED)
    # What is buffered for replicas and the AOF is in use, but does not count against the limit.
    used = int(memory["used_memory"]) - int(memory.get("mem_not_counted_for_evict", 0))
    return Room(limit, max(0, limit - used))


def ask_memory(link: Link) -> asyncio.Future[bytes]:
    """Ask a server for what `read_room` reads."""
    asked: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    link.send(asked, _MEMORY)
    return asked


class Reserve:
    """How much producers may write before each of a store's servers is asked again. `watch` is to run with the store.

    Half of what is left beyond the reserve: other front-ends write, too.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._left: dict[Link | None, float] = {}
        """Bytes; of servers with a maxmemory."""
        self._asked: dict[Link, asyncio.Future[bytes]] = {}
        self._now = asyncio.get_running_loop().time
        self._is_told = False
        self._told_at = -math.inf
        self.is_full = False
        """Whether the last append was refused for want of memory."""

    def note_full(self, is_full: bool) -> None:
        """Say in the log that producers must wait, and that they need no longer; seldom where that changes often."""
        if is_full == self.is_full:
            return
        self.is_full = is_full
        if is_full and self._now() - self._told_at > _TOLD_EVERY_S:
            self._is_told, self._told_at = True, self._now()
            logger.warning("redis is nearly at maxmemory; producers must wait")
        elif not is_full and self._is_told:
            self._is_told = False
            logger.warning("redis takes appends again")

    def is_used_up(self, key: str) -> bool:
        """Whether producers must wait at the server of a key, as far as is known; where they must, `ask` first."""
        return bool(self._left) and self._left.get(self._store.link(Purpose.COORDINATE, key), 1) <= 0

    def take(self, key: str, size_bytes: int) -> bool:
        """Note what is written to the server of a key; false, and nothing is noted, where that must wait."""
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

    async def ask(self, key: str) -> None:
        """Find out how much room the server of a key has.

        :raises StoreUnavailable, StoreError:
        """
        link = self._store.coordination(key)
        if link is not None:
            await asyncio.shield(self._ask(link))

    async def watch(self) -> None:
        """Ask every server again and again, until cancelled."""
        while True:
            for link in self._store.primaries:
                self._ask(link)
            await anyio.sleep(_INTERVAL_S)

    def _ask(self, link: Link) -> asyncio.Future[bytes]:
        asked = self._asked.get(link)
        if asked is None or asked.done():
            asked = self._asked[link] = ask_memory(link)
            asked.add_done_callback(partial(self._answered, link))
        return asked

    def _answered(self, link: Link, asked: asyncio.Future[bytes]) -> None:
        is_answered = not asked.cancelled() and asked.exception() is None
        left = read_room(asked.result()).for_producers / 2 if is_answered else math.inf
        if left < math.inf:
            self._left[link] = left
        else:
            # A server that does not answer does not take appends either; one that left a cluster is forgotten.
            self._left.pop(link, None)
            self._asked.pop(link, None)
