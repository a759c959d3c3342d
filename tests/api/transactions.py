"""A transactional producer by raw requests, for both flows: version 1 names its partitions, version 2 just sends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.api.data import connected, produce_request, records
from tests.api.raw import ask, unique
from tests.oracle.batches import Batch

TRANSACTIONAL = 0x10
ANY_MEMBER = {"member_id": "", "generation_id": -1, "group_instance_id": None}


@dataclass
class Producer:
    """A client's state for its transactional id: producer id, epoch, and sequences by partition."""

    port: int
    transactional_id: str
    flow: int = 2
    producer_id: int = -1
    epoch: int = -1

    def __post_init__(self) -> None:
        self.sequences: dict[tuple[str, int], int] = {}

    def init(self, timeout_ms: int = 60_000, *, version: int = 5, keep: bool = False) -> str:
        """InitProducerId; returns the code. With ``keep`` the producer names its id and epoch."""
        known = (self.producer_id, self.epoch) if keep else (-1, -1)
        answer = ask(
            self.port, "init_producer_id", version, transactional_id=self.transactional_id,
            transaction_timeout=timeout_ms, producer_id=known[0], producer_epoch=known[1],
        )  # fmt: skip
        if answer["error_code"] == "NONE":
            self.producer_id, self.epoch = answer["producer_id"], answer["producer_epoch"]
            self.sequences.clear()
        return str(answer["error_code"])

    def add(self, topic: str, *partitions: int, version: int = 3) -> list[str]:
        """AddPartitionsToTxn; a code for each partition."""
        answer = ask(
            self.port, "add_partitions_to_txn", version,
            v3_and_below_transactional_id=self.transactional_id, v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[{"name": topic, "partitions": list(partitions or [0])}],
        )  # fmt: skip
        return [
            part["partition_error_code"]
            for topic in answer["results_by_topic_v3_and_below"]
            for part in topic["results_by_partition"]
        ]

    def batch(self, topic: str, partition: int = 0, count: int = 1, **values: Any) -> bytes:
        """The next batch of the transaction."""
        key = topic, partition
        sequence = self.sequences.get(key, 0)
        self.sequences[key] = sequence + count
        own: dict[str, Any] = {"producer_id": self.producer_id, "producer_epoch": self.epoch, "sequence": sequence}
        return records(count, **{"attributes": TRANSACTIONAL, **own, **values})

    def send(self, topic: str, partition: int = 0, count: int = 1, *, version: int = 0, **values: Any) -> Any:
        """Produce a batch; the answer for its partition. Its version is the flow's."""
        with connected(self.port) as connection:
            answer = connection.ask(
                "produce",
                version or (12 if self.flow == 2 else 11),
                **produce_request(
                    topic,
                    self.batch(topic, partition, count, **values),
                    partition=partition,
                    transactional_id=self.transactional_id,
                ),
            )
        return answer["responses"][0]["partition_responses"][0]

    def sent(self, topic: str, partition: int = 0, count: int = 1) -> int:
        """Produce by the flow's version, and assert that the batch is stored; returns the base offset."""
        if self.flow == 1:
            assert self.add(topic, partition) == ["NONE"]
        answer = self.send(topic, partition, count)
        assert answer["error_code"] == "NONE", answer
        return int(answer["base_offset"])

    def end(self, *, commit: bool = True, version: int = 0) -> str:
        """EndTxn; returns the code, and takes over the answer's epoch."""
        version = version or (5 if self.flow == 2 else 4)
        answer = ask(
            self.port, "end_txn", version, transactional_id=self.transactional_id,
            producer_id=self.producer_id, producer_epoch=self.epoch, committed=commit,
        )  # fmt: skip
        if answer["error_code"] == "NONE" and version >= 5:
            self.producer_id, self.epoch = answer["producer_id"], answer["producer_epoch"]
            self.sequences.clear()
        return str(answer["error_code"])

    def add_offsets(self, group: str, version: int = 3) -> str:
        """AddOffsetsToTxn; the code."""
        answer = ask(
            self.port, "add_offsets_to_txn", version, transactional_id=self.transactional_id,
            producer_id=self.producer_id, producer_epoch=self.epoch, group_id=group,
        )  # fmt: skip
        return str(answer["error_code"])

    def commit_offsets(
        self, group: str, offsets: Mapping[tuple[str, int], int], *, version: int = 0, **member: Any
    ) -> list[str]:
        """TxnOffsetCommit; a code for each partition."""
        topics = [
            {
                "name": name,
                "partitions": [{"partition_index": index, "committed_offset": offset, "committed_metadata": ""}],
            }
            for (name, index), offset in offsets.items()
        ]
        answer = ask(
            self.port, "txn_offset_commit", version or (5 if self.flow == 2 else 4),
            **{**ANY_MEMBER, **member}, transactional_id=self.transactional_id, group_id=group,
            producer_id=self.producer_id, producer_epoch=self.epoch, topics=topics,
        )  # fmt: skip
        return [part["error_code"] for topic in answer["topics"] for part in topic["partitions"]]


def producer(port: int, flow: int = 2, transactional_id: str | None = None) -> Producer:
    """A producer that has its id."""
    made = Producer(port, transactional_id or unique("txn"), flow)
    assert made.init() == "NONE"
    return made


def described(port: int, transactional_id: str) -> Any:
    """DescribeTransactions of one id."""
    return ask(port, "describe_transactions", 0, transactional_ids=[transactional_id])["transaction_states"][0]


def committed(port: int, group: str, *partitions: tuple[str, int], stable: bool = False) -> Sequence[tuple[int, str]]:
    """Committed offset and code of each partition."""
    topics = [{"name": name, "partition_indexes": [index]} for name, index in partitions]
    answer = ask(
        port, "offset_fetch", 9, groups=[{"group_id": group, "topics": topics, "member_epoch": -1}],
        require_stable=stable,
    )  # fmt: skip
    return [
        (part["committed_offset"], part["error_code"])
        for topic in answer["groups"][0]["topics"]
        for part in topic["partitions"]
    ]


__all__ = ["TRANSACTIONAL", "Batch", "Producer", "committed", "described", "producer"]
