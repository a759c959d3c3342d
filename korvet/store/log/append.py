"""An append on its way to Redis, and the repair of one that did not arrive as it should.

Making an append queues its commands, so the order of calls is the order in the log. Two answers of the append function
say that nothing was appended and that the same may be sent again: RESEND (the batch under the temporary key is gone)
and GONE (the partition's keys are absent, or are another topic's). A temporary key that Redis refused, because its slot
is on its way, counts as RESEND.

**Order.** Batches behind such a batch on the same connection may reach Redis before it is sent again. Redis refuses
those of an idempotent producer for the gap. Answers, and so repairs, go in the order of the requests, so each of them
is sent again in its turn. Batches of other producers are appended, as they are when a Kafka producer without
idempotence retries. While a partition is being repaired nothing new is started on it (`Partition.repairing`).

**Transactions.** A batch of a transaction is sent without its ordinal. If the partition has an open transaction of
that producer and epoch, Redis appends it. Else the answer is VERIFY: the front-end asks the transaction's coordinator
for the ordinal (`Membership`), and sends the batch again with it, in the producer's order as above. No other producer
waits for that. The batches of one request ask together, and are sent again together (`verification`). If the
coordinator refuses, or cannot be asked, the batch counts as failed for those behind it.

**Records.** If a topic stores records one by one, the arguments of their entries are sent instead of the batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from typing import Any

from korvet.codes import CONCURRENT_TRANSACTIONS, INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER
from korvet.errors import KorvetError, SlotMoving, StoreError
from korvet.redis.client import Argument
from korvet.store.contract import GONE, RESEND, VERIFY
from korvet.store.log.append_call import AppendCall, Appended, parsed
from korvet.store.log.latest import tell_end
from korvet.store.log.markers import Ending, abort_older
from korvet.store.log.membership import Membership
from korvet.store.log.partition import Partition, RecentBatch
from korvet.store.log.partitions import Partitions
from korvet.wire.batch import Batch

_ATTEMPTS = 4
_WATCHED_S = 10.0
_NOT_PLACED = b"%d -1 -1 -1" % RESEND
_NOT_JUDGED = Appended(INVALID_PRODUCER_EPOCH, -1, -1, -1)
"""On Kafka the coordinator knows the epochs of transactions, and nobody asks the log."""


class Appending(AppendCall):
    """Await it for the outcome. It has been sent already, and happens even if nobody awaits it.

    :raises StoreUnavailable, StoreFull, StoreError: when awaited.
    """

    __slots__ = ("_known_end", "_repairs", "_reply", "_was_sent_again")

    def __init__(
        self,
        log: Partitions,
        partition: Partition,
        batch: Batch,
        data: bytes | memoryview,
        membership: Membership | None,
        entries: Sequence[Argument] | None,
    ) -> None:
        super().__init__(log, partition, batch, data, membership, entries)
        self._was_sent_again = False
        self._known_end = partition.end
        self._repairs = partition.repairs
        self._reply = self._call()
        if batch.producer_id >= 0:
            partition.in_flight.add(batch, self._reply)

    @property
    def partition(self) -> Partition:
        """The batch's partition."""
        return self._partition

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction."""
        return self._membership is not None

    @property
    def reply(self) -> asyncio.Future[Any]:
        """The function's answer to what was sent last."""
        return self._reply

    def _repeat(self) -> None:
        """Send again, behind whatever was sent again before."""
        self._is_behind = self._partition.in_flight.is_behind_a_failure(self._batch)
        self._partition.repairs += 1
        self._repairs = self._partition.repairs
        self._reply = self._call()

    def __await__(self) -> Generator[Any, None, Appended]:
        try:
            reply = yield from self._reply.__await__()
        except KorvetError as error:
            if not self._is_not_placed(error):
                if self._was_sent_again:
                    self._fail(error)
                if isinstance(error, StoreError):
                    raise (yield from self._log.damage.report(self._partition, error).__await__()) from error
                raise
            reply = _NOT_PLACED
        appended = parsed(reply)
        if appended.code != 0:
            if appended.code == VERIFY or (appended.code == CONCURRENT_TRANSACTIONS and self._was_sent_again):
                appended = yield from self._verify(appended).__await__()
            if self._may_be_repaired(appended):
                appended = yield from self._repair(appended).__await__()
            if appended.code != 0:
                return appended if self._membership is None or appended.code != INVALID_PRODUCER_EPOCH else _NOT_JUDGED
        self._note(appended)
        return appended

    @property
    def membership_to_ask(self) -> Membership | None:
        """The transaction to ask for the ordinal, if the answer to the first try is VERIFY; else None.

        None also if a batch before this one was sent again meanwhile: then this one is sent again first.
        """
        if self._membership is None or self._reply.cancelled() or self._reply.exception() is not None:
            return None
        is_first = self._partition.repairs == self._repairs and not self._was_sent_again
        return self._membership if is_first and parsed(self._reply.result()).code == VERIFY else None

    def send_verified(self, code: int, ordinal: int) -> None:
        """Send again with the ordinal that the coordinator told, or take its code for the outcome."""
        if code != 0:
            self.refuse(b"%d -1 -1 -1" % code, StoreError("the partition is not in the transaction"))
            return
        self._ordinal, self._was_sent_again = ordinal, True
        self._repeat()

    def refuse(self, outcome: bytes | KorvetError, why: KorvetError) -> None:
        """Let this be the answer, a text or a failure, and the batch count as failed."""
        self._fail(why)
        self._reply = asyncio.get_running_loop().create_future()
        if isinstance(outcome, bytes):
            self._reply.set_result(outcome)
        else:
            self._reply.set_exception(outcome)
            self._reply.exception()

    def _may_be_repaired(self, appended: Appended) -> bool:
        if appended.code == OUT_OF_ORDER_SEQUENCE_NUMBER:
            # A batch that was sent as one behind a failure is refused for good, unless another was repaired since. Any
            # other may have been overtaken: a link sends a call again by itself if the functions were missing.
            return self._partition.repairs != self._repairs or not self._is_behind
        return appended.code in (RESEND, GONE)

    def _is_not_placed(self, error: KorvetError) -> bool:
        """Whether Redis refused the temporary key: sent again, the batch goes through the call itself."""
        return self._is_placed and isinstance(error, SlotMoving)

    async def _verify(self, appended: Appended) -> Appended:
        """Ask for the transaction's ordinal, and send again with it.

        If a batch before this one was sent again meanwhile, the transaction may be open here by now.
        """
        partition = self._partition
        is_asked = partition.repairs == self._repairs
        for _ in range(_ATTEMPTS):
            if is_asked and (code := await self._ask()) != 0:
                return Appended(code, -1, -1, -1)
            appended = await self._send_again()
            if appended.code == CONCURRENT_TRANSACTIONS and self._ordinal is not None:
                # A transaction is open here that the coordinator lost with its last seconds.
                batch = self._batch
                later = Ending(self._ordinal, batch.producer_id, batch.producer_epoch, is_commit=False)
                try:
                    await abort_older(self._log, partition, later)
                except KorvetError as error:
                    self._fail(error)
                    raise
                appended = await self._send_again()
            if appended.code != VERIFY:
                break
            is_asked = True
        if appended.code in (VERIFY, CONCURRENT_TRANSACTIONS):
            self._fail(StoreError("the partition is not in the transaction yet"))
        return appended

    async def _send_again(self) -> Appended:
        self._repeat()
        try:
            return parsed(await self._reply)
        except KorvetError as error:
            if self._is_not_placed(error):
                return parsed(_NOT_PLACED)
            self._fail(error)
            raise

    async def _ask(self) -> int:
        """Ask the coordinator for the ordinal; a code if it tells none."""
        if self._membership is None:
            raise StoreError(f"{self._partition.keys.log} asks for the transaction of a batch that has none")
        try:
            ((code, self._ordinal),) = await self._membership.ordinals([self._partition])
        except KorvetError as error:
            self._fail(error)
            raise
        if code != 0:
            self._fail(StoreError("the partition is not in the transaction"))
        return code

    def _fail(self, error: KorvetError) -> None:
        """Note the failure, so that Redis takes no batch behind this one for its producer's first."""
        if self._batch.producer_id >= 0:
            self._partition.in_flight.add_failed(self._batch, error)

    async def _repair(self, appended: Appended) -> Appended:
        """Send again until the answer is final; GONE is final if the catalog does not have the topic."""
        partition = self._partition
        partition.repairing += 1
        try:
            for _ in range(_ATTEMPTS):
                if appended.code == GONE and not await self._restore():
                    break
                appended = await self._send_again()
                if appended.code not in (RESEND, GONE):
                    break
        finally:
            partition.repairing -= 1
        return appended

    async def _restore(self) -> bool:
        try:
            return await self._log.restore(self._partition)
        except KorvetError as error:
            self._fail(error)
            raise

    def _note(self, appended: Appended) -> None:
        partition, log = self._partition, self._log
        next_offset = appended.base_offset + self._batch.records
        is_newest = partition.note(appended.leader_epoch, next_offset, appended.log_start)
        # A duplicate is not kept: it may lie in an older epoch than the one it was refused in.
        if is_newest and 0 <= self._known_end <= appended.base_offset and log.now() - partition.watched_at < _WATCHED_S:
            # A view would keep the whole request alive, with its batches for other partitions.
            batch = RecentBatch(next_offset, appended.leader_epoch, _alone(self._data))
            log.recent.add(partition, appended.base_offset, batch)
            if self._membership is None:
                tell_end(log, partition, appended.leader_epoch, appended.base_offset, next_offset)


def _alone(data: bytes | memoryview) -> bytes | memoryview:
    if isinstance(data, memoryview) and data.obj is not None and len(data.obj) > 2 * len(data):  # type: ignore[arg-type]
        return bytes(data)
    return data
