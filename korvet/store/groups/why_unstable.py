"""Sentences that explain why a group is not Stable: the member that must act, by when, and the waiting member."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final
from uuid import UUID

from korvet.assignors import Assignment
from korvet.store.groups.consumer_types import ConsumerDescription, ConsumerMember
from korvet.store.groups.types import GroupDescription, GroupMember

NameOf = Callable[[UUID], str]
_Partition = tuple[UUID, int]

_MOST_SAID: Final = 20
_MOST_PARTITIONS: Final = 5
_AWAY: Final = -2


def waits(group: GroupDescription, name_of: NameOf) -> list[str]:
    """A sentence for each cause of the group's wait; none without one.

    :param name_of: a topic's name, for people.
    """
    said = list(_of_classic(group) if group.consumer is None else _of_consumer(group.consumer, name_of))
    return said if len(said) <= _MOST_SAID else [*said[:_MOST_SAID], f"and {len(said) - _MOST_SAID} more"]


# ---------------------------------------------------------------------- the classic protocol


def _of_classic(group: GroupDescription) -> Iterator[str]:
    rebalance, sync = _within(group.rebalance_ends_in_ms), _within(group.sync_ends_in_ms)
    if group.is_initial:
        yield f"the first rebalance is open to further members {rebalance}"
    leader_is_awaited = group.state == "CompletingRebalance"
    for member in group.members:
        if not member.is_awaited:
            continue
        if group.state == "PreparingRebalance":
            yield f"{_shown_member(member)} has yet to join the rebalance {rebalance}{_else(member)}"
        elif leader_is_awaited and member.id == group.leader:
            yield f"{_shown_member(member)} leads and has yet to hand out the partitions {sync}"
        else:
            yield f"{_shown_member(member)} has yet to ask for its partitions {sync}, else it is left out"
    for id in group.pending:
        yield f"{id} is the id of a new member, which has yet to join with it"


def _shown_member(member: GroupMember) -> str:
    instance = "" if member.instance_id is None else f" (instance {member.instance_id})"
    return f"{member.id}{instance} at {member.client_host}"


def _else(member: GroupMember) -> str:
    """The consequence for a member that does not join. Source: GroupMetadataManager.completeClassicGroupJoin"""
    return ", else the group goes on without it" if member.instance_id is None else ", else the group goes on"


def _within(time_ms: int | None) -> str:
    return "" if time_ms is None else f"within {max(time_ms, 0) / 1000:.1f} s"


# ---------------------------------------------------------------------- the consumer protocol


def _of_consumer(group: ConsumerDescription, name_of: NameOf) -> Iterator[str]:
    if group.members and group.target_epoch < group.epoch:
        yield f"the target is of epoch {group.target_epoch}, and a heartbeat has yet to make that of {group.epoch}"
        return
    owners = {
        partition: member.id
        for member in group.members
        for partition in _partitions(member.owned) | _partitions(member.revoking)
    }
    for member in group.members:
        yield from _of_member(member, group.target_epoch, owners, name_of)


def _of_member(
    member: ConsumerMember, target_epoch: int, owners: Mapping[_Partition, str], name_of: NameOf
) -> Iterator[str]:
    if member.epoch == _AWAY:
        yield f"{member.id} is away, and the group waits for it until its session ends"
        return
    owned, target = _partitions(member.owned), _partitions(member.target)
    gives_up = _partitions(member.revoking) | (owned - target)
    if gives_up:
        yield f"{member.id} has to give up {_shown(gives_up, name_of)}"
    waited: dict[str, set[_Partition]] = {}
    for partition in target - owned:
        waited.setdefault(owners.get(partition, ""), set()).add(partition)
    for owner, partitions in sorted(waited.items()):
        what = _shown(partitions, name_of)
        yield f"{member.id} " + (f"waits for {what}, which {owner} still has" if owner else f"has yet to take {what}")
    if not gives_up and not waited and member.epoch != target_epoch:
        yield f"{member.id} has yet to go on from epoch {member.epoch} to {target_epoch}"


def _partitions(assignment: Assignment) -> set[_Partition]:
    return {(topic, partition) for topic, partitions in assignment.items() for partition in partitions}


def _shown(partitions: Iterable[_Partition], name_of: NameOf) -> str:
    named = sorted((name_of(topic), partition) for topic, partition in partitions)
    shown = ", ".join(f"{topic}-{partition}" for topic, partition in named[:_MOST_PARTITIONS])
    return shown if len(named) <= _MOST_PARTITIONS else f"{shown} and {len(named) - _MOST_PARTITIONS} more"
