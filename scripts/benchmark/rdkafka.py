"""librdkafka at its own speed: the few C functions that a load generator needs, from the library in confluent-kafka.

A Python loop over records is several times slower than the brokers measured here. So records go in by
rd_kafka_produce_batch from one array made once. They come out by rd_kafka_consume_callback_queue, whose callback is a C
function of librdkafka itself. A C program would call both.
"""

import ctypes
import os
import time
from collections.abc import Mapping, Sequence
from ctypes import POINTER, byref, c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import Final

import confluent_kafka

PRODUCER, CONSUMER = 0, 1
BLOCK: Final = 0x4  # RD_KAFKA_MSG_F_BLOCK: wait while the producer's queue is full; payloads are not copied
COPY: Final = 0x2
ANY_PARTITION: Final = -1  # RD_KAFKA_PARTITION_UA
ERROR_SIZE: Final = 512
# LEADER_NOT_AVAILABLE and NOT_LEADER_OR_FOLLOWER of the protocol, and librdkafka's own _UNKNOWN_PARTITION.
NOT_LED_YET: Final = frozenset({5, 6, -190})
ASK_AGAIN_S: Final = 0.1


class RdKafkaError(RuntimeError):
    """librdkafka refused something."""


class Message(ctypes.Structure):
    """rd_kafka_message_t."""

    _fields_ = (
        ("err", c_int),
        ("topic", c_void_p),
        ("partition", c_int32),
        ("payload", c_void_p),
        ("len", c_size_t),
        ("key", c_void_p),
        ("key_len", c_size_t),
        ("offset", c_int64),
        ("private", c_void_p),
    )


def _load() -> ctypes.CDLL:
    package = Path(confluent_kafka.__file__).parent
    found = [*package.parent.glob("confluent_kafka.libs/librdkafka*"), *package.glob(".dylibs/librdkafka*")]
    if not found:
        raise RdKafkaError("confluent-kafka has no librdkafka beside it: install it as a wheel")
    library = ctypes.CDLL(os.fspath(found[0]))
    pointers = "conf_new new topic_new queue_new consume"
    for name in pointers.split():
        getattr(library, f"rd_kafka_{name}").restype = c_void_p
    library.rd_kafka_err2str.restype = c_char_p
    library.rd_kafka_version_str.restype = c_char_p
    return library


_library = _load()


def version() -> str:
    """librdkafka's version."""
    text: bytes = _library.rd_kafka_version_str()
    return text.decode()


class Client:
    """A producer or a simple consumer of one topic. Raises RdKafkaError."""

    def __init__(self, kind: int, topic: str, settings: Mapping[str, str]) -> None:
        error = ctypes.create_string_buffer(ERROR_SIZE)
        conf = c_void_p(_library.rd_kafka_conf_new())
        for name, value in settings.items():
            if _library.rd_kafka_conf_set(conf, name.encode(), value.encode(), error, c_size_t(ERROR_SIZE)) != 0:
                raise RdKafkaError(error.value.decode())
        self._client = c_void_p(_library.rd_kafka_new(kind, conf, error, c_size_t(ERROR_SIZE)))
        if not self._client:
            raise RdKafkaError(error.value.decode())
        self._name = topic.encode()
        self._topic = c_void_p(_library.rd_kafka_topic_new(self._client, self._name, None))

    def watermarks(self, partition: int = 0, timeout_ms: int = 10_000) -> tuple[int, int]:
        """The first offset and the end of a partition, from the broker.

        Kafka's broker leads the last partitions of a new topic some time after it has answered for the first.
        """
        low, high = c_int64(), c_int64()
        deadline = time.monotonic() + timeout_ms / 1000
        while True:
            code = _library.rd_kafka_query_watermark_offsets(
                self._client, self._name, c_int32(partition), byref(low), byref(high), c_int(timeout_ms)
            )
            if code == 0:
                return low.value, high.value
            if code not in NOT_LED_YET or time.monotonic() > deadline:
                raise RdKafkaError(_library.rd_kafka_err2str(code).decode())
            time.sleep(ASK_AGAIN_S)

    def close(self) -> None:
        """Free everything; a producer must have been flushed."""
        _library.rd_kafka_topic_destroy(self._topic)
        _library.rd_kafka_destroy(self._client)


class Producer(Client):
    """Appends to a topic: to its only partition, or where librdkafka chooses.

    The caller checks delivery by the log's end.
    """

    def __init__(self, topic: str, settings: Mapping[str, str], partitions: int = 1) -> None:
        super().__init__(PRODUCER, topic, settings)
        self._partitions = partitions

    def end(self) -> int:
        """The sum of the ends of all partitions, from the broker."""
        return sum(self.watermarks(partition)[1] for partition in range(self._partitions))

    def send(self, messages: "ctypes.Array[Message]", flags: int = BLOCK) -> int:
        """Queue an array of messages; returns the number that was taken."""
        partition = c_int32(0 if self._partitions == 1 else ANY_PARTITION)
        taken: int = _library.rd_kafka_produce_batch(self._topic, partition, c_int(flags), messages, len(messages))
        return taken

    def flush(self, timeout_ms: int = 240_000) -> None:
        """Wait until every message is delivered or has failed."""
        if _library.rd_kafka_flush(self._client, c_int(timeout_ms)) != 0:
            raise RdKafkaError("not delivered in time")


class Consumer(Client):
    """Reads partition 0 of one topic from an offset, without a group."""

    def __init__(self, topic: str, settings: Mapping[str, str], offset: int, *, counted: bool) -> None:
        super().__init__(CONSUMER, topic, settings)
        self._queue = c_void_p(_library.rd_kafka_queue_new(self._client)) if counted else None
        start = (self._topic, c_int32(0), c_int64(offset))
        code = (
            _library.rd_kafka_consume_start_queue(*start, self._queue)
            if self._queue
            else _library.rd_kafka_consume_start(*start)
        )
        if code != 0:
            raise RdKafkaError("could not start consuming")
        # Called by librdkafka for every message, as a C program's callback would be; it reads the message.
        self._touch = ctypes.cast(_library.rd_kafka_message_leader_epoch, c_void_p)

    def count(self, timeout_ms: int) -> int:
        """Wait for the first message, and consume all that are there; returns the number. For `counted` consumers."""
        done: int = _library.rd_kafka_consume_callback_queue(self._queue, c_int(timeout_ms), self._touch, None)
        if done < 0:
            raise RdKafkaError("consuming failed")
        return done

    def one(self, timeout_ms: int) -> bytes | None:
        """The next message's value, or None when none came in time. For consumers that are not `counted`."""
        found = _library.rd_kafka_consume(self._topic, c_int32(0), c_int(timeout_ms))
        if not found:
            return None
        pointer = ctypes.cast(found, POINTER(Message))
        try:
            if pointer.contents.err != 0:
                raise RdKafkaError(_library.rd_kafka_err2str(pointer.contents.err).decode())
            return ctypes.string_at(pointer.contents.payload, pointer.contents.len)
        finally:
            _library.rd_kafka_message_destroy(c_void_p(found))

    def close(self) -> None:
        """Stop consuming and free everything."""
        _library.rd_kafka_consume_stop(self._topic, c_int32(0))
        if self._queue:
            _library.rd_kafka_queue_destroy(self._queue)
        super().close()


def messages(values: Sequence[bytes]) -> "ctypes.Array[Message]":
    """An array of messages for Producer.send; keep it, and the values, as long as librdkafka may send them."""
    array = (Message * len(values))()
    for message, value in zip(array, values, strict=True):
        message.payload, message.len = ctypes.cast(c_char_p(value), c_void_p), len(value)
    return array
