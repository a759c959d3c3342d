"""A transactional producer of whole batches, whose transactions also commit a group's offset in one partition.

Source: TransactionManager, KIP-98, KIP-360 (an epoch of its own after each failure), KIP-447 (stable offsets)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from crc32c import crc32c
from kio.schema.errors import ErrorCode

from korvet.cli.kafka.address import Address
from korvet.cli.kafka.client import TRANSACTION, Client, retried
from korvet.cli.kafka.errors import BrokerError, check
from korvet.cli.kafka.framing import Request, request
from korvet.cli.kafka.offsets import NO_OFFSET, TopicPartition, by_partition, by_topic, leaders_of
from korvet.cli.kafka.topics import TIMEOUT_MS
from korvet.wire.batch import CODEC_MASK, CRC_FROM, HEADER, TRANSACTIONAL, Batch

TRANSACTION_MS: Final = 60_000
_ACKS_ALL: Final = -1
_SEQUENCES: Final = 1 << 31
_SETTLED_WITHIN_S: Final = 60.0
_PAUSE_S: Final = 0.02
_UNSETTLED: Final = {ErrorCode.concurrent_transactions, ErrorCode.unstable_offset_commit}
"""The decision about a transaction before this one is still being written."""


_AT_ONCE_BYTES: Final = 1 << 20
"""Of batches that are sent before the first answer."""


class Place(NamedTuple):
    """A committed offset and its metadata."""

    offset: int
    metadata: str


def as_producers(data: bytes | memoryview, producer_id: int, epoch: int, sequence: int) -> tuple[bytearray, int]:
    """A batch with its records as they are, as this transactional producer sends it; and the next batch's sequence."""
    batch = Batch._make(HEADER.unpack_from(data))._replace(
        base_offset=0, leader_epoch=-1, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
    )
    batch = batch._replace(attributes=batch.attributes & CODEC_MASK | TRANSACTIONAL)
    whole = bytearray(data)
    HEADER.pack_into(whole, 0, *batch)
    HEADER.pack_into(whole, 0, *batch._replace(crc=crc32c(memoryview(whole)[CRC_FROM:])))
    return whole, (sequence + batch.records) % _SEQUENCES


class TransactionalProducer:
    """The producer of a transactional id.

    :param group: the group whose offset of ``partition`` its transactions commit.
    """

    def __init__(self, id: str, group: str, partition: TopicPartition) -> None:
        self._id, self._group, self._partition = id, group, partition
        self._producer_id, self._epoch = -1, -1
        self._sequences: dict[TopicPartition, int] = {}
        self._coordinator = self._group_coordinator = Address("", 0)

    @retried
    def begin(self, client: Client) -> Place | None:
        """Fence former producers of the id, end the transaction that they left open, and return what is committed.

        Again, after a failure: then another producer that began since keeps the id.

        :raises BrokerError: with PRODUCER_FENCED or INVALID_PRODUCER_EPOCH if there is one.
        """
        self._coordinator = client.coordinator(self._id, TRANSACTION)
        self._group_coordinator = client.coordinator(self._group)
        answer = self._ask(
            client,
            request(
                "init_producer_id", 4, transactional_id=self._id, transaction_timeout=TRANSACTION_MS,
                producer_id=self._producer_id, producer_epoch=self._epoch,
            ),
            lambda answer: answer.error_code,
        )  # fmt: skip
        self._producer_id, self._epoch = int(answer.producer_id), int(answer.producer_epoch)
        self._sequences.clear()
        return self._place(client)

    def write(
        self, client: Client, batches: Mapping[TopicPartition, Sequence[bytes | memoryview]], place: Place
    ) -> None:
        """Commit batches and the place together. After an error it is unknown whether they are: begin again.

        :param batches: by the partition that gets them.
        :raises BrokerError:
        """
        own, leaders = self._own(), leaders_of(client, [*batches])
        for at in batches:
            if at not in leaders:
                raise BrokerError(f"partition {at} does not exist", ErrorCode.unknown_topic_or_partition)
        if batches:
            legacy = {f"v3_and_below_{name}": value for name, value in own.items()}
            self._ask(
                client,
                request("add_partitions_to_txn", 3, **legacy, v3_and_below_topics=by_topic(batches, None)),
                _of_partitions,
            )
        for at, those in batches.items():
            client.introduce(leaders[at])
            for some in _at_once(those):
                self._produce(client, at, leaders[at], some)
        self._ask(client, request("add_offsets_to_txn", 3, **own, group_id=self._group), lambda found: found.error_code)
        said = {"committed_offset": place.offset, "committed_leader_epoch": -1, "committed_metadata": place.metadata}
        self._ask(
            client,
            request(
                "txn_offset_commit", 3, **own, group_id=self._group, generation_id=-1, group_instance_id=None,
                topics=by_topic([self._partition], lambda _: said),
            ),
            lambda answer: answer.topics[0].partitions[0].error_code,
            self._group_coordinator,
        )  # fmt: skip
        self._end(client, committed=True)

    def abort(self, client: Client) -> None:
        """Abort, so that readers of committed records need not wait for the transaction's timeout."""
        with suppress(BrokerError):
            self._end(client, committed=False)

    def _own(self) -> dict[str, Any]:
        return {"transactional_id": self._id, "producer_id": self._producer_id, "producer_epoch": self._epoch}

    def _produce(self, client: Client, at: TopicPartition, leader: int, batches: Sequence[bytes | memoryview]) -> None:
        """Send batches, each in a request of its own, as Kafka wants; after one that fails it takes no other."""
        messages = []
        for data in batches:
            sequence = self._sequences.get(at, 0)
            whole, self._sequences[at] = as_producers(data, self._producer_id, self._epoch, sequence)
            topic = {"name": at.topic, "partition_data": [{"index": at.partition, "records": [whole]}]}
            fields = {"transactional_id": self._id, "acks": _ACKS_ALL, "timeout": TIMEOUT_MS, "topic_data": [topic]}
            messages.append(request("produce", 9, **fields))
        for answer in client.ask_all(messages, leader):
            (result,) = answer.responses[0].partition_responses
            reasons = [result.error_message, *(one.batch_index_error_message for one in result.record_errors[:1])]
            check(result.error_code, f"partition {at}", "; ".join(filter(None, reasons)))

    def _end(self, client: Client, *, committed: bool) -> None:
        self._ask(client, request("end_txn", 3, **self._own(), committed=committed), lambda answer: answer.error_code)

    def _place(self, client: Client) -> Place | None:
        """What the group has committed, once no decision is on its way to it."""
        at = self._partition
        topics = [{"name": at.topic, "partition_indexes": [at.partition]}]
        message = request("offset_fetch", 8, groups=[{"group_id": self._group, "topics": topics}], require_stable=True)

        def code(answer: Any) -> ErrorCode:
            (group,) = answer.groups
            return group.error_code or next((one.error_code for _, one in by_partition(group.topics)), ErrorCode.none)

        answer = self._ask(client, message, code, self._group_coordinator)
        for _, found in by_partition(answer.groups[0].topics):
            if found.committed_offset != NO_OFFSET:
                return Place(int(found.committed_offset), found.metadata or "")
        return None

    def _ask(
        self, client: Client, message: Request, code: Callable[[Any], ErrorCode], at: Address | None = None
    ) -> Any:
        """The answer of a coordinator, once it is ready for the request.

        :raises BrokerError:
        """
        deadline = time.monotonic() + _SETTLED_WITHIN_S
        while True:
            answer = client.ask(message, at or self._coordinator)
            if code(answer) not in _UNSETTLED or time.monotonic() > deadline:
                check(code(answer), f"group {self._group!r}" if at else f"transactional id {self._id!r}")
                return answer
            time.sleep(_PAUSE_S)


def _of_partitions(answer: Any) -> ErrorCode:
    """The first error of an answer to AddPartitionsToTxn."""
    found = (one for topic in answer.results_by_topic_v3_and_below for one in topic.results_by_partition)
    codes = (one.partition_error_code for one in found)
    # The error of one partition has the others not attempted.
    passing = {ErrorCode.none, ErrorCode.operation_not_attempted}
    return next((code for code in codes if code not in passing), ErrorCode.none)


def _at_once(batches: Iterable[bytes | memoryview]) -> Iterator[Sequence[bytes | memoryview]]:
    some: list[bytes | memoryview] = []
    for data in batches:
        if some and sum(map(len, some)) + len(data) > _AT_ONCE_BYTES:
            yield some
            some = []
        some.append(data)
    yield some
