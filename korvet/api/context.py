"""What a handler knows: the front-end it runs in, and who asks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from korvet.api.nodes import Nodes
    from korvet.store.catalog import Catalog
    from korvet.store.client import Store
    from korvet.store.groups import Groups
    from korvet.store.keys import Namespace
    from korvet.store.log import Log, Partition
    from korvet.store.outages import Outages
    from korvet.store.transactions import Transactions
    from korvet.store.wakeup import Wakeups


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """A door: where it listens, under which address and as which brokers clients find it, and who comes through it.

    With ``proxy_protocol`` a load balancer says, before each connection's first byte, whose connection it is.
    """

    host: str
    port: int
    advertised_host: str
    advertised_port: int
    nodes: Nodes
    proxy_protocol: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontend:
    """One front-end process: what all its connections share.

    ``draining`` is set when the process is asked to stop, and everyone who waits in `Wakeups` is woken: what is parked
    answers with what there is (a Fetch) or with COORDINATOR_NOT_AVAILABLE (a join), so that its client goes elsewhere.
    """

    namespace: Namespace
    store: Store
    outages: Outages
    catalog: Catalog
    log: Log
    groups: Groups
    transactions: Transactions
    wakeups: Wakeups
    draining: anyio.Event = field(default_factory=anyio.Event)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One request's circumstances. ``principal`` is ``User:ANONYMOUS`` until listeners authenticate.

    A connection's requests of one API, version and client id share a context; ``fetched`` are the partitions whose
    Redis groups were seen to by one of these. ``target_port`` is the one of the balancer's ports that the client
    connected to, None where nobody told.
    """

    frontend: Frontend
    listener: Listener
    principal: str
    client_host: str
    client_id: str | None
    api_key: int
    version: int
    target_port: int | None = None
    fetched: set[Partition] = field(default_factory=set, compare=False)
