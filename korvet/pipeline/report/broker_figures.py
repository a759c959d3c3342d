"""A report's figures from the broker: the groups' lags, and records that the broker keeps for an archive."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Final

from korvet.pipeline.broker import Broker, Partition, Position
from korvet.pipeline.errors import BrokerUnreachable, PipelineError, UnknownTopic
from korvet.pipeline.report.figures import Lag, Unarchived, UnreadableGroup
from korvet.pipeline.reported import ARCHIVE_GROUP

_NOTES: Final = ("korvet-replay-", "korvet-sink-")
"""Prefixes of groups that keep notes of replays and of the sink's batches: their offsets are no positions."""
LATE: Final = timedelta(minutes=10)
"""An archive that has not got to records of that age seems to have stopped."""


def lags(broker: Broker, topics: tuple[str, ...], groups: tuple[str, ...]) -> tuple[list[Lag], list[UnreadableGroup]]:
    """Lags by group, topic and partition, of the given topics and groups. None of them means all, without notes.

    Positions in a topic or partition that is gone are left out. If no group is named, the second list has the groups
    that the broker cannot read.

    :raises BrokerUnreachable:
    :raises PipelineError: if the broker cannot read a group that ``groups`` names.
    """
    committed, unreadable = _committed(broker, groups)
    known = _known(broker, {topic for partitions in committed.values() for topic, _ in partitions}, topics)
    ends = broker.latest(
        {partition for partitions in committed.values() for partition in partitions if partition in known},
        committed_only=False,
    )
    return [lag for group in sorted(committed) for lag in _lags_of(group, committed[group], ends)], unreadable


def _committed(
    broker: Broker, groups: tuple[str, ...]
) -> tuple[dict[str, Mapping[Partition, Position]], list[UnreadableGroup]]:
    """A damaged group does not cost the lags of the others, unless the user named it."""
    committed: dict[str, Mapping[Partition, Position]] = {}
    unreadable = []
    for group in groups or [group for group in broker.group_ids("") if not group.startswith(_NOTES)]:
        try:
            committed[group] = broker.committed(group)
        except PipelineError as error:
            if groups or isinstance(error, BrokerUnreachable):
                raise
            unreadable.append(UnreadableGroup(group=group, reason=str(error)))
    return committed, unreadable


def _known(broker: Broker, named: set[str], topics: tuple[str, ...]) -> set[Partition]:
    there = named & set(broker.topic_names())
    found = broker.topics(sorted(there & set(topics) if topics else there))
    return {(topic.name, partition) for topic in found.values() for partition in topic.partitions}


def _lags_of(group: str, committed: Mapping[Partition, Position], ends: Mapping[Partition, Position]) -> list[Lag]:
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


def unarchived(broker: Broker, topics: Iterable[str]) -> list[Unarchived]:
    """The topics with ``korvet.retention=archived`` that have records older than `LATE` and not archived, by name.

    :param topics: none means all.
    :raises BrokerUnreachable, PipelineError:
    """
    waiting = [(topic, _late_offsets(broker, topic)) for topic in topics or broker.topic_names()]
    return [Unarchived(topic=topic, offsets=offsets) for topic, offsets in waiting if offsets]


def _late_offsets(broker: Broker, topic: str) -> int:
    with suppress(UnknownTopic):
        if broker.topic_settings(topic).get("korvet.retention") == "archived":
            return _behind(broker, [(topic, number) for number in broker.topics([topic])[topic].partitions])
    return 0


def _behind(broker: Broker, partitions: list[Partition]) -> int:
    """The offsets from the archived one to the first record that is not late, without open transactions."""
    late_ms = round((datetime.now(UTC) - LATE).timestamp() * 1000)
    recent = broker.at_times(dict.fromkeys(partitions, late_ms), committed_only=True)
    ends, starts = broker.latest(partitions, committed_only=True), broker.earliest(partitions)
    archived = broker.committed(ARCHIVE_GROUP)
    behind = 0
    for each in partitions:
        begin = max(starts[each].offset, archived[each].offset if each in archived else 0)
        end = recent[each].offset if recent[each].offset >= 0 else ends[each].offset
        behind += max(0, end - begin)
    return behind
