"""The open namespaces of a process's tenants: each from its first client until it has had none for a while.

The first client opens a namespace, and others wait for the same opening. A suspended or deleted tenant loses its
clients and its front-end as soon as this process reads of it. While no client has a namespace open, one front-end of
all now and then does its background work (`visit`).
"""

from __future__ import annotations

import hmac
import random
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, Protocol

import anyio
import structlog
from anyio.abc import TaskGroup

from korvet.api.shared.context import Frontend
from korvet.errors import KorvetError
from korvet.quotas.entity import CONNECTION, FETCH, MUTATION, PRODUCE, REQUEST
from korvet.quotas.tally import Tally
from korvet.redis.client import Purpose
from korvet.security.scram import Credentials
from korvet.server.tenants.process import Process, open_catalog, start_following, start_sweeps
from korvet.store.allowance import Allowance
from korvet.store.background import transaction_sweep
from korvet.store.background.maintenance import compact_all, enforce_retention
from korvet.store.capacity import stored_bytes
from korvet.store.keys import LOBBY, Namespace
from korvet.store.registry import Registry, SweepTurn
from korvet.store.security.users import parse_credentials
from korvet.store.tenants import Tenant, TenantLimit, Tenants
from korvet.store.topics import finish_deletions

log = structlog.get_logger()

MOST_OPEN: Final = 1000
"""The number of namespaces that a process has open at a time."""
REST_S: Final = 60.0
"""The time after which an open namespace without clients is closed."""
VISIT_S: Final = 900.0
"""The time between two visits to a tenant."""
_LOOK_S: Final = 5.0
_DRAIN_S: Final = 5.0
_MOST_CREDENTIALS: Final = 100_000
"""The most credentials of tenants' users to cache, about 300 bytes each."""
_UNKNOWN_VERSION: Final = -1
_RATES: Final = {
    TenantLimit.PRODUCER_BYTE_RATE: PRODUCE,
    TenantLimit.CONSUMER_BYTE_RATE: FETCH,
    TenantLimit.REQUEST_PERCENTAGE: REQUEST,
    TenantLimit.CONTROLLER_MUTATION_RATE: MUTATION,
    TenantLimit.CONNECTION_RATE: CONNECTION,
}
"""A tenant's rates as quotas."""
_NOBODY: Final = "-"
"""A name that no tenant has."""


class NoEntry(KorvetError):
    """A client may not enter a namespace."""


class TooMany(NoEntry):
    """One connection too many: it is closed without an answer ``wait_s`` later. Its client may try again."""

    def __init__(self, reason: str, wait_s: float = 0.0) -> None:
        super().__init__(reason)
        self.wait_s = wait_s


class TenantConnection(Protocol):
    """A connection that is in a namespace."""

    client: str
    """Its address."""

    def abort(self) -> None:
        """Close at once."""


class _OpenNamespace:
    """A namespace that is open, or being opened."""

    def __init__(self, tenant: Tenant, now: float) -> None:
        self.tenant = tenant
        self.frontend: Frontend | None = None
        self.allowance: Allowance | None = None
        self.registry: Registry | None = None
        self.connections: set[TenantConnection] = set()
        self.emptied = anyio.Event()
        """The time when the last connection left."""
        self.settled = anyio.Event()
        """Set once the opening has succeeded or failed."""
        self.failure: KorvetError | None = None
        self.left_at = now

    def add(self, connection: TenantConnection) -> None:
        if not self.connections:
            self.emptied = anyio.Event()
        self.connections.add(connection)

    def remove(self, connection: TenantConnection, now: float) -> None:
        self.connections.discard(connection)
        self.left_at = now
        if not self.connections:
            self.emptied.set()


class Namespaces:
    """The open namespaces of a process's tenants. `run` owns their tasks."""

    def __init__(self, process: Process) -> None:
        self.tenants = Tenants(process.store, process.wakeups)
        self.draining = anyio.Event()
        """As `Frontend.draining`, for all open namespaces."""
        self.lobby = process.build(LOBBY.name)
        """A front-end without a namespace, for connections before they enter one. It reads only quotas."""
        self.tally = Tally("tenant", self._most_connections)
        """The connections by tenant."""
        self._process = process
        self._has_users = any(one.sasl and one.namespace_from is not None for one in process.settings.listeners)
        self._open: dict[str, _OpenNamespace] = {}
        self._connections: dict[TenantConnection, _OpenNamespace] = {}
        self._visited: tuple[Tenant, anyio.CancelScope] | None = None
        """The tenant of the current visit."""
        self._views: dict[str, tuple[int, Credentials]] = {}
        """Versions and credentials, by the ids of tenants."""
        self._histories = 0
        """The number of changes of history; each one made all versions uncertain."""
        self._logged: set[str] = set()
        self._tasks: TaskGroup | None = None
        self.tenants.watch(self._tenants_changed)
        process.store.on_history_change(self._distrust)

    def frontends(self) -> Iterator[Frontend]:
        """The open front-ends."""
        return (opened.frontend for opened in list(self._open.values()) if opened.frontend is not None)

    def turns(self) -> Mapping[str, bool]:
        """The open namespaces, and whether this front-end has their turns to sweep."""
        namespaces = self._open.items()
        return {name: opened.registry.has_turn for name, opened in namespaces if opened.registry is not None}

    def configure(self) -> None:
        """Apply the process's new settings."""
        for opened in self._open.values():
            if opened.frontend is not None:
                self._process.configure(opened.frontend, opened.tenant.super_users)

    def drain(self) -> None:
        """Admit no more clients, drain all front-ends, and wake everything that waits there."""
        self.draining.set()
        for frontend in self.frontends():
            frontend.draining.set()
        for wakeups in {frontend.wakeups for frontend in self.frontends()}:
            wakeups.wake_all()

    # ------------------------------------------------------------------ logins

    async def credentials(self, name: str | None) -> Credentials:
        """The credentials of a namespace's users; fake ones for an unknown tenant, after the same query.

        Each login queries Redis, whether or not the tenant exists or is open, so the time of a login reveals nothing.
        """
        tenant = None if name is None else self.tenants.active(name)
        if name is None or tenant is None:
            with suppress(KorvetError):
                await self._fetch_users(_NOBODY, 0)
            return Credentials({}, self._secret_of(name or _NOBODY))
        known = self._views.get(tenant.id, (_UNKNOWN_VERSION, Credentials({}, self._secret_of(name))))
        histories = self._histories
        # As in a fixed namespace, the last known users may log in while Redis is unavailable.
        with suppress(KorvetError):
            _, version, flat = await self._fetch_users(name, known[0])
            if version != known[0]:
                known = version, Credentials(parse_credentials(flat), self._secret_of(name))
                # If history changed meanwhile, the reply may belong to the previous one.
                if self._histories == histories:
                    self._remember(tenant.id, *known)
        return known[1]

    def _distrust(self) -> None:
        """Forget the known versions: after a rollback of history, the same versions may return with other users."""
        self._histories += 1
        self._views.clear()

    def _fetch_users(self, name: str, known_version: int) -> Awaitable[Any]:
        key = Namespace(name).security.users
        return self._process.store.call_function(
            Purpose.COORDINATE, "korvet_users_read", [key], known_version=known_version
        )

    def _remember(self, tenant_id: str, version: int, credentials: Credentials) -> None:
        """Cache a view, and drop the oldest ones while all together have too many credentials."""
        self._views.pop(tenant_id, None)
        self._views[tenant_id] = version, credentials
        held = sum(len(view.known) for _, view in self._views.values())
        while held > _MOST_CREDENTIALS and len(self._views) > 1:
            _, view = self._views.pop(next(iter(self._views)))
            held -= len(view.known)

    def _secret_of(self, name: str) -> bytes:
        return hmac.digest(self.tenants.secret, name.encode(), "sha256")

    # ------------------------------------------------------------------ connections

    async def enter(self, name: str, connection: TenantConnection, tenant_id: str | None = None) -> Frontend:
        """Enter a tenant's namespace, opening it if necessary, and return its front-end. Call `leave` later.

        :param tenant_id: of the only tenant to enter; None for any of the name.
        :raises TooMany: the tenant has all its connections already, or they come too fast.
        :raises NoEntry: the tenant is unknown, suspended or not the one of the login, or cannot be opened now.
        """
        tenant = self.tenants.active(name)
        if tenant is None or self.draining.is_set() or self._tasks is None:
            raise NoEntry(f"there is no active tenant {name!r}")
        if tenant_id is not None and tenant.id != tenant_id:
            raise NoEntry(f"tenant {name} is a later one than that of the login")
        opened = self._open.get(name)
        if opened is None:
            opened = self._begin(tenant)
        if self.tally.is_over(name, more=1):
            raise TooMany(f"tenant {name} has {self.tally.most(name)} connections, as many as its limit allows")
        opened.add(connection)
        self._connections[connection] = opened
        self.tally.increment(name)
        self.tally.register(name, connection)
        try:
            await opened.settled.wait()
            if opened.failure is not None:
                raise NoEntry(f"the namespace of tenant {name} cannot be opened: {opened.failure}")
            if opened.frontend is None or self._open.get(name) is not opened:
                raise NoEntry(f"tenant {name} was closed meanwhile")
            meters = opened.frontend.quotas.meters
            if meters is not None and (wait_s := meters.connection_wait_s(connection.client)):
                raise TooMany(f"tenant {name} or this address made more connections than its rate allows", wait_s)
        except BaseException:
            self.leave(connection)
            raise
        return opened.frontend

    def leave(self, connection: TenantConnection) -> None:
        """Note that a connection has left its namespace, if it has one."""
        opened = self._connections.pop(connection, None)
        if opened is not None:
            opened.remove(connection, anyio.current_time())
            self.tally.decrement(opened.tenant.name, connection)

    def _most_connections(self, name: str) -> int | None:
        tenant = self.tenants.active(name)
        return None if tenant is None else tenant.limits.get(TenantLimit.CONNECTIONS)

    def _begin(self, tenant: Tenant) -> _OpenNamespace:
        if len(self._open) >= MOST_OPEN:
            self._close_oldest()
        opened = self._open[tenant.name] = _OpenNamespace(tenant, anyio.current_time())
        assert self._tasks is not None
        self._tasks.start_soon(self._keep, opened)
        return opened

    def _close_oldest(self) -> None:
        """Make room for another namespace.

        :raises NoEntry: each open one has clients.
        """
        empty = [opened for opened in self._open.values() if not opened.connections and opened.settled.is_set()]
        if not empty:
            raise NoEntry(f"{MOST_OPEN} namespaces are open, and each has clients")
        self._close(min(empty, key=lambda opened: opened.left_at))

    def _close(self, opened: _OpenNamespace) -> None:
        """Begin to close a namespace; the next client opens it anew."""
        if self._open.get(opened.tenant.name) is opened:
            del self._open[opened.tenant.name]
        for connection in list(opened.connections):
            connection.abort()
        if opened.frontend is not None:
            opened.frontend.draining.set()
            opened.frontend.activity.on_client()

    def _tenants_changed(self) -> None:
        # A tenant may have got its first limit of connections.
        self.tally.note_all()
        for opened in list(self._open.values()):
            tenant = self.tenants.active(opened.tenant.name)
            if tenant is None or tenant.id != opened.tenant.id:
                self._close(opened)
                continue
            opened.tenant = tenant
            if opened.frontend is not None:
                self._apply(opened, opened.frontend)
        if self._visited is not None and not self._is_active(self._visited[0]):
            self._visited[1].cancel()
        for tenant_id in self._views.keys() - self.tenants.ids():
            del self._views[tenant_id]

    def _is_active(self, tenant: Tenant) -> bool:
        """True if clients may enter a tenant, and it is still the same one."""
        now = self.tenants.active(tenant.name)
        return now is not None and now.id == tenant.id

    def _apply(self, opened: _OpenNamespace, frontend: Frontend) -> None:
        """Apply a tenant's limits and super users."""
        tenant = opened.tenant
        frontend.catalog.limits = tenant.limits
        frontend.quotas.limit({key: tenant.limits[rate] for rate, key in _RATES.items() if tenant.limits.get(rate)})
        if opened.allowance is not None:
            opened.allowance.limit(tenant.limits.get(TenantLimit.BYTES))
        self._process.configure(frontend, tenant.super_users)

    # ------------------------------------------------------------------ tasks

    async def open(self) -> None:
        """Read the tenants, and the quotas of connections that have not chosen one yet.

        :raises StoreUnavailable, StoreFull, StoreError:
        """
        await self.tenants.open()
        await self.lobby.quotas.refresh()

    def start_following(self, tasks: TaskGroup) -> None:
        """Keep the state that `open` read current."""
        tasks.start_soon(self.tenants.follow)
        tasks.start_soon(self.lobby.quotas.follow)
        tasks.start_soon(self.lobby.quotas.report)

    async def run(self, turn: SweepTurn) -> None:
        """Keep namespaces open until `draining` is set and all have closed.

        :param turn: whether this front-end has the turn to visit.
        """
        async with anyio.create_task_group() as tasks, anyio.create_task_group() as looks:
            self._tasks = tasks
            looks.start_soon(self._close_idle)
            looks.start_soon(self._visit_all, turn)
            await self.draining.wait()
            looks.cancel_scope.cancel()

    async def _close_idle(self) -> None:
        while True:
            await anyio.sleep(_LOOK_S)
            overdue = anyio.current_time() - REST_S
            for opened in list(self._open.values()):
                if not opened.connections and opened.settled.is_set() and opened.left_at < overdue:
                    self._close(opened)

    async def _keep(self, opened: _OpenNamespace) -> None:
        """Open a namespace, and keep it until its front-end drains."""
        name = opened.tenant.name
        try:
            async with self._process.open_tenant(name, opened.tenant.super_users) as frontend:
                await self._serve(opened, frontend)
        except* KorvetError as errors:
            opened.failure = _first(errors)
            self._log_once(name, opened.failure)
        except* Exception as errors:
            opened.failure = KorvetError("an unexpected error")
            log.error("a tenant's namespace failed unexpectedly; closing it", tenant=name, exc_info=errors)
        finally:
            opened.settled.set()
            self._close(opened)

    async def _serve(self, opened: _OpenNamespace, frontend: Frontend) -> None:
        await open_catalog(frontend, has_users=self._has_users)
        registry = Registry(frontend.namespace.frontends, frontend.store, frontend.wakeups, {}, frontend.activity)
        await registry.open(None)
        opened.registry = registry
        stored = partial(stored_bytes, frontend.namespace, frontend.catalog, frontend.log, frontend.groups)
        opened.allowance = Allowance(opened.tenant.name, frontend.log.reserve, frontend.groups.room, stored)
        frontend.log.reserve = opened.allowance
        self._apply(opened, frontend)
        async with anyio.create_task_group() as tasks:
            start_following(tasks, frontend, has_users=self._has_users)
            start_sweeps(tasks, frontend, registry)
            self._process.start_tiering(tasks, frontend)
            tasks.start_soon(opened.allowance.watch)
            opened.frontend = frontend
            if self._open.get(opened.tenant.name) is not opened or self.draining.is_set():
                frontend.draining.set()
            opened.settled.set()
            self._logged.discard(opened.tenant.name)
            await registry.keep(frontend.draining)
            if opened.connections:
                with anyio.move_on_after(_DRAIN_S):
                    await opened.emptied.wait()
            await frontend.groups.mirror.drain()
            tasks.cancel_scope.cancel()

    def _log_once(self, name: str, failure: KorvetError) -> None:
        """Log once that a namespace cannot be opened, until it is opened again."""
        if name not in self._logged:
            self._logged.add(name)
            log.error("the namespace of a tenant cannot be opened", tenant=name, reason=str(failure))

    async def _visit_all(self, turn: SweepTurn) -> None:
        """Visit each tenant that has no open namespace here, one after the other, while this front-end has the turn."""
        while True:
            await turn.turn()
            names: Sequence[str] = random.sample(self.tenants.names(), len(self.tenants.names()))
            for name in names:
                await anyio.sleep(VISIT_S / len(names))
                tenant = self.tenants.active(name)
                if name not in self._open and tenant is not None:
                    await self._visit(tenant)
            if not names:
                await anyio.sleep(_LOOK_S)

    async def _visit(self, tenant: Tenant) -> None:
        try:
            with anyio.CancelScope() as scope:
                self._visited = tenant, scope
                async with self._process.open_tenant(tenant.name) as frontend:
                    await visit(frontend)
                    await self._process.sweep_tier(frontend)
        except KorvetError as failure:
            if not self._process.store.has_reported(failure):
                self._log_once(tenant.name, failure)
        except Exception as error:
            # Damaged keys of one tenant must not end the process of all.
            log.error("a visit to a tenant's namespace failed unexpectedly", tenant=tenant.name, exc_info=error)
        finally:
            self._visited = None


def _first(errors: BaseExceptionGroup[Any]) -> KorvetError:
    found: BaseException = errors
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    assert isinstance(found, KorvetError)
    return found


async def visit(frontend: Frontend) -> None:
    """Do a namespace's background work once, so that retention does not wait for its next client.

    :raises KorvetError: Redis cannot be reached, or something cannot be read; the next visit tries again.
    """
    catalog, log = frontend.catalog, frontend.log
    await catalog.read()
    if not catalog.topics() and not catalog.deleting():
        return
    await finish_deletions(catalog, log)
    await enforce_retention(frontend.namespace, catalog, log)
    await transaction_sweep.sweep(frontend.transactions, await frontend.transactions.shards_in_use())
    await compact_all(frontend.namespace, catalog, log, {})
