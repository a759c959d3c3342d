"""The store: Redis as the rest of the front-end sees it. The store routes each command by its key.

``call`` and ``fcall`` queue their bytes before they return, so the order of calls on one purpose is the order at Redis.
They never raise; the future does:

- `StoreUnavailable`: no connection (outcome known), or lost while the command was in flight (``outcome_unknown``)
- `StoreFull`: Redis is at maxmemory
- `StoreError`: any other error reply

The front-end's bound on requests in flight also bounds the commands that wait to be written: each belongs to a request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from weakref import WeakSet

import anyio
from anyio.abc import TaskGroup

from korvet.errors import KorvetError, NotCompared, StoreError, StoreRefusing, StoreUnavailable
from korvet.redis.address import Address, RedisUrl
from korvet.redis.cluster import Slots
from korvet.redis.connecting import Login
from korvet.redis.doubt import Doubt
from korvet.redis.link import LEAST_MOST_VALUE_BYTES, Link
from korvet.redis.outage_log import ServerLines, UserLines
from korvet.redis.primary import Primary
from korvet.redis.reply import Reply
from korvet.redis.resp import Argument, Buffer, Named, Placed, Waits, pack_command
from korvet.redis.server import WATCH_S, Purpose, Server

__all__ = ["Argument", "Buffer", "Library", "Named", "Purpose", "Store"]

_CALL_S = 20e-6
_ARGUMENT_S = 1e-6
_BYTE_S = 2e-9
"""Redis's seconds for a function call, and for each of its arguments and bytes; estimates from INFO commandstats."""
_COORDINATE = Purpose.COORDINATE
_HEADS_KEPT = 10_000
_LONGEST_HEAD_BYTES = 1024
_LARGE_BYTES = 64 << 10
"""Larger arguments are copied as seldom as possible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """The library of functions that a store calls.

    The store loads ``source`` if a server has no library, or if ``is_older`` is true for the server's version.
    ``verbs`` gives the command that calls a function, and ``most_args`` its largest number of arguments.
    ``arguments`` puts a function's named arguments in order, or raises TypeError.
    """

    source: Callable[[], bytes]
    is_older: Callable[[str], bool]
    verbs: Mapping[str, bytes]
    most_args: Mapping[str, int]
    arguments: Callable[[str, Mapping[str, Named]], Sequence[Argument]]


class Store:
    """Redis, Sentinel or a cluster with one interface. Make one with `korvet.redis.opening`.

    :param first: the store of the process's own user, if this one has another user. The first store loads the library
        for both, queries Sentinel or a cluster's slots, logs the servers' state, and counts the waits.
    """

    _prefix = ""
    """The prefix of all keys; `korvet.redis.scoped.ScopedStore` has another. It is here for speed."""

    def __init__(
        self, url: RedisUrl, library: Library, *, counts_waits: bool = False, first: Store | None = None
    ) -> None:
        self.url = url
        self._first = first
        self._primary: Primary = Primary(url) if first is None else first._primary
        self._further: WeakSet[Store] = WeakSet()
        """The stores of further users that have this one as ``first``."""
        if first is not None:
            first._further.add(self)
        self._counts_waits = counts_waits
        self.library = library
        self._loop = asyncio.get_running_loop()
        self.doubt = Doubt()
        """Begins when a client's connection resumes reading: its requests may predate the client's end."""
        self.redis_s = 0.0
        """The estimated seconds of Redis for all function calls so far, by their sizes. It only grows."""
        self.histories = 0
        """The number of changes of a server's history or a slot's server."""
        self._heads: dict[tuple[str, tuple[str, ...], int], bytes] = {}
        """By function, keys and the number of arguments: the packed beginnings of calls, up to their arguments."""
        self._history_callbacks: list[Callable[[], None]] = []
        self._subscriber_callback: Callable[[Link], None] = lambda _link: None
        self._slots_callback: Callable[[], None] = lambda: None
        self._tasks: TaskGroup | None = None
        self._servers: dict[Address, Server] = {}
        self._links: list[Link] = []
        self._slots: Slots | None = None
        if url.kind == "cluster":
            self._slots = Slots(url, self, first=None if first is None else first._slots)
            self._servers = self._slots.servers
        self._changed = anyio.Event()

    # ------------------------------------------------------------------ commands

    def call(self, purpose: Purpose, key: str, *command: Argument) -> Reply:
        """Queue a command for the server of ``key``, which is the command's first argument, if any."""
        future = Reply(loop=self._loop)
        if self._prefix and not self._is_inside(key, command):
            future.set_exception(self._outside(str(command[0]), (key,)))
            return future
        if self._slots is None:
            self._links[purpose].send(future, pack_command(command))
        else:
            self._slots.send(purpose, key, future, pack_command(command))
        return future

    def fcall(self, purpose: Purpose, function: str, keys: Sequence[str], *args: Argument) -> Reply:
        """Queue a call of one of korvet's functions, by FCALL_RO if its contract is read-only.

        The future raises StoreError at once if there are more arguments than the function's bound.
        """
        future = Reply(loop=self._loop)
        if prefix := self._prefix:
            for key in keys:
                if not key.startswith(prefix):
                    future.set_exception(self._outside(function, keys))
                    return future
        call = function, tuple(keys), len(args)
        head = self._heads.get(call) or self._head(*call)
        if not head:
            most = self.library.most_args[function]
            future.set_exception(StoreError(f"{function} takes {most} arguments, not {len(args)}"))
            return future
        rest = pack_command(args)
        at = 4 if len(args) < 10 else rest.index(b"\n") + 1
        packed = head + (rest[at:] if len(rest) < _LARGE_BYTES else memoryview(rest)[at:])
        self.redis_s += _CALL_S + _ARGUMENT_S * len(args) + _BYTE_S * len(packed)
        if len(packed) > LEAST_MOST_VALUE_BYTES and keys and (link := self.link(purpose, keys[0])) is not None:
            largest_bytes = max((len(one) for one in args if not isinstance(one, int | float)), default=0)
            if link.refuses(future, largest_bytes):
                return future
        if self._slots is None:
            self._links[purpose].send(future, packed)
        else:
            self._slots.send(purpose, keys[0] if keys else "", future, packed)
        return future

    def _head(self, function: str, keys: tuple[str, ...], args: int) -> bytes:
        """The packed beginning of a call, up to so many arguments; empty if those are too many.

        It is kept, because most calls differ from an earlier one only in their arguments.
        """
        if args > self.library.most_args[function]:
            return b""
        packed = pack_command((self.library.verbs[function], function, len(keys), *keys))
        head = b"*%d\r\n%b" % (3 + len(keys) + args, packed[packed.index(b"\n") + 1 :])
        if len(head) <= _LONGEST_HEAD_BYTES:
            if len(self._heads) >= _HEADS_KEPT:
                self._heads.clear()
            self._heads[function, keys, args] = head
        return head

    def call_function(self, purpose: Purpose, function: str, keys: Sequence[str], /, **named: Named) -> Reply:
        """Queue a call as `fcall` does, with arguments by their names in the function's contract.

        :param named: an optional argument may be None; the repeated one takes an iterable.
        :raises TypeError: the function has no such argument, or lacks one.
        """
        return self.fcall(purpose, function, keys, *self.library.arguments(function, named))

    def fcall_placed(
        self, function: str, keys: Sequence[str], value: Sequence[Buffer], expiry_ms: int, *args: Argument
    ) -> Reply:
        """Queue, on the append connection, a SET of the last key with an expiry, then a call that takes the key.

        The parts of ``value`` are written without a copy. The SET's own reply is ignored: the function checks that
        the key exists. The future raises SlotMoving at once while the key's slot `is_open`.
        """
        future = Reply(loop=self._loop)
        if prefix := self._prefix:
            for key in keys:
                if not key.startswith(prefix):
                    future.set_exception(self._outside(function, keys))
                    return future
        self.redis_s += _CALL_S
        name, expiry = keys[-1].encode(), b"%d" % expiry_ms
        size_bytes = sum(map(len, value))
        head = b"*5\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n" % (len(name), name, size_bytes)
        placed = Placed(
            (head, *value, b"\r\n$2\r\nPX\r\n$%d\r\n%b\r\n" % (len(expiry), expiry)),
            pack_command((self.library.verbs[function], function, len(keys), *keys, *args)),
            size_bytes,
        )
        if self._slots is None:
            self._links[Purpose.APPEND].send_placed(future, placed)
        else:
            self._slots.send(Purpose.APPEND, keys[0], future, placed)
        return future

    @property
    def whole(self) -> Store:
        """The store of all namespaces, without checks: for keys that passed `judge`."""
        return self

    def judge(self, keys: Sequence[str]) -> None:
        """Check keys once, for calls of the `whole` store.

        :raises StoreError: one belongs to another namespace.
        """
        if not all(key.startswith(self._prefix) for key in keys):
            raise self._outside("a call", keys)

    def _is_inside(self, _key: str, _command: Sequence[Argument]) -> bool:
        """True if a command's keys have the prefix."""
        return True

    def _outside(self, command: str, keys: Sequence[str]) -> StoreError:
        wrong = next((key for key in keys if not key.startswith(self._prefix)), keys[0])
        return StoreError(f"{command} is for keys that begin with {self._prefix!r}, not for {wrong[:200]!r}")

    def is_open(self, key: str) -> bool:
        """True while a key's slot moves to another server: no call may combine new keys with others."""
        return self._slots is not None and self._slots.is_open(key)

    def link(self, purpose: Purpose, key: str) -> Link | None:
        """The link for one purpose's commands on a key; None while the key's server is unknown."""
        return self._links[purpose] if self._slots is None else self._slots.link(purpose, key)

    def subscriber(self, channel: str) -> Link | None:
        """The link for subscriptions to a channel; None while its server is unknown."""
        return self.link(Purpose.SUBSCRIBE, channel)

    def coordination(self, key: str) -> Link | None:
        """The link for coordination of a key; None while the key's server is unknown."""
        return self._links[_COORDINATE] if self._slots is None else self._slots.link(_COORDINATE, key)

    def confirmation(self, key: str) -> Link | None:
        """The link for WAIT on a key's server, perhaps not connected yet; None while that server is unknown."""
        server = next(iter(self._servers.values()), None) if self._slots is None else self._slots.server(key)
        return None if server is None else server.confirmation()

    # ------------------------------------------------------------------ the server

    def run_id(self, key: str) -> str:
        """The run id of the server of the key's append connection; empty before the first connect."""
        link = self.link(Purpose.APPEND, key)
        return "" if link is None else link.run_id

    def replid(self, key: str) -> str:
        """The last known replication id of the server of the key's append connection."""
        link = self.link(Purpose.APPEND, key)
        return "" if link is None else link.replid

    def history(self, key: str) -> str:
        """The history of the server of the key's append connection; empty before the first connect."""
        link = self.link(Purpose.APPEND, key)
        return "" if link is None else link.history

    def reads_where_it_appends(self, key: str) -> bool:
        """True if the read and append connections are to the same run of a server. After a restart or a failover,
        one is back before the other."""
        appends, reads = self.link(Purpose.APPEND, key), self.link(Purpose.READ, key)
        return appends is not None and reads is not None and appends.is_connected and appends.run_id == reads.run_id

    def note_replid(self, link: Link, replid: str) -> None:
        """Store the replication id that a link's server reported.

        A server can be demoted and promoted again while its links stay up.
        """
        links = [one for server in self._servers.values() if link in server.links for one in server.links]
        self._note_replid(links, link.run_id, replid)
        for store in self._further:
            store._note_replid([one for server in store.servers for one in server.links], link.run_id, replid)

    def _note_replid(self, links: Iterable[Link], run_id: str, replid: str) -> None:
        outdated = [one for one in links if one.run_id == run_id and one.replid != replid]
        for one in outdated:
            one.note_history(run_id, replid)
        if outdated:
            self._history_changed()

    def on_history_change(self, callback: Callable[[], None]) -> None:
        """Call back whenever a connection finds another history, or slots move to another server."""
        self._history_callbacks.append(callback)

    def on_subscriber(self, callback: Callable[[Link], None]) -> None:
        """Call back with each server's subscriber link, existing ones at once."""
        self._subscriber_callback = callback
        for server in self._servers.values():
            callback(server.links[Purpose.SUBSCRIBE])

    def on_slots_moved(self, callback: Callable[[], None]) -> None:
        """Call back when a cluster's slots have moved: `subscriber` may return another link now."""
        self._slots_callback = callback

    def subscription_moved(self, link: Link, text: str = "") -> None:
        """Request another read of the slots: a server stopped serving a channel. ``text`` is its MOVED, if any."""
        if self._slots is not None:
            self._slots.follow(text, link.address)

    def is_connected(self) -> bool:
        """True if every purpose's connection to every server is up."""
        if self._slots is not None:
            return self._slots.is_whole()
        return bool(self._servers) and all(server.is_up() for server in self._servers.values())

    def is_partly_connected(self) -> bool:
        """True if some server is up for every purpose and none refuses the login."""
        return any(server.is_up() for server in self._servers.values()) and not self._is_turned_away()

    def has_reported(self, error: Exception) -> bool:
        """True if the log reports the cause of an error: a server is away or refuses all writes, or a tier has more."""
        is_away = isinstance(error, StoreUnavailable) and not self.is_connected()
        return is_away or isinstance(error, (StoreRefusing, NotCompared))

    @property
    def problem(self) -> str:
        """The reason for which there is no connection, in one line."""
        link = self._down_link()
        if link is not None:
            return str(link.problem)
        return self._slots.problem if self._slots is not None else ""

    @property
    def missing(self) -> str:
        """The server with the problem; empty if no server has been found yet."""
        link = self._down_link()
        return link.lines.server if link is not None else ""

    def _down_link(self) -> Link | None:
        """A link that is down, preferably one that its server refused."""
        links = [
            link for server in self._servers.values() for link in server.links[: Purpose.CONFIRM] if not link.is_up
        ]
        return min(links, key=lambda link: not link.is_turned_away, default=None)

    @property
    def server(self) -> dict[str, str]:
        """The fields of one server's INFO from its last connect; empty before the first connect."""
        return next((server.links[Purpose.APPEND].server for server in self._servers.values()), {})

    @property
    def servers(self) -> list[Server]:
        """Each server with its links."""
        return list(self._servers.values())

    @property
    def primaries(self) -> list[Link]:
        """The coordination link to each server, which is never congested, for commands to every server."""
        return [server.links[Purpose.COORDINATE] for server in self._servers.values()]

    # ------------------------------------------------------------------ servers

    async def run(self) -> None:
        """Keep all links up until cancelled."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            if self._slots is None:
                address = self.url.addresses[0]
                server = self._servers[address] = self.make_server(address)
                self._links = server.links
                if self.url.kind == "sentinel":
                    tasks.start_soon(self._doubt_primary, server)
            else:
                tasks.start_soon(self._slots.keep)

    async def _doubt_primary(self, server: Server) -> None:
        """Leave a silent primary as soon as the sentinels name another one."""
        while True:
            await anyio.sleep(WATCH_S)
            if server.is_silent():
                with suppress(KorvetError):
                    named = await self._primary.find()
                    if any(link.address not in (None, named) for link in server.links):
                        server.break_off()

    async def connected(self) -> None:
        """Wait until every connection is up, or a login fails for good."""
        while not (self.is_connected() or self._is_turned_away()):
            await self._changed.wait()

    def _is_turned_away(self) -> bool:
        if self._slots is not None and self._slots.is_turned_away:
            return True
        return any(link.is_turned_away for server in self._servers.values() for link in server.links)

    # ------------------------------------------------------------------ called by the links and the slots

    @property
    def tasks(self) -> TaskGroup:
        """The store's task group."""
        assert self._tasks is not None
        return self._tasks

    def note_change(self) -> None:
        """Wake the tasks that wait in `connected`."""
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    def slots_moved(self) -> None:
        """Notify the store's users that some keys have moved to another server."""
        self._history_changed()
        self._slots_callback()

    def make_server(self, address: Address) -> Server:
        """A server whose links are starting."""
        login = Login(auth=lambda: self.url.login, db=self.url.db, tls=self.url.tls)
        name = self.url.service if self.url.kind == "sentinel" else str(address)
        lines = ServerLines(name) if self._first is None else UserLines(name, str(self.url.user))
        links = [self._make_link(purpose, address, login, lines) for purpose in Purpose]
        server = Server(links)
        for link in links:
            # A demotion that one link notices applies to all links, although they are still connected.
            link.on_demoted = server.break_off
        self._subscriber_callback(links[Purpose.SUBSCRIBE])
        self.tasks.start_soon(server.run)
        return server

    def _make_link(self, purpose: Purpose, address: Address, login: Login, lines: ServerLines) -> Link:
        name = purpose.name.lower()
        waits = Waits() if self._counts_waits else None
        if self._first is not None and (server := self._first._servers.get(address)) is not None:
            waits = server.links[purpose].waits
        link = Link(
            name if self._slots is None else f"{name}-{address}",
            self._locator(address),
            login,
            library=self.library.source,
            is_older=self.library.is_older,
            lines=lines,
            subscriber=purpose is Purpose.SUBSCRIBE,
            # Most named users lack this right, and the ACL log would report their attempts. They learn by failing.
            asks_limits=purpose is Purpose.APPEND and self.url.user is None,
            waits=waits,
        )
        if self._first is not None:
            link.loads_through = partial(_coordination, self._first, address)
        link.on_history = self._history_changed
        link.on_change = self.note_change
        if self._slots is not None:
            link.on_down = self._slots.doubt
            if purpose is not Purpose.CONFIRM:
                link.on_redirected = partial(self._slots.redirected, link, purpose)
        return link

    def _locator(self, address: Address) -> Callable[[], Awaitable[Address]]:
        async def fixed() -> Address:
            return address

        return self._primary.find if self.url.kind == "sentinel" else fixed

    def _history_changed(self) -> None:
        self.histories += 1
        for callback in self._history_callbacks:
            callback()


def _coordination(store: Store, address: Address) -> Link | None:
    server = store._servers.get(address)
    return None if server is None else server.links[Purpose.COORDINATE]
