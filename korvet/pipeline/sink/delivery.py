"""Records to a producer; each arrives, or fails the task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from korvet.pipeline.broker import TIMEOUT_S, explained
from korvet.pipeline.errors import PipelineError
from korvet.pipeline.sink.columns import Record

_DEFAULTS: Final = MappingProxyType(
    {
        "enable.idempotence": "true",
        # A full batch, and the task's last one, are sent sooner.
        "linger.ms": "50",
        # A key goes to the same partition as from the Java client.
        "partitioner": "murmur2_random",
        "queue.buffering.max.kbytes": "65536",
        # A broker that creates the topic does so within that time; later the topic will not come.
        "topic.metadata.propagation.max.ms": "5000",
    }
)
_SYNONYMS: Final = {"delivery.timeout.ms": "message.timeout.ms", "acks": "request.required.acks"}
# The Java client's default.
_MOST_MESSAGE_TIMEOUT_MS: Final = 120_000
_ROOM_S: Final = 0.1
_FENCED: Final = {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}


class Delivery:
    """A producer that keeps the first failure. Not picklable: open it where it is used.

    :param settings: librdkafka's; they override the defaults here.
    """

    def __init__(self, settings: Mapping[str, str]) -> None:
        self.address = settings.get("bootstrap.servers", "")
        given = {_SYNONYMS.get(name, name): value for name, value in settings.items()}
        own: dict[str, Any] = {
            "delivery.report.only.error": True,
            "on_delivery": self._failed,
            # The calls return errors of connections; librdkafka would also print each to stderr.
            "log_level": 0,
            "error_cb": lambda error: None,
        }
        self._failure: PipelineError | None = None
        try:
            self.producer = Producer({**_DEFAULTS, **_message_timeout(given), **given, **own})
        except KafkaException as error:
            raise PipelineError(f"client settings: {error.args[0].str()}") from None

    def reach(self) -> None:
        """Wait for a broker, so that a missing one is an error before records wait for it.

        :raises BrokerUnreachable:
        """
        try:
            self.producer.cluster_id(timeout=TIMEOUT_S)
        except KafkaException:
            raise explained("write", KafkaError(KafkaError._TRANSPORT), self.address) from None

    def send(self, records: Iterable[Record]) -> int:
        """Hand records to the producer, and wait while its queue is full. They have arrived when `finish` returns.

        :returns: the number of records.
        :raises PipelineError: if one of them, or a record before them, failed.
        """
        sent = 0
        produce = self.producer.produce
        for topic, value, key, partition, timestamp_ms, headers in records:
            while True:
                try:
                    # Arguments by position: names cost a third of the call. The two None are callbacks.
                    produce(topic, value, key, partition, None, None, timestamp_ms, headers)
                    break
                except BufferError:
                    self._serve(self.producer.poll, _ROOM_S)
                except KafkaException as failure:
                    if failure.args[0].code() == KafkaError._FATAL:
                        self._serve(self.producer.poll, _ROOM_S)  # It raises the reason.
                    raise self._explained(topic, partition, failure.args[0], len(value or b"")) from None
            sent += 1
        self._serve(self.producer.poll, 0)
        return sent

    def finish(self) -> None:
        """Wait until every record has arrived. A record that cannot be sent fails after ``message.timeout.ms``.

        :raises PipelineError: if a record failed.
        """
        while self._serve(self.producer.flush, 1.0):
            pass

    def close(self) -> None:
        """Drop records that have not arrived. The producer's own close would wait for a broker forever."""
        self.producer.purge()
        # This is its last reference, since its callback is a method of this object.
        del self.producer

    def _serve(self, call: Callable[[float], int], timeout_s: float) -> int:
        """Call the producer, which reports failures meanwhile, and raise the first one."""
        try:
            waiting = call(timeout_s)
        except KafkaException as failure:
            raise refusal("write", failure.args[0], self.address) from None
        except SystemError:
            # After a fatal error the client's callbacks can cover it, or lose it.
            error = self._fatal()
            if error is None:
                raise
            raise refusal("write", error, self.address) from None
        self._check()
        return waiting

    def _fatal(self) -> KafkaError | None:
        """The error that ended a transactional producer; each further call reports it."""
        try:
            self.producer.begin_transaction()
        except KafkaException as failure:
            error: KafkaError = failure.args[0]
            return error if error.fatal() else None
        return None

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _failed(self, error: KafkaError | None, record: Message) -> None:
        # The first failure is the reason; librdkafka purges the records after it.
        if error is not None and self._failure is None:
            self._failure = self._explained(record.topic() or "", record.partition(), error, len(record))

    def _explained(self, topic: str, partition: int | None, error: KafkaError, size_bytes: int) -> PipelineError:
        target = f"{topic}-{partition}" if partition is not None and partition >= 0 else topic
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            return PipelineError(
                f"write to {target}: a record with a value of {size_bytes} bytes is too large; raise "
                "kafka.max.request.size, and the topic's max.message.bytes"
            )
        return refusal(f"write to {target}", error, self.address)


def _message_timeout(given: Mapping[str, str]) -> dict[str, str]:
    """The message timeout, which may not be above the transaction's timeout."""
    most = given.get("transaction.timeout.ms", "")
    timeout_ms = min(int(most), _MOST_MESSAGE_TIMEOUT_MS) if most.isdecimal() else _MOST_MESSAGE_TIMEOUT_MS
    return {"message.timeout.ms": str(timeout_ms)}


class Fenced(PipelineError):
    """Another producer of the same transactional id has begun."""


def refusal(what: str, error: KafkaError, address: str) -> PipelineError:
    """The reason why a producer does not go on, as one sentence."""
    if error.code() in _FENCED:
        return Fenced(
            f"{what}: its transaction was ended by another task of the same partition, or took longer than "
            "kafka.transaction.timeout.ms; nothing of it is written, and another try goes on"
        )
    return explained(what, error, address)
