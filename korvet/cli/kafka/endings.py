"""The end of transactions that hang: by their coordinator, and by a marker in one partition (KIP-664).

Source: Admin.fenceProducers and TransactionsCommand; FenceProducersHandler, AbortTransactionHandler
"""

from __future__ import annotations

from typing import Any, NamedTuple

from korvet.cli.kafka.client import TRANSACTION, Client, retried
from korvet.cli.kafka.errors import check
from korvet.cli.kafka.framing import request
from korvet.cli.kafka.offsets import TopicPartition, leaders_of
from korvet.errors import KorvetError


class OpenTransaction(NamedTuple):
    """A transaction that is open in a partition: its producer, and the offset of its first record."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    last_timestamp_ms: int


@retried
def fence(client: Client, id: str) -> None:
    """End a transactional id's open transaction, and fence the producer that began it.

    It may be repeated. The producer gets PRODUCER_FENCED, or INVALID_PRODUCER_EPOCH, at its next request.

    :raises BrokerError: with TRANSACTIONAL_ID_AUTHORIZATION_FAILED, …
    """
    # As Kafka's does: the short timeout is for a producer that sends no record.
    message = request("init_producer_id", 4, transactional_id=id, transaction_timeout=1)
    answer = client.ask(message, client.coordinator(id, TRANSACTION))
    check(answer.error_code, f"transactional id {id!r}")


@retried
def open_transactions(client: Client, partition: TopicPartition) -> list[OpenTransaction]:
    """The transactions that are open in a partition, by their first offsets.

    :raises BrokerError: with TOPIC_AUTHORIZATION_FAILED, …
    """
    answer = client.ask(request("describe_producers", 0, topics=_topics(partition)), _leader(client, partition))
    ((found,),) = [one.partitions for one in answer.topics]
    check(found.error_code, f"partition {partition}", found.error_message)
    transactions = [
        OpenTransaction(
            int(one.producer_id), int(one.producer_epoch), int(one.coordinator_epoch),
            int(one.current_txn_start_offset), int(one.last_timestamp),
        )
        for one in found.active_producers
        if one.current_txn_start_offset >= 0
    ]  # fmt: skip
    return sorted(transactions, key=lambda one: one.start_offset)


def abort_open(client: Client, partition: TopicPartition, start_offset: int) -> None:
    """Abort the transaction that is open in a partition since an offset, whatever its coordinator says.

    :raises KorvetError: if none is open since there.
    :raises BrokerError: with CLUSTER_AUTHORIZATION_FAILED, …
    """
    found = [one for one in open_transactions(client, partition) if one.start_offset == start_offset]
    if not found:
        raise KorvetError(f"no transaction is open in partition {partition} since offset {start_offset}")
    marker = {
        "producer_id": found[0].producer_id,
        "producer_epoch": found[0].producer_epoch,
        "transaction_result": False,
        "topics": _topics(partition),
        # The broker takes 0 of a producer that never had a coordinator's marker, as Kafka's tool sends it.
        "coordinator_epoch": max(found[0].coordinator_epoch, 0),
    }
    answer = client.ask(request("write_txn_markers", 1, markers=[marker]), _leader(client, partition))
    for code in (one.error_code for marker in answer.markers for each in marker.topics for one in each.partitions):
        check(code, f"partition {partition}")


def _topics(partition: TopicPartition) -> list[dict[str, Any]]:
    return [{"name": partition.topic, "partition_indexes": (partition.partition,)}]


def _leader(client: Client, partition: TopicPartition) -> int:
    leaders = leaders_of(client, [partition])
    if partition not in leaders:
        raise KorvetError(f"no partition {partition}, or this user may not see it")
    return leaders[partition]
