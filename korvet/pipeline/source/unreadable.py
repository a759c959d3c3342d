"""Batches whose records the client cannot decode, and where they end.

Librdkafka repeats the error of such a batch, with its first offset, and gives no record after it. It does not report
where the batch ends. So a consumer tries later offsets: it doubles the distance until it is beyond the batch, and then
halves it.

It gives no error for uncompressed records whose lengths lead out of the batch: it takes the answer for one that was cut
off, and repeats the request for ever. Only its statistics count that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Final

from confluent_kafka import KafkaError

from korvet.pipeline.errors import PipelineError

ERRORS: Final = frozenset({KafkaError._BAD_COMPRESSION, KafkaError._BAD_MSG})
"""A codec that the client's build lacks is none of them: the records are right, and another client reads them."""
CUT_OFF: Final = "a record's lengths lead out of its batch"
MISPLACED: Final = "a record has an offset that the log does not have"
_TEXT: Final = "Records of {topic}-{partition} from offset {start} on cannot be read: {reason}"
_SEARCHED: Final = re.compile(r"Records of \S+-(?P<partition>\d+) from offset (?P<start>\d+) on cannot be read: ")


class Unreadable(PipelineError):
    """The client cannot decode a batch."""


def unreadable(topic: str, partition: int, start: int, reason: str, remedy: str) -> Unreadable:
    """The error of a task that has to end at an unreadable batch."""
    summary = _TEXT.format(topic=topic, partition=partition, start=start, reason=reason)
    return Unreadable(f"{summary}; to go on without them {remedy}")


def place_in(text: str) -> tuple[int, int] | None:
    """The partition and first offset that an `unreadable` error in a text names; None without such an error.

    The driver has only the text of an executor's error.
    """
    found = _SEARCHED.search(text)
    return None if found is None else (int(found["partition"]), int(found["start"]))


def is_refused_by_java(text: str) -> bool:
    """True if an error says that Kafka's Java client cannot decode a batch (CompletedFetch.fetchRecords)."""
    return "Received exception when fetching the next record from" in text


class CutOff:
    """The batch that a client fetches in vain, according to its statistics.

    Source: rd_kafka_msgset_reader_msg_v2 counts the batch in rxpartial, and the next offset to fetch stays.
    """

    def __init__(self, topic: str, partition: int) -> None:
        self._topic, self._partition = topic, str(partition)
        self._since = (-1, 0)
        self.at: int | None = None
        """The offset of the request; None while requests get records, or nothing."""

    def note(self, text: str) -> None:
        """Take in librdkafka's statistics, which come in order."""
        statistics = json.loads(text)
        partitions = statistics["topics"].get(self._topic, {"partitions": {}})["partitions"]
        offset = partitions.get(self._partition, {}).get("next_offset", -1)
        cut_off = sum(broker["rxpartial"] for broker in statistics["brokers"].values())
        if offset != self._since[0]:
            self._since = (offset, cut_off)
        # One more may be of a request before.
        self.at = offset if offset >= 0 and cut_off >= self._since[1] + 2 else None


def first_beyond(is_beyond: Callable[[int], bool], start: int, end: int, one_by_one: int = 0) -> int:
    """The first offset after the batch that contains ``start``, at most ``end``; takes 2 log2(its length) requests.

    :param one_by_one: how many offsets it tries in turn before.
    """
    for offset in range(start + 1, min(start + one_by_one, end)):
        if is_beyond(offset):
            return offset
        start = offset
    within, step = start, 1
    while within + step < end and not is_beyond(within + step):
        within, step = within + step, 2 * step
    beyond = min(within + step, end)
    while beyond - within > 1:
        middle = (within + beyond) // 2
        if is_beyond(middle):
            beyond = middle
        else:
            within = middle
    return beyond
