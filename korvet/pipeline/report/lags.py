"""How far consumer groups are behind, asked of the broker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from korvet.pipeline.broker import Broker, Position
from korvet.pipeline.broker import Partition as Place
from korvet.pipeline.report.figures import Lag

_NOTES: Final = ("korvet-replay-", "korvet-sink-")
"""How groups begin whose offsets are no positions in the topic: of replays, and of the sink's batches."""


def lags(broker: Broker, topics: tuple[str, ...], groups: tuple[str, ...]) -> list[Lag]:
    """Lags by group, topic and partition, of those topics and groups, or of all but those that keep notes.

    Offsets that a group still has of a topic or partition that is gone are left out.

    :raises BrokerUnreachable, PipelineError:
    """
    wanted = groups or [group for group in broker.group_ids("") if not group.startswith(_NOTES)]
    committed = {group: broker.committed(group) for group in wanted}
    known = _known_places(broker, {topic for places in committed.values() for topic, _ in places}, topics)
    ends = broker.latest(
        {place for places in committed.values() for place in places if place in known}, committed_only=False
    )
    return [lag for group in sorted(committed) for lag in _lags_of(group, committed[group], ends)]


def _known_places(broker: Broker, named: set[str], topics: tuple[str, ...]) -> set[Place]:
    there = named & set(broker.topic_names())
    found = broker.topics(sorted(there & set(topics) if topics else there))
    return {(topic.name, partition) for topic in found.values() for partition in topic.partitions}


def _lags_of(group: str, committed: Mapping[Place, Position], ends: Mapping[Place, Position]) -> list[Lag]:
    return [
        Lag(
            group=group,
            topic=topic,
            partition=partition,
            committed=committed[topic, partition].offset,
            end=ends[topic, partition].offset,
        )
        for topic, partition in sorted(committed)
        if (topic, partition) in ends
    ]
