"""One Redis server and the links to it."""

from __future__ import annotations

import asyncio
from enum import IntEnum
from typing import Any

import anyio

from korvet.redis.link import Link
from korvet.redis.resp import pack_command

SUSPECT_S = 2.0
WATCH_S = 1.0
"""Seconds between two checks for a silent server."""
_PING = pack_command(("PING",))


class Purpose(IntEnum):
    """The purpose of a command. Each has its own connection to a server, so reads never wait for large appends."""

    APPEND = 0
    READ = 1
    COORDINATE = 2
    SUBSCRIBE = 3
    """Subscriptions, for `korvet.redis.wakeup` alone."""
    CONFIRM = 4
    """WAIT, for `korvet.store.log.partitions.replicas` alone: it blocks later commands. Connected at its first use."""


COMMANDS = (Purpose.APPEND, Purpose.READ, Purpose.COORDINATE)


class Server:
    """One server and its links, one per purpose."""

    def __init__(self, links: list[Link]) -> None:
        self.links = links
        self.scope = anyio.CancelScope()
        self._confirms: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Keep the links up until ``scope`` is cancelled."""
        with self.scope:
            async with anyio.create_task_group() as tasks:
                for link in self.links[: Purpose.CONFIRM]:
                    tasks.start_soon(link.run)
                await self._confirms
                await self.links[Purpose.CONFIRM].run()

    def confirmation(self) -> Link:
        """The link for WAIT, kept up from the first call on."""
        if not self._confirms.done():
            self._confirms.set_result(None)
        return self.links[Purpose.CONFIRM]

    def is_up(self) -> bool:
        """True if every link is up, except the one for WAIT: only producers with acks from replicas need it."""
        return all(link.is_up for link in self.links[: Purpose.CONFIRM])

    def is_silent(self) -> bool:
        """True if the server has owed replies for so long that another may have replaced it."""
        return any(link.silent_s > SUSPECT_S for link in self.links)

    def break_off(self, reason: str = "") -> None:
        """Drop all connections with the replies that they owe; ``reason`` goes to the log."""
        for link in self.links:
            link.break_off(reason)

    def barriers(self) -> list[asyncio.Future[Any]]:
        """One barrier for each purpose that has commands."""
        return [barrier(self.links[purpose]) for purpose in COMMANDS]


def barrier(link: Link) -> asyncio.Future[Any]:
    """A future that completes when every earlier command of a link was answered or failed."""
    reached: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    link.send(reached, _PING)
    return reached
