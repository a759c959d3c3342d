"""The log of every partition: append, read, end transactions, find offsets, trim.

The Lua functions of ``lua/2-log`` decide. Each module here makes the calls of one subject in their right order, on the
`Partitions` that they share.
"""

from __future__ import annotations

from collections.abc import Sequence

from korvet.errors import KorvetError, StoreError
from korvet.redis.client import Argument, Purpose
from korvet.store.contract import GONE
from korvet.store.log.appending import markers
from korvet.store.log.appending.append import Appending
from korvet.store.log.appending.markers import Ending, Producer
from korvet.store.log.appending.membership import Membership
from korvet.store.log.memory.budget import Share
from korvet.store.log.memory.room import PartitionRead, Want
from korvet.store.log.partitions.ends import stands_at_end
from korvet.store.log.partitions.meta import meta_in_reply, request_meta
from korvet.store.log.partitions.partitions import Partitions
from korvet.store.log.partitions.source import Timed
from korvet.store.log.reading.read import read
from korvet.store.log.reading.times import offset_for_time
from korvet.store.log.state.partition import Meta, Partition
from korvet.wire.batch import Batch


class Log(Partitions):
    """All logs of a namespace at one front-end."""

    def append(
        self,
        partition: Partition,
        batch: Batch,
        data: bytes | memoryview,
        membership: Membership | None = None,
        entries: Sequence[Argument] | None = None,
    ) -> Appending:
        """Append a batch. Its commands are queued before this returns; await the outcome. See `Appending`.

        :param membership: the transaction to which the batch belongs.
        :param entries: `korvet.wire.record_entries.arguments` of a batch whose records are stored one by one.
        """
        return Appending(self, partition, batch, data, membership, entries)

    async def mark(self, partition: Partition, ending: Ending) -> int:
        """End a transaction in a partition; see `korvet.store.log.appending.markers.mark`."""
        return await markers.mark(self, partition, ending)

    async def check(self, partition: Partition, joined: str, producer_id: int, ordinal: int) -> int:
        """Check that a partition still holds a transaction's records; see `markers.check`."""
        return await markers.check(self, partition, joined, producer_id, ordinal)

    async def read(
        self,
        wants: Sequence[Want],
        max_bytes: int,
        share: Share | None = None,
        *,
        is_first: bool = True,
        waits: bool = True,
    ) -> list[PartitionRead]:
        """Read partitions; see `reading.read`. Without a share the bytes are not counted afterwards."""
        if share is not None:
            return await read(self, wants, max_bytes, share, is_first=is_first, waits=waits)
        share = self.answers.share()
        try:
            return await read(self, wants, max_bytes, share)
        finally:
            share.let_go()

    def stands_at_end(self, want: Want) -> bool:
        """True if a reader is certainly at the end, and so may wait without reading."""
        return stands_at_end(self, want)

    async def metas(self, partitions: Sequence[Partition]) -> list[Meta | KorvetError | None]:
        """Offsets and epochs of partitions, in one pipelined read; None if the topic is gone.

        A partition that cannot be read has its error instead, which was logged.
        """
        questions = [request_meta(self, partition) for partition in partitions]
        found: list[Meta | KorvetError | None] = []
        for partition, question in zip(partitions, questions, strict=True):
            try:
                found.append(await meta_in_reply(self, partition, question))
            except StoreError as error:
                found.append(await self.damage.report(partition, error))
            except KorvetError as error:
                found.append(error)
        return found

    async def meta(self, partition: Partition) -> Meta | None:
        """Offsets and epochs of one partition; None if the topic is gone.

        :raises StoreUnavailable, StoreFull, StoreError:
        """
        (found,) = await self.metas([partition])
        if isinstance(found, KorvetError):
            raise found
        return found

    async def offset_for_time(self, partition: Partition, timestamp: int, meta: Meta | None = None) -> Timed | None:
        """The first record not older than a time; see `korvet.store.log.times.offset_for_time`."""
        return await offset_for_time(self, partition, timestamp, meta)

    async def producers(
        self, partition: Partition, only: int | None = None, *, only_open: bool = False
    ) -> list[Producer] | None:
        """The producers of a partition; None if the topic is gone.

        :param only: the id of one producer.
        :param only_open: leave out the producers without an open transaction.
        :raises StoreUnavailable, StoreError:
        """
        return await markers.producers(self, partition, only, only_open=only_open)

    async def trim(self, partition: Partition, offset: int, epoch: int | None = None) -> tuple[int, int]:
        """Drop all batches below an offset, -1 for all. Returns a Kafka error code, or GONE, and the log start then.

        :param epoch: the leader epoch in which the offset was chosen; in another epoch the code is FENCED_LEADER_EPOCH.
        :raises StoreUnavailable, StoreError:
        """
        may_restore = True
        while True:
            code, start, more = await self.store.call_function(
                Purpose.APPEND,
                "korvet_log_trim",
                partition.transaction_keys,
                topic_id=partition.topic_id,
                offset=offset,
                epoch=epoch,
            )
            if code == GONE and may_restore and await self.restore(partition):
                may_restore = False
            elif code != 0 or not more:
                if code == 0:
                    partition.trimmed(start)
                return code, start
