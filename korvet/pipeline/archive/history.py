"""Checks that the broker still has the archived history.

A broker may lose acknowledged records, for example if Redis restarts without all of its append-only file. It then gives
their offsets to other records. So the topic's end is below the archived offsets, or the archived leader epoch ends
below them. Librdkafka asks for that end (OffsetForLeaderEpoch, KIP-320) before it fetches at an offset with an epoch.
Its error codes and the offset that it then fetches tell the answer. Source: rdkafka_offset.c.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final, Literal

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from korvet.pipeline.broker import Broker, Position
from korvet.pipeline.errors import BrokerUnreachable, PipelineError
from korvet.pipeline.lake import Loss, LossKind, Proven
from korvet.pipeline.lake.losses import joined

WITHIN_S: Final = 30.0
REMEDY: Final = "with --no-fail-on-data-loss (fail_on_data_loss=False) the archive goes on from what the broker has"


class DataLost(PipelineError):
    """Records are gone before they were archived, or other records have taken the offsets of archived ones."""


def latest(broker: Broker, topic: str, partitions: tuple[int, ...]) -> dict[int, Position]:
    """The log ends of the partitions, uncommitted records included, with the leader epochs."""
    told = broker.latest([(topic, number) for number in partitions], committed_only=False)
    return {number: position for (_, number), position in told.items()}


def lost(settings: Mapping[str, str], broker: Broker, proven: Proven, ends: Mapping[int, Position]) -> dict[int, int]:
    """Partitions whose history differs from the archived one: partition -> the offset where the two part.

    A partition that begins above the archived offset is left out: its records were trimmed before they were archived.

    :param settings: librdkafka's.
    :param ends: as the broker tells them now.
    :raises BrokerUnreachable: if no broker answers in time.
    """
    parted = {}
    asked = {}
    for number, offset in proven.offsets.items():
        end, epoch = ends.get(number), proven.leader_epochs.get(number)
        if end is None:
            continue
        if epoch is not None and end.leader_epoch != epoch:
            # Also if the log ends lower: it may have new records below its end, which the lake lacks.
            asked[number] = Position(offset=offset, leader_epoch=epoch)
        elif end.offset < offset:
            parted[number] = end.offset
    starts = broker.earliest([(proven.topic, number) for number in asked])
    asked = {number: at for number, at in asked.items() if starts[proven.topic, number].offset <= at.offset}
    return parted | _parted(settings, proven.topic, asked)


def describe(topic: str, proven: Mapping[int, int], parted: Mapping[int, int]) -> str:
    """A description of the loss, for an error or a warning."""
    told = ", ".join(
        f"partition {number} has another history from offset {offset} on, archived is up to {proven[number]}"
        for number, offset in sorted(parted.items())
    )
    return f"topic {topic}: the broker has lost acknowledged records that were archived: {told}"


def describe_trimmed(topic: str, proven: Mapping[int, int], starts: Mapping[int, int]) -> str:
    """A description of records that are gone before they were archived."""
    told = ", ".join(
        f"partition {number} begins at offset {first}, archived is up to {proven[number]}"
        for number, first in sorted(starts.items())
    )
    return (
        f"topic {topic}: records were trimmed before they were archived (the topic's setting "
        f"korvet.retention=archived prevents it): {told}"
    )


def moved(proven: Proven, offsets: Mapping[int, int], kind: LossKind, ends: Mapping[int, Position]) -> Proven:
    """A proof of the same table for an archive that goes on at other offsets of some partitions, with the loss.

    :param offsets: the ends of what the broker lost, or has instead; a table that is beyond such an end stays there.
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

    :param begins: where the table ends; 0 for partitions of which it has nothing.
    :param ends: of the batch.
    :param starts: where the logs begin, asked after Spark read the batch.
    :param firsts: the first offset of each partition that has records in the batch.
    """
    gone = {number: min(end, starts[number], firsts.get(number, end)) for number, end in ends.items()}
    return tuple(
        Loss(partition=number, kind="trimmed", start=start, end=gone[number])
        for number, start in begins.items()
        if gone.get(number, start) > start
    )


def _parted(settings: Mapping[str, str], topic: str, asked: Mapping[int, Position]) -> dict[int, int]:
    """The partitions whose epoch ends below the offset, with the first offset of the other history.

    If only markers of transactions follow there, it is the offset that was asked for.
    """
    held = _first_offsets(settings, topic, asked, "error")
    refused = {number: at for number, at in asked.items() if number not in held}
    found = _first_offsets(settings, topic, refused, "earliest")
    return {number: min(at.offset, found.get(number, at.offset)) for number, at in refused.items()}


def _first_offsets(
    settings: Mapping[str, str],
    topic: str,
    asked: Mapping[int, Position],
    reset: Literal["error", "earliest"],
) -> dict[int, int]:
    """The offset of each partition's first record, or its end, from a position with a leader epoch on.

    If the epoch ends below the position, the partition is left out with the reset ``error``. With ``earliest`` it is
    the first offset of the other history.
    """
    if not asked:
        return {}
    consumer = Consumer(
        {
            **settings,
            "group.id": "korvet.archive.history",
            "auto.offset.reset": reset,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_uncommitted",
            "fetch.wait.max.ms": 10,
            "log_level": 0,
        }
    )
    try:
        consumer.assign(
            [
                TopicPartition(topic, number, position.offset, leader_epoch=position.leader_epoch)
                for number, position in asked.items()
            ]
        )
        return _answers(consumer, topic, set(asked))
    except KafkaException as error:
        raise PipelineError(f"topic {topic}: the client cannot ask for its history: {error.args[0].str()}") from None
    finally:
        consumer.close()


def _answers(consumer: Consumer, topic: str, waiting: set[int]) -> dict[int, int]:
    found: dict[int, int] = {}
    deadline = time.monotonic() + WITHIN_S
    while waiting:
        if time.monotonic() > deadline:
            raise BrokerUnreachable(f"topic {topic}: the broker did not tell the history of {sorted(waiting)} in time")
        message = consumer.poll(1.0)
        number = None if message is None else message.partition()
        if message is None or number not in waiting:
            continue
        error, offset = message.error(), message.offset()
        if error is None or error.code() == KafkaError._PARTITION_EOF:
            assert offset is not None
            found[number] = offset
        elif error.code() != KafkaError._AUTO_OFFSET_RESET:
            # Librdkafka asks again.
            continue
        waiting.remove(number)
    return found
