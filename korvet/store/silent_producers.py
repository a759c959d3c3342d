"""Producers that were silent for long are forgotten, so that those that came and went do not fill the memory.

A partition's function notes the end of its log now and then, so that a producer whose last batch lies below an end that
was noted long ago is known to be silent for that long. Any front-end may do it at any time.

Source: UnifiedLog.removeExpiredProducers, ProducerStateManagerConfig
"""

from __future__ import annotations

from korvet.store.catalog import Catalog
from korvet.store.client import Purpose
from korvet.store.log import Log, Partition

_MAX_CALLS = 10_000


def expiration_ms_of(catalog: Catalog) -> int:
    """How long a silent producer is remembered: no shorter than the longest transaction, in which it may be silent."""
    names = ("producer.id.expiration.ms", "transaction.max.timeout.ms")
    return max(int(catalog.setting(None, name)) for name in names)


async def forget_silent_producers(log: Log, partition: Partition, expiration_ms: int) -> None:
    """Forget the producers of one partition that were silent for so long, but none with an open transaction.

    :raises StoreUnavailable, StoreError:
    """
    is_first: int | str = 1
    for _ in range(_MAX_CALLS):
        _, more = await log.store.fcall(
            Purpose.APPEND,
            "korvet_log_forget_producers",
            partition.transaction_keys,
            partition.topic_id,
            expiration_ms,
            is_first,
        )
        if not more:
            return
        is_first = ""
