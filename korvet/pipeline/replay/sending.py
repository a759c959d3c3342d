"""One partition's records into the topic, by transactions that carry the position along. Runs in Spark's executors."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Final, Self

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from korvet.pipeline.errors import BrokerUnreachable, PipelineError
from korvet.pipeline.replay.positions import GROUP_PREFIX, Note, Place, Positions

PATIENCE_S: Final = 120.0
"""How long a broker may be away, or refuse, before a task gives up."""
_STEP_S: Final = 5.0
_PAUSE_S: Final = 0.5
_FENCED: Final = {
    KafkaError._FENCED,
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
}
# To try again would only be refused again.
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


Headers = list[tuple[str, str | bytes | None]]


class Fenced(Exception):
    """Another producer has taken the partition over."""


class TakenOver(PipelineError):
    """Another run of the same replay works now; it must not be stopped with this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where records go, picklable.

    :param settings: librdkafka's, of all clients; ``producer``: what a producer has beside them.
    :param note: what is noted beside positions, but for the records.
    """

    settings: Mapping[str, str]
    producer: Mapping[str, str]
    name: str
    topic: str
    note: Note

    @property
    def timeout_s(self) -> float:
        """How long a transaction may be open."""
        return int(self.settings["transaction.timeout.ms"]) / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Records of one transaction: their offsets in the source, which grow, and what is written of each."""

    offsets: list[int]
    rows: list[tuple[bytes | None, bytes | None, Headers | None, int]]
    """Key, value, headers, timestamp in ms."""

    def since(self, offset: int) -> Chunk:
        """Without what is below the offset."""
        first = bisect_left(self.offsets, offset)
        return self if not first else Chunk(offsets=self.offsets[first:], rows=self.rows[first:])


class Sender:
    """The transactional producer of a partition, a context manager.

    To begin is to end what another producer of this id left open, and to fence that one.

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._producer = None
        self._positions.__exit__(kind, error, trace)

    def begin(self) -> None:
        """Take the partition over, and learn where it is.

        :raises TakenOver: where a later run went on since this one began, which is not fenced then.
        :raises BrokerUnreachable, PipelineError:
        """
        target = self._target
        place = self._place(self._positions)
        if place is not None and place.offset > self.position:
            self._refuse_later_run(place)
        quiet: dict[str, Any] = {"log_level": 0, "error_cb": lambda error: None}
        own: dict[str, Any] = {
            "transactional.id": f"{GROUP_PREFIX}{target.name}-{self._partition}",
            # A record that fails fails its transaction; nobody asks for each that did not.
            "delivery.report.only.error": True,
        }
        self._producer = None
        try:
            self._producer = Producer({**target.settings, **target.producer, **own, **quiet})
        except KafkaException as error:
            raise PipelineError(f"the client settings do not fit: {error.args[0].str()}; change them") from None
        try:
            _patiently(self._producer.init_transactions)
        except KafkaException as error:
            raise self._failed(error.args[0]) from None
        # Only now can nothing change it any more; what was just decided may still be on its way to the group.
        with Positions(target.settings, target.name, target.topic, stable=True) as positions:
            place = self._place(positions)
        if place is not None and place.note.job != target.note.job:
            raise PipelineError(f"replay {target.name} is done with another table or range, too; choose another name")
        position, self._noted = (place.offset, place.note.records) if place else (self._first, 0)
        if position < self.position:
            raise PipelineError(
                f"{target.topic}-{self._partition} was replayed up to {self.position}, and its group says {position}: "
                "somebody moved the group, or the broker lost it; look at what is in the topic before going on"
            )
        self.position = position

    def send(self, chunk: Chunk) -> None:
        """Write the records that are not in the topic yet, all or none; try again where that may help.

        :raises Fenced: nothing of it was written by this one.
        :raises BrokerUnreachable, PipelineError:
        """
        deadline = time.monotonic() + PATIENCE_S
        while True:
            chunk = chunk.since(self.position)
            if not chunk.offsets:
                return
            began = time.monotonic()
            try:
                self._transact(chunk)
                return
            except KafkaException as error:
                self._judge(self._why(error.args[0]), began)
                if time.monotonic() > deadline:
                    raise self._failed(error.args[0]) from None
            time.sleep(_PAUSE_S)
            # Whether it was committed is not always told; a new producer ends it, and finds out.
            self.begin()

    def follow(self) -> None:
        """Go to where another producer is now.

        :raises TakenOver: where that is one of a later run.
        """
        place = self._place(self._positions)
        if place is not None and place.offset > self.position:
            self._refuse_later_run(place)
            self.position = place.offset

    def _place(self, positions: Positions) -> Place | None:
        return positions.read([self._partition], self._target.note.topic_id, PATIENCE_S).get(self._partition)

    def _refuse_later_run(self, place: Place) -> None:
        # A task of an earlier one, whose driver was killed, may have written a last transaction.
        target = self._target
        if place.note.run > target.note.run:
            raise TakenOver(
                f"replay {target.name} was started a second time, which goes on with {target.topic}-{self._partition} "
                f"behind {place.offset}; this one ends"
            )

    def _transact(self, chunk: Chunk) -> None:
        producer, topic, partition = self._producer, self._target.topic, self._partition
        assert producer is not None
        records, position = self._noted + len(chunk.offsets), chunk.offsets[-1] + 1
        producer.begin_transaction()
        for key, value, headers, timestamp in chunk.rows:
            # By position: naming arguments costs more than a third of the call. The two None are callbacks.
            producer.produce(topic, value, key, partition, None, None, timestamp, headers)
        note = replace(self._target.note, records=records).to_json()
        self.commit(producer, [TopicPartition(topic, partition, position, note)])
        self._noted, self.position = records, position

    def commit(self, producer: Producer, position: list[TopicPartition]) -> None:
        """End the transaction with the position in it."""
        _patiently(producer.send_offsets_to_transaction, position, self._positions.group)
        _patiently(producer.commit_transaction)

    def _why(self, reason: KafkaError) -> KafkaError:
        """Of a producer that ended while records were handed to it, what ended it, as by being fenced."""
        assert self._producer is not None
        if reason.code() == KafkaError._FATAL:
            try:
                self._producer.abort_transaction(_STEP_S)
            except KafkaException as error:
                reason = error.args[0]
        return reason

    def _judge(self, reason: KafkaError, began: float) -> None:
        """Raise where to try again does not help."""
        if reason.code() in _REFUSED:
            self._abort()
            raise self._failed(reason)
        # A transaction that was open for too long is fenced, too: by the coordinator, for nobody else.
        if reason.code() in _FENCED and time.monotonic() - began < self._target.timeout_s:
            raise Fenced

    def _abort(self) -> None:
        """So that readers of what is committed need not wait for the transaction's timeout."""
        assert self._producer is not None
        with suppress(KafkaException):
            self._producer.abort_transaction(_STEP_S)

    def _failed(self, reason: KafkaError) -> PipelineError:
        what = f"records of {self._target.topic}-{self._partition} behind {self.position} cannot be written"
        if reason.code() in _REFUSED:
            return PipelineError(f"{what}: {reason.str()}; {_REFUSED[reason.code()]}")
        return BrokerUnreachable(
            f"{what} at {self._target.settings['bootstrap.servers']}: {reason.str()}; when that is over, start the "
            "replay again, and it goes on there"
        )


def _patiently(call: Callable[..., None], *args: object) -> None:
    """Make a call of librdkafka again as long as it says that it may be, up to `PATIENCE_S`."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return call(*args, _STEP_S)
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                raise
