"""The log's interface to a batch's transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from korvet.store.log.state.partition import Partition


class Membership(Protocol):
    """The transaction that a batch belongs to."""

    @property
    def transactional_id(self) -> str:
        """The transaction's id."""

    @property
    def joins(self) -> bool:
        """True if batches add their partitions to the transaction."""

    async def ordinals(self, partitions: Sequence[Partition]) -> Sequence[tuple[int, int]]:
        """For each partition a code and, if 0, the ordinal of the open transaction that contains it.

        :raises StoreUnavailable, StoreFull, StoreError:
        """
