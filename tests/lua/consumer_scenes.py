"""Groups of the consumer protocol as Kafka's tests set them up. Source: ConsumerGroupBuilder."""

from __future__ import annotations

from tests.lua.consumer import FOO, Beat, ConsumerGroup
from tests.lua.group import NONE

STABLE, UNREVOKED, UNRELEASED = "STABLE", "UNREVOKED_PARTITIONS", "UNRELEASED_PARTITIONS"


def aim(group: ConsumerGroup, **targets: str) -> int:
    """Change the topics and make a new target; returns its epoch."""
    topic_id, partitions = group.topics["foo"]
    group.topics["foo"] = (topic_id or FOO, partitions + 1)
    group.catalog_version += 1
    group.targets = dict(targets)
    group.retarget()
    return group.epochs[1]


def settle(group: ConsumerGroup, *names: str, instances: dict[str, str] | None = None, **owned: str) -> int:
    """A Stable group whose members own these partitions; returns its epoch."""
    for member in owned:
        group.enter(member, *names, instance=(instances or {}).get(member, ""))
    epoch = aim(group, **owned)
    for _ in range(2):
        for member, text in owned.items():
            answer = group.consume(
                member, group.member(member).epoch, owned=text, instance=(instances or {}).get(member, "")
            )
            assert answer.code == NONE
    assert group.state == "Stable"
    assert {member: of.owned for member, of in group.members().items()} == owned
    return epoch


def shape(group: ConsumerGroup, member: str) -> tuple[str, int, int, str, str]:
    """A member's state, epoch, former epoch, owned partitions and partitions to revoke."""
    of = group.member(member)
    return of.state, of.epoch, of.previous_epoch, of.owned, of.revoking


def told(epoch: int, assignment: str | None = None, member: str = "m") -> Beat:
    return Beat(NONE, member, "ready", epoch, assignment)
