"""The registry of a namespace's live front-ends: node ids for front-ends with own addresses, and the turn to sweep.

A live front-end has a lease in Redis and renews it every second. In an idle namespace (`korvet.store.activity`) it
renews every two minutes, or a few seconds after a renewal without an answer. While Redis is away, the front-end keeps
its last list of live front-ends. If it could not renew for as long as its lease, it sweeps, because it no longer knows
whose turn it is. If the registry is unusable (foreign data, or a missing right), the front-end knows only itself, and
sweeps.

A front-end with several listeners has one node id. The registry holds the address of each listener by the listener's
name. A client gets only addresses of its own listener's name. A front-end without names has one
listener, called ``default``.

If the front-end with the turn cannot reach each node of a cluster, it passes the turn on, because another front-end may
reach that node. It does so for a few seconds, and at most once a minute.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from math import ceil, inf
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol
from zlib import crc32

import anyio
import structlog
from ulid import ULID

from korvet.errors import KorvetError, StoreError, StoreUnavailable, UnknownArguments
from korvet.redis.address import Address
from korvet.redis.client import Purpose, Store
from korvet.redis.wakeup import Wakeups
from korvet.store.activity import Activity
from korvet.store.outages import Outages

log = structlog.get_logger()

LEASE_MS: Final = 3000
"""The lease in an active namespace, in milliseconds."""
_RENEW_S: Final = 1.0
_RETRY_S: Final = (1.0, 3.0)
_IDLE_RENEW_S: Final = (90.0, 120.0)
_TICK_S: Final = 1.0
"""Renewals of idle namespaces are due at multiples of it, so those of several namespaces are one write to Redis."""
_LEAVE_S: Final = 1.0
_PASS_S: Final = 5.0
_PASSES_EVERY_S: Final = 60.0
_STAND_IN_IDS: Final = range(10**9, 2 * 10**9)
_PORTS: Final = range(1, 65536)
DEFAULT_LISTENER: Final = "default"
"""The name of an unnamed listener."""

Live = tuple[tuple[int, Address], ...]
"""Node ids and addresses, by id."""
_NOBODY: Final[Mapping[str, Live]] = MappingProxyType({})


class _Renewed(NamedTuple):
    """A reply of korvet_frontend_renew; ``listeners`` is empty if the library is older than listeners."""

    own_id: int
    outages: str
    live: list[Any]
    has_turn: bool
    lease_ms: int
    listeners: list[Any]


class SweepTurn(Protocol):
    """The turn to sweep, for background work."""

    async def turn(self) -> None:
        """Return when it is this front-end's turn."""

    def pass_turn(self) -> None:
        """Pass the turn to another front-end, because this one cannot reach a node of a cluster."""


@asynccontextmanager
async def taking(turn: SweepTurn) -> AsyncIterator[None]:
    """The block of a sweep that begins when it is this front-end's turn.

    :raises StoreUnavailable: a node was away for the sweep; the turn passes on.
    """
    await turn.turn()
    try:
        yield
    except StoreUnavailable:
        turn.pass_turn()
        raise


class Registry:
    """A namespace's registry as one front-end knows it, and the front-end's own lease in it.

    :param key: the hash of the registry; a namespace has one, and so have the listeners whose clients choose theirs.
    :param addresses: the addresses of this front-end alone, by the names of its listeners. The first one is the
        address of its lease. Without any its renewals only say that a front-end is there.
    """

    def __init__(
        self, key: str, store: Store, wakeups: Wakeups, addresses: Mapping[str, Address], activity: Activity
    ) -> None:
        self._key = key
        self._store = store
        self._wakeups = wakeups
        self._addresses = dict(addresses)
        self._address = next(iter(self._addresses.values()), None)
        self._activity = activity
        self._is_usable = True
        self._token = str(ULID())
        self._turn = anyio.Event()
        self._renewed_at = -inf
        self._lease_s = LEASE_MS / 1000
        self._passed_at = -inf
        self.own_id = -1
        self._live: Mapping[str, Live] = _NOBODY

    async def open(self, outages: Outages | None) -> None:
        """Renew for the first time, before any client is served, and report times without a front-end to ``outages``.

        :param outages: None for a namespace that is opened for its first client: its rest was no outage.
        :raises StoreUnavailable: Redis cannot be reached.
        """
        try:
            began = await self._renew()
            if outages is not None:
                outages.began(began)
        except StoreError as error:
            self._go_alone(error)

    async def keep(self, draining: anyio.Event) -> None:
        """Renew until ``draining`` is set, and end the lease then, so that no client is sent here.

        The task that sets ``draining`` also wakes all tasks that wait for `Wakeups`.
        """
        with self._wakeups.listen([self._key]) as listening:
            self._activity.on_client = listening.wake
            while not draining.is_set():
                if self._activity.is_idle:
                    # It listens before the renewal that may find the namespace idle, so it learns of later clients.
                    await listening.ready()
                is_renewed = await self._renew_or_stay()
                if anyio.current_time() - self._renewed_at >= self._lease_s:
                    # The front-end that had the turn may have died since.
                    self._take_turn(has_turn=True)
                # While Redis is away `ready` takes a second, and it forgets the wake-ups that came meanwhile.
                if not draining.is_set():
                    await listening.wait(self._pause_s(is_renewed=is_renewed))
        with anyio.move_on_after(_LEAVE_S):
            await self._leave()

    def _pause_s(self, *, is_renewed: bool) -> float:
        if self._activity.has_clients or not self._activity.is_idle:
            # A client may have come while a renewal without clients was on its way, or while Redis was away.
            return _RENEW_S
        now, rest_s = anyio.current_time(), _IDLE_RENEW_S if is_renewed else _RETRY_S
        return ceil((now + random.uniform(*rest_s)) / _TICK_S) * _TICK_S - now

    async def _renew_or_stay(self) -> bool:
        """Renew; false if Redis did not answer, or not within the lease of an active namespace."""
        with anyio.move_on_after(LEASE_MS / 1000):
            try:
                await self._renew()
            except StoreError as error:
                self._go_alone(error)
            except KorvetError:
                return False
            return True
        return False

    async def _renew(self) -> str:
        """Renew the lease. Returns the times without any renewal: ``from-to …``, in ms."""
        passes = self._passes
        reply = await self._call_renew(sweeper="" if passes else self._token)
        self._is_usable = True
        self._renewed_at = anyio.current_time()
        self._lease_s = reply.lease_ms / 1000
        self._activity.note(is_idle=reply.lease_ms > LEASE_MS)
        if not self._passes:
            self._take_turn(has_turn=reply.has_turn)
        self._know(reply.own_id, reply.live, reply.listeners)
        return reply.outages

    async def _call_renew(self, sweeper: str) -> _Renewed:
        """Renew in Redis. A server may have an older library for some seconds, which knows less than this one."""
        names = _listeners_text(self._addresses)
        values: dict[str, str | int] = {
            "address": "" if self._address is None else str(self._address),
            "lease": LEASE_MS,
            "sweeper": sweeper,
            "clients": "some" if self._activity.has_clients else "none",
        }
        try:
            reply = await self._store.call_function(
                Purpose.COORDINATE, "korvet_frontend_renew", [self._key], **values, listeners=names
            )
        except UnknownArguments:
            reply = await self._store.call_function(Purpose.COORDINATE, "korvet_frontend_renew", [self._key], **values)
        _, own_id, outages, live, *more = reply
        has_turn: Any = more[0] if more else sweeper
        lease_ms: Any = more[1] if len(more) > 1 else LEASE_MS
        listeners: Any = more[2] if len(more) > 2 else []
        return _Renewed(own_id, str(outages.decode()), live, bool(has_turn), lease_ms, listeners)

    def live_at(self, name: str = DEFAULT_LISTENER) -> Live:
        """The live front-ends with a listener of this name, this one's own included; another tuple after a change."""
        return self._live.get(name, ())

    @property
    def has_turn(self) -> bool:
        """True if this front-end has the turn to sweep, as far as it knows."""
        return self._turn.is_set()

    async def turn(self) -> None:
        """Return when `has_turn`."""
        await self._turn.wait()

    def pass_turn(self) -> None:
        """Pass the turn to another front-end of a cluster for a few seconds, at most once a minute.

        In an idle namespace the others renew rarely, so the turn is free for longer.
        """
        now = anyio.current_time()
        if self._store.url.kind == "cluster" and self.has_turn and now - self._passed_at >= _PASSES_EVERY_S:
            self._passed_at = now
            self._take_turn(has_turn=False)
            leaving = self._store.call_function(
                Purpose.COORDINATE, "korvet_frontend_leave", [self._key], address="", sweeper=self._token
            )
            leaving.add_done_callback(_ignored)

    @property
    def _passes(self) -> bool:
        """True while the turn is passed on. A client ends the longer time of an idle namespace."""
        is_idle = self._activity.is_idle and not self._activity.has_clients
        return anyio.current_time() - self._passed_at < _PASS_S + (_IDLE_RENEW_S[1] if is_idle else 0)

    def _take_turn(self, *, has_turn: bool) -> None:
        if has_turn:
            self._turn.set()
        elif self._turn.is_set():
            self._turn = anyio.Event()

    def _know(self, own_id: int, flat: list[int | bytes], listeners: list[bytes]) -> None:
        """Take over the live front-ends."""
        if self._address is None:
            return
        self.own_id = own_id
        parsed = {bytes(text): _parsed_listeners(more) for text, more in _pairs(listeners)}
        others = [
            (int(node_id), found)
            for node_id, text in _pairs(flat)
            if (found := parsed.get(bytes(text), {DEFAULT_LISTENER: _parsed(text)}))
        ]
        live = {name: self._live_at(name, own, others) for name, own in self._addresses.items()}
        if live != self._live:
            self._live = live

    def _live_at(self, name: str, own: Address, others: list[tuple[int, Mapping[str, Address | None]]]) -> Live:
        """The front-ends with such a listener. Only one at a loopback address returns loopback addresses."""
        found = {self.own_id: own}
        for node_id, addresses in others:
            address = addresses.get(name)
            if address is not None and _is_loopback(address) == _is_loopback(own):
                found.setdefault(node_id, address)
        return tuple(sorted(found.items()))

    def _go_alone(self, error: StoreError) -> None:
        self._activity.note(is_idle=False)
        if self._is_usable:
            self._is_usable = False
            log.error("the registry of front-ends cannot be used: clients see only this one", reason=str(error))
        self._take_turn(has_turn=True)
        if self._address is not None:
            own_id = self.own_id if self.own_id >= 0 else _stand_in(self._address)
            self._know(own_id, [], [])

    async def _leave(self) -> None:
        own = "" if self._address is None else str(self._address)
        self._take_turn(has_turn=False)
        try:
            await self._store.call_function(
                Purpose.COORDINATE, "korvet_frontend_leave", [self._key], address=own, sweeper=self._token
            )
        except KorvetError as error:
            log.warning("the lease was not ended", reason=str(error))


def _ignored(done: asyncio.Future[object]) -> None:
    """Ignore a failure: a turn that could not be passed on ends with its lease."""
    if not done.cancelled():
        done.exception()


def _stand_in(address: Address) -> int:
    """A node id for a front-end that never got one: the same for each process of an address, and seldom another's."""
    return _STAND_IN_IDS[crc32(str(address).encode()) % len(_STAND_IN_IDS)]


def _pairs(flat: list[Any]) -> list[tuple[Any, Any]]:
    return list(zip(flat[::2], flat[1::2], strict=True))


def _listeners_text(addresses: Mapping[str, Address]) -> str:
    """A renewal's text of the listeners: JSON from names to addresses, or empty for the default name alone."""
    if addresses.keys() <= {DEFAULT_LISTENER}:
        return ""
    return json.dumps({name: str(address) for name, address in addresses.items()})


def _parsed_listeners(text: bytes) -> Mapping[str, Address | None]:
    """The addresses of a front-end by listener; none if the text is none that korvet wrote."""
    try:
        found = json.loads(text)
        return {str(name): _parsed(str(address).encode()) for name, address in found.items()}
    except (ValueError, AttributeError, RecursionError):
        return {}


def _parsed(text: int | bytes) -> Address | None:
    """``host:port`` or ``[host]:port``; None if it is neither."""
    try:
        host, _, port = bytes(text).decode().rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        return Address(host, int(port)) if host and int(port) in _PORTS else None
    except ValueError:
        return None


def _is_loopback(address: Address) -> bool:
    return address.host == "localhost" or address.host == "::1" or address.host.startswith("127.")
