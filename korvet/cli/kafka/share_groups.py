"""Share groups (KIP-932), which Apache Kafka has since 4.1. Korvet serves none.

Their members share partitions, and acknowledge record by record. A partition's start offset is the first one whose
record may still be delivered.
"""

from __future__ import annotations

from kio.schema.describe_share_group_offsets.v0 import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
)
from kio.schema.describe_share_group_offsets.v0.request import DescribeShareGroupOffsetsRequestGroup
from kio.schema.errors import ErrorCode
from kio.schema.share_group_describe.v1 import ShareGroupDescribeRequest, ShareGroupDescribeResponse
from kio.schema.share_group_describe.v1.response import DescribedGroup
from kio.schema.types import GroupId

from korvet.cli.kafka.client import Client, retried
from korvet.cli.kafka.errors import check
from korvet.cli.kafka.groups import STATE_DEAD, Group, Member, describe_group
from korvet.cli.kafka.offsets import NO_OFFSET, TopicPartition, committed_offsets

SHARE_TYPE = "share"
_SHARE_GROUP_DESCRIBE = 77
_NO_SUCH_GROUP = (ErrorCode.group_id_not_found, ErrorCode.unsupported_version)
"""The second one is of a Kafka whose feature ``share.version`` is off."""


def describe_any_group(client: Client, group: str) -> Group:
    """A group's state and members, of whichever of the three kinds it is; an unknown group is ``Dead``."""
    described = describe_group(client, group)
    if described.state == STATE_DEAD and client.serves(_SHARE_GROUP_DESCRIBE, 1):
        return _described(client, group) or described
    return described


def group_offsets(client: Client, group: Group) -> dict[TopicPartition, int]:
    """A group's offsets, by partition: those that it committed, or the start offsets of a share group."""
    return _start_offsets(client, group.group) if group.type == SHARE_TYPE else committed_offsets(client, group.group)


def _described(client: Client, group: str) -> Group | None:
    """The group, or None if no share group has this id."""
    request = ShareGroupDescribeRequest(group_ids=(GroupId(group),), include_authorized_operations=False)

    def attempt() -> DescribedGroup | None:
        found = client.ask_coordinator(group, request, ShareGroupDescribeResponse).groups[0]
        if found.error_code in _NO_SUCH_GROUP:
            return None
        check(found.error_code, f"group {group!r}", found.error_message)
        return found

    found = retried(attempt)
    if found is None:
        return None
    members = (
        Member(
            id=member.member_id,
            instance_id=None,
            client_id=member.client_id,
            host=member.client_host,
            assignment=tuple(
                sorted(
                    TopicPartition(topic.topic_name, int(partition))
                    for topic in member.assignment.topic_partitions
                    for partition in topic.partitions
                )
            ),
            epoch=int(member.member_epoch),
            protocol=SHARE_TYPE,
        )
        for member in found.members
    )
    return Group(
        group=group,
        type=SHARE_TYPE,
        state=found.group_state,
        protocol_type=SHARE_TYPE,
        protocol=found.assignor_name,
        members=tuple(members),
        epoch=int(found.group_epoch),
        target_epoch=int(found.assignment_epoch),
    )


def _start_offsets(client: Client, group: str) -> dict[TopicPartition, int]:
    wanted = DescribeShareGroupOffsetsRequestGroup(group_id=GroupId(group), topics=None)
    request = DescribeShareGroupOffsetsRequest(groups=(wanted,))

    def attempt() -> dict[TopicPartition, int]:
        found = client.ask_coordinator(group, request, DescribeShareGroupOffsetsResponse).groups[0]
        check(found.error_code, f"offsets of group {group!r}", found.error_message)
        return {
            TopicPartition(topic.topic_name, int(item.partition_index)): int(item.start_offset)
            for topic in found.topics
            for item in topic.partitions
            if item.error_code is ErrorCode.none and item.start_offset != NO_OFFSET
        }

    return retried(attempt)
