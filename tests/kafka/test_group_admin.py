"""Java's Admin on groups of either protocol and of both: descriptions, and the changes that each state allows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.kafka.client import Client, ClientError, Member
from tests.kafka.conftest import JoinGroup, NewTopic
from tests.kafka.options import MemberOptions
from tests.kafka.process import ProcessClient
from tests.kafka.test_groups import PARTITIONS, await_settled
from tests.kafka.waiting import poll_until

UNKNOWN_MEMBER_ID, NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND, GROUP_SUBSCRIBED_TO_TOPIC = 25, 68, 69, 86
CLASSIC, CONSUMER = "confluent-kafka", "confluent-kafka-consumer"


@pytest.fixture
def java(client_named: Callable[[str], Client]) -> ProcessClient:
    client = client_named("java")
    assert isinstance(client, ProcessClient)
    return client


@pytest.mark.parametrize("names", [(CLASSIC,), (CONSUMER,), (CLASSIC, CONSUMER)], ids="+".join)
def test_groups_are_shown_and_administered(
    names: Sequence[str],
    java: ProcessClient,
    client_named: Callable[[str], Client],
    bootstrap: str,
    new_topic: NewTopic,
    group: str,
    join: JoinGroup,
) -> None:
    topic = new_topic(PARTITIONS)
    members: list[Member] = []
    for name in names:
        members.append(join(client_named(name), group, topic, MemberOptions(reset="earliest")))
        await_settled(members)
    kind = "Consumer" if CONSUMER in names else "Classic"
    poll_until(lambda: told_of(java, group)["state"] == "Stable", "the group to be Stable")
    told = told_of(java, group)
    assert (told["type"], told["is_simple"], told["coordinator"]) == (kind, False, bootstrap)
    described = told["members"]
    assert sorted(one["owned"] for one in described) == sorted(member.seen.assignment for member in members)
    assert len({one["id"] for one in described}) == len(members)
    assert {(one["client"], one["host"], one["instance"]) for one in described} == {("rdkafka", "/127.0.0.1", None)}
    if kind == "Consumer":
        assert told["assignor"] == "uniform"
        assert told["epoch"] == told["target_epoch"] >= len(members)
        assert sorted(one["is_upgraded"] for one in described) == sorted(name == CONSUMER for name in names)
        assert {one["epoch"] for one in described} == {told["epoch"]}
        assert [one["target"] for one in described] == [one["owned"] for one in described]
    else:
        assert (told["assignor"], told["epoch"], told["target_epoch"]) == ("range", None, None)
        assert [(one["epoch"], one["target"], one["is_upgraded"]) for one in described] == [(None, None, None)]
    assert_listed(java, group, kind, "Stable")
    assert_shown_as_classic(java, group, bootstrap, told)
    assert refusal(java, "delete_group", group=group) == NON_EMPTY_GROUP
    assert refusal(java, "set_offsets", group=group, topic=topic, offsets={"0": 1}) == UNKNOWN_MEMBER_ID
    assert refusal(java, "delete_offsets", group=group, topic=topic, partitions=[0]) == GROUP_SUBSCRIBED_TO_TOPIC
    java.configure_group(group, {"consumer.session.timeout.ms": "50000"})
    assert java.call("group_configs", group=group)["consumer.session.timeout.ms"] == "50000"
    for member in members:
        member.leave()
    assert_empty_group_is_administered(java, group, topic, kind)


def told_of(java: ProcessClient, group: str) -> dict[str, Any]:
    found: dict[str, Any] = java.call("describe_group", group=group)
    return found


def refusal(java: ProcessClient, op: str, **arguments: Any) -> int:
    """The error code of a command that is refused."""
    with pytest.raises(ClientError) as refused:
        java.call(op, **arguments)
    return refused.value.code


def assert_listed(java: ProcessClient, group: str, kind: str, state: str) -> None:
    """Filters by the group's type and state list it; filters by other types and states do not."""
    listed = [kind, "consumer", state]
    other_kind, other_state = {"Consumer": "Classic", "Classic": "Consumer"}[kind], "PreparingRebalance"
    for types, states in (([], []), ([kind], []), ([], [state]), ([kind], [state, other_state])):
        assert java.call("list_groups", types=types, states=states)[group] == listed
    for types, states in (([other_kind], []), ([], [other_state]), ([other_kind], [state])):
        assert group not in java.call("list_groups", types=types, states=states)


def assert_shown_as_classic(java: ProcessClient, group: str, bootstrap: str, told: dict[str, Any]) -> None:
    """The classic description fits the group, unless the group has members of the consumer protocol."""
    if told["type"] == "Consumer":
        assert refusal(java, "describe_classic_group", group=group) == GROUP_ID_NOT_FOUND
        return
    shown = java.call("describe_classic_group", group=group)
    assert (shown["state"], shown["protocol"], shown["protocol_data"]) == ("Stable", "consumer", "range")
    assert (shown["coordinator"], shown["members"]) == (bootstrap, told["members"])


def assert_empty_group_is_administered(java: ProcessClient, group: str, topic: str, kind: str) -> None:
    told = told_of(java, group)
    assert (told["state"], told["type"], told["members"]) == ("Empty", kind, [])
    assert_listed(java, group, kind, "Empty")
    java.set_offsets(group, topic, {0: 3, 1: 4})
    assert java.committed(group, topic) == {0: 3, 1: 4}
    java.call("delete_offsets", group=group, topic=topic, partitions=[0])
    assert java.committed(group, topic) == {1: 4}
    java.call("delete_group", group=group)
    assert group not in java.call("list_groups", types=[], states=[])
    assert refusal(java, "describe_group", group=group) == GROUP_ID_NOT_FOUND
