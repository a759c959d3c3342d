"""A task reads one offset range with a consumer of its own, which the process keeps for its next task.

The consumer joins no group and commits nothing: the task assigns the partition at the range's first offset.
Source: Spark's KafkaDataConsumer, for the choice between a skip and an error.
"""

from __future__ import annotations

import atexit
import gc
import logging
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from korvet.pipeline.broker import close_consumer, explained
from korvet.pipeline.errors import BrokerUnreachable, PipelineError, UnknownTopic
from korvet.pipeline.plan.losses import UnreadableRange
from korvet.pipeline.source.ranges import REMEDY, OffsetRange
from korvet.pipeline.source.rows import headers_of
from korvet.pipeline.source.unreadable import CUT_OFF, ERRORS, MISPLACED, CutOff, first_beyond, unreadable

CHUNK_ROWS: Final = 1_000
CHUNK_BYTES: Final = 8 << 20
# Above the objects of two chunks, with ten headers for each record.
_COLLECT_ABOVE: Final = 25 * CHUNK_ROWS
_WATERMARKS_WITHIN_S: Final = 30.0
_SILENT_S: Final = 5.0
# Offsets are tried one by one if two unreadable batches look the same. So none is lost between two short ones.
_ONE_BY_ONE: Final = 1_000
_STATISTICS: Final = {"statistics.interval.ms": 20, "fetch.error.backoff.ms": 10}
_DEFAULTS: Final[Mapping[str, Any]] = {
    # The records are there already: a broker would wait for more only at a log's end.
    "fetch.wait.max.ms": 10,
    "fetch.message.max.bytes": 4 << 20,
    # Enough in advance, but not much more than a small range has. Librdkafka pauses for 1 s when it has enough.
    "queued.min.messages": 20_000,
    "queued.max.messages.kbytes": 32 << 10,
    "fetch.queue.backoff.ms": 2,
    "topic.metadata.propagation.max.ms": 3_000,
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
# The client repeats requests by itself after all other errors.
_FOR_GOOD: Final = frozenset(
    {
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.UNSUPPORTED_COMPRESSION_TYPE,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError._AUTHENTICATION,
        KafkaError._FATAL,
        KafkaError._NOT_IMPLEMENTED,
    }
)
_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Client:
    """A consumer, and its errors since the last look that belong to no record."""

    consumer: Consumer
    errors: list[KafkaError]


_idle: Final[dict[frozenset[tuple[str, Any]], _Client]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchOptions:
    """How a task reads.

    :param client: librdkafka's settings.
    :param poll_timeout_s: the time to wait for the next record before the task gives up.
    :param skip_unreadable: the task continues after batches that cannot be decoded.
    :param most_unreadable: the task ends after so many such ranges.
    """

    client: Mapping[str, str] = field(repr=False)
    read_committed: bool
    fail_on_data_loss: bool
    poll_timeout_s: float
    skip_unreadable: bool = False
    most_unreadable: int | None = None


def fetch(
    wanted: OffsetRange, options: FetchOptions, unreadable: list[UnreadableRange] | None = None
) -> Generator[list[Message], None, None]:
    """The records of the range in order, in lists of at least one and at most `CHUNK_ROWS`.

    :param unreadable: gets the ranges that were skipped since they cannot be decoded.
    :raises BrokerUnreachable: if no record came in time.
    :raises Unreadable: if a batch cannot be decoded.
    :raises UnknownTopic, PipelineError: if records of the range are gone. Without ``fail_on_data_loss`` the task
        skips them.
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
    client = _idle.pop(kept_as, None) or _open(settings)
    fetching = _Fetching(client, settings, wanted, options, [] if unreadable is None else unreadable)
    try:
        with _few_collections():
            yield from fetching
    except BaseException:
        close_consumer(fetching.client.consumer)
        raise
    if fetching.skipped or fetching.client is not client:
        # The consumer may still hold errors of this range, and the next range must not get them.
        close_consumer(fetching.client.consumer)
    else:
        client.consumer.unassign()
        _keep(kept_as, client)


@contextmanager
def _few_collections() -> Iterator[None]:
    """Keep Python from looking for cycles among the messages of each chunk, which have none.

    It counts for all that the process does meanwhile: its only task, which makes columns of the messages.
    """
    kept = gc.get_threshold()
    if kept[0]:  # 0 means never.
        gc.set_threshold(max(kept[0], _COLLECT_ABOVE), *kept[1:])
    try:
        yield
    finally:
        gc.set_threshold(*kept)


def _open(settings: Mapping[str, Any]) -> _Client:
    errors: list[KafkaError] = []
    # librdkafka would also print the errors.
    reporting = {"log_level": 0, "error_cb": errors.append}
    try:
        return _Client(Consumer({**settings, **reporting}), errors)
    except KafkaException as error:
        raise PipelineError(f"The client does not take its settings: {error.args[0].str().strip()}") from None


def _keep(settings: frozenset[tuple[str, Any]], client: _Client) -> None:
    """Keep the last client: a process has one task at a time, and mostly of one query."""
    close_idle()
    _idle[settings] = client


@atexit.register
def close_idle() -> None:
    """Close the client that is kept for a next task."""
    while _idle:
        _idle.popitem()[1].consumer.close()


class _Fetching:
    """One range being read. Everything below ``position`` was read or skipped."""

    def __init__(
        self,
        client: _Client,
        settings: Mapping[str, Any],
        wanted: OffsetRange,
        options: FetchOptions,
        unreadable: list[UnreadableRange],
    ) -> None:
        self.client = client
        self._settings = settings
        self._cut_off: CutOff | None = None
        self._wanted = wanted
        self._options = options
        self._position = wanted.start
        self._deadline = 0.0
        self._advice = "see whether it is up"
        self._unreadable = unreadable
        self._unreadable_at = -1
        self.skipped = False

    def __iter__(self) -> Iterator[list[Message]]:
        self.client.errors.clear()
        self._assign(self._position)
        self._go_on()
        chunk: list[Message] = []
        size_bytes = 0
        while self._position < self._wanted.end:
            records = self._records(self._next(CHUNK_ROWS - len(chunk)))
            chunk += records
            if len(chunk) < CHUNK_ROWS:  # A full one needs no look at each record.
                size_bytes += sum(map(_size_bytes, records, headers_of(records)))
            if len(chunk) >= CHUNK_ROWS or size_bytes >= CHUNK_BYTES:
                yield chunk
                chunk, size_bytes = [], 0
                self._go_on()
        if chunk:
            yield chunk

    def _assign(self, offset: int) -> None:
        self.client.consumer.assign([TopicPartition(self._wanted.topic, self._wanted.partition, offset)])
        if self._cut_off is not None:
            self._cut_off.at = None

    def _go_on(self) -> None:
        self._deadline = time.monotonic() + self._options.poll_timeout_s

    def _next(self, most: int) -> list[Message]:
        """The messages at hand, else the next one within a second. A signal takes effect only between such waits."""
        consumer = self.client.consumer
        found = consumer.consume(most, 0) or consumer.consume(1, self._look_s)
        if any(message.error() is None for message in found):
            self._go_on()
        while self.client.errors:
            self._handle(self.client.errors.pop(0), None)
        if not found and (at := self._cut_off_at(self._position)) is not None:
            self._position = at
            if at < self._wanted.end:
                self._pass_unreadable(CUT_OFF, None)
        if time.monotonic() > self._deadline:
            raise BrokerUnreachable(
                f"No record of {self._place} from offset {self._position} on came from {self._address} within "
                f"{self._options.poll_timeout_s:g} s: {self._advice}, or set kafkaConsumer.pollTimeoutMs higher"
            )
        return found

    def _records(self, found: list[Message]) -> list[Message]:
        """The messages that are records of the range, not yet read."""
        if self._are_next(found):
            self._position = _offset(found[-1]) + 1
            return found
        records = []
        for message in found:
            if self._position >= self._wanted.end:
                break  # An error after the range is not the range's.
            if (error := message.error()) is not None:
                self._handle(error, message.offset())
                continue
            offset = _offset(message)
            if offset >= self._wanted.end and not self._is_in_log(offset):
                # It says nothing of the records up to there, which come after it.
                self._pass_unreadable(MISPLACED, None)
                break
            if self._position <= offset < self._wanted.end:
                records.append(message)
            self._position = max(self._position, offset + 1)
        return records

    def _are_next(self, found: list[Message]) -> bool:
        """True if all messages follow. Offsets grow, unless a producer wrote wrong ones."""
        if not found or any(map(Message.error, found)):
            return False
        offsets: list[Any] = list(map(Message.offset, found))
        return bool(self._position <= offsets[0] and max(offsets) < self._wanted.end)

    def _handle(self, error: KafkaError, offset: int | None) -> None:
        code = error.code()
        if code == KafkaError._PARTITION_EOF:
            self._reach_end(offset)
        elif code in _OUT_OF_RANGE:
            self._find_again()
        elif code in _GONE:
            self._lose(self._wanted.end, "the topic or partition does not exist any more", UnknownTopic)
            self._position = self._wanted.end
        elif code in ERRORS and offset not in (None, self._unreadable_at):
            self._pass_unreadable(error.str(), offset)
        elif error.fatal() or code in _FOR_GOOD:
            raise explained(f"records of {self._place}", error, self._address)

    def _reach_end(self, offset: int | None) -> None:
        if offset is None or offset < self._position:
            return  # It is of an earlier range.
        if offset < self._wanted.end:
            partition = TopicPartition(self._wanted.topic, self._wanted.partition)
            if self.client.consumer.get_watermark_offsets(partition, cached=True)[1] > offset:
                self._advice = "a transaction is open there; see whether its producer is up"
                return
            self._lose(self._wanted.end, f"the log ends at {offset} now")
        self._position = self._wanted.end

    def _find_again(self) -> None:
        """The position is not in the log: go on at the log's start, or end the range."""
        partition = TopicPartition(self._wanted.topic, self._wanted.partition)
        try:
            first, end = self.client.consumer.get_watermark_offsets(partition, _WATERMARKS_WITHIN_S)
        except KafkaException:
            # The next answer will show it.
            self._assign(self._position)
            return
        if first <= self._position < end:
            self._assign(self._position)
            return
        skipped_to = first if self._position < first < self._wanted.end else self._wanted.end
        self._lose(skipped_to, f"the log has offsets from {first} up to {end} now")
        self._position = skipped_to
        if skipped_to < self._wanted.end:
            self._assign(self._position)

    def _pass_unreadable(self, reason: str, first: int | None) -> None:
        """Go on after a batch that cannot be decoded.

        :param first: the batch's first offset; None if the client does not report it.
        """
        topic, partition = self._wanted.topic, self._wanted.partition
        if not self._options.skip_unreadable:
            raise unreadable(topic, partition, self._position, reason, REMEDY)
        one_by_one = _ONE_BY_ONE if first is None else 0
        end = first_beyond(lambda at: self._is_beyond(at, first), self._position, self._wanted.end, one_by_one)
        self._unreadable.append(UnreadableRange(partition=partition, start=self._position, end=end, reason=reason))
        _log.warning(
            "Offsets %s up to %s of %s cannot be read: %s; they are skipped", self._position, end, self._place, reason
        )
        self.skipped = True
        self._position = end
        if first is not None:
            self._unreadable_at = first
        if len(self._unreadable) == self._options.most_unreadable:
            self._wanted = replace(self._wanted, end=end)
        if end < self._wanted.end:
            self._assign(self._position)

    def _is_beyond(self, offset: int, first: int | None) -> bool:
        """True if an offset is beyond the unreadable batch that begins at ``first``."""
        self._assign(offset)
        self._go_on()
        while time.monotonic() < self._deadline:
            message = self.client.consumer.poll(self._look_s)
            error = None if message is None else message.error()
            if message is not None and error is None:
                return self._is_in_log(_offset(message))
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                return True
            if message is not None and error is not None and error.code() in ERRORS:
                return message.offset() != first
            stopped = self._cut_off_at(offset)
            if stopped is not None:
                return first is not None or stopped > offset
        raise BrokerUnreachable(f"Nothing of {self._place} from offset {offset} on came from {self._address}")

    def _is_in_log(self, offset: int) -> bool:
        """True if the log had this offset at the last read; brokers do not check offsets of uncompressed records."""
        partition = TopicPartition(self._wanted.topic, self._wanted.partition)
        end = self.client.consumer.get_watermark_offsets(partition, cached=True)[1]
        if end < 0:
            # The client read ahead beyond the log after such a record, and that answer has no end.
            try:
                end = self.client.consumer.get_watermark_offsets(partition, _WATERMARKS_WITHIN_S)[1]
            except KafkaException as error:
                raise explained(f"the end of {self._place}", error.args[0], self._address) from None
        return offset < end

    def _cut_off_at(self, offset: int) -> int | None:
        """The first offset, from this one on, that the client fetches in vain: it takes the batch for a cut-off one.

        Only its statistics show that. They would pile up while nobody polls, so a silence begins them.
        """
        waits_s = self._options.poll_timeout_s
        if self._cut_off is None:
            if time.monotonic() > self._deadline - waits_s + min(_SILENT_S, waits_s / 4):
                close_consumer(self.client.consumer)
                self._cut_off = CutOff(self._wanted.topic, self._wanted.partition)
                self.client = _open({**self._settings, **_STATISTICS, "stats_cb": self._cut_off.note})
                self._assign(offset)
                self._go_on()
            return None
        at = self._cut_off.at
        return at if at is not None and at >= offset else None

    def _lose(self, end: int, why: str, kind: type[PipelineError] = PipelineError) -> None:
        what = f"Offsets {self._position} up to {end} of {self._place} cannot be read: {why}"
        if self._options.fail_on_data_loss:
            raise kind(f"{what}; to go on without them {REMEDY}")
        _log.warning("%s; they are skipped", what)
        self.skipped = True

    @property
    def _look_s(self) -> float:
        return 1.0 if self._cut_off is None else 0.1

    @property
    def _place(self) -> str:
        return f"{self._wanted.topic}-{self._wanted.partition}"

    @property
    def _address(self) -> str:
        return self._options.client["bootstrap.servers"]


def _size_bytes(message: Message, headers: Any) -> int:
    """Of the key, value and headers. The names of headers count as if each character were a byte."""
    of_headers = sum(len(name) + len(value or b"") for name, value in headers) if headers else 0
    key: Any = message.key()
    return len(message) + len(key or b"") + of_headers


def _offset(message: Message) -> int:
    """Of a record."""
    offset = message.offset()
    assert offset is not None, "a record has an offset"
    return offset
