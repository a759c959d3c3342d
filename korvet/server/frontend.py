"""One front-end process: a store, a `Frontend` on it for each namespace, and the server of its connections."""

from __future__ import annotations

import gc
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple

import anyio
import structlog

from korvet.api.context import Frontend, Listener
from korvet.api.nodes import LeasedNodes, Nodes, virtual_nodes
from korvet.errors import StoreUnavailable
from korvet.server.server import Door, Server
from korvet.server.settings import ListenerSettings, ServeSettings, limits_of
from korvet.server.sockets import port_of
from korvet.store import functions, rights, transaction_sweep
from korvet.store.address import Address
from korvet.store.archive_follower import ArchiveFollower
from korvet.store.catalog import Catalog
from korvet.store.client import Store, open_store
from korvet.store.group_sweep import keep_swept
from korvet.store.groups import Groups
from korvet.store.keys import Namespace
from korvet.store.log import Log
from korvet.store.log.archived import ARCHIVE_GROUP
from korvet.store.maintenance import maintain
from korvet.store.outages import Outages
from korvet.store.record_inlets import RecordInlets
from korvet.store.registry import Registry
from korvet.store.transactions import Transactions
from korvet.store.wakeup import Wakeups

log = structlog.get_logger()

_PATIENCE_S = 30.0
_RETRY_S = 0.5


class Opened(NamedTuple):
    """A store, and the front-ends on it by their namespaces."""

    store: Store
    frontends: Mapping[str, Frontend]


@asynccontextmanager
async def open_frontends(settings: ServeSettings, redis_url: str) -> AsyncIterator[Opened]:
    """A front-end for each namespace, with the library checked and the catalogs read, for the time of the block.

    :raises KorvetError: when Redis cannot be reached, or holds a newer library.
    """
    async with open_store(redis_url) as store:
        outages, wakeups = Outages(store), Wakeups(store)
        frontends: dict[str, Frontend] = {}
        for listener in settings.listeners:
            beside = next(iter(frontends.values()), None)
            if listener.namespace not in frontends:
                frontends[listener.namespace] = _build(settings, listener.namespace, store, outages, wakeups, beside)
        await _once_redis_serves(partial(_open_catalogs, store, frontends.values()))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(outages.watch)
            tasks.start_soon(next(iter(frontends.values())).log.reserve.watch)
            tasks.start_soon(functions.keep, store)
            for frontend in frontends.values():
                tasks.start_soon(frontend.catalog.follow)
                tasks.start_soon(maintain, frontend.namespace, frontend.catalog, frontend.log)
                tasks.start_soon(RecordInlets(frontend.namespace, frontend.catalog, frontend.log).tend)
                tasks.start_soon(keep_swept, frontend.groups)
                tasks.start_soon(transaction_sweep.keep_swept, frontend.transactions)
                tasks.start_soon(transaction_sweep.keep_closed, frontend.transactions)
                tasks.start_soon(frontend.groups.redis_groups.follow)
                tasks.start_soon(_archive_follower(frontend).follow)
            yield Opened(store, frontends)
            async with anyio.create_task_group() as draining:
                for frontend in frontends.values():
                    draining.start_soon(frontend.groups.redis_groups.drain)
            tasks.cancel_scope.cancel()


def _archive_follower(frontend: Frontend) -> ArchiveFollower:
    follower = ArchiveFollower(frontend.namespace, frontend.catalog, frontend.log)
    frontend.groups.on_commit(ARCHIVE_GROUP, follower.committed)
    return follower


async def _open_catalogs(store: Store, frontends: Iterable[Frontend]) -> None:
    for frontend in frontends:
        await rights.require(store, frontend.namespace)
    await functions.ensure(store)
    for frontend in frontends:
        await frontend.catalog.open()


async def _once_redis_serves(opening: Callable[[], Awaitable[None]]) -> None:
    """Do it as soon as Redis can (it may be loading, or a replica about to lead).

    :raises StoreUnavailable: where it cannot for half a minute.
    """
    deadline = anyio.current_time() + _PATIENCE_S
    told = ""
    while True:
        try:
            await opening()
            return
        except StoreUnavailable as error:
            if anyio.current_time() > deadline:
                raise
            if told != str(error):
                told = str(error)
                log.warning("redis does not serve yet", reason=told)
        await anyio.sleep(_RETRY_S)


def _build(
    settings: ServeSettings, name: str, store: Store, outages: Outages, wakeups: Wakeups, beside: Frontend | None
) -> Frontend:
    """A namespace's front-end; ``beside`` is another one of this process."""
    namespace = Namespace(name)
    catalog = Catalog(namespace, store, wakeups, _broker_settings(settings))
    partitions = Log(namespace, store, catalog, wakeups, beside=beside.log if beside else None)
    groups = Groups(namespace, store, catalog, wakeups, outages)
    return Frontend(
        namespace=namespace,
        store=store,
        outages=outages,
        catalog=catalog,
        log=partitions,
        groups=groups,
        transactions=Transactions(namespace, store, catalog, partitions, groups),
        wakeups=wakeups,
    )


def _broker_settings(settings: ServeSettings) -> Mapping[str, str]:
    """The config file's. With the embedded server, on a machine of its own user, a new group waits for nobody."""
    defaults = {"group.initial.rebalance.delay.ms": "0"} if settings.redis_url is None else {}
    return {**defaults, **settings.broker}


async def serve_listeners(
    settings: ServeSettings,
    redis_url: str,
    bound: Sequence[socket.socket],
    stop: anyio.Event,
    ready: Callable[[Store], None],
) -> None:
    """Serve until ``stop`` is set, then drain. ``ready`` is called once connections are accepted.

    :param bound: a socket for each of the settings' listeners.
    :raises KorvetError: as `open_frontends`, in an exception group.
    """
    async with open_frontends(settings, redis_url) as opened, anyio.create_task_group() as tasks:
        server = Server(limits_of(settings.broker))
        registries: dict[str, Registry] = {}
        for name, frontend in opened.frontends.items():
            registries[name] = _registry(settings, bound, frontend)
            await _once_redis_serves(partial(registries[name].open, frontend.outages))
            tasks.start_soon(registries[name].keep, frontend.draining)
        doors = [
            Door(door, _listener(listener, registries[listener.namespace], door), opened.frontends[listener.namespace])
            for door, listener in zip(bound, settings.listeners, strict=True)
        ]
        _spare_the_collector()
        await tasks.start(server.serve, doors, stop)
        ready(opened.store)


def _spare_the_collector() -> None:
    """Collect cycles seldom: what a request allocates is freed by its reference counts, and many are in flight."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def _registry(settings: ServeSettings, bound: Sequence[socket.socket], frontend: Frontend) -> Registry:
    """A namespace's registry, with a lease for the listener that is not behind an advertised address, if one is."""
    for listener, door in zip(settings.listeners, bound, strict=True):
        if listener.namespace == frontend.namespace.name and listener.advertised_host is None:
            return Registry(frontend.namespace, frontend.store, Address(*listener.advertised(port_of(door))))
    return Registry(frontend.namespace, frontend.store, None)


def _listener(settings: ListenerSettings, registry: Registry, bound: socket.socket) -> Listener:
    port = port_of(bound)
    advertised_host, advertised_port = settings.advertised(port)
    is_shared = settings.advertised_host is not None
    ports = range(advertised_port, (settings.advertised_last_port or advertised_port) + 1)
    nodes: Nodes = virtual_nodes(advertised_host, ports) if is_shared else LeasedNodes(registry)
    return Listener(
        host=settings.host,
        port=port,
        advertised_host=advertised_host,
        advertised_port=advertised_port,
        nodes=nodes,
        proxy_protocol=settings.proxy_protocol,
    )


def server_name(store: Store) -> str:
    """``Valkey 9.1.2`` or ``Redis 7.0.15``, from INFO."""
    if "valkey_version" in store.server:
        return f"Valkey {store.server['valkey_version']}"
    return f"Redis {store.server.get('redis_version', '')}".strip()
