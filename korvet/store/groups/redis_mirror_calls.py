"""The calls that attach, move and detach Redis groups, and the log line about the failed ones."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, Final

import structlog

from korvet.redis.client import Named, Purpose, Store
from korvet.store.groups.call import GroupCalls
from korvet.store.groups.redis_mirror_portions import Portion
from korvet.store.groups.types import TopicPartition, partition_of
from korvet.store.keys import Namespace

log = structlog.get_logger()

_KEYS_KEPT: Final = 10_000
_QUIET_S: Final = 10.0


class RedisGroupCalls:
    """The calls about one namespace's Redis groups."""

    def __init__(self, namespace: Namespace, store: Store, groups: GroupCalls) -> None:
        self._store = store
        self._groups = groups
        self._partition = lru_cache(_KEYS_KEPT)(namespace.partition)
        self._now = asyncio.get_running_loop().time
        self._quiet_until = 0.0

    def call(self, function: str, keys: Sequence[str], **named: Named) -> Awaitable[Any]:
        """Call a function of a partition or a reader."""
        return self._store.call_function(Purpose.COORDINATE, function, keys, **named)

    def remember(self, portion: Portion, mirror: str) -> Awaitable[Any]:
        """Record the partitions in the group. The reply has the offsets for their Redis groups."""
        flat = list(chain.from_iterable(portion.partitions))
        return self._groups.call("korvet_group_attach", portion.group_id, mirror=mirror, partitions=flat)

    def attach(
        self, group_id: str, partition: TopicPartition, topic_id: str, offset: int | bytes, mode: str
    ) -> Awaitable[Any]:
        keys = self._partition(*partition)
        return self.call("korvet_log_attach", keys, topic_id=topic_id, group_id=group_id, offset=offset, mode=mode)

    def detach(self, group_id: str, partition: str, topic_id: str) -> Awaitable[Any]:
        keys = self._partition(*partition_of(partition))
        return self.call("korvet_log_detach", keys, topic_id=topic_id, group_id=group_id)

    def failed(self, error: BaseException) -> None:
        """Log a failure, at most once in ten seconds."""
        if self._now() >= self._quiet_until:
            self._quiet_until = self._now() + _QUIET_S
            log.warning("redis groups cannot follow; they are tried again", reason=str(error) or "no answer in time")
