"""Which front-ends of a namespace live, for those that stand under addresses of their own, and their node ids.

A lease in Redis says so, renewed every second. While Redis is away the last known ones are kept. Where the registry
cannot be used (somebody wrote something else there, a right is missing), the front-end knows of itself alone.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

import anyio
import structlog

from korvet.errors import KorvetError, StoreError
from korvet.store.address import Address
from korvet.store.client import Purpose, Store
from korvet.store.keys import Namespace
from korvet.store.outages import Outages

log = structlog.get_logger()

LEASE_MS: Final = 3000
_RENEW_S: Final = 1.0
_LEAVE_S: Final = 1.0
_STAND_IN_IDS: Final = range(10**9, 2 * 10**9)
_PORTS: Final = range(1, 65536)


class Registry:
    """What one front-end knows of its namespace's registry, and its own lease in it.

    :param address: where clients reach this front-end alone; without one it only tells that somebody is there.
    """

    def __init__(self, namespace: Namespace, store: Store, address: Address | None) -> None:
        self._key = namespace.frontends
        self._store = store
        self._address = address
        self._is_usable = True
        self.own_id = -1
        self.live: tuple[tuple[int, Address], ...] = ()
        """Node ids and addresses, by id; another tuple where something changed. Its own is always there."""

    async def open(self, outages: Outages) -> None:
        """Renew for the first time, and tell when any front-end was served before: to be done before anybody is served.

        :raises StoreUnavailable: when Redis cannot be asked.
        """
        try:
            outages.began(await self._renew())
        except StoreError as error:
            self._go_alone(error)

    async def keep(self, draining: anyio.Event) -> None:
        """Renew every second until ``draining`` is set, and end the lease then, so that no client is sent here."""
        while not draining.is_set():
            with anyio.move_on_after(LEASE_MS / 1000):
                await self._renew_or_stay()
            with anyio.move_on_after(_RENEW_S):
                await draining.wait()
        with anyio.move_on_after(_LEAVE_S):
            await self._leave()

    async def _renew_or_stay(self) -> None:
        try:
            await self._renew()
        except StoreError as error:
            self._go_alone(error)
        except KorvetError:
            return

    async def _renew(self) -> str:
        """Renew the lease; when nobody did for long, as the registry tells it."""
        own = "" if self._address is None else str(self._address)
        reply = await self._store.fcall(Purpose.COORDINATE, "korvet_frontend_renew", [self._key], own, LEASE_MS)
        _, own_id, outages, live = reply
        self._is_usable = True
        if self._address is not None:
            self._know(own_id, self._address, live)
        return str(outages.decode())

    def _know(self, own_id: int, own: Address, flat: list[int | bytes]) -> None:
        """Take over who lives. Nobody is told of a loopback address but by one that has such an address too."""
        found = {own_id: own}
        for node_id, text in zip(flat[::2], flat[1::2], strict=True):
            address = _parsed(text)
            if address is not None and _is_loopback(address) == _is_loopback(own):
                found.setdefault(int(node_id), address)
        live = tuple(sorted(found.items()))
        self.own_id = own_id
        if live != self.live:
            self.live = live

    def _go_alone(self, error: StoreError) -> None:
        if self._is_usable:
            self._is_usable = False
            log.error("the registry of front-ends cannot be used: clients see only this one", reason=str(error))
        if self._address is not None:
            own_id = self.own_id if self.own_id >= 0 else _stand_in(self._address)
            self._know(own_id, self._address, [])

    async def _leave(self) -> None:
        if self._address is None:
            return
        try:
            await self._store.fcall(Purpose.COORDINATE, "korvet_frontend_leave", [self._key], str(self._address))
        except KorvetError as error:
            log.warning("the lease was not ended", reason=str(error))


def _stand_in(address: Address) -> int:
    """A node id where none was ever given out: the same in all processes of an address, and seldom another's."""
    return _STAND_IN_IDS[crc32(str(address).encode()) % len(_STAND_IN_IDS)]


def _parsed(text: int | bytes) -> Address | None:
    """``host:port`` or ``[host]:port``; None where it is neither."""
    try:
        host, _, port = bytes(text).decode().rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        return Address(host, int(port)) if host and int(port) in _PORTS else None
    except ValueError:
        return None


def _is_loopback(address: Address) -> bool:
    return address.host == "localhost" or address.host == "::1" or address.host.startswith("127.")
