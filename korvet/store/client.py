"""What the rest of the front-end sees of Redis: commands routed by key, queued at the call, answered by futures.

``call`` and ``fcall`` queue their bytes before they return, so the order of calls on one purpose is the order at Redis.
They never raise; the future does:

- `StoreUnavailable`: no connection (outcome known), or it was lost with the command under way (``outcome_unknown``)
- `StoreFull`: Redis is at maxmemory
- `StoreError`: any other error reply

What waits to be written is bounded by the server's bound on requests in flight, for each command belongs to one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import anyio
from anyio.abc import TaskGroup

from korvet.errors import KorvetError, StoreUnavailable
from korvet.store import contract, functions
from korvet.store.address import Address, RedisUrl, parse_redis_url
from korvet.store.cluster import Slots
from korvet.store.link import Link, Login
from korvet.store.node import WATCH_S, Node, Purpose
from korvet.store.resp import Argument, Buffer, Placed, pack_command
from korvet.store.server_lines import ServerLines
from korvet.store.topology import find_primary

__all__ = ["Argument", "Buffer", "Purpose", "Store", "open_store"]

_CONNECT_S = 30.0


class Store:
    """Redis, Sentinel or a cluster behind one interface. Make one with `open_store`."""

    def __init__(self, url: RedisUrl) -> None:
        self.url = url
        self._loop = asyncio.get_running_loop()
        self._history_callbacks: list[Callable[[], None]] = []
        self._subscriber_callback: Callable[[Link], None] = lambda _link: None
        self._slots_callback: Callable[[], None] = lambda: None
        self._tasks: TaskGroup | None = None
        self._nodes: dict[Address, Node] = {}
        self._links: list[Link] = []
        self._slots: Slots | None = None
        if url.kind == "cluster":
            self._slots = Slots(url, self)
            self._nodes = self._slots.nodes
        self._changed = anyio.Event()

    # ------------------------------------------------------------------ commands

    def call(self, purpose: Purpose, key: str, *command: Argument) -> asyncio.Future[Any]:
        """Queue a command at the node that holds ``key``, which is the command's first argument where it has one."""
        future: asyncio.Future[Any] = self._loop.create_future()
        if self._slots is None:
            self._links[purpose].send(future, pack_command(command))
        else:
            self._slots.send(purpose, key, future, pack_command(command))
        return future

    def fcall(self, purpose: Purpose, function: str, keys: Sequence[str], *args: Argument) -> asyncio.Future[Any]:
        """Queue a call of one of korvet's functions; FCALL_RO where the contract says that it only reads."""
        future: asyncio.Future[Any] = self._loop.create_future()
        packed = pack_command((_VERBS[function], function, len(keys), *keys, *args))
        if self._slots is None:
            self._links[purpose].send(future, packed)
        else:
            self._slots.send(purpose, keys[0] if keys else "", future, packed)
        return future

    def fcall_placed(
        self, function: str, keys: Sequence[str], value: Sequence[Buffer], expiry_ms: int, *args: Argument
    ) -> asyncio.Future[Any]:
        """Queue, on the append connection, a SET of the last key with an expiry and behind it a call that takes it.

        The value's parts are written without being copied, and the SET's own answer is not waited for: the function
        finds out whether the key is there. Raises SlotMoving at once while the cluster's slot `is_open`.
        """
        future: asyncio.Future[Any] = self._loop.create_future()
        name, expiry = keys[-1].encode(), b"%d" % expiry_ms
        head = b"*5\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n" % (len(name), name, sum(map(len, value)))
        placed = Placed(
            (head, *value, b"\r\n$2\r\nPX\r\n$%d\r\n%b\r\n" % (len(expiry), expiry)),
            pack_command((_VERBS[function], function, len(keys), *keys, *args)),
        )
        if self._slots is None:
            self._links[Purpose.APPEND].send_placed(future, placed)
        else:
            self._slots.send(Purpose.APPEND, keys[0], future, placed)
        return future

    def is_open(self, key: str) -> bool:
        """Whether a key's slot is on its way to another node, where nothing can be put at new keys beside others."""
        return self._slots is not None and self._slots.is_open(key)

    def link(self, purpose: Purpose, key: str) -> Link | None:
        """The link that carries one purpose's commands of a key; None while no node is known for it."""
        return self._links[purpose] if self._slots is None else self._slots.link(purpose, key)

    def subscriber(self, channel: str) -> Link | None:
        """The link that carries subscriptions of a channel; None while no node is known for it."""
        return self.link(Purpose.SUBSCRIBE, channel)

    def coordination(self, key: str) -> Link | None:
        """The link that carries the coordination of a key; None while no node is known for it."""
        return self.link(Purpose.COORDINATE, key)

    def confirmation(self, key: str) -> Link | None:
        """The link for WAIT to the node of a key; None while no node is known for it. It may be on its first way up."""
        node = next(iter(self._nodes.values()), None) if self._slots is None else self._slots.node(key)
        return None if node is None else node.confirmation()

    # ------------------------------------------------------------------ what is known about the server

    def run_id(self, key: str) -> str:
        """Run id of the server behind the key's append connection; empty before the first connect."""
        link = self.link(Purpose.APPEND, key)
        return "" if link is None else link.run_id

    def on_history_change(self, callback: Callable[[], None]) -> None:
        """Call back whenever a connection finds another run id, or slots move to another server."""
        self._history_callbacks.append(callback)

    def on_subscriber(self, callback: Callable[[Link], None]) -> None:
        """Call back with each node's subscriber link, those made before included."""
        self._subscriber_callback = callback
        for node in self._nodes.values():
            callback(node.links[Purpose.SUBSCRIBE])

    def on_slots_moved(self, callback: Callable[[], None]) -> None:
        """Call back when a cluster's slots have moved: `subscriber` may be another link now."""
        self._slots_callback = callback

    def subscription_moved(self, link: Link, text: str = "") -> None:
        """A node does not serve a channel any more; ``text`` is the MOVED that says who does, where there is one."""
        if self._slots is not None:
            self._slots.follow(text, link.address)

    def is_connected(self) -> bool:
        """Whether every purpose's connection to every node is up."""
        if self._slots is not None:
            return self._slots.is_whole()
        return bool(self._nodes) and all(node.is_up() for node in self._nodes.values())

    @property
    def problem(self) -> str:
        """Why there is no connection, in one line."""
        links = [link for node in self._nodes.values() for link in node.links[: Purpose.CONFIRM] if not link.is_up]
        links.sort(key=lambda link: not link.is_turned_away)
        if links:
            return str(links[0].problem)
        return self._slots.problem if self._slots is not None else ""

    @property
    def server(self) -> dict[str, str]:
        """INFO server of one node; empty before the first connect."""
        return next((node.links[Purpose.APPEND].server for node in self._nodes.values()), {})

    @property
    def primaries(self) -> list[Link]:
        """One link to each node, for what every node needs (functions); coordination's, for it is never congested."""
        return [node.links[Purpose.COORDINATE] for node in self._nodes.values()]

    # ------------------------------------------------------------------ nodes

    async def run(self) -> None:
        """Keep all links up until cancelled."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            if self._slots is None:
                address = self.url.addresses[0]
                node = self._nodes[address] = self.make_node(address)
                self._links = node.links
                if self.url.kind == "sentinel":
                    tasks.start_soon(self._doubt_primary, node)
            else:
                tasks.start_soon(self._slots.keep)

    async def _doubt_primary(self, node: Node) -> None:
        """Leave a primary that is silent as soon as the sentinels name another one."""
        while True:
            await anyio.sleep(WATCH_S)
            if node.is_silent():
                with suppress(KorvetError):
                    named = await find_primary(self.url)
                    if any(link.address not in (None, named) for link in node.links):
                        node.break_off()

    async def connected(self) -> None:
        """Wait until every connection is up, or a login is refused for a reason that time does not mend."""
        while not (self.is_connected() or self._is_turned_away()):
            await self._changed.wait()

    def _is_turned_away(self) -> bool:
        if self._slots is not None and self._slots.is_turned_away:
            return True
        return any(link.is_turned_away for node in self._nodes.values() for link in node.links)

    # ------------------------------------------------------------------ what the links and the slots tell

    @property
    def tasks(self) -> TaskGroup:
        """For what runs as long as the store does."""
        assert self._tasks is not None
        return self._tasks

    def note_change(self) -> None:
        """Wake who waits in `connected`."""
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    def slots_moved(self) -> None:
        """Another server than before holds some keys."""
        self._history_changed()
        self._slots_callback()

    def make_node(self, address: Address) -> Node:
        """A node whose links are on their way up."""
        login = Login(auth=self.url.login, db=self.url.db, tls=self.url.tls)
        lines = ServerLines(self.url.service if self.url.kind == "sentinel" else str(address))
        links = [self._make_link(purpose, address, login, lines) for purpose in Purpose]
        node = Node(links)
        self._subscriber_callback(links[Purpose.SUBSCRIBE])
        self.tasks.start_soon(node.run)
        return node

    def _make_link(self, purpose: Purpose, address: Address, login: Login, lines: ServerLines) -> Link:
        name = purpose.name.lower()
        link = Link(
            name if self._slots is None else f"{name}-{address}",
            self._locator(address),
            login,
            library=functions.library_source,
            is_older=functions.is_older,
            lines=lines,
            subscriber=purpose is Purpose.SUBSCRIBE,
        )
        link.on_run_id = self._history_changed
        link.on_change = self.note_change
        if self._slots is not None:
            link.on_down = self._slots.doubt
            if purpose is not Purpose.CONFIRM:
                link.on_redirected = partial(self._slots.redirected, link, purpose)
        return link

    def _locator(self, address: Address) -> Callable[[], Awaitable[Address]]:
        async def fixed() -> Address:
            return address

        async def by_sentinel() -> Address:
            return await find_primary(self.url)

        return by_sentinel if self.url.kind == "sentinel" else fixed

    def _history_changed(self) -> None:
        for callback in self._history_callbacks:
            callback()


_VERBS = {name: b"FCALL_RO" if function.read_only else b"FCALL" for name, function in contract.FUNCTIONS.items()}


@asynccontextmanager
async def open_store(url: RedisUrl | str, *, connect_timeout_s: float = _CONNECT_S) -> AsyncIterator[Store]:
    """A store with all its connections up, for the time of the block.

    :raises StoreUnavailable: when that does not succeed in time; reconnecting later is the store's own business.
    """
    store = Store(parse_redis_url(url) if isinstance(url, str) else url)
    problem = ""
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(store.run)
            with anyio.move_on_after(connect_timeout_s):
                await store.connected()
            if store.is_connected():
                yield store
            else:
                problem = store.problem
            tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        # What the block raised is not the task group's business: it comes out as it was.
        if len(group.exceptions) == 1:
            raise group.exceptions[0] from None
        raise
    if problem:
        raise StoreUnavailable(f"{store.url}: {problem}")
