"""The transaction that a batch belongs to, as the log asks for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from korvet.store.log.partition import Partition


class Membership(Protocol):
    """The transaction that a batch belongs to."""

    @property
    def transactional_id(self) -> str:
        """Whose transaction it is."""

    @property
    def joins(self) -> bool:
        """Whether partitions come into the transaction by its batches."""

    async def ordinals(self, partitions: Sequence[Partition]) -> Sequence[tuple[int, int]]:
        """For each partition a code and, if that is 0, the ordinal of the open transaction, which it is in.

        :raises StoreUnavailable, StoreFull, StoreError:
        """
