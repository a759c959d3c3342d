"""States, positions and lags of all groups of a namespace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, MutableMapping
from typing import Any, Final

from korvet.metrics.lags import GroupTopic
from korvet.metrics.rounds.pace import Bounded, Pace
from korvet.metrics.rounds.partitions import Seen
from korvet.metrics.samples import Samples
from korvet.store.groups import replies
from korvet.store.groups.archived import ARCHIVE_GROUP, archived_end
from korvet.store.groups.call import chunks
from korvet.store.groups.groups import Groups
from korvet.store.groups.types import Offset, TopicPartition
from korvet.store.shares.types import SharePartition

_SLICE: Final = 20


async def read_groups(
    groups: Groups, namespace: str, seen: Mapping[TopicPartition, Seen], pace: Pace, samples: Bounded
) -> Mapping[GroupTopic, int]:
    """Read all groups, and set their figures. Returns the groups' lags in topics with all partitions seen.

    :param seen: the partitions of the same round.
    :raises StoreUnavailable, StoreError: the index of groups cannot be read.
    """
    states: Counter[tuple[str, str]] = Counter()
    lags: dict[GroupTopic, int] = {}
    for chunk in await groups.index.group_ids():
        for some in chunks(chunk, _SLICE):
            sharing = set()
            for group_id, state in await pace.ask(some, groups.administration.state):
                if state is not None:
                    _note_state(namespace, group_id, state, states, samples)
                    sharing |= {group_id} if replies.type_of(state) == replies.SHARE else set()
            others = [group_id for group_id in some if group_id not in sharing]
            for group_id, offsets in await pace.ask(others, lambda one: groups.offsets.fetch(one, None)):
                _note_offsets(namespace, group_id, offsets, seen, samples)
                _note_lags(group_id, offsets, seen, lags)
            for group_id in sorted(sharing):
                await _read_shares(groups, namespace, group_id, pace, samples, lags)
    for (kind, state), count in states.items():
        samples.set_sum("korvet_groups", count, namespace, kind, state)
    return lags


async def _read_shares(
    groups: Groups, namespace: str, group_id: str, pace: Pace, samples: Bounded, lags: MutableMapping[GroupTopic, int]
) -> None:
    """Set the figures of a share group's partitions, and its lag in each topic with all partitions read."""
    for _, found in await pace.ask([group_id], groups.shares.topics):
        for topic in () if found is None else groups.shares.existing(found.topics):
            known: dict[int, SharePartition | None] = {}
            for some in chunks(groups.shares.partitions([topic]), _SLICE):
                described = await pace.ask(
                    some, lambda one: groups.share_partitions.describe(one, group_id, has_ranges=False)
                )
                known |= {partition.index: share for partition, share in described}
            started = {index: share for index, share in known.items() if share is not None and share.start >= 0}
            for index, share in started.items():
                labels = namespace, group_id, topic.name, str(index)
                samples.set("korvet_group_offset", share.start, *labels)
                samples.set("korvet_group_lag", share.lag, *labels)
            if started and len(known) == topic.partitions:
                lags[group_id, topic.name] = sum(share.lag for share in started.values())


def _note_state(
    namespace: str, group_id: str, reply: Mapping[str, Any], states: Counter[tuple[str, str]], samples: Bounded
) -> None:
    kind, state = replies.type_of(reply), replies.text(reply["state"])
    states[kind, state] += 1
    samples.set("korvet_group_members", reply["members"], namespace, group_id, kind, state)


def _note_offsets(
    namespace: str,
    group_id: str,
    offsets: Mapping[TopicPartition, Offset],
    seen: Mapping[TopicPartition, Seen],
    samples: Samples,
) -> None:
    for partition, offset in offsets.items():
        known = seen.get(partition)
        if known is None or known.topic_id != offset.topic_id.hex:
            # The offset is of a topic that is gone, or cannot be read.
            continue
        labels = partition[0], str(partition[1])
        samples.set("korvet_group_offset", offset.offset, namespace, group_id, *labels)
        samples.set("korvet_group_lag", max(0, known.meta.end - offset.offset), namespace, group_id, *labels)
        if group_id == ARCHIVE_GROUP:
            unarchived = known.meta.end - archived_end(known.meta, offset)
            samples.set("korvet_archive_lag", unarchived, namespace, *labels)


def _note_lags(
    group_id: str,
    offsets: Mapping[TopicPartition, Offset],
    seen: Mapping[TopicPartition, Seen],
    lags: MutableMapping[GroupTopic, int],
) -> None:
    """Add up a group's lags by topic; a topic with a partition that was not seen is left out."""
    for (topic, index), offset in offsets.items():
        known = seen.get((topic, index))
        if known is not None and known.topic_id == offset.topic_id.hex:
            lags[group_id, topic] = lags.get((group_id, topic), 0) + max(0, known.meta.end - offset.offset)
    for topic in {topic for topic, index in offsets if (topic, index) not in seen}:
        lags.pop((group_id, topic), None)
