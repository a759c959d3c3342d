"""Groups whose members speak both protocols, by raw requests."""

from __future__ import annotations

from typing import Any

from korvet.wire.assignment import assigned_partitions
from tests.api.consumers import (
    ROUNDS,
    Member,
    Partitions,
    described,
    partitions_by_topic,
    topic_id,
)
from tests.api.groups import entered, heartbeat, join, sync
from tests.api.raw import ask, created, unique
from tests.support.broker import KorvetServer, running_broker


def subscription(*topics: str | bytes) -> list[dict[str, Any]]:
    """The protocols of a classic member that subscribes to topics: ConsumerProtocolSubscription, version 0."""
    encoded = [topic.encode() if isinstance(topic, str) else topic for topic in topics]
    names = b"".join(len(name).to_bytes(2, "big") + name for name in encoded)
    metadata = (0).to_bytes(2, "big") + len(topics).to_bytes(4, "big") + names + (-1).to_bytes(4, "big", signed=True)
    return [{"name": "range", "metadata": metadata}]


def assigned(port: int, group: str, member: str, generation: int) -> tuple[str, Partitions]:
    """The code of a classic member's sync, and its assignment."""
    answer = sync(port, group, member, generation)
    found: Partitions = {}
    for topic, partition in assigned_partitions(answer["assignment"]):
        found.setdefault(topic, []).append(partition)
    return answer["error_code"], found


def test_a_group_goes_over_to_the_consumer_protocol_and_back(broker: KorvetServer) -> None:
    topic, group = created(broker.port, partitions=2), unique("g")
    protocols = subscription(topic)
    classic = entered(broker.port, group, protocols=protocols)["member_id"]
    everything = b"\0\0\0\0\0\1" + len(topic).to_bytes(2, "big") + topic.encode()
    everything += (2).to_bytes(4, "big") + bytes(4) + (1).to_bytes(4, "big") + (-1).to_bytes(4, "big", signed=True)
    assert sync(broker.port, group, classic, 1, {classic: everything})["error_code"] == "NONE"

    consumer = Member(broker.port, group, subscribed_topic_names=[topic])
    assert consumer.join()["error_code"] == "NONE"
    assert consumer.owned == {}
    types = {member["member_id"]: member["member_type"] for member in described(broker.port, group)["members"]}
    assert types == {classic: 0, consumer.id: 1}
    assert heartbeat(broker.port, group, classic, 1) == "REBALANCE_IN_PROGRESS"
    joined = join(broker.port, group, classic, protocols=subscription(topic))
    assert joined["error_code"] == "NONE", joined
    code, kept = assigned(broker.port, group, classic, joined["generation_id"])
    assert (code, len(kept[topic])) == ("NONE", 1)
    settled_with(broker, consumer, classic, topic)
    assert sorted(kept[topic] + consumer.owned[topic_id(broker.port, topic)]) == [0, 1]
    assert listed_type(broker.port, group) == "consumer"

    consumer.leave()
    assert listed_type(broker.port, group) == "classic"
    again = join(broker.port, group, classic, protocols=protocols)
    assert (again["error_code"], again["leader"]) == ("NONE", classic)
    assert sync(broker.port, group, classic, again["generation_id"], {classic: everything})["assignment"] == everything


def settled_with(broker: KorvetServer, consumer: Member, classic: str, topic: str) -> None:
    """Move one partition to the member of the consumer protocol, while the classic one follows its answers."""
    for _ in range(ROUNDS):
        assert consumer.beat()["error_code"] == "NONE"
        epoch = next(
            member["member_epoch"]
            for member in described(broker.port, consumer.group)["members"]
            if member["member_id"] == classic
        )
        if heartbeat(broker.port, consumer.group, classic, epoch) == "REBALANCE_IN_PROGRESS":
            joined = join(broker.port, consumer.group, classic, protocols=subscription(topic))
            assert assigned(broker.port, consumer.group, classic, joined["generation_id"])[0] == "NONE"
        if described(broker.port, consumer.group)["group_state"] == "Stable":
            return
    raise AssertionError(described(broker.port, consumer.group))


def listed_type(port: int, group: str) -> str:
    groups = ask(port, "list_groups", 5, states_filter=[], types_filter=[])["groups"]
    return next(str(found["group_type"]) for found in groups if found["group_id"] == group)


def test_a_classic_member_joins_a_group_of_the_consumer_protocol(broker: KorvetServer) -> None:
    """Its join leads to a target with it."""
    topic, group = created(broker.port, partitions=2), unique("g")
    consumer = Member(broker.port, group, subscribed_topic_names=[topic])
    consumer.join()
    joined = entered(broker.port, group, protocols=subscription(topic))
    assert (joined["error_code"], joined["protocol_name"], joined["leader"]) == ("NONE", "range", "")
    assert assigned(broker.port, group, joined["member_id"], joined["generation_id"]) == ("NONE", {})
    settled_with(broker, consumer, joined["member_id"], topic)
    (one, two) = (
        partitions_by_topic(member["assignment"])[topic] for member in described(broker.port, group)["members"]
    )
    assert sorted(one + two) == [0, 1]


def test_classic_members_subscription_may_be_any_bytes(broker: KorvetServer) -> None:
    """A member's metadata is its own; a text that is no topic's name keeps no member from a group."""
    topic, group, odd = created(broker.port), unique("g"), (b"\xff\xfe", b"a b\n", b"")
    classic = entered(broker.port, group, protocols=subscription(topic, *odd))["member_id"]
    assert sync(broker.port, group, classic, 1, {classic: b""})["error_code"] == "NONE"
    consumer = Member(broker.port, group, subscribed_topic_names=[topic])
    answer = consumer.join()
    assert answer["error_code"] == "NONE", answer
    (names,) = (
        member["subscribed_topic_names"]
        for member in described(broker.port, group)["members"]
        if member["member_id"] == classic
    )
    assert (len(names), topic in names) == (4, True)
    consumer.leave()
    assert listed_type(broker.port, group) == "classic"


def test_group_keeps_its_protocol_if_the_policy_says_so() -> None:
    with running_broker(broker={"group.consumer.migration.policy": "disabled"}) as broker:
        classic, topic = unique("g"), created(broker.port)
        assert entered(broker.port, classic, protocols=subscription(topic))["error_code"] == "NONE"
        assert Member(broker.port, classic).join()["error_code"] == "GROUP_ID_NOT_FOUND"
