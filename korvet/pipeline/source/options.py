"""The options of ``format("korvet")``, with the defaults and refusals of Spark's Kafka source.

Source: KafkaSourceProvider and the Kafka integration guide of Spark 4.2.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

from korvet.pipeline.broker import Partition
from korvet.pipeline.client_settings import PREFIX, client_settings
from korvet.pipeline.errors import PipelineError
from korvet.pipeline.source.offsets import (
    EARLIEST,
    LATEST,
    TIMESTAMPS_EXAMPLE,
    AtOffsets,
    AtTime,
    AtTimes,
    Everywhere,
    OffsetLimit,
    parse_offsets,
    parse_partitions,
    partition_names,
)

DEFAULT_NAMESPACE: Final = "default"
_CHOICES: Final = ("subscribe", "subscribePattern", "assign")
_SEE: Final = "see the table of options in docs/pipeline.md"
_BYTES: Final = "come as bytes; use DataFrame operations to decode them"
_REFUSED: Final = {
    "auto.offset.reset": "set the option 'startingOffsets' to 'earliest' or 'latest'; a restarted query goes on where "
    "its checkpoint says",
    "key.deserializer": f"keys {_BYTES}",
    "value.deserializer": f"values {_BYTES}",
    "enable.auto.commit": "offsets are kept in the query's checkpoint",
    "interceptor.classes": "they could change what is read",
}
_ISOLATION: Final = "isolation.level"
_DURATION: Final = re.compile(r"(\d+)\s*(us|ms|s|m|min|h|d)?", re.IGNORECASE)
_UNIT_MS: Final = {"us": 0.001, "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribed:
    """All partitions of these topics."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Matching:
    """All partitions of topics with a match of the pattern in their names."""

    pattern: re.Pattern[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """Some partitions."""

    partitions: frozenset[Partition]


Choice: TypeAlias = Subscribed | Matching | Assigned


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The partitions that a query reads, and how."""

    choice: Choice
    starting: OffsetLimit
    ending: OffsetLimit
    client: Mapping[str, str] = field(repr=False)
    read_committed: bool
    include_headers: bool
    fail_on_data_loss: bool
    min_partitions: int | None
    max_records_per_partition: int | None
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_s: float
    poll_timeout_s: float
    offset_attempts: int
    offset_retry_s: float
    tier_url: str | None
    """Where sealed records are read; None to read all from the brokers."""
    tier_namespace: str


def batch_options(options: Mapping[str, str]) -> ReadOptions:
    """The options of a batch query.

    :param options: by names of any case.
    :raises PipelineError: if Spark's Kafka source refuses the options.
    """
    given = _Given(options)
    starting = _limit(given, "starting", Everywhere(offset=EARLIEST))
    ending = _limit(given, "ending", Everywhere(offset=LATEST))
    _refuse_offset(starting, LATEST, "starting offset can't be latest for batch queries")
    _refuse_offset(ending, EARLIEST, "ending offset can't be earliest for batch queries")
    _check_order(starting, ending)
    return _options(given, starting, ending)


def stream_options(options: Mapping[str, str]) -> ReadOptions:
    """The options of a streaming query.

    :param options: by names of any case.
    :raises PipelineError: if Spark's Kafka source refuses the options.
    """
    given = _Given(options)
    for name in ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"):
        if name in given:
            raise PipelineError(f"Option '{name}': a streaming query has no end; leave it out")
    latest = Everywhere(offset=LATEST)
    return _options(given, _limit(given, "starting", latest), latest)


def include_headers(options: Mapping[str, str]) -> bool:
    """True if rows have the column ``headers``."""
    return _Given(options).boolean("includeHeaders", default=False)


class _Given:
    """Options by names of any case, with values of any kind."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.texts = {name.lower(): value for name, value in options.items()}

    def __contains__(self, name: str) -> bool:
        return name.lower() in self.texts

    def text(self, name: str) -> str:
        return self.texts[name.lower()].strip()

    def whole(self, name: str) -> int | None:
        if name not in self:
            return None
        try:
            return int(self.text(name))
        except ValueError:
            raise PipelineError(f"Option '{name}': expected a whole number, got '{self.text(name)}'") from None

    def positive(self, name: str) -> int | None:
        number = self.whole(name)
        if number is not None and number <= 0:
            raise PipelineError(f"Option '{name}' must be positive, got {number}")
        return number

    def boolean(self, name: str, *, default: bool) -> bool:
        if name not in self:
            return default
        match self.text(name).lower():
            case "true":
                return True
            case "false":
                return False
        raise PipelineError(f"Option '{name}': expected true or false, got '{self.text(name)}'")

    def duration_s(self, name: str, default_s: float) -> float:
        if name not in self:
            return default_s
        match = _DURATION.fullmatch(self.text(name))
        if match is None:
            raise PipelineError(f"Option '{name}': expected a duration such as 30s or 15m, got '{self.text(name)}'")
        return int(match[1]) * _UNIT_MS[(match[2] or "ms").lower()] / 1_000


def _options(given: _Given, starting: OffsetLimit, ending: OffsetLimit) -> ReadOptions:
    choice = _choice(given)
    for name, instead in _REFUSED.items():
        if PREFIX + name in given:
            raise PipelineError(f"Kafka option '{name}' is not supported: {instead}")
    client = client_settings(given.texts)
    isolation = client.pop(_ISOLATION, "read_uncommitted").lower()
    if isolation not in ("read_committed", "read_uncommitted"):
        raise PipelineError(f"kafka.{_ISOLATION}: expected read_committed or read_uncommitted, got '{isolation}'")
    client.setdefault("group.id", f"{given.text('groupIdPrefix') if 'groupIdPrefix' in given else 'korvet'}-executor")
    most, least = given.positive("maxOffsetsPerTrigger"), given.whole("minOffsetsPerTrigger")
    if most is not None and least is not None and least > most:
        raise PipelineError(f"minOffsetsPerTrigger ({least}) is higher than maxOffsetsPerTrigger ({most})")
    return ReadOptions(
        choice=choice,
        starting=starting,
        ending=ending,
        client=client,
        read_committed=isolation == "read_committed",
        include_headers=given.boolean("includeHeaders", default=False),
        fail_on_data_loss=given.boolean("failOnDataLoss", default=True),
        min_partitions=given.positive("minPartitions"),
        max_records_per_partition=given.positive("maxRecordsPerPartition"),
        max_offsets_per_trigger=most,
        min_offsets_per_trigger=least,
        max_trigger_delay_s=given.duration_s("maxTriggerDelay", 15 * 60),
        poll_timeout_s=given.duration_s("kafkaConsumer.pollTimeoutMs", 120),
        offset_attempts=given.positive("fetchOffset.numRetries") or 3,
        offset_retry_s=given.duration_s("fetchOffset.retryIntervalMs", 1),
        tier_url=_tier_url(given),
        tier_namespace=given.text("tier.namespace") if "tier.namespace" in given else DEFAULT_NAMESPACE,
    )


def _tier_url(given: _Given) -> str | None:
    url = given.text("tier.url") if "tier.url" in given else ""
    # Executors have a working directory of their own.
    return url if "://" in url else str(Path(url).absolute()) if url else None


def _choice(given: _Given) -> Choice:
    chosen = [name for name in _CHOICES if name in given]
    if len(chosen) != 1:
        which = "One" if not chosen else "Only one"
        raise PipelineError(f"{which} of the options {', '.join(_CHOICES)} must be specified; {_SEE}")
    value = given.text(chosen[0])
    return _CHOSEN[chosen[0]](value)


def _assigned(value: str) -> Choice:
    partitions = parse_partitions("assign", value)
    if not partitions:
        raise PipelineError(f"No partitions to read: option 'assign' is '{value}'")
    return Assigned(partitions=partitions)


def _subscribed(value: str) -> Choice:
    topics = tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))
    if not topics:
        raise PipelineError(f"No topics to read: option 'subscribe' is '{value}'")
    return Subscribed(topics=topics)


def _matching(value: str) -> Choice:
    if not value:
        raise PipelineError("No topics to read: option 'subscribePattern' is empty")
    try:
        return Matching(pattern=re.compile(value))
    except re.error as error:
        raise PipelineError(f"Option 'subscribePattern': '{value}' is no regular expression: {error}") from None


_CHOSEN: Final[Mapping[str, Callable[[str], Choice]]] = {
    "subscribe": _subscribed,
    "subscribePattern": _matching,
    "assign": _assigned,
}


def _limit(given: _Given, which: str, default: OffsetLimit) -> OffsetLimit:
    """The limit, by Spark's precedence: one time, times, offsets."""
    else_latest = which == "ending" or _else_latest(given)
    one_time, times, offsets = f"{which}Timestamp", f"{which}OffsetsByTimestamp", f"{which}Offsets"
    timestamp_ms = given.whole(one_time)
    if timestamp_ms is not None:
        return AtTime(timestamp_ms=timestamp_ms, else_latest=else_latest)
    if times in given:
        found = parse_offsets(times, given.text(times), TIMESTAMPS_EXAMPLE)
        return AtTimes(timestamps_ms=found, else_latest=else_latest)
    if offsets not in given:
        return default
    match given.text(offsets).lower():
        case "earliest":
            return Everywhere(offset=EARLIEST)
        case "latest":
            return Everywhere(offset=LATEST)
    return AtOffsets(offsets=parse_offsets(offsets, given.text(offsets)))


def _else_latest(given: _Given) -> bool:
    name = "startingOffsetsByTimestampStrategy"
    if name not in given:
        return False
    match given.text(name).lower():
        case "latest":
            return True
        case "error":
            return False
    raise PipelineError(f"Option '{name}': expected error or latest, got '{given.text(name)}'")


def _refuse_offset(limit: OffsetLimit, offset: int, complaint: str) -> None:
    match limit:
        case Everywhere(offset=found) if found == offset:
            raise PipelineError(complaint)
        case AtOffsets(offsets=offsets):
            bad = [partition for partition, found in offsets.items() if found == offset]
            if bad:
                raise PipelineError(f"{complaint}, as for {partition_names(bad)}")


def _check_order(starting: OffsetLimit, ending: OffsetLimit) -> None:
    """Refuse limits by partition that name different partitions, or that end before they begin."""
    match starting, ending:
        case AtOffsets(offsets=first), AtOffsets(offsets=last):
            kind = "offset"
        case AtTimes(timestamps_ms=first), AtTimes(timestamps_ms=last):
            kind = "timestamp"
        case _:
            return
    if first.keys() != last.keys():
        raise PipelineError(
            f"starting and ending {kind}s must name the same partitions; only one of them has "
            f"{partition_names(first.keys() ^ last.keys())}"
        )
    wrong = [partition for partition, value in first.items() if value >= 0 and 0 <= last[partition] < value]
    if wrong:
        raise PipelineError(f"the starting {kind} is greater than the ending {kind} of {partition_names(wrong)}")
