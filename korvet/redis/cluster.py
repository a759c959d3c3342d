"""The slots of a cluster: each slot's server, and the routing of commands (`korvet.redis.slot_migration`).

A front-end reads the slot table at start, every 30 seconds, when a server reports a moved slot, and when it loses a
server. Stores of further users of the same servers take the table from the first one. When a slot has a new owner, the
next command for it waits until the former owner has answered all earlier ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Any, Protocol

import anyio
import structlog
from anyio.abc import TaskGroup

from korvet.errors import KorvetError, StoreUnavailable
from korvet.redis.address import Address, RedisUrl
from korvet.redis.error_replies import is_final, is_open_slot, redirection
from korvet.redis.link import Link
from korvet.redis.resp import Placed, Sent, fail
from korvet.redis.server import WATCH_S, Purpose, Server, barrier
from korvet.redis.slot_migration import Detour
from korvet.redis.topology import SLOTS, key_of, slot_of

log = structlog.get_logger()

_REFRESH_S = 30.0
_RETRY_S = 0.5
_SETTLE_S = 0.1
_OPEN_FOR_S = 1.0
_DRAIN_S = 5.0


Table = dict[Address, list[tuple[int, int]]]
"""The primaries and their slot ranges (first, last)."""


class Keeper(Protocol):
    """The part of the store that the slots use."""

    @property
    def tasks(self) -> TaskGroup:
        """The task group that runs servers and detours."""

    def make_server(self, address: Address) -> Server:
        """A server whose links are starting."""

    def slots_moved(self) -> None:
        """Note that some keys have moved to another server."""

    def note_change(self) -> None:
        """Note that a server came, went or failed, or that the slots are known."""


class Slots:
    """The servers of a cluster by their slots.

    :param first: the slots of the process's own user, if these have another user. Only the first ones read the table,
        and log a failure to read it.
    """

    def __init__(self, url: RedisUrl, keeper: Keeper, *, first: Slots | None = None) -> None:
        self.servers: dict[Address, Server] = {}
        self.is_turned_away = False
        self._problem = ""
        self._url = url
        self._first = first
        self._keeper = keeper
        self._table: Table | None = None
        """The table in use; None before the first one, and after a slot has moved."""
        self._was_read = anyio.Event()
        """Set when the first slots have read the table again."""
        self._owners: list[Server | None] = [None] * SLOTS
        self._detours: dict[tuple[Purpose, int], Detour] = {}
        self._leaving: dict[int, list[asyncio.Future[Any]]] = {}
        """The moved slots, with `Server.barriers` of the former owner."""
        self._open: dict[int, float] = {}
        self._stale = anyio.Event()
        self._witness: Address | None = None
        self._now = asyncio.get_running_loop().time

    # ------------------------------------------------------------------ commands

    def link(self, purpose: Purpose, key: str) -> Link | None:
        """The link to the owner of a key's slot."""
        server = self._owners[slot_of(key)]
        return None if server is None else server.links[purpose]

    def server(self, key: str) -> Server | None:
        """The owner of a key's slot."""
        return self._owners[slot_of(key)]

    def send(self, purpose: Purpose, key: str, future: asyncio.Future[Any], command: bytes | Placed) -> None:
        """Queue a command after the earlier ones for its slot."""
        slot = slot_of(key)
        server = self._owners[slot]
        detour = self._detours.get((purpose, slot))
        if detour is None and slot in self._leaving and not self._leaving[slot][purpose].done():
            detour = self._begin(purpose, slot, [self._leaving[slot][purpose]])
        if detour is None and server is not None and not server.links[purpose].run_id:
            # This server joined the cluster a moment ago.
            detour = self._begin(purpose, slot, [])
        if detour is not None:
            detour.hold((future, command, 0))
        elif server is None:
            fail(future, StoreUnavailable("no cluster node is known for the key"))
        elif isinstance(command, Placed):
            server.links[purpose].send_placed(future, command)
        else:
            server.links[purpose].send(future, command)

    def is_open(self, key: str) -> bool:
        """True if a server reported less than a second ago that a key's slot is moving."""
        if not self._open:
            return False
        seen_at = self._open.get(slot_of(key))
        return seen_at is not None and self._now() - seen_at < _OPEN_FOR_S

    def redirected(self, link: Link, purpose: Purpose, sent: Sent, text: str) -> bool:
        """Reroute a command that a server refused; false if the refusal must go to its sender."""
        future, command, _ = sent
        call = command.call if isinstance(command, Placed) else command
        target = redirection(text, link.address)
        slot = slot_of(key_of(call)) if target is None else target[0]
        detour = self._detours.get((purpose, slot))
        if detour is not None and future is detour.probe:
            return False
        if is_open_slot(text):
            self._note_open(slot)
            if isinstance(command, Placed):
                return False
        elif target is not None:
            self._moved(slot, target[1])
        if detour is None:
            detour = self._begin(purpose, slot, [barrier(link)])
        detour.refused(sent)
        return True

    def follow(self, text: str, answering: Address | None) -> None:
        """Apply a MOVED that answered a subscription; ``answering`` is the address of the server that sent it."""
        target = redirection(text, answering)
        if target is not None:
            self._moved(*target)
        self.doubt()

    def _note_open(self, slot: int) -> None:
        now = self._now()
        if len(self._open) > 100:
            self._open = {slot: at for slot, at in self._open.items() if now - at < _OPEN_FOR_S}
        self._open[slot] = now

    def _begin(self, purpose: Purpose, slot: int, barriers: Iterable[asyncio.Future[Any]]) -> Detour:
        routes = _SlotRoutes(self, purpose, slot)
        detour = Detour(routes, barriers, sends_cancelled=purpose is Purpose.APPEND)
        self._detours[purpose, slot] = detour
        self._keeper.tasks.start_soon(self._run, purpose, slot, detour)
        return detour

    async def _run(self, purpose: Purpose, slot: int, detour: Detour) -> None:
        try:
            await detour.run()
        finally:
            del self._detours[purpose, slot]
            detour.close()

    # ------------------------------------------------------------------ owners

    def _server(self, address: Address) -> Server:
        server = self.servers.get(address)
        if server is None:
            server = self.servers[address] = self._keeper.make_server(address)
        return server

    def _moved(self, slot: int, address: Address) -> None:
        former, server = self._owners[slot], self._server(address)
        if former is not server:
            self._owners[slot] = server
            self._leave({former: [slot]})
            self._table = None
            self._keeper.slots_moved()
        (self._first or self)._witness = address
        self.doubt()

    def _leave(self, slots: dict[Server | None, list[int]]) -> None:
        """Hold commands for these slots until after those in flight to their former owners."""
        for former, theirs in slots.items():
            if former is None:
                continue
            barriers = former.barriers()
            for slot in theirs:
                self._leaving[slot] = barriers
            for reached in barriers:
                reached.add_done_callback(partial(self._left, theirs, barriers))

    def _left(self, slots: list[int], barriers: list[asyncio.Future[Any]], _: asyncio.Future[Any]) -> None:
        if all(reached.done() for reached in barriers):
            for slot in slots:
                if self._leaving.get(slot) is barriers:
                    del self._leaving[slot]

    def is_whole(self) -> bool:
        """True if all slots have owners and every link to every server is up."""
        return (
            None not in self._owners and bool(self.servers) and all(server.is_up() for server in self.servers.values())
        )

    def doubt(self) -> None:
        """Request a read of the slots soon."""
        (self._first or self)._stale.set()

    @property
    def problem(self) -> str:
        """The reason for which the slots could not be read, in one line."""
        return self._problem if self._first is None else self._first.problem

    async def keep(self) -> None:
        """Keep the slot table current until cancelled."""
        if self._first is None:
            await self._read()
        else:
            await self._follow(self._first)

    async def _follow(self, first: Slots) -> None:
        """Adopt each table that the first slots read."""
        while True:
            was_read = first._was_read
            if first._table is not None and first._table != self._table:
                self._take_over(first._table)
            await was_read.wait()

    async def _read(self) -> None:
        from korvet.redis.discovery import read_slots

        while True:
            self._stale = anyio.Event()
            try:
                table = await read_slots(self._url, self._to_ask())
            except KorvetError as error:
                self._note(error)
                await anyio.sleep(_RETRY_S)
                continue
            self._problem, self.is_turned_away = "", False
            self._take_over(table)
            was_read, self._was_read = self._was_read, anyio.Event()
            was_read.set()
            await self._until_doubtful()

    async def _until_doubtful(self) -> None:
        """Return when the slots should be read again."""
        # Another server may replace one that is away or silent, without any message.
        if not self.is_whole():
            await anyio.sleep(_RETRY_S)
            return
        refresh_at = self._now() + _REFRESH_S
        while self._now() < refresh_at and not any(server.is_silent() for server in self.servers.values()):
            with anyio.move_on_after(WATCH_S):
                await self._stale.wait()
                await anyio.sleep(_SETTLE_S)
                return
        await anyio.sleep(_SETTLE_S)

    def _to_ask(self) -> list[Address]:
        """The servers to query for slots, first the last MOVED's target: the others learn of that move later."""
        known = sorted(self.servers, key=lambda address: (self._is_doubtful(address), address != self._witness))
        return [*known, *(address for address in self._url.addresses if address not in self.servers)]

    def _is_doubtful(self, address: Address) -> bool:
        return not self.servers[address].is_up() or self.servers[address].is_silent()

    def _note(self, error: KorvetError) -> None:
        if str(error) != self._problem:
            log.warning("the cluster's slots cannot be read", reason=str(error))
        self._problem, self.is_turned_away = str(error), is_final(error)
        self._keeper.note_change()

    def _take_over(self, table: Table) -> None:
        before, self._table = self._owners, table
        owners: list[Server | None] = [None] * SLOTS
        for address, spans in table.items():
            server = self._server(address)
            for first, last in spans:
                owners[first : last + 1] = [server] * (last + 1 - first)
        self._owners = owners
        left: dict[Server | None, list[int]] = {}
        if before != owners:
            for slot, former in enumerate(before):
                if former is not owners[slot]:
                    left.setdefault(former, []).append(slot)
        self._leave(left)
        for address in [address for address in self.servers if address not in table]:
            self._keeper.tasks.start_soon(self._retire, self.servers.pop(address))
        if left and any(before):
            self._keeper.slots_moved()
        self._keeper.note_change()

    async def _retire(self, server: Server) -> None:
        """Close a server's links when it has answered all commands; at once if it is silent."""
        if server.is_silent():
            server.break_off()
        with anyio.move_on_after(_DRAIN_S):
            await asyncio.wait(server.barriers())
        server.scope.cancel()


class _SlotRoutes:
    """The `Routes` of one detour."""

    def __init__(self, slots: Slots, purpose: Purpose, slot: int) -> None:
        self._slots, self._purpose, self._slot = slots, purpose, slot

    def owner(self) -> Link | None:
        server = self._slots._owners[self._slot]
        return None if server is None else server.links[self._purpose]

    def link_to(self, address: Address) -> Link:
        return self._slots._server(address).links[self._purpose]

    def moved(self, address: Address) -> None:
        self._slots._moved(self._slot, address)

    def opened(self) -> None:
        self._slots._note_open(self._slot)
