"""A front-end's catalog and log over a real server, and topics in them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio
from kio.schema.errors import ErrorCode

from korvet.redis.client import Store
from korvet.redis.wakeup import Wakeups
from korvet.store import library
from korvet.store.catalog.catalog import Catalog
from korvet.store.catalog.topic import Topic
from korvet.store.keys import Namespace
from korvet.store.library import open_store
from korvet.store.log.log import Log
from korvet.store.topics import create_topic

NAMESPACE = Namespace("catalog-test")
WITHIN_S = 25.0
"""Less than the time after which a front-end reads again what nobody told it of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """A front-end's part of the store."""

    store: Store
    catalog: Catalog
    log: Log


@asynccontextmanager
async def front(url: str, static: dict[str, str] | None = None) -> AsyncIterator[Front]:
    """A front-end's catalog and log; it has read the catalog once and does not follow it."""
    async with open_store(url) as store:
        await library.ensure(store)
        wakeups = Wakeups(store)
        catalog = Catalog(NAMESPACE, store, wakeups, static or {})
        await catalog.open()
        yield Front(store=store, catalog=catalog, log=Log(NAMESPACE, store, catalog, wakeups))


async def until(condition: Callable[[], bool], within_s: float = WITHIN_S) -> None:
    with anyio.fail_after(within_s):
        while not condition():
            await anyio.sleep(0.005)


async def created(front: Front, name: str, partitions: int = 1, **configs: str) -> Topic:
    values = {key.replace("_", "."): value for key, value in configs.items()}
    code, topic = await create_topic(front.catalog, front.log, name, partitions, values)
    assert (code, topic is None) == (ErrorCode.none, False)
    assert topic is not None
    return topic
