"""Offsets by partition in the JSON of Spark's Kafka source, and the limits where a query begins and ends.

The JSON of a checkpoint is ``{"topic": {"0": 23, "1": 7}}``. Source: Spark's JsonUtils, KafkaOffsetRangeLimit.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from korvet.pipeline.broker import Partition
from korvet.pipeline.errors import PipelineError

Offsets: TypeAlias = dict[Partition, int]
OffsetsJson: TypeAlias = dict[str, dict[str, int]]

LATEST: Final = -1
EARLIEST: Final = -2
OFFSETS_EXAMPLE: Final = '{"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}'
TIMESTAMPS_EXAMPLE: Final = '{"topicA":{"0":123456789,"1":123456789},"topicB":{"0":123456789,"1":123456789}}'
PARTITIONS_EXAMPLE: Final = '{"topicA":[0,1],"topicB":[0,1]}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Everywhere:
    """The same limit in each partition: `EARLIEST` or `LATEST`."""

    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AtOffsets:
    """An offset for each partition; `EARLIEST` and `LATEST` are valid offsets."""

    offsets: Offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class AtTime:
    """The first record of that time or later, in each partition."""

    timestamp_ms: int
    else_latest: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AtTimes:
    """The first record of a time or later, with a time for each partition."""

    timestamps_ms: Offsets
    else_latest: bool


OffsetLimit: TypeAlias = Everywhere | AtOffsets | AtTime | AtTimes
"""``else_latest``: take the log's end of a partition without such a record; else that is an error."""


def partition_names(partitions: Iterable[Partition]) -> str:
    """Text for messages: ``t-0, t-1``."""
    return ", ".join(f"{topic}-{number}" for topic, number in sorted(partitions))


def to_json(offsets: Offsets) -> OffsetsJson:
    """The offsets as a checkpoint has them, sorted, since Spark compares them as text."""
    found: OffsetsJson = {}
    for (topic, number), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(number)] = offset
    return found


def from_json(offsets: Mapping[str, Mapping[str, int]]) -> Offsets:
    """The offsets in JSON of `to_json` or of Spark's Kafka source."""
    return {(topic, int(number)): offset for topic, parts in offsets.items() for number, offset in parts.items()}


def parse_offsets(option: str, text: str, example: str = OFFSETS_EXAMPLE) -> Offsets:
    """
    :raises PipelineError: if the text is no JSON of that shape.
    """
    try:
        offsets = from_json(json.loads(text))
        if not all(type(offset) is int for offset in offsets.values()):
            raise TypeError
    except (ValueError, TypeError, AttributeError):
        raise PipelineError(f"Option '{option}': expected e.g. {example}, got {text}") from None
    return offsets


def parse_partitions(option: str, text: str) -> frozenset[Partition]:
    """
    :raises PipelineError: if the text is no JSON of that shape.
    """
    try:
        given: Mapping[str, Any] = json.loads(text)
        return frozenset((topic, int(number)) for topic, numbers in given.items() for number in numbers)
    except (ValueError, TypeError, AttributeError):
        raise PipelineError(f"Option '{option}': expected e.g. {PARTITIONS_EXAMPLE}, got {text}") from None
