"""Transactions over the wire: list and describe them."""

from __future__ import annotations

from dataclasses import dataclass

from kio.schema.describe_transactions.v0 import DescribeTransactionsRequest
from kio.schema.find_coordinator.v4 import FindCoordinatorRequest, FindCoordinatorResponse
from kio.schema.list_transactions.v0 import ListTransactionsRequest, ListTransactionsResponse
from kio.schema.types import TransactionalId
from kio.static.primitive import i8

from korvet.cli.kafka.address import Address
from korvet.cli.kafka.client import Client, retried
from korvet.cli.kafka.errors import check
from korvet.cli.kafka.offsets import TopicPartition
from korvet.cli.kafka.transaction_schema import DescribeTransactionsResponse

_TRANSACTION = i8(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTransaction:
    """A transactional id as ListTransactions shows it."""

    id: str
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """A transactional id and its present transaction as DescribeTransactions shows them.

    ``started_ms`` is the time since 1970, -1 without a transaction.
    """

    id: str
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    started_ms: int
    partitions: tuple[TopicPartition, ...]


def list_transactions(client: Client) -> list[ListedTransaction]:
    """The transactional ids of every broker, by id.

    :raises BrokerError: if a broker cannot tell.
    """
    found: dict[str, ListedTransaction] = {}
    for node in client.brokers():
        answer = client.ask(ListTransactionsRequest(), ListTransactionsResponse, node)
        check(answer.error_code, "list of transactions")
        for item in answer.transaction_states:
            found[item.transactional_id] = ListedTransaction(
                id=item.transactional_id, producer_id=int(item.producer_id), state=item.transaction_state
            )
    return [found[id] for id in sorted(found)]


def describe_transaction(client: Client, id: str) -> Transaction:
    """A transactional id and its transaction.

    :raises BrokerError: with TRANSACTIONAL_ID_NOT_FOUND, …
    """
    return retried(lambda: _described(client, id))


def coordinator_of(client: Client, id: str) -> Address:
    """The coordinator of a transactional id.

    :raises BrokerError: with TRANSACTIONAL_ID_AUTHORIZATION_FAILED, …
    """
    lookup = FindCoordinatorRequest(key_type=_TRANSACTION, coordinator_keys=(id,))
    (found,) = client.ask(lookup, FindCoordinatorResponse).coordinators
    check(found.error_code, f"coordinator of transactional id {id!r}", found.error_message)
    return Address(found.host, found.port)


def _described(client: Client, id: str) -> Transaction:
    request = DescribeTransactionsRequest(transactional_ids=(TransactionalId(id),))
    answer = client.ask_at(coordinator_of(client, id), request, DescribeTransactionsResponse)
    (state,) = answer.transaction_states
    check(state.error_code, f"transactional id {id!r}")
    return Transaction(
        id=id,
        producer_id=int(state.producer_id),
        producer_epoch=int(state.producer_epoch),
        state=state.transaction_state,
        timeout_ms=int(state.transaction_timeout_ms),
        started_ms=int(state.transaction_start_time_ms),
        partitions=tuple(
            TopicPartition(topic.topic, int(partition)) for topic in state.topics for partition in topic.partitions
        ),
    )
