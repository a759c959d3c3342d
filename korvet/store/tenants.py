"""A front-end's view of the tenants: the namespaces that clients may choose, their states and their limits.

The view has all tenants, so a choice asks Redis nothing: its time tells nobody which tenants there are. It follows the
channel of the tenants' key.
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from korvet.redis.client import Purpose, Store
from korvet.redis.wakeup import Wakeups
from korvet.store.every import every
from korvet.store.keys import TENANTS

_REFRESH_S: Final = 3.0
"""A deletion waits for front-ends longer than this (`korvet.cli.tenant_deletion`)."""
_UNKNOWN_VERSION: Final = -1
_SECRET_BYTES: Final = 32


class State(StrEnum):
    """A tenant's state; clients get into an active one alone."""

    ACTIVE = "active"
    SUSPENDED = "suspended"
    DELETING = "deleting"


class Limit(StrEnum):
    """What a tenant's limits are for."""

    TOPICS = "topics"
    PARTITIONS = "partitions"
    GROUPS = "groups"
    TRANSACTIONAL_IDS = "transactional-ids"
    CONNECTIONS = "connections"
    BYTES = "bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A tenant as the registry has it. ``id`` tells it from a later one of the same name."""

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
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"no tenant: {error}") from None


def parse_tenants(flat: Sequence[bytes]) -> dict[str, Tenant]:
    """The tenants of a reply, by their names; a field that korvet did not write is no tenant."""
    found: dict[str, Tenant] = {}
    for field_name, text in zip(flat[::2], flat[1::2], strict=True):
        with suppress(ValueError):
            name = field_name.decode()
            found[name] = parse_tenant(name, text)
    return found


class Tenants:
    """All tenants, as last read.

    :raises StoreUnavailable, StoreFull, StoreError: `open` and `refresh`.
    """

    def __init__(self, store: Store, wakeups: Wakeups) -> None:
        self._store = store
        self._wakeups = wakeups
        self._version = _UNKNOWN_VERSION
        self._known: Mapping[str, Tenant] = MappingProxyType({})
        self._watchers: list[Callable[[], None]] = []
        self.secret = b""
        """A secret that is the same at every front-end; empty before `open`."""
        store.on_history_change(self._distrust)

    def active(self, name: str) -> Tenant | None:
        """The tenant of a name, if clients may get into it."""
        tenant = self._known.get(name)
        return tenant if tenant is not None and tenant.state is State.ACTIVE else None

    def ids(self) -> Set[str]:
        """The ids of the active tenants."""
        return {tenant.id for tenant in self._known.values() if tenant.state is State.ACTIVE}

    def names(self) -> Sequence[str]:
        """The names of the active tenants."""
        return [name for name, tenant in self._known.items() if tenant.state is State.ACTIVE]

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call ``watcher`` after each change of the view."""
        self._watchers.append(watcher)

    async def open(self) -> None:
        """Read the secret and all tenants."""
        proposed = base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()
        _, secret = await self._store.call_function(
            Purpose.COORDINATE, "korvet_security_secret", [TENANTS.secret], proposed=proposed
        )
        self.secret = base64.b64decode(secret)
        await self.refresh()

    async def follow(self) -> None:
        """Keep the view current until cancelled: read at each announced change, and every 3 s."""
        complaint = "the tenants cannot be read; those last known count"
        await every(0.0, self._follow, complaint, has_told=self._store.has_told)

    async def _follow(self) -> None:
        with self._wakeups.listen([TENANTS.tenants]) as listening:
            await listening.ready()
            await self.refresh()
            await listening.wait(_REFRESH_S)

    async def refresh(self) -> None:
        """Read the tenants; nothing is transferred if the version is the known one."""
        known = self._version
        _, version, flat = await self._store.call_function(
            Purpose.COORDINATE, "korvet_tenants_read", [TENANTS.tenants], known_version=known
        )
        if version != known:
            self._known = MappingProxyType(parse_tenants(flat))
            # If history changed meanwhile, the answer may be of the former one: ask for everything again.
            self._version = version if self._version == known else _UNKNOWN_VERSION
            for watcher in self._watchers:
                watcher()

    def _distrust(self) -> None:
        """Forget the known version: after history went back, it may come again with other tenants."""
        self._version = _UNKNOWN_VERSION
