"""The namespaces of a process without a server, and visitors in place of its connections."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
import redis

from korvet.security.protocol import NamespaceFrom
from korvet.server.ground.settings import ListenerSettings, ServeSettings
from korvet.server.tenants.namespaces import Namespaces
from korvet.server.tenants.process import Process
from korvet.store import library
from korvet.store.keys import TENANTS
from korvet.store.library import open_store

LISTENERS = (ListenerSettings(namespace_from=NamespaceFrom.PRINCIPAL, sasl=("PLAIN",)),)


class Visitor:
    """A connection that notes whether it was closed."""

    client = "127.0.0.1"

    def __init__(self) -> None:
        self.is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True


class AlwaysTurn:
    async def turn(self) -> None:
        return

    def pass_turn(self) -> None:
        return


class NeverTurn(AlwaysTurn):
    async def turn(self) -> None:
        await anyio.sleep_forever()


@asynccontextmanager
async def opened(
    url: str, turn: NeverTurn | AlwaysTurn | None = None, passwords: Path | None = None
) -> AsyncIterator[Namespaces]:
    """The namespaces of a process.

    :param passwords: the directory with the passwords of tenants' Redis users.
    """
    settings = ServeSettings(listeners=LISTENERS, redis_url=url, tenant_redis_passwords=passwords)
    async with open_store(url) as store, anyio.create_task_group() as tasks:
        await library.ensure(store)
        process = Process(settings, store)
        namespaces = Namespaces(process)
        await namespaces.tenants.open()
        tasks.start_soon(process.outages.watch)
        tasks.start_soon(namespaces.tenants.follow)
        tasks.start_soon(namespaces.run, turn or NeverTurn())
        await anyio.lowlevel.checkpoint()
        yield namespaces
        namespaces.drain()
        process.wakeups.wake_all()
        tasks.cancel_scope.cancel()


async def create(namespaces: Namespaces, client: redis.Redis, *names: str, limits: str = "{}") -> None:
    for name in names:
        client.fcall("korvet_tenant_create", 1, TENANTS.tenants, name, name, limits, "")
    await namespaces.tenants.refresh()
