"""Opening a process's store, or a store of a further user of the same servers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import anyio

from korvet.errors import StoreUnavailable
from korvet.redis.address import RedisUrl, parse_redis_url
from korvet.redis.client import Library, Store

CONNECT_S = 30.0


def open_store(
    url: RedisUrl | str, library: Library, *, connect_timeout_s: float = CONNECT_S, counts_waits: bool = False
) -> AbstractAsyncContextManager[Store]:
    """Open a store, with all its connections up, for the block. Later it reconnects by itself.

    :param counts_waits: true if its links measure the waits for replies.
    :raises StoreUnavailable: a connection is not up in time.
    """
    parsed = parse_redis_url(url) if isinstance(url, str) else url
    return _opened(Store(parsed, library, counts_waits=counts_waits), connect_timeout_s)


def open_as(
    store: Store, user: str, password_file: Path, *, connect_timeout_s: float
) -> AbstractAsyncContextManager[Store]:
    """Open a store with its own connections for a further user of another store's servers, as `open_store` does.

    In a cluster, the servers that are up in time suffice.

    :param store: the first one, which stays open for longer.
    :param password_file: read at each login.
    :raises StoreUnavailable: a connection is not up in time, or the user is refused.
    """
    made = Store(store.url.of_user(user, password_file), store.library, first=store)
    return _opened(made, connect_timeout_s, is_part_enough=True)


@asynccontextmanager
async def _opened(store: Store, connect_timeout_s: float, *, is_part_enough: bool = False) -> AsyncIterator[Store]:
    problem = ""
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(store.run)
            with anyio.move_on_after(connect_timeout_s):
                await store.connected()
            if store.is_connected() or (is_part_enough and store.is_partly_connected()):
                yield store
            else:
                problem = store.problem
            tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        # Re-raise the block's error without the task group's wrapper.
        if len(group.exceptions) == 1:
            raise group.exceptions[0] from None
        raise
    if problem:
        raise StoreUnavailable(f"{store.url}: {problem}")
