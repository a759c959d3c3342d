"""The call that appends a batch: its arguments for each of the three append functions, and its reply.

A batch of 8 KiB or more bypasses Lua: SET stores it under a temporary key, and the call renames the key. A moving slot
of a cluster accepts no temporary key, so there the call carries the batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

from korvet.errors import KorvetError
from korvet.redis.client import Argument, Purpose
from korvet.store.keys import temporary_batch
from korvet.store.log.appending.membership import Membership
from korvet.store.log.partitions.partitions import Partitions
from korvet.store.log.state.entries import INLINE_LIMIT_BYTES
from korvet.store.log.state.partition import Partition
from korvet.wire.batch import Batch

TEMPORARY_MS = 60_000
_IN_SEQUENCE = 1
"""The argument that makes Redis refuse a batch unless it is the next known one."""


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


class AppendCall:
    """A batch for a partition, and its repeatable call."""

    __slots__ = (
        "_batch", "_data", "_entries", "_is_behind", "_is_placed", "_log", "_membership", "_ordinal", "_partition",
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
        return log.whole_store.fcall_placed(function, keys, (data,), TEMPORARY_MS, *args)

    def _of_records(self, is_next: Argument) -> tuple[Argument, ...]:
        """The arguments of `korvet_log_append_records` for the whole batch, after its sequence."""
        if self._membership is None:
            return "", is_next, "", "", ""
        ordinal = "" if self._ordinal is None else self._ordinal
        joins = 1 if self._membership.joins else ""
        return "transactional", is_next, ordinal, self._membership.transactional_id, joins
