"""Groups of the consumer protocol as administrators see them, and their offsets."""

from __future__ import annotations

from typing import Any

from tests.api.consumers import (
    Member,
    described,
    function_calls,
    partitions_by_topic,
    refusal,
    settled,
)
from tests.api.groups import commit, committed, deleted, stable
from tests.api.groups import described as classic_described
from tests.api.raw import ask, created, unique
from tests.support.broker import KorvetServer, running_broker
from tests.support.redis import Server

# ---------------------------------------------------------------------- administrators


def test_group_is_described_with_its_members_assignments_and_targets(broker: KorvetServer) -> None:
    topic, group = created(broker.port, partitions=2), unique("g")
    first = Member(broker.port, group, "a", subscribed_topic_names=[topic], instance_id="i", rack_id="r")
    second = Member(broker.port, group, "b", subscribed_topic_regex=f"{topic}|x")
    first.join()
    second.join()
    second.beat()
    group_ = described(broker.port, group)
    assert (group_["error_code"], group_["group_state"], group_["assignor_name"]) == ("NONE", "Reconciling", "uniform")
    assert (group_["group_epoch"], group_["assignment_epoch"]) == (2, 2)
    one, two = group_["members"]
    assert (one["member_id"], one["instance_id"], one["rack_id"], one["member_epoch"]) == ("a", "i", "r", 1)
    assert (one["client_id"], one["client_host"], one["member_type"]) == ("oracle", "/127.0.0.1", 1)
    assert (one["subscribed_topic_names"], one["subscribed_topic_regex"]) == ([topic], "")
    assert (two["subscribed_topic_names"], two["subscribed_topic_regex"]) == ([], f"{topic}|x")
    assert (partitions_by_topic(one["assignment"]), partitions_by_topic(two["assignment"])) == ({topic: [0, 1]}, {})
    targets = [partitions_by_topic(member["target_assignment"])[topic] for member in (one, two)]
    assert sorted(part for parts in targets for part in parts) == [0, 1]
    settled(first, second)
    assert [
        partitions_by_topic(member["assignment"])[topic] for member in described(broker.port, group)["members"]
    ] == targets
    assert "member_type" not in described(broker.port, group, 0)["members"][0]


def test_the_catalog_is_read_once_for_all_groups_of_a_request(redis_server: Server) -> None:
    many = 200
    with redis_server.client() as server, running_broker(redis_url=redis_server.url) as broker:
        before = function_calls(server)
        answer = ask(broker.port, "consumer_group_describe", 1, group_ids=[unique("g") for _ in range(many)])
        assert {group["error_code"] for group in answer["groups"]} == {"GROUP_ID_NOT_FOUND"}
        assert many <= function_calls(server) - before < 1.5 * many


def test_other_groups_are_not_described_as_consumer_groups(broker: KorvetServer) -> None:
    nothing, classic = unique("g"), unique("g")
    stable(broker.port, classic)
    asked = {"group_ids": [nothing, classic, ""], "include_authorized_operations": True}
    groups = ask(broker.port, "consumer_group_describe", 1, **asked)["groups"]
    assert [refusal(group) for group in groups] == [
        ("GROUP_ID_NOT_FOUND", f"Group {nothing} not found."),
        ("GROUP_ID_NOT_FOUND", f"Group {classic} is not a consumer group."),
        ("INVALID_GROUP_ID", None),
    ]


def test_authorized_operations_of_a_group_are_shown_on_request(broker: KorvetServer) -> None:
    group = unique("g")
    Member(broker.port, group).join()
    asked = {"group_ids": [group], "include_authorized_operations": True}
    (shown,) = ask(broker.port, "consumer_group_describe", 1, **asked)["groups"]
    assert shown["authorized_operations"] == sum(1 << code for code in (3, 6, 8, 10, 11))
    assert described(broker.port, group)["authorized_operations"] == -(2**31)


def test_a_consumer_group_is_no_classic_one(broker: KorvetServer) -> None:
    group = unique("g")
    Member(broker.port, group).join()
    found = classic_described(broker.port, group)
    assert (*refusal(found), found["group_state"]) == (
        "GROUP_ID_NOT_FOUND",
        f"Group {group} is not a classic group.",
        "Dead",
    )
    (older,) = ask(broker.port, "describe_groups", 5, groups=[group])["groups"]
    assert (older["error_code"], older["group_state"]) == ("NONE", "Dead")


def test_groups_are_listed_by_type_and_state(broker: KorvetServer) -> None:
    classic, consumer, empty = unique("g"), unique("g"), unique("g")
    stable(broker.port, classic)
    settled_ = Member(broker.port, consumer)
    settled_.join()
    settled(settled_)
    left = Member(broker.port, empty)
    left.join()
    left.leave()

    def listed(states: list[str], types: list[str]) -> dict[str, tuple[str, str]]:
        groups = ask(broker.port, "list_groups", 5, states_filter=states, types_filter=types)["groups"]
        ours = [group for group in groups if group["group_id"] in (classic, consumer, empty)]
        assert {group["protocol_type"] for group in ours} <= {"consumer"}
        return {group["group_id"]: (group["group_state"], group["group_type"]) for group in ours}

    everything = {classic: ("Stable", "classic"), consumer: ("Stable", "consumer"), empty: ("Empty", "consumer")}
    assert listed([], []) == everything
    assert listed([], ["Consumer", "classic"]) == everything
    assert listed([], ["consumer"]) == {group: everything[group] for group in (consumer, empty)}
    assert listed(["empty"], ["consumer"]) == {empty: everything[empty]}
    assert listed(["Stable"], ["classic"]) == {classic: everything[classic]}
    assert listed([], ["share"]) == {}


def test_a_group_with_members_is_not_deleted(broker: KorvetServer) -> None:
    group = unique("g")
    member = Member(broker.port, group)
    member.join()
    assert deleted(broker.port, group) == ["NON_EMPTY_GROUP"]
    member.leave()
    assert deleted(broker.port, group) == ["NONE"]
    assert described(broker.port, group)["error_code"] == "GROUP_ID_NOT_FOUND"


# ---------------------------------------------------------------------- offsets


def test_offsets_are_committed_in_the_members_epoch(broker: KorvetServer) -> None:
    topic, group = created(broker.port), unique("g")
    member = Member(broker.port, group, subscribed_topic_names=[topic])
    member.join()

    def committing(epoch: int, member_id: str = member.id) -> list[str]:
        return commit(broker.port, group, topic, 7, member_id=member_id, generation_id_or_member_epoch=epoch)

    assert committing(member.epoch) == ["NONE"]
    assert committed(broker.port, group, topic, 0) == [7]
    assert committing(member.epoch + 1) == ["STALE_MEMBER_EPOCH"]
    assert committing(member.epoch, "nobody") == ["UNKNOWN_MEMBER_ID"]
    assert commit(broker.port, group, topic, 8) == ["UNKNOWN_MEMBER_ID"]
    member.leave()
    assert commit(broker.port, group, topic, 8) == ["NONE"]


def test_offsets_are_fetched_in_the_members_epoch(broker: KorvetServer) -> None:
    topic, group = created(broker.port), unique("g")
    member = Member(broker.port, group, subscribed_topic_names=[topic])
    member.join()
    commit(broker.port, group, topic, 7, member_id=member.id, generation_id_or_member_epoch=member.epoch)

    def fetched(asked: list[int] | None, **who: Any) -> tuple[str, list[int]]:
        topics = None if asked is None else [{"name": topic, "partition_indexes": asked}]
        (answer,) = ask(broker.port, "offset_fetch", 9, groups=[{"group_id": group, "topics": topics, **who}])["groups"]
        offsets = [row["committed_offset"] for one in answer["topics"] for row in one["partitions"]]
        return answer["error_code"], offsets

    for asked in ([0], None):
        assert fetched(asked, member_id=member.id, member_epoch=member.epoch) == ("NONE", [7])
        assert fetched(asked) == ("NONE", [7])
        assert fetched(asked, member_id=member.id, member_epoch=member.epoch + 1) == ("STALE_MEMBER_EPOCH", [])
        assert fetched(asked, member_id="nobody", member_epoch=1) == ("UNKNOWN_MEMBER_ID", [])
    assert ask(
        broker.port, "offset_fetch", 9, groups=[{"group_id": unique("g"), "topics": None, "member_id": "m"}]
    )["groups"][0]["error_code"] == "NONE"  # fmt: skip


def test_offsets_of_topics_that_members_subscribe_to_are_not_deleted(broker: KorvetServer) -> None:
    read, other, group = created(broker.port), created(broker.port), unique("g")
    member = Member(broker.port, group, subscribed_topic_names=[], subscribed_topic_regex=f"{read}|nothing")
    member.join()
    member.beat()
    for topic in (read, other):
        commit(broker.port, group, topic, 7, member_id=member.id, generation_id_or_member_epoch=member.epoch)
    topics = [{"name": topic, "partitions": [{"partition_index": 0}]} for topic in (read, other)]
    answer = ask(broker.port, "offset_delete", 0, group_id=group, topics=topics)
    codes = {topic["name"]: topic["partitions"][0]["error_code"] for topic in answer["topics"]}
    assert (answer["error_code"], codes) == ("NONE", {read: "GROUP_SUBSCRIBED_TO_TOPIC", other: "NONE"})
