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
from contextlib import asynccontextmanager
from enum import IntEnum
from typing import Any

import anyio
import structlog
from anyio.abc import TaskGroup

from korvet.errors import StoreUnavailable
from korvet.store import contract, functions
from korvet.store.address import Address, RedisUrl, parse_redis_url
from korvet.store.link import Link, Login, fail
from korvet.store.resp import Argument, Buffer, Sent, pack_command
from korvet.store.topology import SLOTS, find_primary, read_slots, slot_of

__all__ = ["Argument", "Buffer", "Purpose", "Store", "open_store"]

log = structlog.get_logger()

_REFRESH_S = 30.0
_CONNECT_S = 30.0


class Purpose(IntEnum):
    """Commands of one purpose share a connection to each node, so that reads do not wait behind large appends."""

    APPEND = 0
    READ = 1
    COORDINATE = 2
    SUBSCRIBE = 3
    """For `korvet.store.wakeup` alone."""


class _Node:
    """One server and its links, one per purpose."""

    def __init__(self, links: list[Link]) -> None:
        self.links = links
        self.scope = anyio.CancelScope()

    async def run(self) -> None:
        with self.scope:
            async with anyio.create_task_group() as tasks:
                for link in self.links:
                    tasks.start_soon(link.run)

    def is_up(self) -> bool:
        return all(link.is_up for link in self.links)


class Store:
    """Redis, Sentinel or a cluster behind one interface. Make one with `open_store`."""

    def __init__(self, url: RedisUrl) -> None:
        self.url = url
        self._loop = asyncio.get_running_loop()
        self._history_callbacks: list[Callable[[], None]] = []
        self._subscriber_callback: Callable[[Link], None] = lambda _link: None
        self._tasks: TaskGroup | None = None
        self._nodes: dict[Address, _Node] = {}
        self._slots: list[_Node | None] | None = [None] * SLOTS if url.kind == "cluster" else None
        self._stale = anyio.Event()
        self._slots_moved = False
        self._slots_callback: Callable[[], None] = lambda: None
        self._cluster_problem = ""
        self._links: list[Link] = []
        self._changed = anyio.Event()

    # ------------------------------------------------------------------ commands

    def call(self, purpose: Purpose, key: str, *command: Argument) -> asyncio.Future[Any]:
        """Queue a command at the node that holds ``key``."""
        future: asyncio.Future[Any] = self._loop.create_future()
        link = self._links[purpose] if self._slots is None else self._route(purpose, key)
        if link is None:
            fail(future, StoreUnavailable("no cluster node is known for the key"))
        else:
            link.send(future, pack_command(command))
        return future

    def fcall(self, purpose: Purpose, function: str, keys: Sequence[str], *args: Argument) -> asyncio.Future[Any]:
        """Queue a call of one of korvet's functions; FCALL_RO where the contract says that it only reads."""
        future: asyncio.Future[Any] = self._loop.create_future()
        packed = pack_command((_VERBS[function], function, len(keys), *keys, *args))
        link = self._links[purpose] if self._slots is None else self._route(purpose, keys[0] if keys else "")
        if link is None:
            fail(future, StoreUnavailable("no cluster node is known for the key"))
        else:
            link.send(future, packed)
        return future

    def place(self, key: str, value: Sequence[bytes | memoryview], expiry_ms: int) -> None:
        """Queue SET key value PX on the append connection; the value's parts are written without being copied.

        The answer is not waited for: the append that follows finds out whether the key is there.
        """
        link = self._links[Purpose.APPEND] if self._slots is None else self._route(Purpose.APPEND, key)
        if link is None:
            return
        name, expiry = key.encode(), b"%d" % expiry_ms
        head = b"*5\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n" % (len(name), name, sum(map(len, value)))
        link.send_parts([head, *value, b"\r\n$2\r\nPX\r\n$%d\r\n%b\r\n" % (len(expiry), expiry)])

    def subscriber(self, channel: str) -> Link | None:
        """The link that carries subscriptions of a channel; None while no node is known for it."""
        return self._links[Purpose.SUBSCRIBE] if self._slots is None else self._route(Purpose.SUBSCRIBE, channel)

    # ------------------------------------------------------------------ what is known about the server

    def run_id(self, key: str) -> str:
        """Run id of the server behind the key's append connection; empty before the first connect."""
        link = self._links[Purpose.APPEND] if self._slots is None else self._route(Purpose.APPEND, key)
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
        """Call back when a cluster's slots have moved and been read again: `subscriber` may be another link now."""
        self._slots_callback = callback

    def is_connected(self) -> bool:
        """Whether every purpose's connection to every node is up."""
        if self._slots is not None and None in self._slots:
            return False
        return bool(self._nodes) and all(node.is_up() for node in self._nodes.values())

    @property
    def problem(self) -> str:
        """Why there is no connection, in one line."""
        links = [link for node in self._nodes.values() for link in node.links if not link.is_up]
        links.sort(key=lambda link: not link.is_turned_away)
        return str(links[0].problem) if links else self._cluster_problem

    @property
    def server(self) -> dict[str, str]:
        """INFO server of one node; empty before the first connect."""
        return next((node.links[Purpose.APPEND].server for node in self._nodes.values()), {})

    def coordination(self, key: str) -> Link | None:
        """The link that carries the coordination of a key; None while no node is known for it."""
        return self._links[Purpose.COORDINATE] if self._slots is None else self._route(Purpose.COORDINATE, key)

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
                self._links = self._add_node(self.url.addresses[0]).links
            else:
                tasks.start_soon(self._follow_cluster)

    async def connected(self) -> None:
        """Wait until every connection is up, or a login is refused for a reason that time does not mend."""
        while not (self.is_connected() or self._is_turned_away()):
            await self._changed.wait()

    def _is_turned_away(self) -> bool:
        return any(link.is_turned_away for node in self._nodes.values() for link in node.links)

    def _note_change(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    def _add_node(self, address: Address) -> _Node:
        assert self._tasks is not None
        login = Login(auth=self.url.login, db=self.url.db, tls=self.url.tls)
        links = [self._make_link(purpose, address, login) for purpose in Purpose]
        node = self._nodes[address] = _Node(links)
        self._subscriber_callback(links[Purpose.SUBSCRIBE])
        self._tasks.start_soon(node.run)
        return node

    def _make_link(self, purpose: Purpose, address: Address, login: Login) -> Link:
        name = purpose.name.lower()
        link = Link(
            name if self._slots is None else f"{name}-{address}",
            self._locator(address),
            login,
            library=functions.library_source,
            subscriber=purpose is Purpose.SUBSCRIBE,
        )
        link.on_run_id = self._history_changed
        link.on_change = self._note_change
        if self._slots is not None:
            link.on_moved = lambda sent, text: self._redirect(purpose, sent, text)
            link.on_down = self._stale_now
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

    # ------------------------------------------------------------------ cluster

    def _route(self, purpose: Purpose, key: str) -> Link | None:
        assert self._slots is not None
        node = self._slots[slot_of(key)]
        return None if node is None else node.links[purpose]

    def _redirect(self, purpose: Purpose, sent: Sent, text: str) -> bool:
        """Send a command again where MOVED or ASK says (``MOVED 3999 127.0.0.1:6381``)."""
        future, packed, attempts = sent
        kind, slot, target = text.split()[:3]
        host, _, port = target.rpartition(":")
        address = Address(host, int(port))
        if future is None or not isinstance(packed, bytes) or self._slots is None or not host:
            return False
        node = self._nodes.get(address) or self._add_node(address)
        if kind == "ASK":
            node.links[purpose].send_asking(future, packed, attempts + 1)
            return True
        if self._slots[int(slot)] is not node:
            self._slots[int(slot)] = node
            self._slots_moved = True
            self._history_changed()
        self._stale_now()
        node.links[purpose].send(future, packed, attempts + 1)
        return True

    def _stale_now(self) -> None:
        self._stale.set()

    async def _follow_cluster(self) -> None:
        """Read the slots at start, when something moved or was lost, and now and then."""
        while True:
            self._stale = anyio.Event()
            try:
                self._take_over(await read_slots(self.url, [*self._nodes, *self.url.addresses]))
            except StoreUnavailable as error:
                if str(error) != self._cluster_problem:
                    log.warning("the cluster's slots cannot be read", reason=str(error))
                self._cluster_problem = str(error)
                await anyio.sleep(0.5)
                continue
            self._cluster_problem = ""
            with anyio.move_on_after(_REFRESH_S):
                await self._stale.wait()
                await anyio.sleep(0.1)

    def _take_over(self, owners: dict[Address, list[tuple[int, int]]]) -> None:
        before = self._slots
        slots: list[_Node | None] = [None] * SLOTS
        for address, spans in owners.items():
            node = self._nodes.get(address) or self._add_node(address)
            for first, last in spans:
                slots[first : last + 1] = [node] * (last + 1 - first)
        self._slots = slots
        for address in [address for address in self._nodes if address not in owners]:
            self._nodes.pop(address).scope.cancel()
        if before is not None and before != slots and any(before):
            self._slots_moved = True
            self._history_changed()
        self._note_change()
        if self._slots_moved:
            self._slots_moved = False
            self._slots_callback()


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
