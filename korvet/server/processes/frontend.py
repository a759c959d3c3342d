"""One front-end process: a store, a `Frontend` on it for each namespace, and the server of its connections."""

from __future__ import annotations

import gc
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import anyio
import structlog
from anyio.abc import TaskGroup

from korvet.api.shared.context import Frontend, Listener
from korvet.api.shared.nodes import LeasedNodes, Nodes, virtual_nodes
from korvet.errors import StoreFull, StoreUnavailable
from korvet.metrics.requests import Requests
from korvet.quotas.counting import Counting
from korvet.redis.address import Address
from korvet.redis.client import Store
from korvet.redis.lone_node import refuse_lone_node
from korvet.security.mapping import PrincipalRules
from korvet.security.tls import Certificates
from korvet.security.tokens import Tokens
from korvet.server.bounds.connection_quotas import bounds_of
from korvet.server.ground.machine import give_back_freed, raise_descriptor_limit
from korvet.server.ground.settings import ListenerSettings, ServeSettings, limits_of
from korvet.server.ground.sockets import port_of
from korvet.server.ground.token_settings import token_settings
from korvet.server.ground.tracing import opened_tracing
from korvet.server.processes.figures import Serving
from korvet.server.processes.live import Live
from korvet.server.socket_server.endpoint import Endpoint
from korvet.server.socket_server.server import Server
from korvet.server.tenants.choice import Choice
from korvet.server.tenants.namespaces import Namespaces
from korvet.server.tenants.process import Process, open_catalog, start_following, start_sweeps
from korvet.store import library, rights
from korvet.store.activity import Activity
from korvet.store.capacity import largest_topics
from korvet.store.every import kind_of
from korvet.store.keys import ALL_CONNECTIONS, LOBBY, TENANTS, Namespace
from korvet.store.library import open_store
from korvet.store.registry import Registry
from korvet.store.security.connections import StoredConnections

if TYPE_CHECKING:
    from korvet.tier.tier import Tier

log = structlog.get_logger()

_PATIENCE_S = 30.0
_RETRY_S = 0.5


class Opened(NamedTuple):
    """A process's shared parts, the front-ends of fixed namespaces, and the tasks that run while these are open.

    ``namespaces`` are the ones that clients choose; None if no listener lets them choose.
    """

    process: Process
    frontends: Mapping[str, Frontend]
    namespaces: Namespaces | None
    tasks: TaskGroup

    @property
    def store(self) -> Store:
        return self.process.store

    def all(self) -> Sequence[Frontend]:
        """The front-ends of all open namespaces."""
        return [*self.frontends.values(), *(self.namespaces.frontends() if self.namespaces is not None else ())]


@asynccontextmanager
async def open_frontends(settings: ServeSettings, redis_url: str) -> AsyncIterator[Opened]:
    """Check the library, and open a front-end for each fixed namespace, for the time of the block.

    :raises KorvetError: if Redis cannot be reached, or holds a newer library.
    """
    async with (
        open_store(redis_url, counts_waits=settings.metrics is not None) as store,
        _opened_tier(settings) as tier,
    ):
        process = Process(settings, store, tier)
        with_users = {one.namespace for one in settings.listeners if one.sasl and one.namespace_from is None}
        fixed = dict.fromkeys(one.namespace for one in settings.listeners if one.namespace_from is None)
        frontends = {name: process.build(name) for name in fixed}
        # A tenant's front-end does not check its rights: one Redis user has the rights to all namespaces.
        tried = [Namespace(name) for name in fixed] or [LOBBY]
        await _once_redis_serves(partial(_check_redis, store, tried))
        for name, frontend in frontends.items():
            await _once_redis_serves(partial(open_catalog, frontend, has_users=name in with_users))
        namespaces = Namespaces(process) if any(one.namespace_from for one in settings.listeners) else None
        if namespaces is not None:
            await _once_redis_serves(namespaces.open)
        async with anyio.create_task_group() as tasks:
            opened = Opened(process, frontends, namespaces, tasks)
            tasks.start_soon(process.outages.watch)
            process.shared.reserve.largest = partial(_largest_topics, opened)
            tasks.start_soon(process.shared.reserve.watch)
            tasks.start_soon(library.keep, store)
            for name, frontend in frontends.items():
                start_following(tasks, frontend, has_users=name in with_users)
            if namespaces is not None:
                namespaces.start_following(tasks)
            yield opened
            async with anyio.create_task_group() as draining:
                for frontend in frontends.values():
                    draining.start_soon(frontend.groups.mirror.drain)
            tasks.cancel_scope.cancel()


@asynccontextmanager
async def _opened_tier(settings: ServeSettings) -> AsyncIterator[Tier | None]:
    """As `open_tier`; None without one. Its library costs a tenth of a second and 8 MB."""
    if settings.tier is None:
        yield None
        return
    from korvet.tier.tier import open_tier

    async with open_tier(settings.tier, settings.tier_cache, settings.tier_cache_bytes) as tier:
        yield tier


def _largest_topics(opened: Opened) -> Awaitable[str]:
    return largest_topics([(one.catalog, one.log) for one in opened.all()])


async def _check_redis(store: Store, namespaces: Iterable[Namespace]) -> None:
    await refuse_lone_node(store)
    loads = not await library.is_current(store)
    for namespace in namespaces:
        await rights.require(store, namespace, loads=loads)
    await library.ensure(store)


async def _once_redis_serves(opening: Callable[[], Awaitable[None]]) -> None:
    """Call ``opening`` until it succeeds: Redis may still load its data, or be a replica about to lead.

    :raises StoreUnavailable, StoreFull: if it fails for half a minute.
    """
    deadline = anyio.current_time() + _PATIENCE_S
    logged = ""
    while True:
        try:
            await opening()
            return
        except (StoreUnavailable, StoreFull) as error:
            if anyio.current_time() > deadline:
                raise
            if logged != (kind := kind_of(error)):
                logged = kind
                log.warning("redis does not serve yet; waiting for it", reason=str(error))
        await anyio.sleep(_RETRY_S)


async def serve_listeners(
    live: Live,
    redis_url: str,
    bound: Sequence[socket.socket],
    stop: anyio.Event,
    ready: Callable[[Serving], None],
    number: int = 1,
) -> None:
    """Serve until ``stop`` is set, then drain. ``ready`` is called once the server accepts connections.

    :param bound: a socket for each of the settings' listeners.
    :param number: the number of this worker.
    :raises KorvetError: as `open_frontends` does, in an exception group.
    """
    settings = live.settings
    raise_descriptor_limit()
    async with (
        opened_tracing(number) as tracing,
        open_frontends(settings, redis_url) as opened,
        anyio.create_task_group() as tasks,
    ):
        process, tokens = opened.process, _tokens(settings)
        if tokens is not None:
            opened.tasks.start_soon(tokens.keys.follow)
        requests = None if settings.metrics is None else Requests()
        bounds = bounds_of(settings.broker)
        server = Server(limits_of(settings.broker), process.shared.answers, tokens, requests, tracing, bounds)
        _start_counting(server, opened)
        process.lend = server.connection_quotas.lend
        registries: dict[str | None, Registry] = {}
        for name, frontend in opened.frontends.items():
            addresses = _leased_addresses(settings, bound, name)
            registries[name] = registry = Registry(
                frontend.namespace.frontends, frontend.store, frontend.wakeups, addresses, frontend.activity
            )
            await _once_redis_serves(partial(registry.open, process.outages))
            tasks.start_soon(registry.keep, frontend.draining)
            start_sweeps(opened.tasks, frontend, registry)
            process.start_tiering(opened.tasks, frontend)
        if opened.namespaces is not None:
            addresses = _leased_addresses(settings, bound, None)
            active = Activity()
            active.came()
            registries[None] = registry = Registry(TENANTS.frontends, process.store, process.wakeups, addresses, active)
            await _once_redis_serves(partial(registry.open, process.outages))
            tasks.start_soon(registry.keep, opened.namespaces.draining)
            tasks.start_soon(opened.namespaces.run, registry)
        endpoints = [_endpoint(*one, registries, opened) for one in zip(settings.listeners, bound, strict=True)]
        process.front_ends = partial(_count, [endpoint.listener.nodes for endpoint in endpoints], settings.workers)
        certificates = [endpoint.tls for endpoint in endpoints if endpoint.tls is not None]
        for one in certificates:
            opened.tasks.start_soon(one.follow)
        _spare_the_collector()

        async def apply(new: ServeSettings) -> None:
            process.settings = new
            server.configure(bounds_of(new.broker))
            for frontend in opened.frontends.values():
                process.configure(frontend)
            if opened.namespaces is not None:
                opened.namespaces.configure()
            for one in certificates:
                await one.reload()
            if tokens is not None:
                tokens.keys.refresh()

        live.on_change(apply)
        tasks.start_soon(give_back_freed, partial(_memory_in_use, server, process), stop)
        await tasks.start(server.serve, endpoints, stop)
        turns = partial(_turns, registries, opened)
        ready(Serving(number=number, process=process, connections=server, turns=turns, frontends=opened.all))


def _start_counting(server: Server, opened: Opened) -> None:
    """Count connections together with the front-ends that have the same first namespace, or that have tenants."""
    process, tallies = opened.process, [server.addresses]
    if opened.namespaces is not None:
        keys = ALL_CONNECTIONS
        tallies.append(opened.namespaces.tally)
    elif server.limits.bounds_addresses:
        keys = next(iter(opened.frontends.values())).namespace.connections
    else:
        return
    counting = Counting(StoredConnections(keys, process.store), tallies, lambda: process.front_ends())
    opened.tasks.start_soon(counting.publish)


def _turns(registries: Mapping[str | None, Registry], opened: Opened) -> Mapping[str, bool]:
    """The open namespaces, and whether this front-end has their turns to sweep."""
    fixed = {name: registry.has_turn for name, registry in registries.items() if name is not None}
    return {**fixed, **(opened.namespaces.turns() if opened.namespaces is not None else {})}


def _tokens(settings: ServeSettings) -> Tokens | None:
    """The token validator; None without OAUTHBEARER."""
    found = token_settings(settings.broker)
    has_tokens = any("OAUTHBEARER" in listener.sasl for listener in settings.listeners)
    return found.open() if found is not None and has_tokens else None


def _count(nodes: Sequence[Nodes], workers: int) -> int:
    """The number of front-ends: those of a listener's cluster, each with as many workers as this one."""
    return workers * max(len(one.all()) for one in nodes)


def _memory_in_use(server: Server, process: Process) -> int:
    return server.memory_in_use + process.shared.cache.size_bytes


def _spare_the_collector() -> None:
    """Make garbage collection rare: reference counts free a request's objects, and many requests are in flight.

    Objects from the start stay alive, so they are frozen without a collection first.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def _leased_addresses(
    settings: ServeSettings, bound: Sequence[socket.socket], namespace: str | None
) -> Mapping[str, Address]:
    """Listeners without an advertised address: those of a fixed namespace, or with None those with a choice."""
    return {
        listener.name: Address(*listener.advertised(port_of(listening)))
        for listener, listening in zip(settings.listeners, bound, strict=True)
        if listener.advertised_host is None
        and (listener.namespace if listener.namespace_from is None else None) == namespace
    }


def certificates_of(settings: ListenerSettings) -> Certificates | None:
    """The certificates of a listener at which TLS ends.

    :raises ConfigError: a file is missing or wrong.
    """
    return None if settings.tls_files is None else Certificates(settings.tls_files, settings.name)


def _endpoint(
    settings: ListenerSettings, bound: socket.socket, registries: Mapping[str | None, Registry], opened: Opened
) -> Endpoint:
    is_fixed = settings.namespace_from is None
    listener = _listener(settings, registries[settings.namespace if is_fixed else None], bound)
    choice = None
    if opened.namespaces is not None and settings.namespace_from is not None:
        choice = Choice(settings, listener, opened.namespaces)
    return Endpoint(
        bound=bound,
        listener=listener,
        frontend=opened.frontends[settings.namespace] if choice is None else choice.lobby,
        choice=choice,
        tls=certificates_of(settings),
        is_terminated=settings.tls_terminated,
        client_auth=settings.tls_client_auth,
        rules=PrincipalRules(settings.principal_rules),
        balancers=settings.balancers,
    )


def _listener(settings: ListenerSettings, registry: Registry, bound: socket.socket) -> Listener:
    port = port_of(bound)
    advertised_host, advertised_port = settings.advertised(port)
    is_shared = settings.advertised_host is not None
    ports = range(advertised_port, (settings.advertised_last_port or advertised_port) + 1)
    nodes: Nodes = virtual_nodes(advertised_host, ports) if is_shared else LeasedNodes(registry, settings.name)
    return Listener(
        name=settings.name,
        host=settings.host,
        port=port,
        advertised_host=advertised_host,
        advertised_port=advertised_port,
        nodes=nodes,
        proxy_protocol=settings.proxy_protocol,
        security=settings.security,
        sasl=settings.sasl,
    )


def server_name(store: Store) -> str:
    """``Valkey 9.1.2`` or ``Redis 7.0.15``, from INFO."""
    if "valkey_version" in store.server:
        return f"Valkey {store.server['valkey_version']}"
    return f"Redis {store.server.get('redis_version', '')}".strip()
