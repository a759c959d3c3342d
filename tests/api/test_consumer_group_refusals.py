"""Heartbeats of the consumer protocol that a front-end refuses."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from tests.api.consumers import (
    JOIN,
    Member,
    beat,
    refusal,
)
from tests.api.groups import commit
from tests.api.raw import created, unique
from tests.support.broker import KorvetServer
from tests.support.ported import kafka


@kafka("GroupCoordinatorServiceTest.testConsumerHeartbeatRequestValidation")
@pytest.mark.parametrize(
    ("version", "epoch", "values", "message"),
    [
        (1, 0, {"member_id": "", **JOIN}, "MemberId can't be empty."),
        (1, 0, {"member_id": " \t", **JOIN}, "MemberId can't be empty."),
        (0, 1, {"member_id": ""}, "MemberId can't be empty."),
        (0, -1, {"member_id": ""}, "MemberId can't be empty."),
        (1, 0, {"group_id": "  ", **JOIN}, "GroupId can't be empty."),
        (1, 0, {"instance_id": "", **JOIN}, "InstanceId can't be empty."),
        (1, 0, {"rack_id": "", **JOIN}, "RackId can't be empty."),
        (1, 0, {**JOIN, "rebalance_timeout": -1}, "RebalanceTimeoutMs must be provided in first request."),
        (1, 0, {**JOIN, "topic_partitions": None}, "TopicPartitions must be empty when (re-)joining."),
        (
            1,
            0,
            {**JOIN, "topic_partitions": [{"topic_id": UUID(int=1), "partitions": [0]}]},
            "TopicPartitions must be empty when (re-)joining.",
        ),
        (
            1,
            0,
            {**JOIN, "subscribed_topic_names": None},
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
        ),
        (
            0,
            0,
            {**JOIN, "subscribed_topic_names": None},
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
        ),
        (1, -2, {}, "InstanceId can't be null."),
        (1, -3, {}, "MemberEpoch is invalid."),
    ],
)
def test_impossible_heartbeat_is_refused(
    broker: KorvetServer, version: int, epoch: int, values: dict[str, Any], message: str
) -> None:
    asked = {"group_id": unique("g"), "member_id": "m", **values}
    answer = beat(broker.port, asked.pop("group_id"), asked.pop("member_id"), epoch, version, **asked)
    assert refusal(answer) == ("INVALID_REQUEST", message)
    assert (answer["member_id"], answer["member_epoch"], answer["heartbeat_interval"]) == (None, 0, 0)


@kafka("GroupCoordinatorServiceTest.testConsumerHeartbeatRequestValidation")
def test_unknown_assignor_is_refused(broker: KorvetServer) -> None:
    answer = beat(broker.port, unique("g"), "m", 0, **JOIN, server_assignor="foo")
    assert refusal(answer) == (
        "UNSUPPORTED_ASSIGNOR",
        "ServerAssignor foo is not supported. Supported assignors: uniform, range.",
    )


@pytest.mark.parametrize(
    ("names", "code"),
    [(["n" * 250], "INVALID_REQUEST"), ([f"{n:0249}" for n in range(5000)], "UNKNOWN_SERVER_ERROR")],
    ids=["a name longer than a topic's", "more than a mebibyte"],
)
def test_oversized_subscription_is_refused_before_redis_hears_of_it(
    broker: KorvetServer, names: list[str], code: str
) -> None:
    group = unique("g")
    answer = beat(broker.port, group, "m", 0, **{**JOIN, "subscribed_topic_names": names})
    assert refusal(answer)[0] == code
    with broker.redis() as client:
        assert not list(client.scan_iter(f"*@group:{group}*"))


@kafka("GroupMetadataManagerTest.testConsumerHeartbeatRegexValidation")
@pytest.mark.parametrize(
    ("regex", "why"),
    [
        ("[a", "missing closing ]"),
        ("(a", "missing closing )"),
        ("*", "missing argument to repetition operator"),
        ("a\\", "trailing backslash at end of expression"),
        ("(?=a)", "invalid or unsupported Perl syntax"),
    ],
)
def test_wrong_regular_expression_is_refused(broker: KorvetServer, regex: str, why: str) -> None:
    answer = beat(broker.port, unique("g"), "m", 0, **JOIN, subscribed_topic_regex=regex)
    assert refusal(answer) == (
        "INVALID_REGULAR_EXPRESSION",
        f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {why}.",
    )


@kafka("GroupMetadataManagerTest.testUnknownGroupId")
def test_heartbeats_of_unknown_members_are_refused_in_kafkas_words(broker: KorvetServer) -> None:
    group, classic, topic = unique("g"), unique("g"), created(broker.port)
    assert refusal(beat(broker.port, group, "m", 1)) == (
        "UNKNOWN_MEMBER_ID",
        f"Consumer group {group} not found.",
    )
    commit(broker.port, classic, topic, 1)
    assert refusal(beat(broker.port, classic, "m", -1)) == (
        "GROUP_ID_NOT_FOUND",
        f"Group {classic} is not a consumer group.",
    )
    Member(broker.port, group).join()
    assert refusal(beat(broker.port, group, "m", 1)) == (
        "UNKNOWN_MEMBER_ID",
        f"Member m is not a member of group {group}.",
    )
