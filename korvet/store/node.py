"""One Redis server and the links to it."""

from __future__ import annotations

import asyncio
from enum import IntEnum
from typing import Any

import anyio

from korvet.store.link import Link
from korvet.store.resp import pack_command

SUSPECT_S = 2.0
WATCH_S = 1.0
"""How often one looks whether a server is silent."""
_PING = pack_command(("PING",))


class Purpose(IntEnum):
    """Commands of one purpose share a connection to each node, so that reads do not wait behind large appends."""

    APPEND = 0
    READ = 1
    COORDINATE = 2
    SUBSCRIBE = 3
    """For `korvet.store.wakeup` alone."""
    CONFIRM = 4
    """For `korvet.store.log.replicas` alone: WAIT holds up what is behind it. Connected when it is first asked for."""


COMMANDS = (Purpose.APPEND, Purpose.READ, Purpose.COORDINATE)


class Node:
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
        """The link for WAIT, which is kept up from the first call on."""
        if not self._confirms.done():
            self._confirms.set_result(None)
        return self.links[Purpose.CONFIRM]

    def is_up(self) -> bool:
        """Whether every link is, but the one for WAIT, without which all but some producers are served."""
        return all(link.is_up for link in self.links[: Purpose.CONFIRM])

    def is_silent(self) -> bool:
        """Whether replies have been owed for so long that another server may have taken its place."""
        return any(link.silent_s > SUSPECT_S for link in self.links)

    def break_off(self) -> None:
        """Give all connections up, and with them what is owed."""
        for link in self.links:
            link.break_off()

    def barriers(self) -> list[asyncio.Future[Any]]:
        """For each purpose that has commands: done when all that was sent before has been answered, or failed."""
        return [barrier(self.links[purpose]) for purpose in COMMANDS]


def barrier(link: Link) -> asyncio.Future[Any]:
    """Done when all that was sent on a link before has been answered, or failed."""
    reached: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    link.send(reached, _PING)
    return reached
