"""A producer of records over the wire: with acks=all, a batch at a time. It never sends a batch again that may be
stored."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kio.schema.errors import ErrorCode

from korvet.cli.kafka.client import Client, retried
from korvet.cli.kafka.errors import BrokerError, ConnectionLost, check, error_name
from korvet.cli.kafka.framing import request
from korvet.cli.kafka.offsets import TopicPartition, leaders_of
from korvet.cli.kafka.records import Unsent, partition_of, write_batch
from korvet.cli.kafka.topics import TIMEOUT_MS
from korvet.errors import KorvetError

BATCH_BYTES: Final = 512 << 10
"""The most bytes of a batch's records before compression; a larger record is sent alone."""
MOST_RECORDS: Final = 10_000
"""The most records of a batch: topics that store record by record take no more."""
_ACKS_ALL: Final = -1
_TOO_LARGE: Final = {ErrorCode.message_too_large, ErrorCode.record_list_too_large}
_UNKNOWN_OUTCOME: Final = {ErrorCode.request_timed_out, ErrorCode.not_enough_replicas_after_append}


@dataclass(slots=True)
class Written:
    """The records that were stored in a partition."""

    records: int = 0
    first_offset: int = -1
    last_offset: int = -1


@dataclass(slots=True)
class Producer:
    """A producer to a topic's partitions; ``written`` has the records stored so far, by partition."""

    client: Client
    partitions: Sequence[TopicPartition]
    codec: int
    written: dict[int, Written] = field(default_factory=dict)
    sent: int = 0

    def send(self, records: Iterable[Unsent], partition: int | None = None) -> None:
        """Store records in the given partition, else each by its key as Java's producers do, else in a random one.

        :raises KorvetError: if they are refused, or may be stored or not.
        """
        by_partition: dict[int, list[Unsent]] = {}
        anywhere = random.randrange(len(self.partitions))
        for record in records:
            at = partition
            if at is None:
                at = anywhere if record.key is None else partition_of(record.key, len(self.partitions))
            by_partition.setdefault(at, []).append(record)
        for at, chosen in by_partition.items():
            for batch in _batches(chosen):
                self._store(at, batch)

    def _store(self, partition: int, records: Sequence[Unsent]) -> None:
        """Store a batch; in halves if it is too large for the topic."""
        data = write_batch(records, self.codec)
        topic = self.partitions[0].topic
        try:
            offset = self._ask(TopicPartition(topic, partition), data)
        except BrokerError as error:
            if error.code in _TOO_LARGE and len(records) > 1:
                half = len(records) // 2
                self._store(partition, records[:half])
                self._store(partition, records[half:])
                return
            if error.code in _TOO_LARGE:
                raise KorvetError(
                    f"a record of {records[0].size_bytes} bytes is too large for topic {topic!r}; "
                    f"raise its limit with: korvet topics configure {topic} --set max.message.bytes=BYTES"
                ) from None
            raise
        written = self.written.setdefault(partition, Written(first_offset=offset))
        written.records += len(records)
        written.last_offset = offset + len(records) - 1
        self.sent += len(records)

    @retried
    def _ask(self, partition: TopicPartition, data: bytes) -> int:
        """The offset of the batch's first record."""
        leader = leaders_of(self.client, [partition]).get(partition)
        if leader is None:
            check(ErrorCode.unknown_topic_or_partition, f"partition {partition}")
        topic = {"name": partition.topic, "partition_data": [{"index": partition.partition, "records": [data]}]}
        message = request("produce", 9, acks=_ACKS_ALL, timeout=TIMEOUT_MS, topic_data=[topic])
        try:
            answer = self.client.ask(message, leader)
        except ConnectionLost as error:
            raise KorvetError(f"{error}; {_PERHAPS}") from None
        (result,) = answer.responses[0].partition_responses
        if result.error_code in _UNKNOWN_OUTCOME:
            raise KorvetError(f"partition {partition}: {error_name(result.error_code)}; {_PERHAPS}")
        check(result.error_code, f"partition {partition}", _message(result))
        return int(result.base_offset)


_PERHAPS: Final = "the last records may be stored or not: check with 'korvet topics consume' before you send them again"


def _message(result: Any) -> str | None:
    """The broker's message about the batch, and about the first wrong record."""
    said = [result.error_message] if result.error_message else []
    said += [f"record {one.batch_index}: {one.batch_index_error_message}" for one in result.record_errors[:1]]
    return "; ".join(said) or None


def _batches(records: Iterable[Unsent]) -> Iterable[list[Unsent]]:
    batch: list[Unsent] = []
    size_bytes = 0
    for record in records:
        if batch and (size_bytes + record.size_bytes > BATCH_BYTES or len(batch) == MOST_RECORDS):
            yield batch
            batch, size_bytes = [], 0
        batch.append(record)
        size_bytes += record.size_bytes
    if batch:
        yield batch
