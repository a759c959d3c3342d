"""State shared by the logs of all namespaces of a process: bounds of memory, and the state of Redis's servers."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import Final

from korvet.redis.client import Store
from korvet.store.log.memory.budget import AnswerBudget
from korvet.store.log.memory.cache import BatchCache
from korvet.store.log.memory.fair_queue import FairQueues
from korvet.store.log.partitions.damage import Damage
from korvet.store.log.partitions.replicas import Replicas
from korvet.store.memory import Reserve
from korvet.store.threads import FairThreads

DEFAULT_CACHE_BYTES: Final = 192 << 20
"""The batches that are kept for readers."""
_DECODERS: Final = 3
"""The most batches opened at once; each may take `korvet.wire.records.MOST_BYTES`, and twice that for a moment."""
_MOST_DECODERS_OF_ONE: Final = 2
"""The most of one namespace, so that a slow one leaves a thread to others."""


@dataclass(slots=True)
class Reads:
    """The number of partition reads by the source of the answer.

    ``entries``: entries from memory, batches from Redis; ``redis``: both from Redis; ``tier``: from segments.
    """

    memory: int = 0
    entries: int = 0
    redis: int = 0
    tier: int = 0


class Shared:
    """One for each store of a process.

    :param store: the whole store, for the keys of all namespaces.
    :param answers: the bound for the bytes of answers.
    :param cache_bytes: the bound for the batches that are kept for readers.
    """

    def __init__(
        self,
        store: Store,
        *,
        answers: AnswerBudget | None = None,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
    ) -> None:
        self.cache = BatchCache(cache_bytes)
        self.answers = answers or AnswerBudget()
        self.reads = Reads()
        self.fair_queues = FairQueues()
        self.decoders = FairThreads(_DECODERS, _MOST_DECODERS_OF_ONE)
        self.replicas = Replicas(store)
        self.reserve = Reserve(store)
        self.damage = Damage(store)

    def beside(self, store: Store) -> Shared:
        """The same bounds for logs at the store of a further user of the same servers."""
        other = copy(self)
        other.replicas, other.damage = Replicas(store), Damage(store)
        return other
