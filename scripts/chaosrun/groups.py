"""Groups as the broker has them, read from Redis as redis-cli would."""

from collections.abc import Iterable
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from korvet.store.groups.call import keys_of
from korvet.store.keys import Namespace
from scripts.chaosrun.checks import GroupState


def begin(admin: AdminClient, group: str, topics: Iterable[str], partitions: int) -> None:
    """Commit offset 0 of every partition before a group of librdkafka has members.

    librdkafka then looks up no start of a log. If it loses a partition during that, it fetches it unassigned, from 0,
    and may hand out such records when it gets the partition again (docs/chaos.md).
    """
    starts = [TopicPartition(topic, partition, 0) for topic in topics for partition in range(partitions)]
    admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, starts)])[group].result(30)


def _named(values: list[Any]) -> dict[str, Any]:
    """Names and values as they alternate."""
    return {name.decode(): value for name, value in zip(values[0::2], values[1::2], strict=True)}


def described(redis: Any, group: str) -> GroupState:
    """The group as it is now; a missing one is Dead, without members, in generation -1."""
    keys = keys_of("korvet_group_describe", Namespace("default").group(group))
    reply = redis.execute_command("FCALL_RO", "korvet_group_describe", len(keys), *keys)
    if reply[0] != 0:
        return GroupState(state="Dead", generation=-1, members={}, committed={})
    fields = _named(reply[1:])
    members = [_named(member) for member in fields["members"]]
    committed = {}
    for name, position in _named(fields["offsets"]).items():
        topic, _, partition = name.rpartition(":")
        committed[topic, int(partition)] = int(position.split()[0])
    return GroupState(
        state=fields["state"].decode(),
        generation=int(fields["generation"]),
        members={member["member_id"].decode(): member["client_id"].decode() for member in members},
        committed=committed,
        type=fields["type"].decode() if "type" in fields else "classic",
    )


def all_described(redis: Any, groups: Iterable[str]) -> dict[str, GroupState]:
    """Each group as it is now."""
    return {group: described(redis, group) for group in groups}
