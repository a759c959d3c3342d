"""The supervisor's rounds over topics, groups and transactions, for the namespaces that one of its workers has the turn
to sweep. So one supervisor reports each namespace, in a process that serves no clients.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Final, NamedTuple

import anyio
import structlog
from anyio.abc import TaskStatus

from korvet.api.shared.context import Frontend
from korvet.errors import KorvetError
from korvet.metrics.rounds.round import Watched, sample
from korvet.metrics.samples import Samples
from korvet.redis.client import Store
from korvet.server.ground.settings import ServeSettings
from korvet.server.processes.board import Board
from korvet.server.tenants.process import Process
from korvet.store.library import open_store

log = structlog.get_logger()

_INTERVAL_S: Final = 10.0
_SOON_S: Final = 1.0


class _Open(NamedTuple):
    """A namespace that is open for rounds, until its scope is cancelled."""

    watched: Watched
    scope: anyio.CancelScope


async def make_rounds(settings: ServeSettings, redis_url: str, board: Board) -> None:
    """Make a round every ten seconds or less often, until cancelled. There is none while Redis is unavailable."""
    while True:
        # It is tried again as long as the workers try.
        with suppress(KorvetError):
            async with open_store(redis_url) as store:
                await _make_rounds(settings, store, board)
        await anyio.sleep(_SOON_S)


async def _make_rounds(settings: ServeSettings, store: Store, board: Board) -> None:
    process, most_series = Process(settings, store), settings.values.integer("korvet.metrics.max.series")
    watched: dict[str, _Open] = {}
    sampled: dict[str, Samples] = {}
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(process.outages.watch)
        while True:
            turns = sorted(board.turns)
            sampled = {name: sampled[name] for name in turns if name in sampled}
            board.set_redis_samples(sampled.values())
            for name in watched.keys() - set(turns):
                watched.pop(name).scope.cancel()
            for name in turns:
                others = {other: one for other, one in sampled.items() if other != name}
                # Metrics that cannot be read are left out; the log reports the state of Redis.
                sampled = others
                with suppress(KorvetError):
                    if name not in watched:
                        watched[name] = await tasks.start(_keep_open, process, name, board)
                    left = most_series - sum(one.count for one in others.values())
                    sampled = {**others, **await _sample(watched[name].watched, left)}
                board.set_redis_samples(sampled.values())
            await anyio.sleep(_INTERVAL_S if turns else _SOON_S)


async def _keep_open(process: Process, name: str, board: Board, *, task_status: TaskStatus[_Open]) -> None:
    """Open a namespace, until the scope that it reports as started is cancelled.

    :raises KorvetError: Redis cannot be reached.
    """
    with anyio.CancelScope() as scope:
        async with _opened(process, name) as built:
            await built.catalog.open()
            watched = Watched(
                namespace=built.namespace,
                store=built.store,
                catalog=built.catalog,
                log=built.log,
                groups=built.groups,
                lags=board.lags,
            )
            task_status.started(_Open(watched, scope))
            await anyio.sleep_forever()


@asynccontextmanager
async def _opened(process: Process, name: str) -> AsyncIterator[Frontend]:
    if any(one.namespace == name for one in process.settings.listeners if one.namespace_from is None):
        with process.built(name) as frontend:
            yield frontend
    else:
        async with process.open_tenant(name) as frontend:
            yield frontend


async def _sample(watched: Watched, most: int) -> Mapping[str, Samples]:
    """The figures of a namespace by its name; nothing after an unexpected error, which must not end the broker.

    :raises KorvetError: Redis cannot be reached.
    """
    name = watched.namespace.name
    try:
        return {name: await sample(watched, most)}
    except KorvetError:
        raise
    except Exception as error:
        log.error("metrics of topics and groups cannot be read", namespace=name, exc_info=error)
        return {}
