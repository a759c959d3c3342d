"""The removal of members from groups over the wire, whichever of the two protocols they speak."""

from __future__ import annotations

from collections.abc import Sequence

from kio.schema.consumer_group_heartbeat.v0 import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from kio.schema.leave_group.v5 import LeaveGroupRequest, LeaveGroupResponse
from kio.schema.leave_group.v5.request import MemberIdentity
from kio.schema.types import GroupId
from kio.static.primitive import i32

from korvet.cli.kafka.client import Client, retried
from korvet.cli.kafka.errors import check
from korvet.cli.kafka.groups import CONSUMER_TYPE, Group, Member
from korvet.errors import KorvetError

_LEAVES = i32(-1)
_REASON = "removed by korvet groups remove-member"


def chosen_members(group: Group, ids: Sequence[str], instances: Sequence[str]) -> list[Member]:
    """The members with these ids and instance ids, in the group's order.

    :raises KorvetError: if an id is not of a member of the group.
    """
    known = {member.id for member in group.members}
    known_instances = {member.instance_id for member in group.members}
    unknown = [f"member {id!r}" for id in ids if id not in known]
    unknown += [f"member with the instance id {id!r}" for id in instances if id not in known_instances]
    if unknown:
        raise KorvetError(
            f"group {group.group!r} has no {unknown[0]}; see its members with: korvet groups describe {group.group}"
        )
    return [member for member in group.members if member.id in ids or member.instance_id in instances]


def remove_member(client: Client, group: str, member: Member) -> None:
    """Take a member out, as if it left by itself.

    :raises BrokerError: with UNKNOWN_MEMBER_ID, if it has left meanwhile, …
    """
    if member.protocol == CONSUMER_TYPE:
        retried(lambda: _leave_consumer(client, group, member))
    else:
        retried(lambda: _leave_classic(client, group, member))


def _leave_classic(client: Client, group: str, member: Member) -> None:
    identity = MemberIdentity(member_id=member.id, group_instance_id=member.instance_id, reason=_REASON)
    request = LeaveGroupRequest(group_id=GroupId(group), members=(identity,))
    answer = client.ask_coordinator(group, request, LeaveGroupResponse)
    check(answer.error_code, f"group {group!r}")
    check(answer.members[0].error_code, f"member {member.id!r} of group {group!r}")


def _leave_consumer(client: Client, group: str, member: Member) -> None:
    request = ConsumerGroupHeartbeatRequest(
        group_id=GroupId(group),
        member_id=member.id,
        member_epoch=_LEAVES,
        instance_id=member.instance_id,
        topic_partitions=None,
    )
    answer = client.ask_coordinator(group, request, ConsumerGroupHeartbeatResponse)
    check(answer.error_code, f"member {member.id!r} of group {group!r}", answer.error_message)
