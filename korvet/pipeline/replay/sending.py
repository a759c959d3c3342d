"""Transactions that carry one partition's records and its position into the topic. They run in Spark's executors."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from korvet.pipeline.errors import BrokerUnreachable, PipelineError
from korvet.pipeline.replay.chunk import Chunk, headers
from korvet.pipeline.replay.positions import GROUP_PREFIX, Note, Positions, Progress

PATIENCE_S: Final = 120.0
"""The time that a broker may be unavailable, or refuse, before a task gives up."""
_STEP_S: Final = 5.0
_PAUSE_S: Final = 0.5
_CONNECT_S: Final = 1.0
_SMALLER: Final = 8
"""By so much a transaction is smaller than the one before that failed and took long."""
_FENCED: Final = {
    KafkaError._FENCED,
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
}
# The broker would refuse another try, too.
_REFUSED: Final = {
    KafkaError.INVALID_TRANSACTION_TIMEOUT: "lower transaction.timeout.ms of the client, or raise the broker's maximum",
    KafkaError.INVALID_TIMESTAMP: "see message.timestamp.before.max.ms and .after.max.ms of the topic",
    KafkaError.INVALID_RECORD: "see the topic's schema, and whether it is compacted",
    KafkaError.MSG_SIZE_TOO_LARGE: "raise max.message.bytes of the topic",
    KafkaError.RECORD_LIST_TOO_LARGE: "raise max.message.bytes of the topic",
    KafkaError.UNKNOWN_TOPIC_OR_PART: "it was deleted, or has fewer partitions by now",
    KafkaError._UNKNOWN_TOPIC: "it was deleted, or has fewer partitions by now",
    KafkaError._UNKNOWN_PARTITION: "it was deleted, or has fewer partitions by now",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "the user may not write to it",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "the user may not commit offsets of the replay's group",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "the user may not use the replay's transactional ids",
}


class Fenced(Exception):
    """Another producer has taken the partition over."""


class TakenOver(PipelineError):
    """Another run of the same replay works now. An end of this run must not stop it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The target of the records, picklable.

    :param settings: librdkafka's, of all clients; ``producer``: the producer's additional ones.
    :param note: the note beside positions, without the count of records.
    """

    settings: Mapping[str, str]
    producer: Mapping[str, str]
    name: str
    topic: str
    note: Note

    @property
    def timeout_s(self) -> float:
        """The longest time that a transaction may be open."""
        return int(self.settings["transaction.timeout.ms"]) / 1000


class Sender:
    """The transactional producer of a partition, a context manager.

    `init_transactions` ends the transaction that another producer of this id left open, and fences that producer.

    :raises PipelineError:
    """

    def __init__(self, target: Target, partition: int, first: int) -> None:
        self._target, self._partition = target, partition
        self._first = first
        self._positions = Positions(target.settings, target.name, target.topic)
        self._producer: Producer | None = None
        self._noted = 0
        self.position = first

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._producer = None
        self._positions.__exit__()

    def init_transactions(self) -> None:
        """Take the partition over, and read its position.

        :raises TakenOver: if a later run went on since this one began; this one does not fence it.
        :raises BrokerUnreachable, PipelineError:
        """
        target = self._target
        quiet: dict[str, Any] = {"log_level": 0, "error_cb": lambda error: None}
        own: dict[str, Any] = {
            "transactional.id": f"{GROUP_PREFIX}{target.name}-{self._partition}",
            # A failed record fails its transaction, so the others need no report.
            "delivery.report.only.error": True,
        }
        self._producer = None
        try:
            self._producer = Producer({**target.settings, **target.producer, **own, **quiet})
        except KafkaException as error:
            raise PipelineError(f"the client settings do not fit: {error.args[0].str()}; change them") from None
        _connect(self._producer, target.topic)
        progress = self._progress(self._positions)
        if progress is not None and progress.offset > self.position:
            self._refuse_later_run(progress)
        try:
            _patiently(self._producer.init_transactions)
        except KafkaException as error:
            raise self._failed(error.args[0]) from None
        # From now on no producer can change the position; a decided transaction may still be on its way to the group.
        with Positions(target.settings, target.name, target.topic, stable=True) as positions:
            progress = self._progress(positions)
        if progress is not None and progress.note.job != target.note.job:
            raise PipelineError(f"replay {target.name} also runs with another table or range; choose another name")
        position, self._noted = (progress.offset, progress.note.records) if progress else (self._first, 0)
        if position < self.position:
            raise PipelineError(
                f"{target.topic}-{self._partition} was replayed up to {self.position}, and its group says {position}: "
                "somebody moved the group, or the broker lost it; look at the topic's records before you go on"
            )
        self.position = position

    def send(self, chunk: Chunk) -> int:
        """Write the records that are not in the topic yet; try again if that may help.

        They come in one transaction, or in smaller ones after a try that failed and took long.

        :returns: how many records of the chunk were not in the topic.
        :raises Fenced: another producer took over; this one wrote nothing since.
        :raises BrokerUnreachable, PipelineError:
        """
        chunk = chunk.since(self.position)
        missing = most = len(chunk.offsets)
        deadline = time.monotonic() + PATIENCE_S
        while chunk.offsets:
            began = time.monotonic()
            try:
                self._transact(chunk.first(most))
                deadline = time.monotonic() + PATIENCE_S
            except KafkaException as error:
                self._judge(self._why(error.args[0]), began)
                if time.monotonic() > deadline:
                    raise self._failed(error.args[0]) from None
                if time.monotonic() - began > self._target.timeout_s / 2:
                    most = max(1, most // _SMALLER)
                time.sleep(_PAUSE_S)
                # The client does not always report whether it committed. A new producer ends the transaction and finds
                # out.
                self.init_transactions()
            chunk = chunk.since(self.position)
        return missing

    def follow(self) -> None:
        """Go to the position of another producer.

        :raises TakenOver: if that producer is of a later run.
        """
        progress = self._progress(self._positions)
        if progress is not None and progress.offset > self.position:
            self._refuse_later_run(progress)
            self.position = progress.offset

    def _progress(self, positions: Positions) -> Progress | None:
        return positions.read([self._partition], self._target.note.topic_id, PATIENCE_S).get(self._partition)

    def _refuse_later_run(self, progress: Progress) -> None:
        # A task of an earlier run, whose driver was killed, may have written a last transaction.
        target = self._target
        if progress.note.run > target.note.run:
            raise TakenOver(
                f"replay {target.name} was started a second time, which goes on with {target.topic}-{self._partition} "
                f"from {progress.offset} on; this one ends"
            )

    def _transact(self, chunk: Chunk) -> None:
        producer, topic, partition = self._producer, self._target.topic, self._partition
        assert producer is not None
        records, position = self._noted + len(chunk.offsets), chunk.offsets[-1] + 1
        all_headers = [None if text is None else headers(text) for text in chunk.headers]
        producer.begin_transaction()
        produce = producer.produce
        for key, value, own, timestamp in zip(chunk.keys, chunk.values, all_headers, chunk.timestamps, strict=True):
            # Arguments by position: names cost more than a third of the call. The two None are callbacks.
            produce(topic, value, key, partition, None, None, timestamp, own)
        note = replace(self._target.note, records=records).to_json()
        self.commit(producer, [TopicPartition(topic, partition, position, note)])
        self._noted, self.position = records, position

    def commit(self, producer: Producer, position: list[TopicPartition]) -> None:
        """Add the position to the transaction, and commit it."""
        _patiently(producer.send_offsets_to_transaction, position, self._positions.group)
        _patiently(producer.commit_transaction)

    def _why(self, reason: KafkaError) -> KafkaError:
        """The cause of ``reason``, when a producer ended while it took records, for example by a fence."""
        assert self._producer is not None
        if reason.code() == KafkaError._FATAL:
            try:
                self._producer.abort_transaction(_STEP_S)
            except KafkaException as error:
                reason = error.args[0]
        return reason

    def _judge(self, reason: KafkaError, began: float) -> None:
        """Raise if another try does not help."""
        if reason.code() in _REFUSED:
            self._abort()
            raise self._failed(reason)
        # The coordinator fences a transaction that was open for too long, too; then no other producer works.
        if reason.code() in _FENCED and time.monotonic() - began < self._target.timeout_s:
            raise Fenced

    def _abort(self) -> None:
        """Abort, so that readers of committed records need not wait for the transaction's timeout."""
        assert self._producer is not None
        with suppress(KafkaException):
            self._producer.abort_transaction(_STEP_S)

    def _failed(self, reason: KafkaError) -> PipelineError:
        what = f"records of {self._target.topic}-{self._partition} from {self.position} on cannot be written"
        if reason.code() in _REFUSED:
            return PipelineError(f"{what}: {reason.str()}; {_REFUSED[reason.code()]}")
        return BrokerUnreachable(
            f"{what} at {self._target.settings['bootstrap.servers']}: {reason.str()}; when that is over, start the "
            "replay again, and it goes on there"
        )


def _patiently(call: Callable[..., None], *args: object) -> None:
    """Repeat a call of librdkafka while its error is retriable, for at most `PATIENCE_S`."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return call(*args, _STEP_S)
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                raise


def _connect(producer: Producer, topic: str) -> None:
    """Let a producer connect to a broker of the cluster before `init_transactions`, which reports failures.

    The first answer replaces the connection to the bootstrap server, and the second one needs the new connection. If
    librdkafka looks up the coordinator between the two, it has no connection, and retries after half a second.
    """
    with suppress(KafkaException):
        for _ in range(2):
            producer.list_topics(topic, _CONNECT_S)
