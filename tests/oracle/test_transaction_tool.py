"""kafka-transactions prints the same about korvet as about Kafka."""

from __future__ import annotations

from typing import Any

import confluent_kafka
import pytest

from tests.api.raw import unique
from tests.oracle.tools import OFFSETS, TRANSACTIONS, WITHIN_S, Tools, table


def test_transaction_tool_prints_as_for_kafka(tools: Tools, topic: str) -> None:
    mine = unique("txn")
    producers: list[Any] = []
    for broker in tools.brokers:
        # The tools take their time, and the transaction has to outlast them.
        settings = {"transactional.id": mine, "transaction.timeout.ms": 600_000}
        producers.append(confluent_kafka.Producer({"bootstrap.servers": broker, **settings}))
        producers[-1].init_transactions(WITHIN_S)
        producers[-1].begin_transaction()
        producers[-1].produce(topic, b"value", partition=0)
        assert producers[-1].flush(WITHIN_S) == 0
    assert [row["TransactionState"] for row in tools.same_table("list", mine=mine)] == ["Ongoing"]
    tools.same_table("list", "--transactional-id-pattern", f"{mine}.*")
    (described,) = tools.same_table("describe", "--transactional-id", mine)
    assert described["TopicPartitions"] == f"{topic}-0"
    tools.same(TRANSACTIONS, "describe", "--transactional-id", f"{mine}-2", code=1)
    partition = ("--topic", topic, "--partition", "0")
    kafka, korvet = (open_since(tools, broker, partition) for broker in tools.brokers)
    assert korvet == kafka == "0"
    tools.same_table("find-hanging", "--topic", topic, "--max-transaction-timeout", "0")
    tools.same(TRANSACTIONS, "abort", *partition, "--start-offset", "7", code=1)
    tools.same(TRANSACTIONS, "abort", *partition, "--start-offset", "0")
    assert [open_since(tools, broker, partition) for broker in tools.brokers] == ["None", "None"]
    assert tools.same(OFFSETS, "--topic", topic) == f"{topic}:0:2\n{topic}:1:0\n"
    tools.same(TRANSACTIONS, "forceTerminateTransaction", "--transactionalId", mine)
    tools.same(TRANSACTIONS, "forceTerminateTransaction", "--transactionalId", f"{mine}-2")
    for producer in producers:
        with pytest.raises(confluent_kafka.KafkaException):
            producer.commit_transaction(WITHIN_S)


def open_since(tools: Tools, broker: str, partition: tuple[str, ...]) -> str:
    """The start of the one producer's transaction, as describe-producers prints it."""
    (row,) = table(tools.run(broker, TRANSACTIONS, "describe-producers", *partition), "")
    return row["CurrentTransactionStartOffset"]
