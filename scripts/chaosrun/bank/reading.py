"""The content of the bank's topics: from fresh readers, from one that reads on all the time, and from Redis."""

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from confluent_kafka.cimpl import NewTopic

from korvet.store.keys import TRANSACTION_SHARDS, Namespace
from scripts.chaosrun.bank.books import (
    ACCOUNTANTS,
    BALANCES,
    CLERKS,
    LEDGER,
    ORDERS,
    PARTITIONS,
    TOPICS,
    Entry,
    Order,
    Posted,
)
from scripts.chaosrun.groups import begin, described
from scripts.chaosrun.journal import Partition
from scripts.chaosrun.load import WITHIN_S, LoadError
from scripts.chaosrun.stage import Stage

ENDED: Final = (b"Empty", b"CompleteCommit", b"CompleteAbort")


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """All committed entries, from a read_committed reader, and positions from before they were read."""

    clerks: dict[Partition, int]
    accountants: dict[Partition, int]
    balances: dict[int, int]
    transactions: set[str]
    posted: list[Posted]
    orders: dict[tuple[Partition, int], Order]


class Auditor:
    """A reader of the books through the front-ends, with facts from Redis that no reader sees."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._admin: Any = AdminClient({"bootstrap.servers": stage.bootstrap})

    def make_topics(self, configs: Mapping[str, str]) -> None:
        """Make the bank's topics, of which balances are compacted, and let the clerks begin at 0.

        :param configs: the settings of the others.
        """
        topics = [NewTopic(topic, PARTITIONS, 1, config=dict(configs)) for topic in (ORDERS, LEDGER)]
        compacted = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1"}
        topics.append(NewTopic(BALANCES, PARTITIONS, 1, config=compacted))
        for made in self._admin.create_topics(topics).values():
            made.result(30)
        begin(self._admin, CLERKS, [ORDERS], PARTITIONS)

    def ends(self, *topics: str, is_committed: bool = False) -> dict[Partition, int]:
        """The ends of the topics' partitions, or their last stable offsets."""
        latest: Any = OffsetSpec
        partitions = {
            TopicPartition(topic, partition): latest.latest() for topic in topics for partition in range(PARTITIONS)
        }  # fmt: skip
        level = IsolationLevel.READ_COMMITTED if is_committed else IsolationLevel.READ_UNCOMMITTED
        deadline = time.monotonic() + WITHIN_S
        while True:
            try:
                found = self._admin.list_offsets(partitions, isolation_level=level)
                return {(of.topic, of.partition): answer.result(30).offset for of, answer in found.items()}
            except KafkaException as error:
                # librdkafka asks with the leader epoch that it knows, and does not look for the new one by itself.
                if time.monotonic() > deadline:
                    raise LoadError(f"the ends of {topics} are unknown: {error}") from error
                self._admin.list_topics(timeout=10)

    def _all_of(self, topic: str) -> list[Any]:
        """Every committed message, up to each partition's last stable offset as it is now. Raises LoadError.

        A partition that is written all the time has no end for librdkafka, which finds one by an empty answer. Such an
        answer may come from a front-end that has yet to hear of the last records.
        """
        stable = self.ends(topic, is_committed=True)
        consumer, found = _consumer(self._stage.bootstrap, topic), []
        reached: set[int] = set()
        deadline = time.monotonic() + WITHIN_S
        while len(reached) < PARTITIONS:
            for message in consumer.consume(1000, 0.1):
                if message.partition() < 0:
                    # An error of no partition, such as a broker that is away; librdkafka tries again.
                    continue
                end, error = stable[topic, message.partition()], message.error()
                if error is None and message.offset() < end:
                    found.append(message)
                if error is not None and error.code() == KafkaError._AUTO_OFFSET_RESET:
                    raise LoadError(f"{topic}: an offset of the log is refused: {error}")
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    continue
                if message.offset() >= (end if error is not None else end - 1):
                    reached.add(message.partition())
            if time.monotonic() > deadline:
                raise LoadError(f"{topic}: the ends of {sorted(reached)} were reached, of others not")
        consumer.close()
        return found

    def ledger(self) -> list[Posted]:
        """All committed entries, of each partition in their order. Raises LoadError."""
        return [_posted(message) for message in self._all_of(LEDGER)]

    def read(self) -> Books:
        """The books as they are now. Raises LoadError."""
        clerks, accountants = self.positions(CLERKS), self.positions(ACCOUNTANTS)
        balances = [(int(message.key()), json.loads(message.value())) for message in self._all_of(BALANCES)]
        posted = self.ledger()
        return Books(
            clerks=clerks,
            accountants=accountants,
            balances={account: value["balance"] for account, value in balances},
            transactions={value["transaction"] for _, value in balances} | {each.entry.transaction for each in posted},
            posted=posted,
            orders={
                ((ORDERS, message.partition()), message.offset()): Order.parse(message.value())
                for message in self._all_of(ORDERS)
            },
        )

    def only_tiered(self) -> int:
        """The records that only the tier has."""
        partitions = [
            Namespace("default").partition(topic, at) for topic in (ORDERS, LEDGER) for at in range(PARTITIONS)
        ]
        with self._stage.redis() as client:
            return sum(int(client.hget(keys.meta, "local_start") or 0) for keys in partitions)

    def positions(self, group: str) -> dict[Partition, int]:
        """The group's committed positions."""
        with self._stage.redis() as client:
            return dict(described(client, group).committed)

    def left_open(self) -> list[str]:
        """Open transactions, and partitions with a last stable offset below their end."""
        with self._stage.redis() as client:
            states = [
                f"{name.decode()} is {state.decode()}"
                for shard in range(TRANSACTION_SHARDS)
                for name in client.zrange(Namespace("default").transaction_deadlines(shard), 0, -1)
                if (state := _state(client, name)) not in ENDED
            ]
        stable, last = self.ends(*TOPICS, is_committed=True), self.ends(*TOPICS)
        lagging = [
            f"{partition} is stable to {stable[partition]} of {end}"
            for partition, end in last.items()
            if stable[partition] < end
        ]
        return states + lagging


def _consumer(bootstrap: str, topic: str) -> Any:
    consumer = Consumer({
        "bootstrap.servers": bootstrap, "group.id": "auditors", "isolation.level": "read_committed",
        "enable.auto.commit": False, "enable.partition.eof": True,
        # By its default an offset that is refused would end the reading as if all had been read.
        "auto.offset.reset": "error",
    })  # fmt: skip
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    return consumer


def _posted(message: Any) -> Posted:
    return Posted(
        partition=(message.topic(), message.partition()), offset=message.offset(), entry=Entry.parse(message.value())
    )  # fmt: skip


def _state(redis: Any, name: bytes) -> bytes:
    """The state of a transactional id; Empty if there is none, as for the empty name beside the ids."""
    key = Namespace("default").transaction(name.decode()).id
    reply = redis.execute_command("FCALL_RO", "korvet_txn_describe", 1, key)
    if reply[0] != 0:
        return b"Empty"
    state: bytes = dict(zip(reply[1::2], reply[2::2], strict=True))[b"state"]
    return state


class Watch:
    """A read_committed reader of the ledger, from the beginning on and as long as the context lasts."""

    def __init__(self) -> None:
        self.posted: list[Posted] = []


@contextmanager
def watching(bootstrap: str) -> Iterator[Watch]:
    """All records read meanwhile, in the order of each partition."""
    watch, stopped = Watch(), threading.Event()
    consumer = _consumer(bootstrap, LEDGER)

    def work() -> None:
        while not stopped.is_set():
            watch.posted += [_posted(message) for message in consumer.consume(100, 0.2) if message.error() is None]

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield watch
    finally:
        stopped.set()
        thread.join()
        consumer.close()
