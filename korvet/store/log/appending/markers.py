"""A partition's side of transactions: their ends, by control batches; its producers; and the check that an open
transaction's records are there."""

from __future__ import annotations

from typing import Final, NamedTuple

from korvet.codes import CONCURRENT_TRANSACTIONS
from korvet.redis.client import Purpose
from korvet.store.contract import GONE
from korvet.store.log.partitions.partitions import Partitions
from korvet.store.log.state.partition import Partition
from korvet.wire.markers import marker

_ATTEMPTS: Final = 2
_CALLS: Final = 10_000


class Ending(NamedTuple):
    """How a transaction ends: its ordinal, and the producer, epoch and time of its control batches.

    If ``timestamp_ms`` is -1, the partition's server sets the time.
    """

    ordinal: int
    producer_id: int
    producer_epoch: int
    is_commit: bool
    timestamp_ms: int = -1


class Producer(NamedTuple):
    """A partition's state of a producer; an unknown value is -1 or empty.

    ``first_open`` is the first offset of its open transaction, ``ordinal`` that transaction's.
    """

    producer_id: int
    epoch: int
    last_sequence: int
    last_timestamp: int
    first_open: int
    ordinal: int
    transactional_id: str


async def mark(log: Partitions, partition: Partition, ending: Ending) -> int:
    """End a transaction in a partition; repeatable. Returns a code, GONE if the topic no longer exists.

    First aborts an older open transaction that its coordinator has forgotten, if any.

    :raises StoreUnavailable, StoreFull, StoreError:
    """
    code = await _write(log, partition, ending)
    if code == CONCURRENT_TRANSACTIONS:
        await abort_older(log, partition, ending)
        code = await _write(log, partition, ending)
    return code


async def abort_older(log: Partitions, partition: Partition, than: Ending) -> None:
    """Abort a producer's open transaction in a partition if it is older than the one that ends.

    :raises StoreUnavailable, StoreFull, StoreError:
    """
    await _write(log, partition, than._replace(ordinal=than.ordinal - 1, is_commit=False))


async def _write(log: Partitions, partition: Partition, ending: Ending) -> int:
    """Write a control batch with the server's time unless the transaction has ended; returns a code.

    :raises StoreUnavailable, StoreFull, StoreError:
    """
    timestamp_ms = ending.timestamp_ms if ending.timestamp_ms >= 0 else await _now_ms(log, partition)
    batch, data = marker(
        ending.producer_id, ending.producer_epoch, is_commit=ending.is_commit, timestamp_ms=timestamp_ms
    )
    for _ in range(_ATTEMPTS):
        reply = await log.store.call_function(
            Purpose.APPEND,
            "korvet_log_mark",
            partition.transaction_keys,
            topic_id=partition.topic_id,
            run_id=partition.run_id or log.find_run_id(partition),
            producer_id=ending.producer_id,
            producer_epoch=ending.producer_epoch,
            ordinal=ending.ordinal,
            decision="commit" if ending.is_commit else "abort",
            size=len(data),
            max_timestamp=batch.max_timestamp,
            crc=batch.crc,
            batch=data,
        )
        code, base_offset, log_start, leader_epoch = map(int, reply.split())
        if code == 0 and base_offset >= 0:
            partition.note_marker(leader_epoch, base_offset + 1, log_start)
        if code != GONE or not await log.restore(partition):
            return code
    return GONE


async def _now_ms(log: Partitions, partition: Partition) -> int:
    seconds, microseconds = await log.store.call(Purpose.READ, partition.keys.log, "TIME")
    return int(seconds) * 1000 + int(microseconds) // 1000


async def check(log: Partitions, partition: Partition, joined: str, producer_id: int, ordinal: int) -> int:
    """0 if a partition still holds an open transaction's records, GONE if it has no keys of this topic.

    :param joined: its server's replication id when it joined the transaction; empty if unknown.
    :raises StoreUnavailable, StoreError:
    """
    keys = partition.transaction_keys
    code: int = await log.store.call_function(
        Purpose.APPEND,
        "korvet_log_check",
        (keys.meta, keys.open, keys.transactions),
        topic_id=partition.topic_id,
        joined=joined,
        producer_id=producer_id,
        ordinal=ordinal,
    )
    return code


async def producers(
    log: Partitions, partition: Partition, only: int | None, *, only_open: bool
) -> list[Producer] | None:
    """The producers of a partition; see `korvet.store.log.log.Log.producers`.

    :raises StoreUnavailable, StoreError:
    """
    found: dict[int, Producer] = {}
    cursor = b"0"
    for _ in range(_CALLS):
        code, cursor, some = await log.store.call_function(
            Purpose.READ,
            "korvet_log_producers",
            partition.transaction_keys,
            topic_id=partition.topic_id,
            cursor=cursor,
            producer_id="" if only is None else only,
            only_open=1 if only_open else None,
        )
        if code == GONE:
            return None
        for *known, transactional_id in some:
            found[known[0]] = Producer._make((*known, transactional_id.decode()))
        if cursor == b"0":
            break
    return list(found.values())
