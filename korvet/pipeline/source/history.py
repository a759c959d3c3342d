"""Checks that the broker still has the archived history.

Librdkafka asks for the end of a leader epoch (OffsetForLeaderEpoch, KIP-320) before it fetches at an offset with an
epoch. Its error codes, and the offset at which it then fetches, give the answer. Source: rdkafka_offset.c.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final, Literal

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from korvet.pipeline.broker import Broker, Position, close_consumer
from korvet.pipeline.errors import BrokerUnreachable, PipelineError
from korvet.pipeline.plan.history import compared
from korvet.pipeline.plan.proofs import Proven

WITHIN_S: Final = 30.0


def latest(broker: Broker, topic: str, partitions: tuple[int, ...]) -> dict[int, Position]:
    """The log ends of the partitions, uncommitted records included, with the leader epochs."""
    positions = broker.latest([(topic, number) for number in partitions], committed_only=False)
    return {number: position for (_, number), position in positions.items()}


def lost(settings: Mapping[str, str], broker: Broker, proven: Proven, ends: Mapping[int, Position]) -> dict[int, int]:
    """Partitions whose history differs from the archived one: partition -> the offset where the two part.

    A partition that begins above the archived offset is left out: its records were trimmed before they were archived.

    :param settings: librdkafka's.
    :param ends: the broker's ends of now.
    :raises BrokerUnreachable: if no broker answers in time.
    """
    parted, to_check = compared(proven, ends)
    starts = broker.earliest([(proven.topic, number) for number in to_check])
    to_check = {number: at for number, at in to_check.items() if starts[proven.topic, number].offset <= at.offset}
    return parted | _parted(settings, proven.topic, to_check)


def _parted(settings: Mapping[str, str], topic: str, to_check: Mapping[int, Position]) -> dict[int, int]:
    """The partitions whose epoch ends below the offset, with the first offset of the other history.

    If only transaction markers follow there, it is the offset in question.
    """
    held = _first_offsets(settings, topic, to_check, "error")
    refused = {number: at for number, at in to_check.items() if number not in held}
    found = _first_offsets(settings, topic, refused, "earliest")
    return {number: min(at.offset, found.get(number, at.offset)) for number, at in refused.items()}


def _first_offsets(
    settings: Mapping[str, str],
    topic: str,
    to_check: Mapping[int, Position],
    reset: Literal["error", "earliest"],
) -> dict[int, int]:
    """The offset of each partition's first record, or its end, from a position with a leader epoch on.

    If the epoch ends below the position, the partition is left out with the reset ``error``. With ``earliest`` it is
    the first offset of the other history.
    """
    if not to_check:
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
                for number, position in to_check.items()
            ]
        )
        return _answers(consumer, topic, set(to_check))
    except KafkaException as error:
        raise PipelineError(f"topic {topic}: the client cannot ask for its history: {error.args[0].str()}") from None
    finally:
        close_consumer(consumer)


def _answers(consumer: Consumer, topic: str, waiting: set[int]) -> dict[int, int]:
    found: dict[int, int] = {}
    deadline = time.monotonic() + WITHIN_S
    while waiting:
        if time.monotonic() > deadline:
            raise BrokerUnreachable(
                f"topic {topic}: the broker did not report the history of {sorted(waiting)} in time"
            )
        message = consumer.poll(1.0)
        number = None if message is None else message.partition()
        if message is None or number not in waiting:
            continue
        error, offset = message.error(), message.offset()
        if error is None or error.code() == KafkaError._PARTITION_EOF:
            assert offset is not None
            found[number] = offset
        elif error.code() != KafkaError._AUTO_OFFSET_RESET:
            # Librdkafka retries.
            continue
        waiting.remove(number)
    return found
