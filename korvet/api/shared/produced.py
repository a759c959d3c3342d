"""The outcomes of a Produce request's batches, and the answer made of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from korvet.api.shared.context import Context
from korvet.api.shared.data_failures import failure_code, failure_message
from korvet.api.shared.loop_turns import SLICE
from korvet.codes import (
    CONCURRENT_TRANSACTIONS,
    INVALID_PRODUCER_EPOCH,
    INVALID_TXN_STATE,
    KAFKA_STORAGE_ERROR,
    NOT_ENOUGH_REPLICAS,
    NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    PRODUCER_FENCED,
    TRANSACTION_ABORTABLE,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from korvet.errors import Disconnect, KorvetError, StoreFull
from korvet.redis.reply import in_task
from korvet.store.catalog.topic import Topic
from korvet.store.contract import GONE, RESEND, VERIFY
from korvet.store.log.appending.append import Appending
from korvet.store.log.appending.verification import verify_together
from korvet.store.log.partitions.replicas import UnconfirmedAppend
from korvet.store.log.state.partition import Partition
from korvet.wire import requests
from korvet.wire.batch import Refusal
from korvet.wire.writer import Fields

TOPIC_ID_SINCE: Final = 13
"""From this version on, topics have ids and no names."""
_ABORTABLE_SINCE: Final = 11
JOINS_SINCE: Final = 12
"""From this version on, a batch adds its partition to the transaction."""
NO_TIMESTAMP: Final = -1


class Pending:
    """A partition whose answer waits for the append, or only for the log start if the batch was refused."""

    __slots__ = ("append_time", "appending", "partition", "refusal", "timeout_s", "unconfirmed")

    def __init__(
        self,
        partition: Partition,
        appending: Appending | None,
        *,
        append_time: int = NO_TIMESTAMP,
        unconfirmed: UnconfirmedAppend | None = None,
        timeout_s: float = 0.0,
        refusal: Refusal | None = None,
    ) -> None:
        self.partition = partition
        self.appending = appending
        self.append_time = append_time
        self.unconfirmed = unconfirmed
        """The wait for replicas to have the batch, for ``timeout_s`` at most; None if none is needed."""
        self.timeout_s = timeout_s
        self.refusal = refusal


Outcome = Fields | Pending
Topics = list[tuple[str | UUID, list[Outcome]]]
"""Each topic by name or id, with the outcomes of its partitions."""


def partition_answer(
    index: int,
    code: int,
    *,
    base_offset: int = -1,
    append_time: int = NO_TIMESTAMP,
    log_start: int = -1,
    message: str | None = None,
    record_errors: Sequence[tuple[int, str]] = (),
) -> Fields:
    """The answer for one partition.

    :param record_errors: the refused records by their index in the batch, each with a reason.
    """
    answer: dict[str, Any] = {
        "index": index,
        "error_code": code,
        "base_offset": base_offset,
        "log_append_time": append_time,
        "log_start_offset": log_start,
    }
    if message is not None:
        answer["error_message"] = message
        answer["record_errors"] = [{"batch_index": at, "batch_index_error_message": why} for at, why in record_errors]
    return answer


def unknown_code(ctx: Context, topic: Topic | None) -> int:
    """The code of a partition that does not exist, with or without its topic."""
    by_id = topic is None and ctx.version >= TOPIC_ID_SINCE
    return UNKNOWN_TOPIC_ID if by_id else UNKNOWN_TOPIC_OR_PARTITION


async def answered(ctx: Context, request: requests.ProduceRequest, topics: Topics) -> Fields | None:
    """Wait for the outcomes, and build the answer; None for acks=0.

    :raises Disconnect: a batch failed, and the client wants no answer.
    """
    if request.transactional_id is not None:
        await _verify(topics)
    responses: list[Fields] = []
    number = 0
    field = "topic_id" if ctx.version >= TOPIC_ID_SINCE else "name"
    for name, outcomes in topics:
        answers: list[Fields] = []
        for outcome in outcomes:
            answers.append(await _settled(ctx, outcome) if isinstance(outcome, Pending) else outcome)
            number += 1
            if number % SLICE == 0:
                await ctx.frontend.turns.turn()
        responses.append({field: name, "partition_responses": answers})
    if request.acks == 0:
        _check_silent(topics, responses)
        return None
    return {"responses": responses}


async def _verify(topics: Topics) -> None:
    appendings = [one.appending for _, outcomes in topics for one in outcomes if isinstance(one, Pending)]
    transactional = [one for one in appendings if one is not None and one.is_transactional]
    if len(transactional) > 1:
        await verify_together(transactional)


def _check_silent(requested: Topics, answered: Sequence[Fields]) -> None:
    """Close the connection after an error, as Kafka does to report it to a client that wants no answer.

    :raises Disconnect:
    """
    for (name, _), topic in zip(requested, answered, strict=True):
        for answer in topic["partition_responses"]:
            if (code := answer["error_code"]) != 0:
                raise Disconnect(f"produce with acks=0 failed on {name}-{answer['index']}: {ErrorCode(code).name}")


async def _settled(ctx: Context, pending: Pending) -> Fields:
    partition, log = pending.partition, ctx.frontend.log
    if pending.appending is None:
        return await _refused(ctx, pending)
    try:
        code, base_offset, log_start, _ = await pending.appending
        if pending.unconfirmed is not None and code == 0:
            is_confirmed = await log.replicas.confirmed(pending.unconfirmed, pending.timeout_s)
            code = 0 if is_confirmed else NOT_ENOUGH_REPLICAS_AFTER_APPEND
    except KorvetError as error:
        if isinstance(error, StoreFull):
            log.reserve.note_full(True)
        return partition_answer(partition.index, failure_code(error, "produce"), message=failure_message(error))
    if log.reserve.is_full:
        log.reserve.note_full(False)
    if code in (0, NOT_ENOUGH_REPLICAS_AFTER_APPEND):
        return partition_answer(
            partition.index, code, base_offset=base_offset, append_time=pending.append_time, log_start=log_start
        )
    if code == GONE:
        return partition_answer(partition.index, unknown_code(ctx, None))
    if code == RESEND:
        return partition_answer(partition.index, KAFKA_STORAGE_ERROR)
    shown, message = _code_for_version(ctx.version, code)
    return partition_answer(partition.index, shown, log_start=log_start, message=message)


def _code_for_version(version: int, code: int) -> tuple[int, str | None]:
    """A code as the clients of a version know it, and Kafka's message for it."""
    if code == PRODUCER_FENCED:
        return INVALID_PRODUCER_EPOCH, None
    if code == TRANSACTION_ABORTABLE and version < _ABORTABLE_SINCE:
        return INVALID_TXN_STATE, "Partition was not added to the transaction"
    if code in (VERIFY, CONCURRENT_TRANSACTIONS):
        # Old clients retry on this code, without a metadata request before.
        if version < JOINS_SINCE:
            return NOT_ENOUGH_REPLICAS, "The transaction before this one has not ended yet"
        return CONCURRENT_TRANSACTIONS, None
    return code, None


async def _refused(ctx: Context, pending: Pending) -> Fields:
    partition, refused = pending.partition, pending.refusal
    assert refused is not None
    await in_task()
    try:
        meta = await ctx.frontend.log.meta(partition)
    except KorvetError as error:
        return partition_answer(partition.index, failure_code(error, "produce"))
    if meta is None:
        return partition_answer(partition.index, unknown_code(ctx, None))
    return partition_answer(
        partition.index,
        refused.code,
        log_start=meta.start,
        message=refused.message,
        record_errors=refused.record_errors,
    )
