"""Dead letters go back to where they failed, each exactly once: transactions have letters and, in a group, their place.

Of a letter without a copy of its record, the record is read from its topic, if it is still there.

Source: KIP-1191
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from kio.schema.errors import ErrorCode

from korvet.cli.kafka.client import Client
from korvet.cli.kafka.consume import Cursor, Gone, Item, Reader, Uncommitted
from korvet.cli.kafka.errors import BrokerError
from korvet.cli.kafka.offsets import TopicPartition, committed_offsets, log_limits
from korvet.cli.kafka.produce import BATCH_BYTES, MOST_RECORDS
from korvet.cli.kafka.records import Record, Undecodable, Unsent, write_batch
from korvet.cli.kafka.topics import chosen_partitions, describe_topics
from korvet.cli.kafka.transactional import Place, TransactionalProducer
from korvet.errors import KorvetError
from korvet.wire.dead_letters import Origin, origin_of


@dataclass(slots=True)
class _Piece:
    """A transaction's records, each a batch of its own, so that no batch is larger than a record has to be."""

    batches: dict[TopicPartition, list[bytes]] = field(default_factory=dict)
    size_bytes: int = 0
    next_offset: int = -1


class Redrive:
    """The dead letters that a topic has now, and a group has not sent back.

    :param to: the topic that gets them; None for the ones where they failed.
    :param most: the most letters to send.
    :param execute: send them, and do not only count them.
    :ivar sent: the letters of each partition that got some.
    """

    def __init__(
        self, client: Client, topic: str, group: str, *, to: str | None, most: int | None, execute: bool
    ) -> None:
        self._client, self._topic, self._group, self._to = client, topic, group, to
        self._most, self._execute = math.inf if most is None else most, execute
        self._counts: dict[str, int] = {}
        self._near: dict[tuple[TopicPartition, int], Record] = {}
        """The records from the last one on that was read, to the end of its batch: the next letter may be of one."""
        self.sent: Counter[TopicPartition] = Counter()

    def run(self) -> Iterator[str]:
        """Send them; the sentences name those that are left out, and say why.

        :raises KorvetError: if they cannot be sent. All that was sent counts, and another run goes on after it.
        """
        starts, ends = log_limits(self._client, chosen_partitions(self._client, self._topic, ()))
        committed = committed_offsets(self._client, self._group)
        for at, end in ends.items():
            start = max(starts[at], committed.get(at, 0))
            if start < end and self.sent.total() < self._most:
                yield from self._run(at, start, end)

    def _run(self, at: TopicPartition, start: int, end: int) -> Iterator[str]:
        producer = None
        if self._execute:
            producer = TransactionalProducer(f"{self._group}-{at.partition}", self._group, at)
            place = producer.begin(self._client)
            start = start if place is None else max(start, place.offset)
        reader, piece = Reader(self._client, [Cursor(partition=at, position=start, stop=end)], committed=True), _Piece()
        while not reader.is_done:
            for _, item in reader.read():
                if problem := self._add(piece, item):
                    yield f"{at}@{item.offset} is left out: {problem}"
                is_last = self.sent.total() + sum(map(len, piece.batches.values())) >= self._most
                if is_last or piece.size_bytes >= BATCH_BYTES:
                    self._write(producer, at, piece)
                    piece = _Piece()
                if is_last:
                    return
        self._write(producer, at, piece)

    def _add(self, piece: _Piece, item: Item) -> str:
        """Add a letter's record to a transaction. Returns why it is left out, or an empty text."""
        if isinstance(item, Uncommitted):
            return "an open transaction holds it back"
        piece.next_offset = (item.offset if isinstance(item, Record) else item.last_offset) + 1
        if isinstance(item, Undecodable):
            return f"it cannot be decoded: {item.reason}"
        if isinstance(item, Gone):
            return "it was removed before it could be read"
        found = origin_of(item.headers)
        if found is None:
            return "it has no headers of a dead letter"
        origin, headers = found
        record = item._replace(headers=headers)
        if item.key is None and item.value is None and not headers:
            whole = self._record(origin)
            if whole is None:
                return f"it has no copy of its record {origin.topic}-{origin.partition}@{origin.offset}, which is gone"
            record = whole._replace(timestamp=item.timestamp)
        topic = self._to or origin.topic
        partitions = self._partitions(topic)
        if not partitions:
            raise KorvetError(f"topic {topic!r} of dead letters does not exist; create it, or name another with --to")
        batch = write_batch([Unsent(record.key, record.value, record.headers, record.timestamp)], 0)
        piece.batches.setdefault(TopicPartition(topic, origin.partition % partitions), []).append(batch)
        piece.size_bytes += len(batch)
        return ""

    def _record(self, origin: Origin) -> Record | None:
        """The record that failed, or None if it is gone."""
        at = TopicPartition(origin.topic, origin.partition)
        if at.partition >= self._partitions(at.topic):
            return None
        if (at, origin.offset) not in self._near:
            cursor = Cursor(partition=at, position=origin.offset, stop=origin.offset + MOST_RECORDS)
            reader, self._near = Reader(self._client, [cursor], committed=False, max_bytes=1), {}
            while not (reader.is_done or self._near):
                self._near = {(at, one.offset): one for _, one in reader.read() if isinstance(one, Record)}
        return self._near.get((at, origin.offset))

    def _partitions(self, topic: str) -> int:
        """The number of a topic's partitions; 0 if it does not exist."""
        if topic not in self._counts:
            try:
                (found,) = describe_topics(self._client, [topic])
                self._counts[topic] = len(found.partitions)
            except BrokerError as error:
                if error.code is not ErrorCode.unknown_topic_or_partition:
                    raise
                self._counts[topic] = 0
        return self._counts[topic]

    def _write(self, producer: TransactionalProducer | None, at: TopicPartition, piece: _Piece) -> None:
        if piece.next_offset < 0:
            return
        if producer is not None:
            try:
                producer.write(self._client, piece.batches, Place(piece.next_offset, ""))
            except BrokerError as error:
                producer.abort(self._client)
                raise BrokerError(
                    f"dead letters of {at} cannot be sent back: {error}; start the command again, and it goes on with "
                    "those that were not sent",
                    error.code,
                ) from None
        self.sent.update({target: len(batches) for target, batches in piece.batches.items()})
