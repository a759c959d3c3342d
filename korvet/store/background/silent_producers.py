"""The forgetting of producers that were silent for long, which would fill the memory.

A partition's function notes the end of its log now and then. A producer whose last batch lies below an end that was
noted long ago was silent for that long. Any front-end may forget producers at any time.

Source: UnifiedLog.removeExpiredProducers, ProducerStateManagerConfig
"""

from __future__ import annotations

from korvet.redis.client import Purpose
from korvet.store.catalog.catalog import Catalog
from korvet.store.log.log import Log
from korvet.store.log.partition import Partition

_MAX_CALLS = 10_000


def expiration_ms_of(catalog: Catalog) -> int:
    """The time for which partitions remember a silent producer: at least the longest transaction, in which it may be
    silent."""
    names = ("producer.id.expiration.ms", "transaction.max.timeout.ms")
    return max(int(catalog.setting(None, name)) for name in names)


async def forget_silent_producers(log: Log, partition: Partition, expiration_ms: int) -> None:
    """Forget the producers of one partition that were silent for so long, but none with an open transaction.

    :raises StoreUnavailable, StoreError:
    """
    is_first: int | str = 1
    for _ in range(_MAX_CALLS):
        _, more = await log.store.call_function(
            Purpose.APPEND,
            "korvet_log_forget_producers",
            partition.transaction_keys,
            topic_id=partition.topic_id,
            expiration_ms=expiration_ms,
            is_first=is_first,
        )
        if not more:
            return
        is_first = ""
