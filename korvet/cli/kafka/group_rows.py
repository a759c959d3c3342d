"""Groups as lists show them, with members and lag: one request for many groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from korvet.cli.kafka.address import Address
from korvet.cli.kafka.client import Client
from korvet.cli.kafka.framing import Request
from korvet.cli.kafka.groups import CLASSIC_TYPE, CONSUMER_TYPE, SHARE_TYPE, ListedGroup, describing
from korvet.cli.kafka.offsets import (
    LATEST,
    NO_OFFSET,
    TopicPartition,
    by_partition,
    fetching,
    log_offsets,
    share_fetching,
    started,
)
from korvet.unknown import total_known

GROUPS_AT_ONCE: Final = 100
"""The groups of one request for members and lags."""
OFFSETS_AT_ONCE: Final = 10
"""The groups of one request for offsets. There are few, as a group may have very many offsets."""
MOST_OFFSETS: Final = 20_000
"""After so many offsets of a page of groups, further lags are not fetched."""
_DESCRIBED_BY: Final = (
    (CLASSIC_TYPE, "describe_groups", 5),
    (CONSUMER_TYPE, "consumer_group_describe", 0),
    (SHARE_TYPE, "share_group_describe", 1),
)

Offsets = Mapping[TopicPartition, int]


class GroupRow(NamedTuple):
    """A group, the number of its members, and the sum of its lags; None for unknown numbers."""

    listed: ListedGroup
    members: int | None
    lag: int | None


def group_rows(client: Client, groups: Sequence[ListedGroup], most_offsets: int | None = None) -> list[GroupRow]:
    """The groups with their members and lags.

    A number is unknown if the client may not see it, or the broker does not report it: for streams groups, and for
    groups without committed offsets.

    :param most_offsets: after so many offsets, the lags of further groups are unknown. None means any number.
    """
    rows: list[GroupRow] = []
    for at in range(0, len(groups), GROUPS_AT_ONCE):
        rows += _rows(client, groups[at : at + GROUPS_AT_ONCE], most_offsets)
    return rows


def _rows(client: Client, groups: Sequence[ListedGroup], most_offsets: int | None) -> list[GroupRow]:
    types = {one.group: one.type for one in groups if one.type in (CLASSIC_TYPE, CONSUMER_TYPE)}
    sharing = {one.group: one.type for one in groups if one.type == SHARE_TYPE}
    if sharing and client.serves("describe_share_group_offsets", 1):
        types |= sharing
    members: dict[str, int] = {}
    offsets: dict[str, Offsets] = {}
    lags: dict[str, int | None] = {}
    for address, own in client.coordinators(list(types)).items() if types else ():
        for type_, api, version in _DESCRIBED_BY:
            described = [one for one in own if types[one] == type_]
            # The code says why a description is missing: the group was removed, or may not be seen.
            for found in client.ask(describing(api, version, described), address).groups if described else ():
                if found.error_code is ErrorCode.none:
                    members[found.group_id] = len(found.members)
        consuming = [one for one in own if types[one] != SHARE_TYPE]
        for found in _fetched(client, address, fetching, consuming, most_offsets, offsets):
            offsets[found.group_id] = _committed(found)
        for found in _fetched(client, address, share_fetching, [one for one in own if one in sharing], None, {}):
            lags[found.group_id] = total_known(lag for _, lag in started(found).values())
    ends = log_offsets(client, {partition for own in offsets.values() for partition in own}, LATEST)
    lags |= {group: total_known(_lags(own, ends)) for group, own in offsets.items()}
    return [GroupRow(one, members.get(one.group), lags.get(one.group)) for one in groups]


def _fetched(
    client: Client,
    address: Address,
    requested: Callable[[Iterable[str]], Request],
    groups: Sequence[str],
    most_offsets: int | None,
    offsets: Mapping[str, Offsets],
) -> Iterator[Any]:
    """The readable groups of answers to requests for their offsets, until there are so many ``offsets``."""
    for at in range(0, len(groups), OFFSETS_AT_ONCE):
        if most_offsets is not None and sum(map(len, offsets.values())) >= most_offsets:
            break
        answer = client.ask(requested(groups[at : at + OFFSETS_AT_ONCE]), address)
        yield from (one for one in answer.groups if one.error_code is ErrorCode.none)


def _committed(group: Any) -> Offsets:
    return {
        partition: int(item.committed_offset)
        for partition, item in by_partition(group.topics)
        if item.error_code is ErrorCode.none and item.committed_offset != NO_OFFSET
    }


def _lags(offsets: Offsets, ends: Offsets) -> Iterator[int]:
    """The lag of each partition that is there."""
    for partition, offset in offsets.items():
        if partition in ends:
            yield max(0, ends[partition] - offset)
