"""An append in flight to Redis, and its repair by sending again.

Creating an append queues its commands, so the order of calls is the order in the log. Two replies of the append
function mean that nothing was appended and the same call may be repeated: RESEND (the batch under the temporary key is
gone) and GONE (the partition's keys are absent, or another topic's). A temporary key that Redis refused because its
slot is moving counts as RESEND.

**The call.** A batch of 8 KiB or more bypasses Lua: SET stores it under a temporary key, and the call renames the key.
A moving slot of a cluster accepts no temporary key, so there the call carries the batch.

**Order.** Later batches on the same connection may reach Redis before such a batch is sent again. Redis refuses those
of an idempotent producer because of the gap. Replies, and so repairs, come in the order of the requests, so each batch
is sent again in its turn. Other producers' batches are appended, as when a Kafka producer without idempotence retries.
During a repair no new append starts on the partition (`Partition.repairing`).

**Transactions.** A batch of a transaction is sent without its ordinal. If the partition has an open transaction of that
producer and epoch, Redis appends it. Else the reply is VERIFY: the front-end gets the ordinal from the transaction's
coordinator (`Membership`), and sends the batch again with it, in the producer's order as above. No other producer waits
for that. The batches of one request are verified and sent again together (`verification`). If the coordinator refuses
or fails, the batch counts as failed for later ones.

**Records.** If a topic stores records one by one, the arguments of their entries are sent instead of the batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

from korvet.codes import CONCURRENT_TRANSACTIONS, INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER
from korvet.errors import KorvetError, SlotMoving, StoreError
from korvet.redis.client import Argument, Purpose
from korvet.redis.reply import in_task
from korvet.store.contract import GONE, RESEND, VERIFY
from korvet.store.keys import temporary_batch
from korvet.store.log.appending.markers import Ending, abort_older
from korvet.store.log.appending.membership import Membership
from korvet.store.log.partitions.ends import announce_end
from korvet.store.log.partitions.partitions import Partitions
from korvet.store.log.state.entries import INLINE_LIMIT_BYTES, Entry
from korvet.store.log.state.partition import Partition
from korvet.wire.batch import Batch

_TEMPORARY_MS = 60_000
_IN_SEQUENCE = 1
"""The argument that makes Redis refuse a batch unless it is the next known one."""
_ATTEMPTS = 4
_WATCHED_S = 10.0
_NOT_PLACED = b"%d -1 -1 -1" % RESEND


class Appended(NamedTuple):
    """The outcome of an append: a Kafka error code, RESEND or GONE; unknown numbers are -1."""

    code: int
    base_offset: int
    log_start: int
    leader_epoch: int


def parsed(reply: bytes) -> Appended:
    """Parse an append function's reply."""
    code, base_offset, log_start, leader_epoch = reply.split()
    return Appended(int(code), int(base_offset), int(log_start), int(leader_epoch))


_NOT_JUDGED = Appended(INVALID_PRODUCER_EPOCH, -1, -1, -1)
"""In Kafka the coordinator knows the epochs of transactions, and does not consult the log."""


class Appending:
    """An append that has already been sent, and happens even if not awaited. Await it for the outcome.

    :raises StoreUnavailable, StoreFull, StoreError: when awaited.
    """

    __slots__ = (
        "_batch", "_data", "_entries", "_is_behind", "_is_placed", "_known_end", "_log", "_membership", "_ordinal",
        "_partition", "_repairs", "_reply", "_was_sent_again",
    )  # fmt: skip

    def __init__(
        self,
        log: Partitions,
        partition: Partition,
        batch: Batch,
        data: bytes | memoryview,
        membership: Membership | None,
        entries: Sequence[Argument] | None,
    ) -> None:
        self._log = log
        self._partition = partition
        self._batch = batch
        self._data = data
        self._membership = membership
        self._entries = entries
        self._ordinal: int | None = None
        """The transaction's ordinal, once the coordinator has returned it."""
        self._is_behind = batch.producer_id >= 0 and partition.in_flight.is_behind_a_failure(batch)
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
        """True if the batch belongs to a transaction."""
        return self._membership is not None

    @property
    def reply(self) -> asyncio.Future[Any]:
        """The function's reply to the last call."""
        return self._reply

    def _call(self) -> asyncio.Future[Any]:
        """Queue the commands of the append. Returns the function's reply."""
        log, partition, batch, data = self._log, self._partition, self._batch, self._data
        is_large = len(data) >= INLINE_LIMIT_BYTES and self._entries is None
        is_placed = self._is_placed = is_large and not log.store.is_open(partition.keys.log)
        try:
            run_id = partition.run_id or log.find_run_id(partition)
        except KorvetError as error:
            refused: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            refused.set_exception(error)
            return refused
        args: tuple[Argument, ...] = (
            partition.topic_id,
            run_id,
            batch.records,
            len(data),
            batch.max_timestamp,
            batch.crc,
            batch.producer_id if batch.producer_id >= 0 else -1,
            batch.producer_epoch,
            batch.base_sequence,
            b"" if is_placed else data,
        )
        is_next: Argument = _IN_SEQUENCE if self._is_behind or partition.in_flight.is_behind_another(batch) else ""
        keys: Sequence[str]
        if self._entries is not None:
            args = (*args[:9], *self._of_records(is_next), *self._entries)
            return log.whole_store.fcall(Purpose.APPEND, "korvet_log_append_records", partition.transaction_keys, *args)
        if self._membership is None:
            function, keys = "korvet_log_append", partition.keys
            if is_next:
                args = (*args, is_next)
        else:
            function, keys = "korvet_log_append_transactional", partition.transaction_keys
            ordinal = "" if self._ordinal is None else self._ordinal
            joins = 1 if self._membership.joins else ""
            args = (*args, is_next, ordinal, self._membership.transactional_id, joins)
        if not is_placed:
            return log.whole_store.fcall(Purpose.APPEND, function, keys, *args)
        keys = (*keys, temporary_batch(partition.keys.log, log.next_token()))
        return log.whole_store.fcall_placed(function, keys, (data,), _TEMPORARY_MS, *args)

    def _of_records(self, is_next: Argument) -> tuple[Argument, ...]:
        """The arguments of `korvet_log_append_records` for the whole batch, after its sequence."""
        if self._membership is None:
            return "", is_next, "", "", ""
        ordinal = "" if self._ordinal is None else self._ordinal
        joins = 1 if self._membership.joins else ""
        return "transactional", is_next, ordinal, self._membership.transactional_id, joins

    def _repeat(self) -> None:
        """Send again, after all earlier repeated batches."""
        self._is_behind = self._partition.in_flight.is_behind_a_failure(self._batch)
        self._partition.repairs += 1
        self._repairs = self._partition.repairs
        self._reply = self._call()

    def __await__(self) -> Generator[Any, None, Appended]:
        try:
            reply = yield from self._reply.__await__()
        except KorvetError as error:
            yield from in_task()
            if not self._is_not_placed(error):
                if self._was_sent_again:
                    self._fail(error)
                if isinstance(error, StoreError):
                    raise (yield from self._log.damage.report(self._partition, error).__await__()) from error
                raise
            reply = _NOT_PLACED
        appended = parsed(reply)
        if appended.code != 0:
            yield from in_task()
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
        """The transaction whose ordinal is missing, if the reply to the first try is VERIFY; else None.

        None also if an earlier batch was sent again meanwhile: then this one is first sent again too.
        """
        if self._membership is None or self._reply.cancelled() or self._reply.exception() is not None:
            return None
        is_first = self._partition.repairs == self._repairs and not self._was_sent_again
        return self._membership if is_first and parsed(self._reply.result()).code == VERIFY else None

    def send_verified(self, code: int, ordinal: int) -> None:
        """Send again with the coordinator's ordinal, or take its error code as the outcome."""
        if code != 0:
            self.refuse(b"%d -1 -1 -1" % code, StoreError("the partition is not in the transaction"))
            return
        self._ordinal, self._was_sent_again = ordinal, True
        self._repeat()

    def refuse(self, outcome: bytes | KorvetError, why: KorvetError) -> None:
        """End with this outcome, a reply or an error; the batch then counts as failed."""
        self._fail(why)
        self._reply = asyncio.get_running_loop().create_future()
        if isinstance(outcome, bytes):
            self._reply.set_result(outcome)
        else:
            self._reply.set_exception(outcome)
            self._reply.exception()

    def _may_be_repaired(self, appended: Appended) -> bool:
        if appended.code == OUT_OF_ORDER_SEQUENCE_NUMBER:
            # A batch sent as following a failure is refused for good, unless another was repaired since. Any other may
            # have been overtaken: a link itself repeats a call if the functions were missing.
            return self._partition.repairs != self._repairs or not self._is_behind
        return appended.code in (RESEND, GONE)

    def _is_not_placed(self, error: KorvetError) -> bool:
        """True if Redis refused the temporary key: the repeated call then carries the batch itself."""
        return self._is_placed and isinstance(error, SlotMoving)

    async def _verify(self, appended: Appended) -> Appended:
        """Get the transaction's ordinal, and send again with it.

        If an earlier batch was sent again meanwhile, the transaction may be open here by now.
        """
        partition = self._partition
        is_due = partition.repairs == self._repairs
        for _ in range(_ATTEMPTS):
            if is_due and (code := await self._ask()) != 0:
                return Appended(code, -1, -1, -1)
            appended = await self._send_again()
            if appended.code == CONCURRENT_TRANSACTIONS and self._ordinal is not None:
                # The open transaction here is one that the coordinator lost with its last seconds.
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
            is_due = True
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
        """Get the ordinal from the coordinator; returns a code if there is none."""
        if self._membership is None:
            raise StoreError(f"{self._partition.keys.log} wants the transaction of a batch that has none")
        try:
            ((code, self._ordinal),) = await self._membership.ordinals([self._partition])
        except KorvetError as error:
            self._fail(error)
            raise
        if code != 0:
            self._fail(StoreError("the partition is not in the transaction"))
        return code

    def _fail(self, error: KorvetError) -> None:
        """Note the failure, so that Redis does not take a later batch for its producer's first."""
        if self._batch.producer_id >= 0:
            self._partition.in_flight.add_failed(self._batch, error)

    async def _repair(self, appended: Appended) -> Appended:
        """Send again until the reply is final; GONE is final if the catalog lacks the topic."""
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
        # A duplicate is not cached: it may be in an older epoch than the current one.
        if is_newest and 0 <= self._known_end <= appended.base_offset and log.now() - partition.watched_at < _WATCHED_S:
            # A view would keep the whole request in memory, with its batches for other partitions.
            data, epoch = _alone(self._data), appended.leader_epoch
            entry = Entry(next_offset, self._batch.records, len(data), epoch, None, next_offset)
            is_plain = self._membership is None
            log.cache.add(
                partition, appended.base_offset, entry, data, since=partition.since, epoch=epoch, is_settled=is_plain
            )
            if is_plain:
                announce_end(log, partition, appended.leader_epoch, appended.base_offset, next_offset)


def _alone(data: bytes | memoryview) -> bytes | memoryview:
    if isinstance(data, memoryview) and data.obj is not None and len(data.obj) > 2 * len(data):  # type: ignore[arg-type]
        return bytes(data)
    return data
