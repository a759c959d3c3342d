"""Why a group of the consumer protocol is not Stable yet, in words: who has to give up what, and who waits for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final
from uuid import UUID

from korvet.store.assignors import Assignment
from korvet.store.consumer_types import ConsumerDescription, ConsumerMember

NameOf = Callable[[UUID], str]
_Place = tuple[UUID, int]

_MOST_SAID: Final = 20
_MOST_PLACES: Final = 5
_AWAY: Final = -2


def waits(group: ConsumerDescription, name_of: NameOf) -> list[str]:
    """A sentence for each thing that the group waits for, by member; none where it waits for nothing.

    :param name_of: a topic's name, for people.
    """
    if group.members and group.target_epoch < group.epoch:
        return [
            f"the target is of epoch {group.target_epoch}, and a heartbeat has yet to have it made for {group.epoch}"
        ]
    owners = {
        place: member.id for member in group.members for place in _places(member.owned) | _places(member.revoking)
    }
    said = [
        sentence for member in group.members for sentence in _of_member(member, group.target_epoch, owners, name_of)
    ]
    return said if len(said) <= _MOST_SAID else [*said[:_MOST_SAID], f"and {len(said) - _MOST_SAID} more"]


def _of_member(
    member: ConsumerMember, target_epoch: int, owners: Mapping[_Place, str], name_of: NameOf
) -> Iterator[str]:
    if member.epoch == _AWAY:
        yield f"{member.id} is away, and is waited for until its session ends"
        return
    owned, target = _places(member.owned), _places(member.target)
    gives_up = _places(member.revoking) | (owned - target)
    if gives_up:
        yield f"{member.id} has to give up {_shown(gives_up, name_of)}"
    waited: dict[str, set[_Place]] = {}
    for place in target - owned:
        waited.setdefault(owners.get(place, ""), set()).add(place)
    for owner, places in sorted(waited.items()):
        what = _shown(places, name_of)
        yield f"{member.id} " + (f"waits for {what}, which {owner} still has" if owner else f"has yet to take {what}")
    if not gives_up and not waited and member.epoch != target_epoch:
        yield f"{member.id} has yet to go on from epoch {member.epoch} to {target_epoch}"


def _places(assignment: Assignment) -> set[_Place]:
    return {(topic, partition) for topic, partitions in assignment.items() for partition in partitions}


def _shown(places: Iterable[_Place], name_of: NameOf) -> str:
    named = sorted((name_of(topic), partition) for topic, partition in places)
    shown = ", ".join(f"{topic}-{partition}" for topic, partition in named[:_MOST_PLACES])
    return shown if len(named) <= _MOST_PLACES else f"{shown} and {len(named) - _MOST_PLACES} more"
