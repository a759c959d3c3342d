"""What the namespaces of one process share, and the making of a namespace's front-end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog
from anyio.abc import TaskGroup

from korvet.api.shared.context import Frontend
from korvet.api.shared.loop_turns import LoopTurns
from korvet.api.shared.share_sessions import OpenSessions, ShareSessions
from korvet.api.shared.telemetry import Telemetry
from korvet.configs.listeners import listener_config
from korvet.configs.oauth import OAUTH_CONFIGS
from korvet.configs.types import is_tiered
from korvet.errors import KorvetError, StoreUnavailable
from korvet.quotas.quotas import Quotas
from korvet.quotas.rules import Windows
from korvet.redis.client import Purpose, Store
from korvet.redis.opening import open_as
from korvet.redis.password_file import others_may_read
from korvet.redis.scoped import ScopedStore
from korvet.redis.wakeup import Wakeups
from korvet.security.audit import Audit
from korvet.security.authorizer import Authorizer, parse_super_users
from korvet.server.ground.settings import ServeSettings, limits_of
from korvet.server.tenants.telemetry_receiver import TelemetryReceiver
from korvet.store import rights
from korvet.store.activity import Activity
from korvet.store.background import transaction_sweep
from korvet.store.background.archive_follower import ArchiveFollower
from korvet.store.background.group_sweep import keep_swept
from korvet.store.background.maintenance import maintain
from korvet.store.background.record_inlets import RecordInlets
from korvet.store.catalog.catalog import Catalog
from korvet.store.every import Sweeps
from korvet.store.groups.archived import ARCHIVE_GROUP
from korvet.store.groups.groups import Groups
from korvet.store.keys import LOBBY, Namespace
from korvet.store.log.log import Log
from korvet.store.log.memory.budget import AnswerBudget
from korvet.store.log.partitions.shared import Shared
from korvet.store.outages import Outages
from korvet.store.registry import SweepTurn
from korvet.store.security.users import Users
from korvet.store.shares.dead_letters import DeadLetterCopies
from korvet.store.shares.delivery import Deliveries, KeptReads
from korvet.store.tenants import is_tenant_name, redis_user_of
from korvet.store.transactions.transactions import Transactions

if TYPE_CHECKING:
    from korvet.tier.tier import Tier
    from korvet.tier.tierer import Tierer

_CONNECT_S: Final = 5.0


class Access(NamedTuple):
    """The store of one Redis user, its wake-ups, and the shared state of its logs."""

    store: Store
    wakeups: Wakeups
    shared: Shared


@asynccontextmanager
async def open_access(first: Access, name: str, passwords: Path) -> AsyncIterator[Access]:
    """Open connections of a tenant's own Redis user, for the time of the block.

    The Redis user ``korvet-NAME`` reaches no other namespace, so Redis itself refuses another tenant's key.

    :param first: the process's own connections, which stay open longer.
    :param passwords: a directory; a file with the tenant's name has the password.
    :raises KorvetError: there is no password, Redis refuses it, the user lacks rights, or Redis is unavailable.
    """
    if not is_tenant_name(name):
        raise KorvetError(f"{name[:100]!r} is no tenant's name")
    user = redis_user_of(name)
    async with open_as(first.store, user, passwords / name, connect_timeout_s=_CONNECT_S) as store:
        lacking: list[rights.Missing] = []
        # An unavailable server says nothing about the password.
        with suppress(StoreUnavailable):
            lacking = await rights.lacking(store, Namespace(name), loads=False)
        if lacking:
            raise KorvetError(
                f"Redis user {user} lacks rights: {lacking[0].reason}. Make it anew: korvet tenants redis-user {name}"
            )
        wakeups = Wakeups(store)
        yield Access(store, wakeups, first.shared.beside(store))


log = structlog.get_logger()

SUPER_USERS: Final = "super.users"
_OPERATORS: Final = {*(one.name for one in OAUTH_CONFIGS), SUPER_USERS, "max.connections.per.ip.overrides"}
"""The settings that reveal the operator's users, issuer and addresses."""


class Process:
    """The settings in force, the store, and the state that all namespaces share.

    :param tier: the store of segments; None for none.
    """

    def __init__(self, settings: ServeSettings, store: Store, tier: Tier | None = None) -> None:
        limits = limits_of(settings.broker)
        fixed = next((one.namespace for one in settings.listeners if one.namespace_from is None), None)
        self.settings = settings
        self.store = store
        self.tier = tier
        self.outages = Outages(store, LOBBY if fixed is None else Namespace(fixed))
        self.wakeups = Wakeups(store)
        self.turns = LoopTurns()
        self.sweeps = Sweeps()
        self.open_share_sessions = OpenSessions()
        self._kept_reads = KeptReads()
        self.telemetry_receiver = None if settings.metrics is None else TelemetryReceiver()
        self.front_ends: Callable[[], int] = lambda: 1
        """Returns the number of front-ends, as last known."""
        self.lend: Callable[[int], bool] = lambda _count: True
        """As `korvet.server.bounds.connection_quotas.ConnectionQuotas.lend`, in a process with clients."""
        self._has_warned = False
        self.shared = Shared(store, answers=AnswerBudget(limits.answer_bytes), cache_bytes=limits.cache_bytes)
        self._access = Access(store, self.wakeups, self.shared)

    @asynccontextmanager
    async def open_tenant(self, name: str, super_users: str | None = None) -> AsyncIterator[Frontend]:
        """As `build`, for the time of the block; with separate connections if tenants have Redis users.

        :raises KorvetError: as `open_access`, if they have; or there are too few file descriptors.
        """
        passwords = self.settings.tenant_redis_passwords
        opening = nullcontext(self._access) if passwords is None else self._open_access(name, passwords)
        async with opening as access:
            with self.built(name, super_users, access) as frontend:
                yield frontend

    @asynccontextmanager
    async def _open_access(self, name: str, passwords: Path) -> AsyncIterator[Access]:
        self._warn_of(passwords / name)
        count = len(Purpose) * len(self.store.servers)
        if not self.lend(count):
            raise KorvetError(
                f"its Redis user needs {count} connections, and the process has not as many file descriptors left; "
                "raise the limit of open files, or lower max.connections"
            )
        try:
            async with open_access(self._access, name, passwords) as access:
                yield access
        finally:
            self.lend(-count)

    def _warn_of(self, password: Path) -> None:
        """Log once that other users may read a password."""
        if not self._has_warned and others_may_read(password):
            self._has_warned = True
            log.warning("every user of the machine may read a tenant's password; chmod o-r it", file=str(password))

    @contextmanager
    def built(self, name: str, super_users: str | None = None, access: Access | None = None) -> Iterator[Frontend]:
        """As `build`, for the time of the block: afterwards the front-end's store makes no more callbacks."""
        frontend = self.build(name, super_users, access)
        assert isinstance(frontend.store, ScopedStore)
        try:
            yield frontend
        finally:
            frontend.store.close()

    def build(self, name: str, super_users: str | None = None, access: Access | None = None) -> Frontend:
        """Build a namespace's front-end, without reading anything.

        :param super_users: a tenant's super users; by default the config file's.
        :param access: its connections; by default the process's.
        """
        whole, wakeups, shared = access or self._access
        namespace, activity, audit = Namespace(name), Activity(), Audit(name)
        store = ScopedStore(whole, namespace.prefix)
        catalog = Catalog(namespace, store, wakeups, broker_settings(self.settings, super_users), activity)
        partitions = Log(namespace, store, catalog, wakeups, shared)
        if self.tier is not None:
            self.tier.serve(namespace, catalog, partitions)
        groups = Groups(namespace, store, catalog, wakeups, self.outages, partitions)
        listeners = self.settings.listeners
        is_alone = self.settings.workers == 1 and all(one.advertised_host is None for one in listeners)
        has_others = any(one.namespace_from is not None or one.namespace != name for one in listeners)
        return Frontend(
            namespace=namespace,
            store=store,
            outages=self.outages,
            catalog=catalog,
            log=partitions,
            groups=groups,
            deliveries=Deliveries(partitions, groups.share_partitions, wakeups, self._kept_reads),
            dead_letters=DeadLetterCopies(partitions, groups.share_partitions, catalog),
            transactions=Transactions(namespace, store, catalog, partitions, groups),
            users=Users(namespace, store, wakeups),
            wakeups=wakeups,
            activity=activity,
            telemetry=Telemetry(catalog, self.telemetry_receiver),
            quotas=Quotas(namespace, store, wakeups, Windows.of(self.settings.values), lambda: self.front_ends()),
            audit=audit,
            authorizer=self._authorizer(namespace, store, wakeups, audit, super_users),
            turns=self.turns,
            sweeps=self.sweeps,
            share_sessions=ShareSessions(self.open_share_sessions, is_alone=is_alone, leaves_room=has_others),
        )

    def start_tiering(self, tasks: TaskGroup, frontend: Frontend) -> None:
        """Start to tier a namespace, if there is a tier. It needs no turn: each partition has a lease of its own."""
        if (tierer := self._tierer(frontend)) is not None:
            tasks.start_soon(tierer.run)
        elif any(is_tiered(topic.configs) for topic in frontend.catalog.topics()):
            log.warning(
                "topics are in a tier, and this korvet has none", namespace=frontend.namespace.name,
                repair="start it with the --tier of the others",
            )  # fmt: skip

    async def sweep_tier(self, frontend: Frontend) -> None:
        """Delete objects of a namespace once that are due, if there is a tier."""
        if (tierer := self._tierer(frontend)) is not None:
            await tierer.visit()

    def _tierer(self, frontend: Frontend) -> Tierer | None:
        if self.tier is None:
            return None
        from korvet.tier.tierer import Tierer

        reserve = self.shared.reserve
        return Tierer(self.tier, frontend.namespace, frontend.catalog, frontend.log, frontend.activity, reserve)

    def _authorizer(
        self, namespace: Namespace, store: Store, wakeups: Wakeups, audit: Audit, super_users: str | None
    ) -> Authorizer | None:
        """The authorizer of a namespace's requests; None if every client may do everything."""
        if not self.settings.values.text("authorizer.class.name"):
            return None
        return Authorizer(namespace, store, wakeups, audit, *self.openness(super_users))

    def openness(self, super_users: str | None = None) -> tuple[frozenset[str], bool]:
        """The super users, and whether resources without rules are open."""
        values = self.settings.values
        named = values.text(SUPER_USERS) if super_users is None else super_users
        return parse_super_users(named), values.boolean("allow.everyone.if.no.acl.found")

    def configure(self, frontend: Frontend, super_users: str | None = None) -> None:
        """Apply the settings in force to a namespace."""
        frontend.catalog.take_static(broker_settings(self.settings, super_users))
        if frontend.authorizer is not None:
            frontend.authorizer.configure(*self.openness(super_users))


def broker_settings(settings: ServeSettings, super_users: str | None = None) -> Mapping[str, str]:
    """The config file's settings. With the embedded server, a new group waits for no further members by default.

    :param super_users: a tenant's super users. A tenant sees these instead of the operator's settings.
    """
    defaults = {"group.initial.rebalance.delay.ms": "0"} if settings.redis_url is None else {}
    if super_users is None:
        return {**defaults, **settings.broker}
    shown = {
        name: value
        for name, value in settings.broker.items()
        if name not in _OPERATORS and listener_config(name) is None
    }
    return {**defaults, **shown, SUPER_USERS: super_users}


async def open_catalog(frontend: Frontend, *, has_users: bool) -> None:
    """Read the state that a namespace's front-end needs before it serves clients.

    :raises KorvetError: Redis cannot be reached, or its data cannot be served.
    """
    await frontend.catalog.open()
    await frontend.quotas.refresh()
    if frontend.authorizer is not None:
        await frontend.authorizer.refresh()
    if has_users or frontend.authorizer is not None:
        await frontend.users.open()


def start_following(tasks: TaskGroup, frontend: Frontend, *, has_users: bool) -> None:
    """Start the tasks that keep a namespace's views current, and those that follow its clients' requests."""
    if has_users:
        tasks.start_soon(frontend.users.follow)
    tasks.start_soon(frontend.catalog.follow)
    tasks.start_soon(frontend.quotas.follow)
    tasks.start_soon(frontend.quotas.report)
    if frontend.authorizer is not None:
        tasks.start_soon(frontend.authorizer.follow)
    tasks.start_soon(RecordInlets(frontend.namespace, frontend.catalog, frontend.log).tend)
    tasks.start_soon(frontend.groups.mirror.run)
    tasks.start_soon(frontend.deliveries.run)
    tasks.start_soon(frontend.dead_letters.run)
    tasks.start_soon(_archive_follower(frontend).follow)


def _archive_follower(frontend: Frontend) -> ArchiveFollower:
    follower = ArchiveFollower(frontend.namespace, frontend.catalog, frontend.log)
    frontend.groups.offsets.on_commit(ARCHIVE_GROUP, follower.committed)
    return follower


def start_sweeps(tasks: TaskGroup, frontend: Frontend, turn: SweepTurn) -> None:
    """Start a namespace's background work, done while this front-end has the turn."""
    activity, sweeps, transactions = frontend.activity, frontend.sweeps, frontend.transactions
    tasks.start_soon(maintain, frontend.namespace, frontend.catalog, frontend.log, turn, activity, sweeps)
    tasks.start_soon(keep_swept, frontend.groups, turn, sweeps["groups"])
    tasks.start_soon(transaction_sweep.keep_swept, transactions, turn, activity, sweeps["transactions"])
    tasks.start_soon(transaction_sweep.keep_closed, transactions, turn, activity, sweeps["hanging_transactions"])
