"""The supervisor's rounds over the topics, groups and transactions of those namespaces of which a worker has the turn
to sweep. So one front-end of a namespace tells of them, in a process that serves no clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Final

import anyio
import structlog

from korvet.api.shared.context import Frontend
from korvet.errors import KorvetError
from korvet.metrics.rounds.round import Watched, look
from korvet.metrics.samples import Samples
from korvet.redis.client import Store
from korvet.redis.scoped import ScopedStore
from korvet.server.board import Board
from korvet.server.process import Process
from korvet.server.settings import ServeSettings
from korvet.store.library import open_store

log = structlog.get_logger()

_INTERVAL_S: Final = 10.0
_SOON_S: Final = 1.0


async def make_rounds(settings: ServeSettings, redis_url: str, board: Board) -> None:
    """Make a round every ten seconds, or as long as it takes, until cancelled. While Redis is away there is none."""
    while True:
        # It is tried again as long as the workers try.
        with suppress(KorvetError):
            async with open_store(redis_url) as store:
                await _make_rounds(settings, store, board)
        await anyio.sleep(_SOON_S)


async def _make_rounds(settings: ServeSettings, store: Store, board: Board) -> None:
    process = Process(settings, store)
    watched: dict[str, Watched] = {}
    told: dict[str, Samples] = {}
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(process.outages.watch)
        while True:
            turns = sorted(board.turns)
            told = {name: told[name] for name in turns if name in told}
            board.tell_of_redis(told.values())
            for name in watched.keys() - set(turns):
                _close(watched.pop(name))
            for name in turns:
                others = {other: one for other, one in told.items() if other != name}
                # What cannot be read is not told of; a line of the log tells of Redis.
                told = others
                with suppress(KorvetError):
                    if name not in watched:
                        watched[name] = await _watched(process.build(name), board)
                    left = settings.most_series - sum(one.count for one in others.values())
                    told = {**others, **await _look(watched[name], left)}
                board.tell_of_redis(told.values())
            await anyio.sleep(_INTERVAL_S if turns else _SOON_S)


async def _watched(built: Frontend, board: Board) -> Watched:
    await built.catalog.open()
    return Watched(
        namespace=built.namespace,
        store=built.store,
        catalog=built.catalog,
        log=built.log,
        groups=built.groups,
        lags=board.lags,
    )


def _close(watched: Watched) -> None:
    assert isinstance(watched.store, ScopedStore)
    watched.store.close()


async def _look(watched: Watched, most: int) -> Mapping[str, Samples]:
    """The figures of a namespace by its name; nothing after an unexpected error, which must not end the broker.

    :raises KorvetError: Redis cannot be asked.
    """
    name = watched.namespace.name
    try:
        return {name: await look(watched, most)}
    except KorvetError:
        raise
    except Exception as error:
        log.error("topics and groups cannot be told", namespace=name, exc_info=error)
        return {}
