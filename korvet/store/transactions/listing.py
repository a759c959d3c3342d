"""All transactional ids of a namespace, from its shards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Final

from korvet.errors import KorvetError, StoreError
from korvet.redis.client import Purpose, Store
from korvet.store.groups.replies import text
from korvet.store.keys import TRANSACTION_SHARDS, Namespace
from korvet.store.outcomes import Wanted, outcomes
from korvet.store.transactions.types import Listed

_AT_ONCE: Final = 1000

Found = tuple[Sequence[Listed], Mapping[str, StoreError]]


async def listed(namespace: Namespace, store: Store, wanted: Wanted) -> Found:
    """Every transactional id, and the errors of the unreadable ones.

    Each shard is read in pages of a thousand ids, by deadline. In a larger shard, an id may be missed if its deadline
    moves meanwhile.

    :param wanted: selects the ids to read.
    :raises StoreUnavailable, StoreError: a shard cannot be read.
    """
    shards = await asyncio.gather(*(_in_shard(namespace, store, shard, wanted) for shard in range(TRANSACTION_SHARDS)))
    unreadable = {name: error for _, failed in shards for name, error in failed.items()}
    return [one for found, _ in shards for one in found], unreadable


async def _windows(namespace: Namespace, store: Store, shard: int) -> AsyncIterator[Sequence[str]]:
    key = namespace.transaction_deadlines(shard)
    for first in count(0, _AT_ONCE):
        window = await store.call(Purpose.COORDINATE, key, "ZRANGE", key, first, first + _AT_ONCE - 1)
        yield [text(one) for one in window if one]
        if len(window) < _AT_ONCE:
            break


async def ids_of(namespace: Namespace, store: Store, shard: int) -> Sequence[str]:
    """The transactional ids of a shard.

    :raises StoreUnavailable, StoreError: the shard cannot be read.
    """
    return [one async for ids in _windows(namespace, store, shard) for one in ids]


async def _in_shard(namespace: Namespace, store: Store, shard: int, wanted: Wanted) -> Found:
    found: dict[str, Listed] = {}
    unreadable: dict[str, StoreError] = {}
    async for window in _windows(namespace, store, shard):
        ids = await wanted(window)
        states = await outcomes(partial(_state, namespace, store, one) for one in ids)
        for one, outcome in zip(ids, states, strict=True):
            if isinstance(outcome, StoreError):
                unreadable[one] = outcome
            elif isinstance(outcome, KorvetError):
                raise outcome
            elif outcome is not None:
                found[one] = outcome
    return list(found.values()), unreadable


async def _state(namespace: Namespace, store: Store, transactional_id: str) -> Listed | None:
    key = namespace.transaction(transactional_id).id
    fields = ("state", "producer_id", "started_ms")
    state, producer_id, started_ms = await store.call(Purpose.COORDINATE, key, "HMGET", key, *fields)
    if state is None:
        return None
    return Listed(transactional_id, text(state), int(producer_id), int(started_ms or -1))
