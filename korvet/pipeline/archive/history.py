"""Checks that the broker still has the archived history.

A broker may lose acknowledged records, for example if Redis restarts without all of its append-only file. It then gives
their offsets to other records. So the topic's end is below the archived offsets, or the archived leader epoch ends
below them. Librdkafka asks for that end (OffsetForLeaderEpoch, KIP-320) before it fetches at an offset with an epoch.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Final

from confluent_kafka import Consumer, KafkaException, TopicPartition

from korvet.pipeline.broker import Broker, Position
from korvet.pipeline.errors import BrokerUnreachable, PipelineError
from korvet.pipeline.lake import Proven

WITHIN_S: Final = 30.0
REMEDY: Final = "let the archive go on from what the broker has by failOnDataLoss=false"
# Librdkafka tells the offset of a truncation only in this text.
_END: Final = re.compile(r"log truncation detected .* broker end offset is (\d+)")


class DataLost(PipelineError):
    """Records are gone before they were archived, or other records have taken the offsets of archived ones."""


def latest(broker: Broker, topic: str, partitions: tuple[int, ...]) -> dict[int, Position]:
    """The log ends of the partitions, uncommitted records included, with the leader epochs."""
    told = broker.latest([(topic, number) for number in partitions], committed_only=False)
    return {number: position for (_, number), position in told.items()}


def lost(settings: Mapping[str, str], proven: Proven, ends: Mapping[int, Position]) -> dict[int, int]:
    """Partitions whose history differs from the archived one: partition -> the offset where the two part.

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
        if end.offset < offset:
            parted[number] = end.offset
        elif epoch is not None and end.leader_epoch is not None and end.leader_epoch != epoch:
            asked[number] = Position(offset=offset, leader_epoch=epoch)
    return parted | _truncated(settings, proven.topic, asked)


def describe(topic: str, proven: Mapping[int, int], parted: Mapping[int, int]) -> str:
    """A description of the loss, for an error or a warning."""
    told = ", ".join(
        f"partition {number} has another history from offset {offset} on, archived is up to {proven[number]}"
        for number, offset in sorted(parted.items())
    )
    return f"topic {topic}: the broker has lost acknowledged records that were archived: {told}"


def _truncated(settings: Mapping[str, str], topic: str, asked: Mapping[int, Position]) -> dict[int, int]:
    if not asked:
        return {}
    consumer = Consumer(
        {
            **settings,
            "group.id": "korvet.archive.history",
            "auto.offset.reset": "error",
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
    """Wait for each partition: its first record, or its end, shows that the epoch reaches so far."""
    parted: dict[int, int] = {}
    deadline = time.monotonic() + WITHIN_S
    while waiting:
        if time.monotonic() > deadline:
            raise BrokerUnreachable(f"topic {topic}: the broker did not tell the history of {sorted(waiting)} in time")
        message = consumer.poll(1.0)
        number = None if message is None else message.partition()
        if message is None or number not in waiting:
            continue
        error = message.error()
        told = None if error is None else _END.search(error.str())
        if told is not None:
            parted[number] = int(told[1])
        # Else there is a record, or the partition's end, or the log starts above: archived records may be trimmed.
        waiting.remove(number)
    return parted
