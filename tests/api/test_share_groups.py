"""Share groups by raw requests: heartbeats, descriptions, and offsets for administrators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.api.consumers import beat as consumer_beat
from tests.api.consumers import function_calls, share_beat, topic_id
from tests.api.groups import commit
from tests.api.raw import ask, created, unique
from tests.support.broker import KorvetServer, running_broker
from tests.support.ported import kafka
from tests.support.redis import Server

ALIVE = {"throttle_time": 0, "error_code": "NONE", "error_message": None, "heartbeat_interval": 5000}


@pytest.fixture(scope="module")
def broker(redis_server: Server) -> Iterator[KorvetServer]:
    # A namespace of its own: a front-end that another test killed would still have its share of the groups.
    with running_broker(redis_url=redis_server.url, namespace=unique("share")) as broker:
        yield broker


def refusal(answer: Any) -> tuple[str, str | None]:
    return answer["error_code"], answer["error_message"]


def described(port: int, group: str) -> Any:
    asked = {"group_ids": [group], "include_authorized_operations": False}
    (found,) = ask(port, "share_group_describe", 1, **asked)["groups"]
    return found


def offsets(port: int, group: str, topics: Any = None, version: int = 1) -> Any:
    (found,) = ask(port, "describe_share_group_offsets", version, groups=[{"group_id": group, "topics": topics}])[
        "groups"
    ]
    return found


def alter(port: int, group: str, topics: Mapping[str, Mapping[int, int]]) -> Any:
    """Start offsets by topics and partitions."""
    asked = [
        {"topic_name": name,
         "partitions": [{"partition_index": index, "start_offset": start} for index, start in of.items()]}
        for name, of in topics.items()
    ]  # fmt: skip
    return ask(port, "alter_share_group_offsets", 0, group_id=group, topics=asked)


def delete(port: int, group: str, *topics: str) -> Any:
    return ask(port, "delete_share_group_offsets", 0, group_id=group, topics=[{"topic_name": name} for name in topics])


@kafka("ShareGroupHeartbeatRequestTest.testShareGroupHeartbeatIsAccessibleWhenShareGroupIsEnabled")
@kafka("ShareGroupDescribeRequestTest.testShareGroupDescribe")
@kafka("GroupCoordinatorServiceTest.testShareGroupHeartbeat testShareGroupDescribe")
@kafka("GroupMetadataManagerTest.testShareGroupDescribeNoErrors")
@kafka("ShareGroupMemberTest.testAsShareGroupDescribeMember")
def test_member_joins_is_described_and_leaves(broker: KorvetServer, redis_server: Server) -> None:
    port, topic, group = broker.port, created(broker.port, partitions=2), unique("g")
    id = topic_id(port, topic)
    joined = share_beat(port, group, "m", 0, topic, rack="r")
    assigned = {"topic_partitions": [{"topic_id": id, "partitions": [0, 1]}]}
    assert joined == {**ALIVE, "member_id": "m", "member_epoch": 1, "assignment": assigned}
    with redis_server.client() as server:
        before = function_calls(server)
        for _ in range(20):
            assert share_beat(port, group, "m", 1) == {**ALIVE, "member_id": "m", "member_epoch": 1, "assignment": None}
        assert 20 <= function_calls(server) - before < 30
    found = described(port, group)
    assert found == {
        "error_code": "NONE", "error_message": None, "group_id": group, "group_state": "Stable", "group_epoch": 1,
        "assignment_epoch": 1, "assignor_name": "simple", "authorized_operations": -(2**31),
        "members": [{
            "member_id": "m", "rack_id": "r", "member_epoch": 1, "client_id": found["members"][0]["client_id"],
            "client_host": "/127.0.0.1", "subscribed_topic_names": [topic],
            "assignment": {"topic_partitions": [{"topic_id": id, "topic_name": topic, "partitions": [0, 1]}]},
        }],
    }  # fmt: skip
    left = share_beat(port, group, "m", -1)
    assert (left["error_code"], left["member_epoch"], left["heartbeat_interval"]) == ("NONE", -1, 0)
    assert described(port, group)["group_state"] == "Empty"


@kafka("GroupCoordinatorServiceTest.testShareGroupHeartbeatRequestValidation")
def test_malformed_heartbeats_are_refused_in_kafkas_words(broker: KorvetServer) -> None:
    port, group = broker.port, unique("g")
    wrong: dict[str | None, list[tuple[Any, ...]]] = {
        None: [("", 0, "t"), ("m" * 37, 0, "t")],
        "MemberId can't be empty.": [(" ", 0, "t")],
        "SubscribedTopicNames must be set in first request.": [("m", 0)],
        "MemberEpoch is invalid.": [("m", -2)],
        "SubscribedTopicNames: a topic's name has at most 249 letters.": [("m", 0, "t" * 250)],
    }
    for why, requests in wrong.items():
        for member, epoch, *names in requests:
            assert refusal(share_beat(port, group, member, epoch, *names)) == ("INVALID_REQUEST", why)
    assert refusal(share_beat(port, "", "m", 0, "t")) == ("INVALID_REQUEST", "GroupId can't be empty.")
    assert refusal(share_beat(port, group, "m", 0, "t", rack="")) == ("INVALID_REQUEST", "RackId can't be empty.")
    assert refusal(share_beat(port, group, "m", 5)) == ("UNKNOWN_MEMBER_ID", f"Share group {group} not found.")


@kafka("GroupMetadataManagerTest.testShareGroupDescribeOnConsumerGroup testConsumerGroupDescribeOnShareGroup")
@kafka("GroupMetadataManagerTest.testShareGroupDescribeRequest")
@kafka("ShareGroupTest.testIsInStatesCaseInsensitive")
def test_each_kind_of_group_refuses_the_requests_of_the_others(broker: KorvetServer) -> None:
    port, topic, shared, consuming = broker.port, created(broker.port), unique("g"), unique("g")
    share_beat(port, shared, "m", 0, topic)
    more: dict[str, Any] = {"rebalance_timeout": 60_000, "topic_partitions": [], "subscribed_topic_names": [topic]}
    assert consumer_beat(port, consuming, "c", 0, **more)["error_code"] == "NONE"
    why = f"Group {consuming} is not a share group."
    assert refusal(share_beat(port, consuming, "m", 0, topic)) == ("GROUP_ID_NOT_FOUND", why)
    assert refusal(described(port, consuming)) == ("GROUP_ID_NOT_FOUND", why)
    assert refusal(alter(port, consuming, {topic: {0: 0}})) == ("GROUP_ID_NOT_FOUND", why)
    assert refusal(delete(port, consuming, topic)) == ("GROUP_ID_NOT_FOUND", why)
    why = f"Group {shared} is not a consumer group."
    assert refusal(consumer_beat(port, shared, "m", 0, **more)) == ("GROUP_ID_NOT_FOUND", why)
    asked = {"group_ids": [shared], "include_authorized_operations": False}
    (found,) = ask(port, "consumer_group_describe", 1, **asked)["groups"]
    assert refusal(found) == ("GROUP_ID_NOT_FOUND", why)
    (found,) = ask(port, "describe_groups", 6, groups=[shared], include_authorized_operations=False)["groups"]
    assert refusal(found) == ("GROUP_ID_NOT_FOUND", f"Group {shared} is not a classic group.")
    nobody = unique("g")
    assert refusal(described(port, nobody)) == ("GROUP_ID_NOT_FOUND", f"Group {nobody} not found.")
    listed = ask(port, "list_groups", 5, states_filter=[], types_filter=["Share"])["groups"]
    assert [
        (one["group_state"], one["protocol_type"], one["group_type"]) for one in listed if one["group_id"] == shared
    ] == [("Stable", "share", "share")]
    assert consuming not in [one["group_id"] for one in listed]


def partition(index: int, start: int, lag: int, epoch: int = 0) -> dict[str, Any]:
    return {
        "partition_index": index, "start_offset": start, "leader_epoch": epoch, "lag": lag, "error_code": "NONE",
        "error_message": None,
    }  # fmt: skip


@kafka("GroupCoordinatorServiceTest.testDescribeShareGroupOffsetsWithDefaultPersister")
@kafka("GroupCoordinatorServiceTest.testDescribeShareGroupAllOffsets")
@kafka("GroupCoordinatorServiceTest.testDescribeShareGroupOffsetsNonexistentTopicWithDefaultPersister")
@kafka("GroupCoordinatorServiceTest.testDeleteShareGroupOffsetsWithDefaultPersister")
@kafka("GroupCoordinatorServiceTest.testAlterShareGroupOffsetsInvalidGroupId")
@kafka("GroupCoordinatorServiceTest.testDeleteShareGroupOffsetsRequestReturnsGroupIdNotFound")
@kafka("GroupCoordinatorServiceTest.testDeleteShareGroupOffsetsRequestReturnsGroupNotEmpty")
@kafka("GroupCoordinatorServiceTest.testDeleteShareGroupOffsetsSuccessWithErrorTopics")
@kafka("GroupMetadataManagerTest.testSharePartitionsEligibleForOffsetDeletionErrorTopics")
@kafka("GroupMetadataManagerTest.testSharePartitionsEligibleForOffsetDeletionUninitializedTopics")
@kafka("GroupMetadataManagerTest.testSharePartitionsEligibleForOffsetDeletionUninitializedAndErrorTopics")
def test_offsets_are_altered_described_and_deleted(broker: KorvetServer) -> None:
    port, topic, group = broker.port, created(broker.port, partitions=2), unique("g")
    id = topic_id(port, topic)
    nothing: dict[str, Any] = {"group_id": group, "topics": [], "error_code": "NONE", "error_message": None}
    assert offsets(port, group) == offsets(port, group, []) == nothing
    altered = alter(port, group, {topic: {0: 0, 7: 0}, "none": {0: 0}})
    unknown = {"error_code": "UNKNOWN_TOPIC_OR_PARTITION",
               "error_message": "This server does not host this topic-partition."}  # fmt: skip
    assert altered["responses"] == [
        {"topic_name": topic, "topic_id": id, "partitions": [
            {"partition_index": 0, "error_code": "NONE", "error_message": None}, {"partition_index": 7, **unknown}]},
        {"topic_name": "none", "topic_id": None, "partitions": [{"partition_index": 0, **unknown}]},
    ]  # fmt: skip
    whole = {"topic_name": topic, "topic_id": id, "partitions": [partition(0, 0, 0), partition(1, -1, -1)]}
    assert offsets(port, group)["topics"] == [whole]
    asked = [{"topic_name": "none", "partitions": [3]}, {"topic_name": topic, "partitions": [1, 7, 0]}]
    assert offsets(port, group, asked)["topics"] == [
        {**whole, "partitions": [partition(1, -1, -1), partition(7, -1, -1), partition(0, 0, 0)]},
        {"topic_name": "none", "topic_id": None, "partitions": [partition(3, -1, -1)]},
    ]
    share_beat(port, group, "m", 0, topic)
    not_empty = ("NON_EMPTY_GROUP", "The group is not empty.")
    assert refusal(alter(port, group, {topic: {0: 0}})) == not_empty
    assert refusal(delete(port, group, topic)) == not_empty
    share_beat(port, group, "m", -1)
    other = created(port)
    assert delete(port, group, topic, other, "none")["responses"] == [
        {"topic_name": topic, "topic_id": id, "error_code": "NONE", "error_message": None},
        {"topic_name": other, "topic_id": None, "error_code": "UNKNOWN_TOPIC_OR_PARTITION",
         "error_message": "There is no offset information to delete."},
        {"topic_name": "none", "topic_id": None, **unknown},
    ]  # fmt: skip
    assert offsets(port, group) == nothing
    (deleted,) = ask(port, "delete_groups", 2, groups_names=[group])["results"]
    assert deleted["error_code"] == "NONE"
    assert refusal(described(port, group)) == ("GROUP_ID_NOT_FOUND", f"Group {group} not found.")
    assert refusal(delete(port, group, topic)) == ("GROUP_ID_NOT_FOUND", f"Group {group} not found.")
    assert refusal(alter(port, "", {topic: {0: 0}})) == (
        "INVALID_GROUP_ID", "The configured groupId is invalid."
    )  # fmt: skip


def test_all_offsets_of_a_group_are_described_once_however_often_it_is_named(broker: KorvetServer) -> None:
    groups = [{"group_id": group, "topics": None} for group in [unique("g")] * 1000 + [unique("g")]]
    answers = ask(broker.port, "describe_share_group_offsets", 1, groups=groups)["groups"]
    assert [one["group_id"] for one in answers] == [groups[0]["group_id"], groups[-1]["group_id"]]


def test_group_with_committed_offsets_is_no_share_group(broker: KorvetServer) -> None:
    port, topic, group = broker.port, created(broker.port), unique("g")
    commit(port, group, topic, 0)
    why = f"Group {group} is not a share group."
    assert refusal(share_beat(port, group, "m", 0, topic)) == ("GROUP_ID_NOT_FOUND", why)


@kafka("GroupMetadataManagerTest.testShareGroupDynamicConfigs testShareGroupEvaluatedConfigs")
@kafka("ShareGroupConfigTest.testInvalidConfigs")
def test_a_group_has_its_own_configs_within_the_brokers_bounds(broker: KorvetServer) -> None:
    port, topic, group = broker.port, created(broker.port), unique("g")

    def configure(name: str, value: str) -> tuple[str, str | None]:
        configs = [{"name": name, "config_operation": 0, "value": value}]
        resources = [{"resource_type": 32, "resource_name": group, "configs": configs}]
        (answer,) = ask(port, "incremental_alter_configs", 1, resources=resources, validate_only=False)["responses"]
        return refusal(answer)

    assert share_beat(port, group, "m", 0, topic)["heartbeat_interval"] == 5000
    assert configure("share.heartbeat.interval.ms", "7000") == ("NONE", None)
    assert share_beat(port, group, "m", 1)["heartbeat_interval"] == 7000
    wrong = {
        "share.heartbeat.interval.ms": ("4999", "greater", "group.share.min.heartbeat.interval.ms"),
        "share.session.timeout.ms": ("60001", "less", "group.share.max.session.timeout.ms"),
        "share.record.lock.duration.ms": ("14999", "greater", "group.share.min.record.lock.duration.ms"),
        "share.delivery.count.limit": ("11", "less", "group.share.max.delivery.count.limit"),
        "share.partition.max.record.locks": ("4001", "less", "group.share.max.partition.max.record.locks"),
    }
    for name, (value, words, bound) in wrong.items():
        assert configure(name, value) == ("INVALID_CONFIG", f"{name} must be {words} than or equal to {bound}")
    assert configure("share.auto.offset.reset", "by_duration:PT1H") == ("NONE", None)
    assert configure("share.auto.offset.reset", "by_duration:-PT1H")[0] == "INVALID_CONFIG"
    assert configure("share.renew.acknowledge.enable", "false") == ("NONE", None)
