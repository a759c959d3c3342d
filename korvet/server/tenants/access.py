"""The connections through which a namespace's front-end reaches Redis: the process's own, or those of a tenant's user.

With a directory of passwords each tenant's namespace has connections of its own while it is open. They log in as the
Redis user ``korvet-NAME``, which reaches no other namespace. So Redis itself refuses a key that a mistake names. A
tenant without a password is not served.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from korvet.errors import KorvetError, StoreUnavailable
from korvet.redis.client import Store
from korvet.redis.opening import open_as
from korvet.redis.wakeup import Wakeups
from korvet.store import rights
from korvet.store.keys import Namespace
from korvet.store.log.shared import Shared
from korvet.store.tenants import is_tenant_name, redis_user_of

_CONNECT_S: Final = 5.0


class Access(NamedTuple):
    """The store of one user, its wake-ups, and what logs share at it."""

    store: Store
    wakeups: Wakeups
    shared: Shared


@asynccontextmanager
async def open_access(first: Access, name: str, passwords: Path) -> AsyncIterator[Access]:
    """Connections of a tenant's own user, for the time of the block.

    :param first: the process's own, which stays open for longer.
    :param passwords: a directory; a file with the tenant's name has the password.
    :raises KorvetError: there is no password, Redis refuses it, the user lacks rights, or Redis is away.
    """
    if not is_tenant_name(name):
        raise KorvetError(f"{name[:100]!r} is no tenant's name")
    user = redis_user_of(name)
    async with open_as(first.store, user, passwords / name, connect_timeout_s=_CONNECT_S) as store:
        lacking: list[rights.Missing] = []
        # A server that is away judges nothing.
        with suppress(StoreUnavailable):
            lacking = await rights.lacking(store, Namespace(name), loads=False)
        if lacking:
            raise KorvetError(
                f"Redis user {user} lacks rights: {lacking[0].reason}. Make it anew: korvet tenants redis-user {name}"
            )
        wakeups = Wakeups(store)
        yield Access(store, wakeups, first.shared.beside(store, wakeups))
