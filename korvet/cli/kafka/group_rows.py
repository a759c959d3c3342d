"""Groups as lists show them, over the wire: with their members and their lag, asked for many groups at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from kio.schema.consumer_group_describe.v0 import ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse
from kio.schema.describe_groups.v5 import DescribeGroupsRequest, DescribeGroupsResponse
from kio.schema.errors import ErrorCode
from kio.schema.offset_fetch.v8 import OffsetFetchRequest, OffsetFetchResponse
from kio.schema.offset_fetch.v8.request import OffsetFetchRequestGroup
from kio.schema.types import GroupId

from korvet.cli.kafka.client import Client
from korvet.cli.kafka.groups import CLASSIC_TYPE, CONSUMER_TYPE, ListedGroup
from korvet.cli.kafka.offsets import LATEST, NO_OFFSET, TopicPartition, log_offsets
from korvet.unknown import total_known

GROUPS_AT_ONCE: Final = 100
"""The number of groups for whose members and lags is asked at once."""
OFFSETS_AT_ONCE: Final = 10
"""The number of groups for whose offsets one request asks, as a group may have very many."""
MOST_OFFSETS: Final = 20_000
"""The offsets of a page of groups after which no further lags are asked for."""

Offsets = Mapping[TopicPartition, int]


class GroupRow(NamedTuple):
    """A group, the number of its members, and the records behind its offsets; None for what is not known."""

    listed: ListedGroup
    members: int | None
    lag: int | None


def group_rows(client: Client, groups: Sequence[ListedGroup], most_offsets: int | None = None) -> list[GroupRow]:
    """The groups with their members and lags.

    A number is not known if the client may not see it, or the broker does not tell: as of groups of other types than
    classic and consumer, and of groups without committed offsets.

    :param most_offsets: once this many offsets are read, the lags of further groups are not known. None means any
        number.
    """
    rows: list[GroupRow] = []
    for at in range(0, len(groups), GROUPS_AT_ONCE):
        rows += _rows(client, groups[at : at + GROUPS_AT_ONCE], most_offsets)
    return rows


def _rows(client: Client, groups: Sequence[ListedGroup], most_offsets: int | None) -> list[GroupRow]:
    types = {one.group: one.type for one in groups if one.type in (CLASSIC_TYPE, CONSUMER_TYPE)}
    members: dict[str, int] = {}
    offsets: dict[str, Offsets] = {}
    for address, own in client.coordinators(list(types)).items() if types else ():
        for request, answer in _describing(own, types):
            # Whether a group was removed, or may not be seen: its code leaves it out.
            for found in client.ask_at(address, request, answer).groups:
                if found.error_code is ErrorCode.none:
                    members[found.group_id] = len(found.members)
        for at in range(0, len(own), OFFSETS_AT_ONCE):
            if most_offsets is not None and sum(map(len, offsets.values())) >= most_offsets:
                break
            fetched = client.ask_at(address, _fetching(own[at : at + OFFSETS_AT_ONCE]), OffsetFetchResponse)
            told = [one for one in fetched.groups if one.error_code is ErrorCode.none]
            offsets.update((one.group_id, _committed(one)) for one in told)
    ends = log_offsets(client, {partition for own in offsets.values() for partition in own}, LATEST)
    lags = {group: total_known(_lags(own, ends)) for group, own in offsets.items()}
    return [GroupRow(one, members.get(one.group), lags.get(one.group)) for one in groups]


def _describing(groups: Iterable[str], types: Mapping[str, str]) -> Iterator[tuple[Any, Any]]:
    """The requests that ask for the members of groups of both types, and their answers."""
    classic = tuple(GroupId(one) for one in groups if types[one] == CLASSIC_TYPE)
    if classic:
        yield DescribeGroupsRequest(groups=classic, include_authorized_operations=False), DescribeGroupsResponse
    consumer = tuple(GroupId(one) for one in groups if types[one] == CONSUMER_TYPE)
    if consumer:
        request = ConsumerGroupDescribeRequest(group_ids=consumer, include_authorized_operations=False)
        yield request, ConsumerGroupDescribeResponse


def _fetching(groups: Iterable[str]) -> OffsetFetchRequest:
    wanted = tuple(OffsetFetchRequestGroup(group_id=GroupId(one), topics=None) for one in groups)
    return OffsetFetchRequest(groups=wanted, require_stable=False)


def _committed(group: Any) -> Offsets:
    return {
        TopicPartition(topic.name, item.partition_index): int(item.committed_offset)
        for topic in group.topics
        for item in topic.partitions
        if item.error_code is ErrorCode.none and item.committed_offset != NO_OFFSET
    }


def _lags(offsets: Offsets, ends: Offsets) -> Iterator[int]:
    """The lag of each partition that is there."""
    for partition, offset in offsets.items():
        if partition in ends:
            yield max(0, ends[partition] - offset)
