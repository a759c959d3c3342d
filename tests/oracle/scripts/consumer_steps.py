"""Steps for scripts about groups of the consumer protocol."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from tests.oracle.script import Script, Step
from tests.oracle.scripts.steps import new_topic

FIRST_PARTITION: Final = "assignment.topic_partitions[0].partitions[0]"
STATIC_I: Final[dict[str, Any]] = {"instance_id": "i"}
FULL_REQUEST: Final = {"rebalance_timeout": 60000, "subscribed_topic_names": ["$t"], "topic_partitions": []}


def owned(*partitions: int, topic: str = "t") -> list[Mapping[str, Any]]:
    """The partitions that a member claims to own."""
    return [{"topic_id": f"${topic}_id", "partitions": list(partitions)}]


def beat(who: str, epoch: Any, *errors: str, **more: Any) -> Step:
    """A heartbeat of member `who` with only its epoch; settings of `Step` go by their names."""
    settings = {name: more.pop(name) for name in ("until", "save", "ignore", "version") if name in more}
    body = {"group_id": "$g", "member_id": who, "member_epoch": epoch, "rebalance_timeout": -1, **more}
    return Step("consumer_group_heartbeat", body, errors=errors, **settings)


def join(who: str, *errors: str, epoch: int = 0, **more: Any) -> Step:
    """The first heartbeat of a member, with all fields."""
    return beat(who, epoch, *errors, **{**FULL_REQUEST, **more})


def leave(who: str, *errors: str, epoch: int = -1, **more: Any) -> Step:
    """The last heartbeat of a member."""
    return beat(who, epoch, *errors, **more)


def described(state: str = "", version: int | None = 1) -> Step:
    """The group's description, once it has a state: Kafka's log is a moment behind its answers."""
    reached = ("groups[0].group_state", state) if state else None
    return Step("consumer_group_describe", version=version, body={"group_ids": ["$g"]}, until=reached, errors=None)


def seen() -> tuple[Step, ...]:
    """The group as the APIs of classic groups show it."""
    return (
        Step("describe_groups", version=6, body={"groups": ["$g"]}, errors=None),
        Step("list_groups", version=5, body={}),
        Step("list_groups", version=5, body={"types_filter": ["consumer"]}),
        Step("list_groups", version=5, body={"types_filter": ["classic"]}),
    )


def known_topic(partitions: int, topic: str = "t") -> tuple[Step, ...]:
    """Create a topic, and wait until the coordinator assigns it: Kafka's learns of topics after the brokers do."""
    only = {**FULL_REQUEST, "subscribed_topic_names": [f"${topic}"]}
    body = {"group_id": "$h", "member_id": "first", "member_epoch": 0, **only}
    own = ("member_epoch", "assignment")
    heartbeat = Step("consumer_group_heartbeat", version=1, body=body, until=(FIRST_PARTITION, 0), ignore=own)
    return (
        *new_topic(topic, partitions=partitions),
        heartbeat,
        replace(heartbeat, body={**body, "member_epoch": -1}, until=None),
        Step("delete_groups", version=2, body={"groups_names": ["$h"]}),
    )


def script(name: str, *steps: Step, versions: tuple[int, ...] = (), partitions: int = 3) -> Script:
    """A script of heartbeats that begins with the topic `$t`."""
    return Script(
        f"consumer group {name}", "consumer_group_heartbeat", *known_topic(partitions), *steps, versions=versions
    )


SETTLED_PAIR: Final = (
    join("m"),
    join("n"),
    beat("m", 1, topic_partitions=owned(0, 1, 2), save={"kept": "assignment.topic_partitions[0].partitions"}),
    beat("m", 1, topic_partitions=[{"topic_id": "$t_id", "partitions": "$kept"}]),
    beat("n", 2),
)
"""Two members in epoch 2; `m` has kept the partitions `$kept`."""


def group_config(name: str, value: str | None, *errors: str, operation: int = 0, group: str = "$g") -> Step:
    """IncrementalAlterConfigs of a group."""
    changes = [{"name": name, "config_operation": operation, "value": value}]
    resource = {"resource_type": 32, "resource_name": group, "configs": changes}
    return Step("incremental_alter_configs", {"resources": [resource]}, errors=errors)


def commit(
    offset: int, *errors: str, member: str = "", epoch: Any = -1, version: int = 9, name: str = "$t", **more: Any
) -> Step:
    """An OffsetCommit of partition 0."""
    row = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
    body = {
        "group_id": "$g", "member_id": member, "generation_id_or_member_epoch": epoch, **more,
        "topics": [{"name": name, "partitions": [row]}],
    }  # fmt: skip
    return Step("offset_commit", version=version, body=body, errors=errors)


def fetch(*errors: str, member: str | None = None, epoch: Any = -1, version: int = 9) -> Step:
    """An OffsetFetch of partition 0."""
    topics = [{"name": "$t", "partition_indexes": [0]}]
    group = {"group_id": "$g", "member_id": member, "member_epoch": epoch, "topics": topics}
    body = {"groups": [group]} if version >= 8 else {"group_id": "$g", "topics": topics}
    return Step("offset_fetch", version=version, body=body, errors=errors)


def forget(topic: str, *errors: str) -> Step:
    """An OffsetDelete of partition 0 of a topic."""
    body = {"group_id": "$g", "topics": [{"name": topic, "partitions": [{"partition_index": 0}]}]}
    return Step("offset_delete", body, errors=errors)


def delete(*errors: str) -> Step:
    return Step("delete_groups", version=2, body={"groups_names": ["$g"]}, errors=errors)
