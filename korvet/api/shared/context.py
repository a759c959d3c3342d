"""A handler's context: the front-end it runs in, and the client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

import anyio

from korvet.api.shared.loop_turns import SLICE, LoopTurns
from korvet.api.shared.share_sessions import Opener, ShareSessions
from korvet.api.shared.telemetry import Peer, Telemetry, shown
from korvet.configs.client_metrics import Traits
from korvet.redis.reply import in_task
from korvet.security.protocol import Security
from korvet.store.every import Sweeps

if TYPE_CHECKING:
    from uuid import UUID

    from korvet.api.shared.nodes import Nodes
    from korvet.quotas.quotas import Quotas
    from korvet.redis.client import Store
    from korvet.redis.wakeup import Wakeups
    from korvet.security.audit import Audit
    from korvet.security.authorizer import Authorizer
    from korvet.security.rights import Rights
    from korvet.security.sasl import Login
    from korvet.store.activity import Activity
    from korvet.store.catalog.catalog import Catalog
    from korvet.store.groups.groups import Groups
    from korvet.store.keys import Namespace
    from korvet.store.log.log import Log
    from korvet.store.log.memory.budget import Share
    from korvet.store.log.state.partition import Partition
    from korvet.store.outages import Outages
    from korvet.store.security.users import Users
    from korvet.store.shares.dead_letters import DeadLetterCopies
    from korvet.store.shares.delivery import Deliveries
    from korvet.store.transactions.transactions import Transactions

T = TypeVar("T")
R = TypeVar("R")

AT_ONCE: Final = 50
"""The number of groups or transactions of one request that are handled at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """A listener: its name, its address, the address and the brokers that clients see, and its connections.

    With ``proxy_protocol`` a load balancer sends a header with the client's address before each connection's first
    byte. ``sasl`` are the mechanisms for logins; empty without logins.
    """

    host: str
    port: int
    advertised_host: str
    advertised_port: int
    nodes: Nodes
    name: str = "default"
    security: Security = Security.PLAINTEXT
    proxy_protocol: bool = False
    sasl: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontend:
    """One front-end process: the state that all its connections share.

    ``draining`` is set when the process has to stop, and every waiter in `Wakeups` wakes. A waiting Fetch is then
    answered with the records it has, and a parked join with COORDINATOR_NOT_AVAILABLE, so that its client goes
    elsewhere. ``authorizer`` is None if every client may do everything.
    """

    namespace: Namespace
    store: Store
    outages: Outages
    catalog: Catalog
    log: Log
    groups: Groups
    deliveries: Deliveries
    dead_letters: DeadLetterCopies
    transactions: Transactions
    users: Users
    wakeups: Wakeups
    activity: Activity
    quotas: Quotas
    telemetry: Telemetry
    audit: Audit
    authorizer: Authorizer | None = None
    sweeps: Sweeps = field(default_factory=Sweeps)
    draining: anyio.Event = field(default_factory=anyio.Event)
    turns: LoopTurns = field(default_factory=LoopTurns)
    share_sessions: ShareSessions = field(default_factory=ShareSessions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The context of one request. ``principal`` is the client's, as ``User:name``; ``User:ANONYMOUS`` has no
    credentials. ``login`` is the connection's login, at a listener with SASL.

    A connection's requests of one API, version and client id share a context. ``fetched`` are the partitions for which
    one of these requests attached Redis groups. ``target`` is the node that the client connected to, by its id or the
    balancer's port, None if unknown. ``share`` is the connection's part of the bound on answers' bytes. ``rights`` is
    None if every client may do everything. All requests of a connection share ``peer`` and ``share_opener``.
    """

    frontend: Frontend
    listener: Listener
    principal: str
    client_host: str
    client_id: str | None
    api_key: int
    version: int
    target: int | None = None
    fetched: set[Partition] = field(default_factory=set, compare=False)
    login: Login | None = field(default=None, compare=False)
    share: Share | None = field(default=None, compare=False)
    rights: Rights | None = field(default=None, compare=False)
    peer: Peer = field(default_factory=Peer, compare=False)
    share_opener: Opener = field(default_factory=Opener, compare=False)

    def traits(self, id: UUID) -> Traits:
        """The client's traits as a client instance with this id."""
        port = self.peer.port
        return Traits(
            client_instance_id=shown(id),
            client_id=self.client_id,
            client_software_name=self.peer.software_name,
            client_software_version=self.peer.software_version,
            client_source_address=self.client_host,
            client_source_port=None if port is None else str(port),
        )

    async def gathered(self, things: Sequence[T], call: Callable[[T], Awaitable[R]]) -> list[R]:
        """The results of a call for each item, some at a time, so that other requests get their turns."""
        if len(things) == 1:
            return [await call(things[0])]
        await in_task()
        found: list[R] = []
        async for some in self.sliced(things, AT_ONCE):
            found += await asyncio.gather(*map(call, some))
        return found

    def paced(self, things: Iterable[T]) -> AsyncIterator[T]:
        """The items one by one, with a turn for other requests after every few hundred."""
        return self.frontend.turns.paced(things)

    def sliced(self, things: Sequence[T], size: int = SLICE) -> AsyncIterator[Sequence[T]]:
        """The items in slices, with a turn for other requests before each slice but the first."""
        return self.frontend.turns.sliced(things, size=size)
