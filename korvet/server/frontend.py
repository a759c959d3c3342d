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
from anyio.abc import TaskGroup

from korvet.api.shared.context import Frontend, Listener
from korvet.api.shared.nodes import LeasedNodes, Nodes, virtual_nodes
from korvet.errors import StoreFull, StoreUnavailable
from korvet.redis.address import Address
from korvet.redis.client import Store
from korvet.redis.lone_node import refuse_lone_node
from korvet.redis.wakeup import Wakeups
from korvet.security.audit import Audit
from korvet.security.authorizer import Authorizer, parse_super_users
from korvet.security.mapping import PrincipalRules
from korvet.security.tls import Certificates
from korvet.security.tokens import Tokens
from korvet.server.door import Door
from korvet.server.live import Live
from korvet.server.machine import give_back_freed, raise_descriptor_limit
from korvet.server.server import Server
from korvet.server.settings import ListenerSettings, ServeSettings, limits_of
from korvet.server.sockets import port_of
from korvet.server.token_settings import token_settings
from korvet.store import library, rights
from korvet.store.activity import Activity
from korvet.store.background import transaction_sweep
from korvet.store.background.archive_follower import ArchiveFollower
from korvet.store.background.group_sweep import keep_swept
from korvet.store.background.maintenance import maintain
from korvet.store.background.record_inlets import RecordInlets
from korvet.store.capacity import largest_topics
from korvet.store.catalog.catalog import Catalog
from korvet.store.groups.archived import ARCHIVE_GROUP
from korvet.store.groups.groups import Groups
from korvet.store.keys import Namespace
from korvet.store.library import open_store
from korvet.store.log.budget import AnswerBudget
from korvet.store.log.log import Log
from korvet.store.outages import Outages
from korvet.store.registry import Registry, Turn
from korvet.store.security.acls import StoredAcls
from korvet.store.security.users import Users
from korvet.store.transactions.transactions import Transactions

log = structlog.get_logger()

_PATIENCE_S = 30.0
_RETRY_S = 0.5
_WITHOUT_FIGURES = str.maketrans("", "", "0123456789")


class Opened(NamedTuple):
    """A store, its front-ends by their namespaces, and the tasks that run as long as these are open."""

    store: Store
    frontends: Mapping[str, Frontend]
    tasks: TaskGroup


@asynccontextmanager
async def open_frontends(settings: ServeSettings, redis_url: str) -> AsyncIterator[Opened]:
    """Open a front-end for each namespace, for the time of the block: the library is checked, the catalogs are read.

    :raises KorvetError: if Redis cannot be reached, or holds a newer library.
    """
    async with open_store(redis_url) as store:
        outages, wakeups = Outages(store, Namespace(settings.listeners[0].namespace)), Wakeups(store)
        frontends: dict[str, Frontend] = {}
        for listener in settings.listeners:
            beside = next(iter(frontends.values()), None)
            if listener.namespace not in frontends:
                frontends[listener.namespace] = _build(settings, listener.namespace, store, outages, wakeups, beside)
        await _once_redis_serves(partial(_open_catalogs, store, frontends.values()))
        with_users = [frontends[name] for name in {one.namespace for one in settings.listeners if one.sasl}]
        for frontend in with_users:
            await _once_redis_serves(frontend.users.open)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(outages.watch)
            reserve = next(iter(frontends.values())).log.reserve
            reserve.largest = partial(largest_topics, [(one.catalog, one.log) for one in frontends.values()])
            tasks.start_soon(reserve.watch)
            tasks.start_soon(library.keep, store)
            for frontend in with_users:
                tasks.start_soon(frontend.users.follow)
            for frontend in frontends.values():
                tasks.start_soon(frontend.catalog.follow)
                if frontend.authorizer is not None:
                    tasks.start_soon(frontend.authorizer.follow)
                tasks.start_soon(RecordInlets(frontend.namespace, frontend.catalog, frontend.log).tend)
                tasks.start_soon(frontend.groups.mirror.run)
                tasks.start_soon(_archive_follower(frontend).follow)
            yield Opened(store, frontends, tasks)
            async with anyio.create_task_group() as draining:
                for frontend in frontends.values():
                    draining.start_soon(frontend.groups.mirror.drain)
            tasks.cancel_scope.cancel()


def _archive_follower(frontend: Frontend) -> ArchiveFollower:
    follower = ArchiveFollower(frontend.namespace, frontend.catalog, frontend.log)
    frontend.groups.offsets.on_commit(ARCHIVE_GROUP, follower.committed)
    return follower


async def _open_catalogs(store: Store, frontends: Iterable[Frontend]) -> None:
    await refuse_lone_node(store)
    for frontend in frontends:
        await rights.require(store, frontend.namespace)
    await library.ensure(store)
    for frontend in frontends:
        await frontend.catalog.open()
        if frontend.authorizer is not None:
            await frontend.authorizer.refresh()


async def _once_redis_serves(opening: Callable[[], Awaitable[None]]) -> None:
    """Call ``opening`` until it succeeds: Redis may still load its data, or be a replica about to lead.

    :raises StoreUnavailable, StoreFull: if it fails for half a minute.
    """
    deadline = anyio.current_time() + _PATIENCE_S
    told = ""
    while True:
        try:
            await opening()
            return
        except (StoreUnavailable, StoreFull) as error:
            if anyio.current_time() > deadline:
                raise
            if told != (kind := str(error).translate(_WITHOUT_FIGURES)):
                told = kind
                log.warning("redis does not serve yet; waiting for it", reason=str(error))
        await anyio.sleep(_RETRY_S)


def _build(
    settings: ServeSettings, name: str, store: Store, outages: Outages, wakeups: Wakeups, beside: Frontend | None
) -> Frontend:
    """A namespace's front-end; ``beside`` is another front-end of this process, which shares its memory bounds."""
    namespace, activity = Namespace(name), Activity()
    catalog = Catalog(namespace, store, wakeups, _broker_settings(settings), activity)
    limits = limits_of(settings.broker)
    partitions = Log(
        namespace,
        store,
        catalog,
        wakeups,
        beside=beside.log if beside else None,
        answers=None if beside else AnswerBudget(limits.answer_bytes),
        cache_bytes=limits.cache_bytes,
    )
    groups = Groups(namespace, store, catalog, wakeups, outages)
    return Frontend(
        namespace=namespace,
        store=store,
        outages=outages,
        catalog=catalog,
        log=partitions,
        groups=groups,
        transactions=Transactions(namespace, store, catalog, partitions, groups),
        users=Users(namespace, store, wakeups),
        wakeups=wakeups,
        activity=activity,
        authorizer=_authorizer(settings, namespace, store, wakeups),
    )


def _authorizer(settings: ServeSettings, namespace: Namespace, store: Store, wakeups: Wakeups) -> Authorizer | None:
    """The judge of a namespace's requests; None if every client may do everything."""
    if not settings.broker.get("authorizer.class.name"):
        return None
    stored, audit = StoredAcls(namespace, store), Audit(namespace.name)
    return Authorizer(stored, store, wakeups, audit, *_openness(settings))


def _openness(settings: ServeSettings) -> tuple[frozenset[str], bool]:
    """The super users, and whether resources without rules are open."""
    is_open = settings.broker.get("allow.everyone.if.no.acl.found", "false").lower() == "true"
    return parse_super_users(settings.broker.get("super.users", "")), is_open


def _broker_settings(settings: ServeSettings) -> Mapping[str, str]:
    """The config file's settings. With the embedded server, a new group waits for no further members by default."""
    defaults = {"group.initial.rebalance.delay.ms": "0"} if settings.redis_url is None else {}
    return {**defaults, **settings.broker}


async def serve_listeners(
    live: Live,
    redis_url: str,
    bound: Sequence[socket.socket],
    stop: anyio.Event,
    ready: Callable[[Store], None],
) -> None:
    """Serve until ``stop`` is set, then drain. ``ready`` is called once the server accepts connections.

    :param bound: a socket for each of the settings' listeners.
    :raises KorvetError: as `open_frontends` does, in an exception group.
    """
    settings = live.settings
    raise_descriptor_limit()
    async with open_frontends(settings, redis_url) as opened, anyio.create_task_group() as tasks:
        answers = next(iter(opened.frontends.values())).log.answers
        tokens = _tokens(settings)
        if tokens is not None:
            opened.tasks.start_soon(tokens.keys.follow)
        server = Server(limits_of(settings.broker), answers, tokens)
        registries: dict[str, Registry] = {}
        for name, frontend in opened.frontends.items():
            registries[name] = _registry(settings, bound, frontend)
            await _once_redis_serves(partial(registries[name].open, frontend.outages))
            tasks.start_soon(registries[name].keep, frontend.draining)
            _start_sweeps(opened.tasks, frontend, registries[name])
        doors = [
            _door(listener, door, registries[listener.namespace], opened.frontends[listener.namespace])
            for door, listener in zip(bound, settings.listeners, strict=True)
        ]
        certificates = [door.tls for door in doors if door.tls is not None]
        for one in certificates:
            opened.tasks.start_soon(one.follow)
        _spare_the_collector()

        async def take(new: ServeSettings) -> None:
            for frontend in opened.frontends.values():
                frontend.catalog.take_static(_broker_settings(new))
                if frontend.authorizer is not None:
                    frontend.authorizer.configure(*_openness(new))
            for one in certificates:
                await one.reload()
            if tokens is not None:
                tokens.keys.refresh()

        live.on_change(take)
        tasks.start_soon(give_back_freed, partial(_memory_in_use, server, opened.frontends), stop)
        await tasks.start(server.serve, doors, stop)
        ready(opened.store)


def _tokens(settings: ServeSettings) -> Tokens | None:
    """The judge of tokens, if a listener has OAUTHBEARER."""
    found = token_settings(settings.broker)
    has_tokens = any("OAUTHBEARER" in listener.sasl for listener in settings.listeners)
    return found.open() if found is not None and has_tokens else None


def _start_sweeps(tasks: TaskGroup, frontend: Frontend, turn: Turn) -> None:
    activity = frontend.activity
    tasks.start_soon(maintain, frontend.namespace, frontend.catalog, frontend.log, turn, activity)
    tasks.start_soon(keep_swept, frontend.groups, turn)
    tasks.start_soon(transaction_sweep.keep_swept, frontend.transactions, turn, activity)
    tasks.start_soon(transaction_sweep.keep_closed, frontend.transactions, turn, activity)


def _memory_in_use(server: Server, frontends: Mapping[str, Frontend]) -> int:
    log = next(iter(frontends.values())).log
    return server.memory_in_use + log.recent.size_bytes + log.placed.size_bytes


def _spare_the_collector() -> None:
    """Collect cycles seldom: reference counts free a request's objects, and many requests are in flight."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def _registry(settings: ServeSettings, bound: Sequence[socket.socket], frontend: Frontend) -> Registry:
    """A namespace's registry, with a lease for its listeners without an advertised address, if it has some."""
    addresses = {
        listener.name: Address(*listener.advertised(port_of(door)))
        for listener, door in zip(settings.listeners, bound, strict=True)
        if listener.namespace == frontend.namespace.name and listener.advertised_host is None
    }
    return Registry(frontend.namespace, frontend.store, frontend.wakeups, addresses, frontend.activity)


def certificates_of(settings: ListenerSettings) -> Certificates | None:
    """The certificates of a listener at which TLS ends.

    :raises ConfigError: a file is missing or wrong.
    """
    return None if settings.tls_files is None else Certificates(settings.tls_files, settings.name)


def _door(settings: ListenerSettings, bound: socket.socket, registry: Registry, frontend: Frontend) -> Door:
    return Door(
        bound=bound,
        listener=_listener(settings, registry, bound),
        frontend=frontend,
        tls=certificates_of(settings),
        is_terminated=settings.tls_terminated,
        client_auth=settings.tls_client_auth,
        rules=PrincipalRules(settings.principal_rules),
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
