"""The removal of partitions' oldest records over the wire: the plan, and DeleteRecords."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from kio.schema.errors import ErrorCode

from korvet.cli.kafka.client import Client, retried
from korvet.cli.kafka.errors import BrokerError, check
from korvet.cli.kafka.offsets import TopicPartition, ask_leaders, by_partition, log_bytes, log_limits, offsets_at
from korvet.cli.kafka.topics import TIMEOUT_MS
from korvet.errors import KorvetError


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """The records to remove: all, those before an offset or a time (ms since 1970), or all but some bytes or
    records."""

    kind: Literal["all", "offset", "time", "bytes", "records"]
    value: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trim:
    """The trim of a partition: its first offset now and afterwards, its end, and its bytes now."""

    partition: TopicPartition
    start: int
    new_start: int
    end: int
    size_bytes: int | None

    @property
    def records(self) -> int:
        """The number of offsets to remove."""
        return self.new_start - self.start

    @property
    def left_bytes(self) -> int | None:
        """About the bytes that are left: exact if all records have the same size."""
        if self.size_bytes is None or self.end == self.start:
            return self.size_bytes
        return self.size_bytes * (self.end - self.new_start) // (self.end - self.start)


def plan_trim(client: Client, partitions: Sequence[TopicPartition], goal: Goal) -> list[Trim]:
    """The trims of the partitions; new starts are kept between the start and the end of each log."""
    starts, ends = log_limits(client, partitions)
    sizes = log_bytes(client, partitions)
    partitions = [partition for partition in partitions if partition in starts]
    wanted = _wanted(client, partitions, goal, starts, ends, sizes)
    return [
        Trim(
            partition=partition,
            start=starts[partition],
            new_start=min(max(wanted[partition], starts[partition]), ends[partition]),
            end=ends[partition],
            size_bytes=sizes.get(partition),
        )
        for partition in partitions
    ]


def _wanted(
    client: Client,
    partitions: Sequence[TopicPartition],
    goal: Goal,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    sizes: Mapping[TopicPartition, int],
) -> Mapping[TopicPartition, int]:
    match goal.kind:
        case "all":
            return ends
        case "offset":
            return dict.fromkeys(partitions, goal.value)
        case "time":
            return offsets_at(client, ends, goal.value)
        case "records":
            return {partition: ends[partition] - goal.value for partition in partitions}
    if unknown := [partition for partition in partitions if partition not in sizes]:
        raise KorvetError(
            f"partition {unknown[0]}: its size is not known, so nothing can be kept by size; the brokers show it to "
            "those who may DESCRIBE the cluster. Name a number of records instead"
        )
    return {
        partition: _first_within(starts[partition], ends[partition], sizes[partition], goal.value)
        for partition in partitions
    }


def _first_within(start: int, end: int, size_bytes: int, kept_bytes: int) -> int:
    """The first offset from which the records take at most ``kept_bytes``, if all have the same size."""
    if size_bytes <= kept_bytes:
        return start
    return end - (end - start) * kept_bytes // size_bytes


@retried
def execute_trim(client: Client, trims: Sequence[Trim]) -> dict[TopicPartition, int]:
    """Remove the planned records; returns the first offset of each partition afterwards.

    :raises BrokerError: with POLICY_VIOLATION for a topic that is only compacted, …
    """
    moves = {trim.partition: trim.new_start for trim in trims if trim.records > 0}

    def say(one: TopicPartition) -> dict[str, int]:
        return {"offset": moves[one]}

    starts = {}
    for answer in ask_leaders(client, moves, say, "delete_records", 2, timeout=TIMEOUT_MS):
        for partition, item in by_partition(answer.topics):
            _check(item.error_code, partition)
            starts[partition] = int(item.low_watermark)
    return starts


def _check(code: ErrorCode, partition: TopicPartition) -> None:
    if code is ErrorCode.policy_violation:
        raise BrokerError(
            f"partition {partition}: POLICY_VIOLATION; the topic is only compacted (cleanup.policy), or its records "
            "are not archived yet (korvet.retention): see its settings with: "
            f"korvet topics configure {partition.topic}",
            code,
        )
    if code is ErrorCode.offset_out_of_range:
        raise KorvetError(f"partition {partition}: OFFSET_OUT_OF_RANGE; its end has moved: try again")
    check(code, f"partition {partition}")
