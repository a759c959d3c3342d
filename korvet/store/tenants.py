"""A front-end's view of the tenants: the namespaces that clients may choose, their states and their limits.

The view has all tenants, so a choice makes no call to Redis, and its duration does not reveal which tenants exist. It
follows the channel of the tenants' key.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from korvet.redis.client import Store
from korvet.redis.wakeup import Wakeups
from korvet.store.followed import Followed, read_secret
from korvet.store.keys import TENANTS

REFRESH_S: Final = 3.0
"""A deletion waits for front-ends longer than this (`korvet.cli.redis.tenant_deletion`)."""


_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")


def is_tenant_name(name: str) -> bool:
    """True for a valid tenant name: at most 40 of a-z, 0-9 and '-', without '-' at its ends."""
    return _NAME.fullmatch(name) is not None


def redis_user_of(name: str) -> str:
    """The Redis user with access to one tenant's keys only."""
    return f"korvet-{name}"


class State(StrEnum):
    """A tenant's state; clients may enter only an active one."""

    ACTIVE = "active"
    SUSPENDED = "suspended"
    DELETING = "deleting"


class TenantLimit(StrEnum):
    """The subjects of a tenant's limits."""

    TOPICS = "topics"
    PARTITIONS = "partitions"
    GROUPS = "groups"
    TRANSACTIONAL_IDS = "transactional-ids"
    CONNECTIONS = "connections"
    BYTES = "bytes"
    PRODUCER_BYTE_RATE = "producer-byte-rate"
    CONSUMER_BYTE_RATE = "consumer-byte-rate"
    REQUEST_PERCENTAGE = "request-percentage"
    CONTROLLER_MUTATION_RATE = "controller-mutation-rate"
    CONNECTION_RATE = "connection-rate"


RATES: Final = (
    TenantLimit.PRODUCER_BYTE_RATE,
    TenantLimit.CONSUMER_BYTE_RATE,
    TenantLimit.REQUEST_PERCENTAGE,
    TenantLimit.CONTROLLER_MUTATION_RATE,
    TenantLimit.CONNECTION_RATE,
)
"""Limits that are never 0, as quotas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A tenant of the registry. ``id`` distinguishes it from a later one of the same name."""

    name: str
    id: str
    state: State
    created_ms: int
    limits: Mapping[str, int] = field(default_factory=dict)
    super_users: str = ""


def parse_tenant(name: str, text: bytes) -> Tenant:
    """The tenant of a text in Redis.

    :raises ValueError: if it is none.
    """
    try:
        found = json.loads(text)
        return Tenant(
            name=name,
            id=str(found["id"]),
            state=State(found["state"]),
            created_ms=int(found["created_ms"]),
            limits={str(limit): int(number) for limit, number in dict(found["limits"]).items()},
            super_users=str(found["super_users"]),
        )
    except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"no tenant: {error}") from None


def parse_tenants(flat: Sequence[bytes]) -> dict[str, Tenant]:
    """The tenants of a reply, by their names; a field that korvet did not write is no tenant."""
    found: dict[str, Tenant] = {}
    for field_name, text in zip(flat[::2], flat[1::2], strict=True):
        with suppress(ValueError):
            name = field_name.decode()
            found[name] = parse_tenant(name, text)
    return found


class Tenants(Followed):
    """All tenants, as last read.

    :raises StoreUnavailable, StoreFull, StoreError: `open` and `refresh`.
    """

    def __init__(self, store: Store, wakeups: Wakeups) -> None:
        complaint = "the tenants cannot be read; those last known count"
        super().__init__(store, wakeups, TENANTS, "tenants", complaint, REFRESH_S)
        self._known: Mapping[str, Tenant] = MappingProxyType({})
        self.secret = b""
        """A secret that is the same at every front-end; empty before `open`."""

    def active(self, name: str) -> Tenant | None:
        """The tenant of a name, if clients may enter it."""
        tenant = self._known.get(name)
        return tenant if tenant is not None and tenant.state is State.ACTIVE else None

    def ids(self) -> Set[str]:
        """The ids of the active tenants."""
        return {tenant.id for tenant in self._known.values() if tenant.state is State.ACTIVE}

    def names(self) -> Sequence[str]:
        """The names of the active tenants."""
        return [name for name, tenant in self._known.items() if tenant.state is State.ACTIVE]

    async def open(self) -> None:
        """Read the secret and all tenants."""
        self.secret = await read_secret(self._store, TENANTS.secret)
        await self.refresh()

    async def _take(self, fields: Sequence[bytes]) -> None:
        self._known = MappingProxyType(parse_tenants(fields))
