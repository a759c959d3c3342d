"""An append on its way to Redis, and what is done where it did not arrive as it should.

The call that makes an append queues its commands, so that the order of calls is the order in the log. Two answers of
the append function say that nothing was appended and that the same may be sent again: RESEND (the batch under the
temporary key is gone) and GONE (the partition's keys are not there, or are another topic's). In a cluster's slot that
is open, no temporary key can be made: that counts as RESEND, and the batch goes through the call itself.

**Order.** What is behind such a batch on the same connection to a client may have reached Redis before it is sent
again. Batches of an idempotent producer were then refused for the gap, and are sent again in their turn, because
answers, and so repairs, go in the order of the requests. Batches of others have been appended, just as when a Kafka
producer without idempotence retries. While a partition is being repaired nothing new is started on it
(`Partition.repairing`).

**Transactions.** A batch of a transaction is sent without its ordinal. Where the partition has an open transaction of
that producer and epoch it is appended. Else the answer is VERIFY: who coordinates the transaction is asked for its
ordinal (`Membership`), and the batch is sent again with it, in the producer's order as above. Nobody else waits for
that. The batches of one request ask together, and are sent again together (`verify_together`). Where the coordinator
refuses, or cannot be asked, the batch counts as failed for those behind it.

**Records.** Where a topic stores them one by one, the arguments that make entries of them come instead of the batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kio.schema.errors import ErrorCode

from korvet.errors import KorvetError, SlotMoving, StoreError
from korvet.store.client import Argument, Purpose
from korvet.store.contract import GONE, RESEND, VERIFY
from korvet.store.keys import temporary_batch
from korvet.store.log.partition import Partition, RecentBatch

if TYPE_CHECKING:
    from korvet.store.log import Log
    from korvet.wire.batch import Batch

INLINE_LIMIT_BYTES = 8192
"""From here on a batch does not pass through Lua: it is SET beside the call, and RENAMEd into place."""
TEMPORARY_MS = 60_000
_ATTEMPTS = 4
_WATCHED_S = 10.0
_CONCURRENT = int(ErrorCode.concurrent_transactions)
_OUT_OF_ORDER = int(ErrorCode.out_of_order_sequence_number)
_FENCED = int(ErrorCode.invalid_producer_epoch)
_IN_SEQUENCE = (1,)
"""The argument that has a batch refused where it is not the next one that Redis knows of."""
_NOT_PLACED = b"%d -1 -1 -1" % RESEND
_UNKNOWN_PRODUCER = int(ErrorCode.unknown_producer_id)
_OUT_OF_SEQUENCE = frozenset({_OUT_OF_ORDER, _UNKNOWN_PRODUCER})


class Appended(NamedTuple):
    """The outcome of an append: a Kafka error code, RESEND or GONE, and -1 for what is not known."""

    code: int
    base_offset: int
    log_start: int
    leader_epoch: int


_NOT_JUDGED = Appended(_FENCED, -1, -1, -1)
"""On Kafka it is the coordinator who knows the epochs of transactions, so that the log is not asked."""


class Ending(NamedTuple):
    """How a transaction ends: the producer and epoch of its control batches, and which of the producer's it is."""

    ordinal: int
    producer_id: int
    producer_epoch: int
    is_commit: bool


class Membership(Protocol):
    """The transaction that a batch belongs to."""

    @property
    def transactional_id(self) -> str:
        """Whose transaction it is."""

    @property
    def joins(self) -> bool:
        """Whether partitions come into the transaction by its batches."""

    async def ordinals(self, partitions: Sequence[Partition]) -> Sequence[tuple[int, int]]:
        """For each partition a code, and where that is 0 the ordinal of the open transaction, which it is in.

        :raises StoreUnavailable, StoreFull, StoreError:
        """


class Appending:
    """Await it for the outcome. It has been sent already, and happens even if nobody awaits it.

    :raises StoreUnavailable, StoreFull, StoreError: when awaited.
    """

    __slots__ = (
        "_batch",
        "_data",
        "_entries",
        "_is_behind",
        "_is_placed",
        "_known_end",
        "_log",
        "_membership",
        "_ordinal",
        "_partition",
        "_repairs",
        "_reply",
        "_was_sent_again",
    )

    def __init__(
        self,
        log: Log,
        partition: Partition,
        batch: Batch,
        data: bytes | memoryview,
        membership: Membership | None,
        entries: Sequence[Argument] | None,
    ) -> None:
        self._log = log
        self._entries = entries
        self._membership = membership
        self._ordinal: int | None = None
        self._was_sent_again = False
        self._partition = partition
        self._batch = batch
        self._data = data
        self._known_end = partition.end
        self._repairs = partition.repairs
        self._is_behind = batch.producer_id >= 0 and partition.in_flight.is_behind_a_failure(batch)
        self._reply = self._send()
        if batch.producer_id >= 0:
            partition.in_flight.add(batch, self._reply)

    @property
    def partition(self) -> Partition:
        """Where it is appended."""
        return self._partition

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction."""
        return self._membership is not None

    @property
    def reply(self) -> asyncio.Future[Any]:
        """The function's answer to what was sent last."""
        return self._reply

    def _send(self) -> asyncio.Future[Any]:
        log, partition, batch, data = self._log, self._partition, self._batch, self._data
        self._repairs = partition.repairs
        is_large = len(data) >= INLINE_LIMIT_BYTES and self._entries is None
        is_placed = self._is_placed = is_large and not log.store.is_open(partition.keys.log)
        args: tuple[Argument, ...] = (
            partition.topic_id,
            partition.run_id or log.find_run_id(partition),
            batch.records,
            len(data),
            batch.max_timestamp,
            batch.crc,
            batch.producer_id if batch.producer_id >= 0 else -1,
            batch.producer_epoch,
            batch.base_sequence,
            b"" if is_placed else data,
        )
        keys: Sequence[str]
        if self._entries is not None:
            args = (*args[:9], *self._of_records(), *self._entries)
            return log.store.fcall(Purpose.APPEND, "korvet_log_append_records", partition.transaction_keys, *args)
        if self._membership is None:
            function, keys = "korvet_log_append", partition.keys
            args = (*args, *(_IN_SEQUENCE if self._is_behind else ()))
        else:
            function, keys = "korvet_log_append_transactional", partition.transaction_keys
            ordinal = "" if self._ordinal is None else self._ordinal
            joins = 1 if self._membership.joins else ""
            args = (*args, 1 if self._is_behind else "", ordinal, self._membership.transactional_id, joins)
        if not is_placed:
            return log.store.fcall(Purpose.APPEND, function, keys, *args)
        keys = (*keys, temporary_batch(partition.keys.log, log.next_token()))
        return log.store.fcall_placed(function, keys, (data,), TEMPORARY_MS, *args)

    def _of_records(self) -> tuple[Argument, ...]:
        """What `korvet_log_append_records` is told of the batch as a whole, behind its sequence."""
        is_next = 1 if self._is_behind else ""
        if self._membership is None:
            return "", is_next, "", "", ""
        ordinal = "" if self._ordinal is None else self._ordinal
        joins = 1 if self._membership.joins else ""
        return "transactional", is_next, ordinal, self._membership.transactional_id, joins

    def __await__(self) -> Generator[Any, None, Appended]:
        try:
            reply = yield from self._reply.__await__()
        except KorvetError as error:
            if not self._is_not_placed(error):
                if self._was_sent_again:
                    self._fail(error)
                raise
            reply = _NOT_PLACED
        appended = _parsed(reply)
        if appended.code != 0:
            if appended.code == VERIFY or (appended.code == _CONCURRENT and self._was_sent_again):
                appended = yield from self._verify(appended).__await__()
            if self._may_be_repaired(appended):
                appended = yield from self._repair(appended).__await__()
            if appended.code != 0:
                return appended if self._membership is None or appended.code != _FENCED else _NOT_JUDGED
        self._note(appended)
        return appended

    @property
    def membership_to_ask(self) -> Membership | None:
        """Whom to ask for the ordinal, where the answer to the first try is that somebody is to be asked.

        Where a batch before this one was sent again meanwhile, it is to be sent again first.
        """
        if self._membership is None or self._reply.cancelled() or self._reply.exception() is not None:
            return None
        is_first = self._partition.repairs == self._repairs and not self._was_sent_again
        return self._membership if is_first and _parsed(self._reply.result()).code == VERIFY else None

    def send_verified(self, code: int, ordinal: int) -> None:
        """Send again with the ordinal that was asked for, or take the code for the outcome."""
        if code != 0:
            self.refuse(b"%d -1 -1 -1" % code, StoreError("not in a transaction"))
            return
        self._ordinal, self._was_sent_again = ordinal, True
        self._is_behind = self._partition.in_flight.is_behind_a_failure(self._batch)
        self._partition.repairs += 1
        self._reply = self._send()

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
        if appended.code in _OUT_OF_SEQUENCE:
            # Unless it is known to be behind a failure: a link sends again by itself what found no functions.
            return self._partition.repairs != self._repairs or not self._is_behind
        return appended.code in (RESEND, GONE)

    def _is_not_placed(self, error: KorvetError) -> bool:
        """Whether it was the temporary key that was refused: sent again, the batch goes through the call itself."""
        return self._is_placed and isinstance(error, SlotMoving)

    async def _verify(self, appended: Appended) -> Appended:
        """Ask for the transaction's ordinal, and send again with it.

        Where a batch before this one was sent again meanwhile, the transaction may be open here by now.
        """
        partition = self._partition
        is_asked = partition.repairs == self._repairs
        for _ in range(_ATTEMPTS):
            if is_asked and (code := await self._ask()) != 0:
                return Appended(code, -1, -1, -1)
            appended = await self._send_again()
            if appended.code == _CONCURRENT and self._ordinal is not None:
                # Left open by a history of which the coordinator does not know.
                batch = self._batch
                later = Ending(self._ordinal, batch.producer_id, batch.producer_epoch, is_commit=False)
                try:
                    await self._log.abort_older(partition, later)
                except KorvetError as error:
                    self._fail(error)
                    raise
                appended = await self._send_again()
            if appended.code != VERIFY:
                break
            is_asked = True
        if appended.code in (VERIFY, _CONCURRENT):
            self._fail(StoreError("not in a transaction yet"))
        return appended

    async def _send_again(self) -> Appended:
        self._is_behind = self._partition.in_flight.is_behind_a_failure(self._batch)
        self._partition.repairs += 1
        self._reply = self._send()
        try:
            return _parsed(await self._reply)
        except KorvetError as error:
            if self._is_not_placed(error):
                return _parsed(_NOT_PLACED)
            self._fail(error)
            raise

    async def _ask(self) -> int:
        """Learn the ordinal; a code where there is none."""
        if self._membership is None:
            raise StoreError(f"{self._partition.keys.log} asks for the transaction of a batch that has none")
        try:
            ((code, self._ordinal),) = await self._membership.ordinals([self._partition])
        except KorvetError as error:
            self._fail(error)
            raise
        if code != 0:
            self._fail(StoreError("not in a transaction"))
        return code

    def _fail(self, error: KorvetError) -> None:
        """Let those behind this batch not be taken for the first of their producer."""
        if self._batch.producer_id >= 0:
            self._partition.in_flight.add_failed(self._batch, error)

    async def _repair(self, appended: Appended) -> Appended:
        """Send again until the answer is a final one; GONE is final when the catalog does not have the topic.

        A lost batch may have been its producer's first on this partition. As on Kafka any sequence is taken as the
        first one, so the next batch has taken its place; UNKNOWN_PRODUCER_ID lets the producer go on with a new epoch.
        """
        partition = self._partition
        was_lost = appended.code == RESEND
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
        if appended.code == _OUT_OF_ORDER and was_lost and not self._is_behind:
            return appended._replace(code=_UNKNOWN_PRODUCER)
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
            # A view would keep the whole request alive, with what it holds for other partitions.
            batch = RecentBatch(next_offset, appended.leader_epoch, _alone(self._data))
            log.recent.add(partition, appended.base_offset, batch)


async def verify_together(appendings: Sequence[Appending]) -> None:
    """Have those that are to be verified ask once for all, and send them again in one turn.

    :param appendings: one request's batches that belong to a transaction, at least one.

    Raises nothing: what fails is the outcome of its batch. What is refused again asks by itself.
    """
    await asyncio.wait([one.reply for one in appendings])
    asking: dict[Membership, list[Appending]] = {}
    for one in appendings:
        if (membership := one.membership_to_ask) is not None:
            asking.setdefault(membership, []).append(one)
    for membership, some in asking.items():
        try:
            told = await membership.ordinals([one.partition for one in some])
        except KorvetError as error:
            for one in some:
                one.refuse(error, error)
            continue
        for one, (code, ordinal) in zip(some, told, strict=True):
            one.send_verified(code, ordinal)


def _alone(data: bytes | memoryview) -> bytes | memoryview:
    if isinstance(data, memoryview) and data.obj is not None and len(data.obj) > 2 * len(data):  # type: ignore[arg-type]
        return bytes(data)
    return data


def _parsed(reply: bytes) -> Appended:
    code, base_offset, log_start, leader_epoch = reply.split()
    return Appended(int(code), int(base_offset), int(log_start), int(leader_epoch))
