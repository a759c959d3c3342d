"""One front-end: a store, what is built on it, and the server of its connections."""

from __future__ import annotations

import gc
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import anyio
import structlog

from korvet.api.context import Frontend, Listener
from korvet.api.nodes import FixedNodes, Node, virtual_nodes
from korvet.errors import StoreUnavailable
from korvet.server.server import Server
from korvet.server.settings import ServeSettings, limits_of
from korvet.server.sockets import port_of
from korvet.store import functions
from korvet.store.catalog import Catalog
from korvet.store.client import Store, open_store
from korvet.store.group_sweep import keep_swept
from korvet.store.groups import Groups
from korvet.store.keys import Namespace
from korvet.store.log import Log
from korvet.store.maintenance import maintain
from korvet.store.outages import Outages
from korvet.store.wakeup import Wakeups

log = structlog.get_logger()

NODE_ID = 1
_PATIENCE_S = 30.0
_RETRY_S = 0.5


@asynccontextmanager
async def open_frontend(settings: ServeSettings, redis_url: str) -> AsyncIterator[Frontend]:
    """A front-end with its library checked and its catalog read, for the time of the block.

    :raises KorvetError: when Redis cannot be reached, or holds a newer library.
    """
    async with open_store(redis_url) as store:
        outages = Outages(store)
        frontend = _build(settings, store, outages)
        await _open_catalog(frontend)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(outages.watch)
            tasks.start_soon(frontend.catalog.follow)
            tasks.start_soon(maintain, frontend.namespace, frontend.catalog, frontend.log)
            tasks.start_soon(keep_swept, frontend.groups)
            yield frontend
            tasks.cancel_scope.cancel()


async def _open_catalog(frontend: Frontend) -> None:
    """Check the library and read the catalog, as soon as Redis can (it may be loading, or a replica about to lead)."""
    deadline = anyio.current_time() + _PATIENCE_S
    while True:
        try:
            await functions.ensure(frontend.store)
            await frontend.catalog.open()
            return
        except StoreUnavailable as error:
            if anyio.current_time() > deadline:
                raise
            log.warning("redis does not serve yet", reason=str(error))
        await anyio.sleep(_RETRY_S)


def _build(settings: ServeSettings, store: Store, outages: Outages) -> Frontend:
    namespace = Namespace(settings.namespace)
    wakeups = Wakeups(store)
    catalog = Catalog(namespace, store, wakeups, _broker_settings(settings))
    return Frontend(
        namespace=namespace,
        store=store,
        outages=outages,
        catalog=catalog,
        log=Log(namespace, store, catalog, wakeups),
        groups=Groups(namespace, store, catalog, wakeups),
        wakeups=wakeups,
    )


def _broker_settings(settings: ServeSettings) -> Mapping[str, str]:
    """The config file's. With the embedded server, on a machine of its own user, a new group waits for nobody."""
    defaults = {"group.initial.rebalance.delay.ms": "0"} if settings.redis_url is None else {}
    return {**defaults, **settings.broker}


async def serve_frontend(
    settings: ServeSettings, redis_url: str, bound: socket.socket, stop: anyio.Event, ready: Callable[[Frontend], None]
) -> None:
    """Serve on a bound socket until ``stop`` is set, then drain. ``ready`` is called once connections are accepted.

    :raises KorvetError: as `open_frontend`, in an exception group.
    """
    async with open_frontend(settings, redis_url) as frontend, anyio.create_task_group() as tasks:
        server = Server(frontend, limits_of(settings.broker))
        _spare_the_collector()
        await tasks.start(server.serve, [(bound, _listener(settings, bound))], stop)
        ready(frontend)


def _spare_the_collector() -> None:
    """Collect cycles seldom: what a request allocates is freed by its reference counts, and many are in flight."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def _listener(settings: ServeSettings, bound: socket.socket) -> Listener:
    port = port_of(bound)
    advertised_host, advertised_port = settings.advertised(port)
    is_shared = settings.advertised_host is not None
    alone = FixedNodes([Node(NODE_ID, advertised_host, advertised_port)])
    return Listener(
        host=settings.listen_host,
        port=port,
        advertised_host=advertised_host,
        advertised_port=advertised_port,
        nodes=virtual_nodes(advertised_host, advertised_port) if is_shared else alone,
    )


def server_name(store: Store) -> str:
    """``Valkey 9.1.2`` or ``Redis 7.0.15``, from INFO."""
    if "valkey_version" in store.server:
        return f"Valkey {store.server['valkey_version']}"
    return f"Redis {store.server.get('redis_version', '')}".strip()
