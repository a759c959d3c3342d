"""What a task does: read one offset range with a consumer of its own, which the process keeps for its next task.

No group is joined and nothing committed: the partition is assigned, at the offset where the range begins.
Source: Spark's KafkaDataConsumer, for what is skipped and what is an error.
"""

from __future__ import annotations

import atexit
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from korvet.pipeline.broker import explained
from korvet.pipeline.errors import BrokerUnreachable, PipelineError, UnknownTopic
from korvet.pipeline.source.ranges import OffsetRange

CHUNK_ROWS: Final = 2_000
CHUNK_BYTES: Final = 8 << 20
_WATERMARKS_WITHIN_S: Final = 30.0
_DEFAULTS: Final[Mapping[str, Any]] = {
    # What is asked for is there already: only at the end of a log would a broker wait for more.
    "fetch.wait.max.ms": 10,
    "fetch.message.max.bytes": 4 << 20,
    # Enough in advance, but not much more than a small range has; librdkafka's pause when it has enough is 1 s.
    "queued.min.messages": 20_000,
    "queued.max.messages.kbytes": 32 << 10,
    "fetch.queue.backoff.ms": 2,
    "topic.metadata.propagation.max.ms": 5_000,
    "check.crcs": False,
}
_GONE: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.UNKNOWN_TOPIC_ID,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
    }
)
_OUT_OF_RANGE: Final = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})
_log: Final = logging.getLogger(__name__)
_idle: Final[dict[frozenset[tuple[str, Any]], Consumer]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchOptions:
    """How a task reads.

    :param client: librdkafka's settings.
    :param poll_timeout_s: how long it waits for the next record before it gives up.
    """

    client: Mapping[str, str]
    read_committed: bool
    fail_on_data_loss: bool
    poll_timeout_s: float


def fetch(wanted: OffsetRange, options: FetchOptions) -> Iterator[list[Message]]:
    """The records of the range in order, in lists of at least one and at most `CHUNK_ROWS`.

    :raises BrokerUnreachable: no record came in time.
    :raises UnknownTopic, PipelineError: records of the range are not there any more, unless that is told to be no
        failure: then they are skipped.
    """
    settings = {
        **_DEFAULTS,
        **options.client,
        "isolation.level": "read_committed" if options.read_committed else "read_uncommitted",
        "auto.offset.reset": "error",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
    }
    kept_as = frozenset(settings.items())
    consumer = _idle.pop(kept_as, None) or _open(settings)
    try:
        yield from _Fetching(consumer, wanted, options)
        consumer.unassign()
    except BaseException:
        consumer.close()
        raise
    else:
        _keep(kept_as, consumer)


def _open(settings: Mapping[str, Any]) -> Consumer:
    # Errors of connections mean another try, until a record is too long in coming; librdkafka would print each.
    quiet = {"log_level": 0, "error_cb": lambda error: None}
    try:
        return Consumer({**settings, **quiet})
    except KafkaException as error:
        raise PipelineError(f"kafka.*: the client does not take its settings: {error.args[0].str()}") from None


def _keep(settings: frozenset[tuple[str, Any]], consumer: Consumer) -> None:
    """Keep the last one used: a process has one task at a time, and mostly of one query."""
    close_idle()
    _idle[settings] = consumer


@atexit.register
def close_idle() -> None:
    """Close what is kept for a next task."""
    while _idle:
        _idle.popitem()[1].close()


class _Fetching:
    """One range on its way: ``position`` is the offset below which all was read or skipped."""

    def __init__(self, consumer: Consumer, wanted: OffsetRange, options: FetchOptions) -> None:
        self._consumer = consumer
        self._wanted = wanted
        self._options = options
        self._position = wanted.start

    def __iter__(self) -> Iterator[list[Message]]:
        self._assign()
        chunk: list[Message] = []
        size_bytes = 0
        while self._position < self._wanted.end:
            for message in self._next(CHUNK_ROWS - len(chunk)):
                if (error := message.error()) is not None:
                    self._handle(error, message)
                    continue
                offset: int = message.offset()  # type: ignore[assignment]
                if self._position <= offset < self._wanted.end:
                    chunk.append(message)
                    size_bytes += len(message)
                self._position = max(self._position, offset + 1)
            if len(chunk) >= CHUNK_ROWS or size_bytes >= CHUNK_BYTES:
                yield chunk
                chunk, size_bytes = [], 0
        if chunk:
            yield chunk

    def _assign(self) -> None:
        self._consumer.assign([TopicPartition(self._wanted.topic, self._wanted.partition, self._position)])

    def _next(self, most: int) -> list[Message]:
        """What is there, else the next one."""
        if found := self._consumer.consume(most, 0):
            return found
        deadline = time.monotonic() + self._options.poll_timeout_s
        while (left := deadline - time.monotonic()) > 0:
            # In short waits: only between them does a signal end the process.
            if found := self._consumer.consume(1, min(left, 1.0)):
                return found
        raise BrokerUnreachable(
            f"No record of {self._place} from offset {self._position} on came from {self._address} within "
            f"{self._options.poll_timeout_s:g} s: see whether it is up, or set kafkaConsumer.pollTimeoutMs higher"
        )

    def _handle(self, error: KafkaError, message: Message) -> None:
        code = error.code()
        if code == KafkaError._PARTITION_EOF:
            end = message.offset()
            if end is not None and self._position <= end < self._wanted.end:
                self._lose(self._wanted.end, f"the log ends at {end} now")
            self._position = self._wanted.end
        elif code in _OUT_OF_RANGE:
            self._find_again()
        elif code in _GONE:
            self._lose(self._wanted.end, "the topic or partition does not exist any more", UnknownTopic)
            self._position = self._wanted.end
        elif error.fatal() or not error.retriable():
            raise explained(f"records of {self._place}", error, self._address)

    def _find_again(self) -> None:
        """The position is not in the log: go on where the log begins, or not at all."""
        place = TopicPartition(self._wanted.topic, self._wanted.partition)
        try:
            first, end = self._consumer.get_watermark_offsets(place, _WATERMARKS_WITHIN_S)
        except KafkaException:
            # The next answer will tell.
            self._assign()
            return
        if first <= self._position < end:
            self._assign()
            return
        skipped_to = first if self._position < first < self._wanted.end else self._wanted.end
        self._lose(skipped_to, f"the log has offsets from {first} up to {end} now")
        self._position = skipped_to
        if skipped_to < self._wanted.end:
            self._assign()

    def _lose(self, end: int, why: str, kind: type[PipelineError] = PipelineError) -> None:
        what = f"Offsets {self._position} up to {end} of {self._place} cannot be read: {why}"
        if self._options.fail_on_data_loss:
            raise kind(f"{what}; to go on without them set failOnDataLoss to false")
        _log.warning("%s; they are skipped", what)

    @property
    def _place(self) -> str:
        return f"{self._wanted.topic}-{self._wanted.partition}"

    @property
    def _address(self) -> str:
        return self._options.client["bootstrap.servers"]
