"""The next batch of a topic, and the raw table's proof after it.

A batch begins where the raw table's proof ends. So an archive may repeat a batch that was cut off anywhere, and the
repeated batch may end elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from korvet.pipeline.plan.losses import Loss, UnreadableRange, joined
from korvet.pipeline.plan.positions import Position, Topic
from korvet.pipeline.plan.proofs import Proven, followed

Ends = Mapping[int, int]
"""An offset by partition. It counts markers of transactions and gaps."""
Source = Literal["korvet", "kafka"]
"""Who reads a topic: korvet's reader, or Spark's own Kafka connector."""
Key = TypeVar("Key")


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The begin and the end of a batch, and its reader. ``losses`` and ``unreadable`` lie within."""

    id: int
    begins: Ends
    ends: Ends
    leader_epochs: Mapping[int, int]
    losses: tuple[Loss, ...] = ()
    unreadable: tuple[UnreadableRange, ...] = ()
    source: Source = "korvet"

    def without(self, found: Iterable[UnreadableRange], ends: Ends) -> Batch:
        """The batch up to these ends, without more of what cannot be read."""
        return replace(self, ends=ends, unreadable=(*self.unreadable, *found))

    def proven(self, topic: Topic, has: Proven | None, writer: str) -> Proven:
        """The raw table's proof with the batch: no lower than before, also if this batch ends below it.

        :param has: its proof before.
        """
        lost = [*self.losses, *(each.loss for each in self.unreadable)]
        proven = Proven(
            topic=topic.name,
            topic_id=topic.id,
            generation=0,
            batch_id=self.id,
            offsets=dict(self.ends),
            leader_epochs={number: epoch for number, epoch in self.leader_epochs.items() if number in self.ends},
            losses=joined([*(has.losses if has is not None else ()), *lost]),
        )
        return followed(has, proven, writer)

    def behind(self, ends: Mapping[int, Position]) -> int:
        """The number of offsets that the topic has after the batch."""
        return sum(max(0, end.offset - self.ends.get(number, 0)) for number, end in ends.items())


def capped(wanted: Ends, ends: Mapping[int, Position]) -> dict[int, int]:
    """The wanted ends, no higher than the topic's; without partitions that the topic no longer has."""
    return {number: min(end, ends[number].offset) for number, end in wanted.items() if number in ends}


def position(has: Proven | None, firsts: Ends, number: int) -> int:
    """Where a table ends in a partition, else where the partition's log began; -1 if that is not known."""
    return ({} if has is None else has.offsets).get(number, firsts.get(number, -1))


def planned(
    begins: Ends, wanted: Ends, ends: Mapping[int, Position], has: Proven | None, most: int | None
) -> Batch | None:
    """The next batch; None if the raw table has all that is wanted.

    Leader epochs are from before Spark reads it: its records are of these epochs, or newer.

    :param begins: a `position` for each partition.
    :param wanted: as `capped`.
    :param has: the raw table's proof.
    :param most: about how many offsets the batch has at most.
    """
    batch = Batch(
        id=0 if has is None else has.batch_id + 1,
        begins=begins,
        ends=limited(begins, wanted, most),
        leader_epochs={number: at.leader_epoch for number, at in ends.items() if at.leader_epoch is not None},
    )
    return None if batch.ends == begins else batch


def limited(begins: Ends, ends: Ends, most: int | None) -> dict[int, int]:
    """Ends of a batch of about ``most`` offsets, shared among the partitions; not below the begins."""
    bounded = {number: max(begins[number], end) for number, end in ends.items()}
    return bounded if most is None else shared(most, begins, bounded)


def shared(limit: int, start: Mapping[Key, int], latest: Mapping[Key, int]) -> dict[Key, int]:
    """The ends of a batch of about ``limit`` offsets, in proportion to the partitions' new offsets.

    :param start: the start of each partition; one without a start ends at its latest.

    Source: Spark's KafkaMicroBatchStream.rateLimit.
    """
    sizes = {partition: end - start[partition] for partition, end in latest.items() if end > start.get(partition, end)}
    total = sum(sizes.values())

    def end_of(partition: Key, end: int) -> int:
        if partition not in sizes:
            return end
        share = limit * (sizes[partition] / total)
        # A small partition gets at least one.
        return min(end, start[partition] + (math.ceil(share) if share < 1 else math.floor(share)))

    return {partition: end_of(partition, end) for partition, end in latest.items()}
