"""Offsets that groups hold for open transactions. The end of the transaction commits them or forgets them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from korvet.errors import KorvetError
from korvet.redis.client import Purpose, Store
from korvet.store.catalog.catalog import Catalog
from korvet.store.groups import replies
from korvet.store.groups.call import GroupCalls
from korvet.store.groups.offsets import Offsets, portions, retention_ms
from korvet.store.groups.types import CommitRequest
from korvet.store.outcomes import Failures, settled


class HoldingTransaction(NamedTuple):
    """An open transaction whose offsets a group holds."""

    producer_id: int
    ordinal: int
    transactional_id: str


class HeldOffsets:
    """The offsets that one namespace's groups hold for open transactions."""

    def __init__(self, calls: GroupCalls, store: Store, catalog: Catalog, offsets: Offsets) -> None:
        self._calls = calls
        self._store = store
        self._catalog = catalog
        self._offsets = offsets

    async def hold(
        self, request: CommitRequest, transactional_id: str, producer_id: int, producer_epoch: int, ordinal: int
    ) -> int:
        """Hold offsets that a transaction commits when it is committed; the code is for all of them."""
        code = 0
        for some in portions(request):
            code = await self._calls.call(
                "korvet_group_txn_commit",
                request.group_id,
                member_id=request.member_id,
                instance_id=request.instance_id or "",
                generation=request.generation,
                retention=retention_ms(self._catalog),
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                ordinal=ordinal,
                transactional_id=transactional_id,
                offsets=some,
            )
            if code != 0:
                break
        return code

    async def release(self, group_id: str, producer_id: int, ordinal: int, *, is_commit: bool) -> None:
        """Commit the offsets that a transaction holds, or forget them. May be repeated."""
        more = [1]
        while more:
            _, flat, *more = await self._calls.call(
                "korvet_group_txn_end",
                group_id,
                producer_id=producer_id,
                ordinal=ordinal,
                decision="commit" if is_commit else "abort",
            )
            partitions = map(replies.topic_partition, flat[::2])
            self._offsets.committed(group_id, list(zip(partitions, map(replies.text, flat[1::2]), strict=True)))

    async def check(self, group_id: str, joined: str) -> int:
        """0 if a group still holds all offsets that a transaction sent to it.

        :param joined: the replication id of its server when it came into the transaction; empty if that is not known.
        """
        code: int = await self._calls.call("korvet_group_txn_check", group_id, joined=joined)
        return code

    async def holding(self, failures: Failures) -> Sequence[str]:
        """Groups that hold offsets of open transactions. A group that cannot be read adds to ``failures``.

        :raises StoreUnavailable: the index of groups cannot be read.
        """
        found: list[str] = []
        for some in await self._calls.index.group_ids():
            keys = [self._calls.keys(group_id).group for group_id in some]
            calls = (self._store.call(Purpose.COORDINATE, key, "HGET", key, "transactions") for key in keys)
            for group_id, count in zip(some, await settled(calls), strict=True):
                if isinstance(count, KorvetError):
                    failures.append(count)
                elif int(count or 0) > 0:
                    found.append(group_id)
        return found

    async def transactions_of(self, group_id: str) -> Sequence[HoldingTransaction]:
        """The open transactions whose offsets a group holds."""
        cursor = b"0"
        found: set[HoldingTransaction] = set()
        while True:
            cursor, some = await self._calls.call("korvet_group_transactions", group_id, cursor=cursor)
            found.update(
                HoldingTransaction(producer_id, ordinal, replies.text(name)) for producer_id, ordinal, name in some
            )
            if cursor == b"0":
                return sorted(found)
