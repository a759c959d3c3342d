"""Batches whose records the client cannot decode, and where they end.

Librdkafka repeats the error of such a batch, with its first offset, and gives no record behind it. It does not tell
where the batch ends. So a consumer tries later offsets: it doubles the distance until it is beyond the batch, and then
halves it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from confluent_kafka import KafkaError

from korvet.pipeline.errors import PipelineError

ERRORS: Final = frozenset(
    {
        KafkaError.UNSUPPORTED_COMPRESSION_TYPE,
        KafkaError._BAD_COMPRESSION,
        KafkaError._BAD_MSG,
        KafkaError._NOT_IMPLEMENTED,
    }
)
_TEXT: Final = "Records of {topic}-{partition} from offset {start} on cannot be read: {reason}"
_SEARCHED: Final = re.compile(r"Records of \S+-(?P<partition>\d+) from offset (?P<start>\d+) on cannot be read: ")


class Unreadable(PipelineError):
    """The client cannot decode a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableRange:
    """Offsets from ``start`` up to but without ``end`` that cannot be read."""

    partition: int
    start: int
    end: int
    reason: str


def unreadable(topic: str, partition: int, start: int, reason: str, remedy: str) -> Unreadable:
    """The error of a task that has to end at an unreadable batch."""
    told = _TEXT.format(topic=topic, partition=partition, start=start, reason=reason)
    return Unreadable(f"{told}; to go on without them {remedy}")


def place_in(text: str) -> tuple[int, int] | None:
    """The partition and the first offset that an `unreadable` error in a text names; None if there is none.

    The driver has only the text of an executor's error.
    """
    found = _SEARCHED.search(text)
    return None if found is None else (int(found["partition"]), int(found["start"]))


def first_beyond(is_beyond: Callable[[int], bool], start: int, end: int) -> int:
    """The first offset that is beyond the batch that has ``start``, at most ``end``; asks 2 log2(its length) times."""
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
