"""Transactions over the wire: list and describe them."""

# The classes of answers are no texts here, because kio reads them.
from dataclasses import dataclass, field

from kio.schema.describe_transactions.v0.response import DescribeTransactionsResponse, TransactionState
from kio.static.primitive import i64

from korvet.cli.kafka.client import TRANSACTION, Client, retried
from korvet.cli.kafka.errors import check
from korvet.cli.kafka.framing import request
from korvet.cli.kafka.offsets import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class _State(TransactionState):
    """kio's has a time, and refuses the -1 of an id without a transaction."""

    transaction_start_time: i64 = field(metadata={"kafka_type": "int64"})  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Described(DescribeTransactionsResponse):
    transaction_states: tuple[_State, ...]


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

    :raises BrokerError: if a broker fails to answer.
    """
    found: dict[str, ListedTransaction] = {}
    for node in client.brokers():
        answer = client.ask(request("list_transactions", 0), node)
        check(answer.error_code, "list of transactions")
        for item in answer.transaction_states:
            found[item.transactional_id] = ListedTransaction(
                id=item.transactional_id, producer_id=int(item.producer_id), state=item.transaction_state
            )
    return [found[id] for id in sorted(found)]


@retried
def describe_transaction(client: Client, id: str) -> Transaction:
    """A transactional id and its transaction.

    :raises BrokerError: with TRANSACTIONAL_ID_NOT_FOUND, …
    """
    message = request("describe_transactions", 0, transactional_ids=(id,))
    (state,) = client.ask(message, client.coordinator(id, TRANSACTION), _Described).transaction_states
    check(state.error_code, f"transactional id {id!r}")
    return Transaction(
        id=id,
        producer_id=int(state.producer_id),
        producer_epoch=int(state.producer_epoch),
        state=state.transaction_state,
        timeout_ms=round(state.transaction_timeout.total_seconds() * 1000),
        started_ms=int(state.transaction_start_time),
        partitions=tuple(
            TopicPartition(topic.topic, int(partition)) for topic in state.topics for partition in topic.partitions
        ),
    )
