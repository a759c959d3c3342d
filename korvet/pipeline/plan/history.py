"""Compares a broker's log with the archived history, and decides where an archive continues after a loss.

A broker may lose acknowledged records, for example if Redis restarts without all of its append-only file. It then gives
their offsets to other records. So the topic's end is below the archived offsets, or the archived leader epoch ends
below them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from korvet.pipeline.errors import PipelineError
from korvet.pipeline.plan.losses import Loss, LossKind, joined
from korvet.pipeline.plan.positions import Position
from korvet.pipeline.plan.proofs import Proven

REMEDY: Final = "with --no-fail-on-data-loss (fail_on_data_loss=False) the archive goes on from what the broker has"


class DataLost(PipelineError):
    """Records are gone before they were archived, or other records have taken the offsets of archived ones."""


def other_topic(name: str) -> PipelineError:
    """The error for a topic that was deleted and created again."""
    return PipelineError(
        f"topic {name}: it was deleted and created anew, and the lake has the records of the old one; archive it to "
        "another lake, or move the old one's tables away"
    )


def compared(proven: Proven, ends: Mapping[int, Position]) -> tuple[dict[int, int], dict[int, Position]]:
    """The partitions that end below the archived offset, with their end, and those with a leader epoch to check.

    :param ends: the broker's ends of now.
    """
    parted, to_check = {}, {}
    for number, offset in proven.offsets.items():
        end, epoch = ends.get(number), proven.leader_epochs.get(number)
        if end is None:
            continue
        if epoch is not None and end.leader_epoch != epoch:
            # Also if the log ends lower: it may have new records below its end, which the lake lacks.
            to_check[number] = Position(offset=offset, leader_epoch=epoch)
        elif end.offset < offset:
            parted[number] = end.offset
    return parted, to_check


def trimmed(proven: Proven, starts: Mapping[int, int]) -> dict[int, int]:
    """The partitions whose log begins above the archived offset, with its begin: the records between are lost."""
    return {number: start for number, start in starts.items() if start > proven.offsets.get(number, start)}


def describe(topic: str, proven: Mapping[int, int], parted: Mapping[int, int]) -> str:
    """A description of the loss, for an error or a warning."""
    listed = ", ".join(
        f"partition {number} has another history from offset {offset} on, archived is up to {proven[number]}"
        for number, offset in sorted(parted.items())
    )
    return f"topic {topic}: the broker has lost acknowledged records that were archived: {listed}"


def describe_trimmed(topic: str, proven: Mapping[int, int], starts: Mapping[int, int]) -> str:
    """A description of records that are gone before they were archived."""
    listed = ", ".join(
        f"partition {number} begins at offset {first}, archived is up to {proven[number]}"
        for number, first in sorted(starts.items())
    )
    return (
        f"topic {topic}: records were trimmed before they were archived (the topic's setting "
        f"korvet.retention=archived prevents it): {listed}"
    )


def moved(proven: Proven, offsets: Mapping[int, int], kind: LossKind, ends: Mapping[int, Position]) -> Proven:
    """A proof of the same table for an archive that continues at other offsets of some partitions, with the loss.

    :param offsets: the ends of what the broker lost or replaced; a table beyond such an end stays there.
    :param ends: the log's ends now, whose leader epochs the proof gets.
    """
    choose = min if kind == "replaced" else max
    new = {number: choose(offset, offsets.get(number, offset)) for number, offset in proven.offsets.items()}
    losses = [
        Loss(partition=number, kind=kind, start=min(offset, new[number]), end=max(offset, new[number]))
        for number, offset in proven.offsets.items()
        if offset != new[number]
    ]
    epochs = {number: end.leader_epoch for number, end in ends.items() if number in new}
    return Proven(
        topic=proven.topic,
        topic_id=proven.topic_id,
        generation=proven.generation,
        batch_id=-1,
        offsets=new,
        leader_epochs={number: epoch for number, epoch in epochs.items() if epoch is not None},
        losses=joined([*proven.losses, *losses]),
    )


def skipped(
    begins: Mapping[int, int], ends: Mapping[int, int], starts: Mapping[int, int], firsts: Mapping[int, int]
) -> tuple[Loss, ...]:
    """The offsets of a batch that were trimmed before Spark read them.

    :param begins: where the table ends; 0 for partitions that it has nothing of.
    :param ends: of the batch.
    :param starts: where the logs begin, read after Spark read the batch.
    :param firsts: the first offset of each partition that has records in the batch.
    """
    gone = {number: min(end, starts[number], firsts.get(number, end)) for number, end in ends.items()}
    return tuple(
        Loss(partition=number, kind="trimmed", start=start, end=gone[number])
        for number, start in begins.items()
        if gone.get(number, start) > start
    )
