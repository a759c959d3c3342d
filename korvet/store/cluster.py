"""Which node of a cluster has which slot, and the way of each command there, in order (`korvet.store.detour`).

The table of slots is read at start, where a node says that a slot has moved, where one is lost, and now and then. When
a slot has another owner than before, commands that are under way to the former one are waited for before the next is
sent to the new one.
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
from korvet.store.address import Address, RedisUrl
from korvet.store.detour import Detour
from korvet.store.link import Link, fail
from korvet.store.node import WATCH_S, Node, Purpose, barrier
from korvet.store.refusals import is_final, is_open_slot, redirection
from korvet.store.resp import Placed, Sent
from korvet.store.topology import SLOTS, key_of, read_slots, slot_of

log = structlog.get_logger()

_REFRESH_S = 30.0
_RETRY_S = 0.5
_SETTLE_S = 0.1
_OPEN_FOR_S = 1.0
_DRAIN_S = 5.0


class Keeper(Protocol):
    """What the slots need of the store."""

    @property
    def tasks(self) -> TaskGroup:
        """For the nodes' and detours' tasks."""

    def make_node(self, address: Address) -> Node:
        """A node whose links are on their way up."""

    def slots_moved(self) -> None:
        """Keys are answered by another server than before."""

    def note_change(self) -> None:
        """Something is up, gone or known that was not."""


class Slots:
    """The nodes of a cluster by their slots."""

    def __init__(self, url: RedisUrl, keeper: Keeper) -> None:
        self.nodes: dict[Address, Node] = {}
        self.problem = ""
        self.is_turned_away = False
        self._url = url
        self._keeper = keeper
        self._owners: list[Node | None] = [None] * SLOTS
        self._detours: dict[tuple[Purpose, int], Detour] = {}
        self._leaving: dict[int, list[asyncio.Future[Any]]] = {}
        """Slots that moved, with `Node.barriers` of the former owner."""
        self._open: dict[int, float] = {}
        self._stale = anyio.Event()
        self._witness: Address | None = None
        self._now = asyncio.get_running_loop().time

    # ------------------------------------------------------------------ commands

    def link(self, purpose: Purpose, key: str) -> Link | None:
        """The link to the owner of a key's slot."""
        node = self._owners[slot_of(key)]
        return None if node is None else node.links[purpose]

    def node(self, key: str) -> Node | None:
        """The owner of a key's slot."""
        return self._owners[slot_of(key)]

    def send(self, purpose: Purpose, key: str, future: asyncio.Future[Any], command: bytes | Placed) -> None:
        """Queue a command behind those that were sent for its slot before."""
        slot = slot_of(key)
        node = self._owners[slot]
        detour = self._detours.get((purpose, slot))
        if detour is None and slot in self._leaving and not self._leaving[slot][purpose].done():
            detour = self._begin(purpose, slot, [self._leaving[slot][purpose]])
        if detour is None and node is not None and not node.links[purpose].run_id:
            # A node that joined the cluster a moment ago.
            detour = self._begin(purpose, slot, [])
        if detour is not None:
            detour.hold((future, command, 0))
        elif node is None:
            fail(future, StoreUnavailable("no cluster node is known for the key"))
        elif isinstance(command, Placed):
            node.links[purpose].send_placed(future, command)
        else:
            node.links[purpose].send(future, command)

    def is_open(self, key: str) -> bool:
        """Whether a key's slot was seen a moment ago to be on its way: nothing can be put at new keys with others."""
        if not self._open:
            return False
        seen_at = self._open.get(slot_of(key))
        return seen_at is not None and self._now() - seen_at < _OPEN_FOR_S

    def redirected(self, link: Link, purpose: Purpose, sent: Sent, text: str) -> bool:
        """Take a command that a node refused; false where its sender is to be told."""
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

    def follow(self, text: str, asked: Address | None) -> None:
        """Take note of what a MOVED says that no command got."""
        target = redirection(text, asked)
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

    def _node(self, address: Address) -> Node:
        node = self.nodes.get(address)
        if node is None:
            node = self.nodes[address] = self._keeper.make_node(address)
        return node

    def _moved(self, slot: int, address: Address) -> None:
        former, node = self._owners[slot], self._node(address)
        if former is not node:
            self._owners[slot] = node
            self._leave({former: [slot]})
            self._keeper.slots_moved()
        self._witness = address
        self.doubt()

    def _leave(self, slots: dict[Node | None, list[int]]) -> None:
        """Let no command for these slots overtake those that are under way to their former owners."""
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
        """Whether all slots have owners to which every link is up."""
        return None not in self._owners and bool(self.nodes) and all(node.is_up() for node in self.nodes.values())

    def doubt(self) -> None:
        """Have the slots read again soon."""
        self._stale.set()

    async def keep(self) -> None:
        """Read the slots until cancelled."""
        while True:
            self._stale = anyio.Event()
            try:
                self._take_over(await read_slots(self._url, self._to_ask()))
            except KorvetError as error:
                self._note(error)
                await anyio.sleep(_RETRY_S)
                continue
            self.problem, self.is_turned_away = "", False
            await self._until_doubtful()

    async def _until_doubtful(self) -> None:
        """Return when the slots should be read again."""
        # While a node is away or silent another one may be about to take its place, which nobody tells.
        if not self.is_whole():
            await anyio.sleep(_RETRY_S)
            return
        refresh_at = self._now() + _REFRESH_S
        while self._now() < refresh_at and not any(node.is_silent() for node in self.nodes.values()):
            with anyio.move_on_after(WATCH_S):
                await self._stale.wait()
                await anyio.sleep(_SETTLE_S)
                return
        await anyio.sleep(_SETTLE_S)

    def _to_ask(self) -> list[Address]:
        """Who may know the slots: first who was named by the last MOVED, for others hear of it later."""
        known = sorted(self.nodes, key=lambda address: (self._is_doubtful(address), address != self._witness))
        return [*known, *(address for address in self._url.addresses if address not in self.nodes)]

    def _is_doubtful(self, address: Address) -> bool:
        return not self.nodes[address].is_up() or self.nodes[address].is_silent()

    def _note(self, error: KorvetError) -> None:
        if str(error) != self.problem:
            log.warning("the cluster's slots cannot be read", reason=str(error))
        self.problem, self.is_turned_away = str(error), is_final(error)
        self._keeper.note_change()

    def _take_over(self, table: dict[Address, list[tuple[int, int]]]) -> None:
        before = self._owners
        owners: list[Node | None] = [None] * SLOTS
        for address, spans in table.items():
            node = self._node(address)
            for first, last in spans:
                owners[first : last + 1] = [node] * (last + 1 - first)
        self._owners = owners
        left: dict[Node | None, list[int]] = {}
        if before != owners:
            for slot, former in enumerate(before):
                if former is not owners[slot]:
                    left.setdefault(former, []).append(slot)
        self._leave(left)
        for address in [address for address in self.nodes if address not in table]:
            self._keeper.tasks.start_soon(self._retire, self.nodes.pop(address))
        if left and any(before):
            self._keeper.slots_moved()
        self._keeper.note_change()

    async def _retire(self, node: Node) -> None:
        """Close a node's links when what is under way has been answered; at once where it answers nothing."""
        if node.is_silent():
            node.break_off()
        with anyio.move_on_after(_DRAIN_S):
            await asyncio.wait(node.barriers())
        node.scope.cancel()


class _SlotRoutes:
    """`Routes` of one detour."""

    def __init__(self, slots: Slots, purpose: Purpose, slot: int) -> None:
        self._slots, self._purpose, self._slot = slots, purpose, slot

    def owner(self) -> Link | None:
        node = self._slots._owners[self._slot]
        return None if node is None else node.links[self._purpose]

    def link_to(self, address: Address) -> Link:
        return self._slots._node(address).links[self._purpose]

    def moved(self, address: Address) -> None:
        self._slots._moved(self._slot, address)

    def opened(self) -> None:
        self._slots._note_open(self._slot)
