"""Groups of the consumer protocol by raw requests: what goes on between front-end, assignors and Redis."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import pytest
import redis

from korvet.wire.assignment import assigned_places
from tests.api.consumers import Member, Partitions, beat, described, places, settled, topic_id
from tests.api.groups import commit, committed, deleted, entered, heartbeat, join, stable, sync
from tests.api.groups import described as classic_described
from tests.api.raw import ask, create_topics, created, unique
from tests.api.rdkafka import until
from tests.support.broker import KorvetServer, running_broker
from tests.support.ported import kafka
from tests.support.redis import Server

ROUNDS = 20
JOIN: dict[str, Any] = {"rebalance_timeout": 1000, "topic_partitions": [], "subscribed_topic_names": ["t"]}


@pytest.fixture
def pair(redis_server: Server) -> Iterator[tuple[KorvetServer, KorvetServer]]:
    """Two front-ends on one Redis."""
    with redis_server.client() as client:
        client.flushall()
    with running_broker(redis_url=redis_server.url) as one, running_broker(redis_url=redis_server.url) as other:
        yield one, other


def grown(port: int, topic: str, partitions: int) -> None:
    asked = [{"name": topic, "count": partitions, "assignments": None}]
    (result,) = ask(port, "create_partitions", 3, topics=asked, timeout=10_000, validate_only=False)["results"]
    assert result["error_code"] == "NONE", result


def dropped(port: int, topic: str) -> None:
    asked = [{"name": topic, "topic_id": None}]
    (result,) = ask(port, "delete_topics", 6, topics=asked, timeout=10_000)["responses"]
    assert result["error_code"] == "NONE", result


def after_heartbeats(*members: Member) -> list[dict[UUID, list[int]]]:
    """What each member owns once the group is Stable."""
    settled(*members)
    return [member.owned for member in members]


def refusal(answer: Any) -> tuple[str, str | None]:
    return answer["error_code"], answer["error_message"]


def function_calls(server: redis.Redis) -> int:
    """How many calls of functions the server has served."""
    stats: Any = server.info("commandstats")
    return sum(stats[name]["calls"] for name in ("cmdstat_fcall", "cmdstat_fcall_ro") if name in stats)


# ------------------------------------------------------------------ what a request may not be


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
def test_a_request_that_cannot_be_is_refused(
    broker: KorvetServer, version: int, epoch: int, values: dict[str, Any], message: str
) -> None:
    asked = {"group_id": unique("g"), "member_id": "m", **values}
    answer = beat(broker.port, asked.pop("group_id"), asked.pop("member_id"), epoch, version, **asked)
    assert refusal(answer) == ("INVALID_REQUEST", message)
    assert (answer["member_id"], answer["member_epoch"], answer["heartbeat_interval"]) == (None, 0, 0)


@kafka("GroupCoordinatorServiceTest.testConsumerHeartbeatRequestValidation")
def test_an_assignor_that_is_not_there_is_refused(broker: KorvetServer) -> None:
    answer = beat(broker.port, unique("g"), "m", 0, **JOIN, server_assignor="foo")
    assert refusal(answer) == (
        "UNSUPPORTED_ASSIGNOR",
        "ServerAssignor foo is not supported. Supported assignors: uniform, range.",
    )


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
def test_a_regex_that_is_none_is_refused(broker: KorvetServer, regex: str, why: str) -> None:
    answer = beat(broker.port, unique("g"), "m", 0, **JOIN, subscribed_topic_regex=regex)
    assert refusal(answer) == (
        "INVALID_REGULAR_EXPRESSION",
        f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {why}.",
    )


@kafka("GroupMetadataManagerTest.testUnknownGroupId")
def test_heartbeats_to_nowhere_are_refused_in_kafkas_words(broker: KorvetServer) -> None:
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


def test_the_protocol_is_announced_as_a_finalized_feature(broker: KorvetServer) -> None:
    answer = ask(broker.port, "api_versions", 4, client_software_name="a", client_software_version="1")
    assert {"name": "group.version", "min_version": 0, "max_version": 1} in answer["supported_features"]
    assert {"name": "group.version", "min_version_level": 1, "max_version_level": 1} in answer["finalized_features"]


# ------------------------------------------------------------------ members


def test_the_first_member_gets_everything(broker: KorvetServer) -> None:
    topic, group = created(broker.port, partitions=3), unique("g")
    member = Member(broker.port, group, subscribed_topic_names=[topic, "no-such-topic"])
    answer = member.join()
    assert (answer["member_id"], answer["member_epoch"], answer["heartbeat_interval"]) == (member.id, 1, 5000)
    assert member.owned == {topic_id(broker.port, topic): [0, 1, 2]}
    assert member.beat()["assignment"] is None


def test_a_settled_members_heartbeat_is_one_call(redis_server: Server) -> None:
    many = 100
    with redis_server.client() as server, running_broker(redis_url=redis_server.url) as broker:
        topic = created(broker.port, partitions=2)
        member = Member(broker.port, unique("g"), subscribed_topic_names=[topic])
        member.join()
        settled(member)
        before = function_calls(server)
        for _ in range(many):
            assert member.beat() == {
                "throttle_time": 0, "error_code": "NONE", "error_message": None, "member_id": member.id,
                "member_epoch": 1, "heartbeat_interval": 5000, "assignment": None,
            }  # fmt: skip
        assert many <= function_calls(server) - before < 1.5 * many
        assert refusal(member.beat(instance_id="")) == ("INVALID_REQUEST", "InstanceId can't be empty.")


@kafka("GroupMetadataManagerTest.testMemberIdGeneration")
def test_version_0_is_given_a_member_id(broker: KorvetServer) -> None:
    topic, group = created(broker.port), unique("g")
    answer = beat(broker.port, group, "", 0, 0, **{**JOIN, "subscribed_topic_names": [topic]})
    assert (answer["error_code"], answer["member_epoch"]) == ("NONE", 1)
    again = beat(broker.port, group, answer["member_id"], 1, 0)
    assert (again["error_code"], again["member_id"]) == ("NONE", answer["member_id"])


def test_a_partition_is_given_up_before_another_member_has_it(broker: KorvetServer) -> None:
    topic, group = created(broker.port, partitions=2), unique("g")
    id = topic_id(broker.port, topic)
    first = Member(broker.port, group, subscribed_topic_names=[topic])
    second = Member(broker.port, group, subscribed_topic_names=[topic])
    first.join()
    assert second.join()["assignment"] == {"topic_partitions": []}
    assert first.beat()["member_epoch"] == 1
    (kept,) = first.owned[id]
    assert second.beat()["assignment"] is None
    assert described(broker.port, group)["group_state"] == "Reconciling"
    assert first.beat()["member_epoch"] == 2
    assert second.beat()["member_epoch"] == 2
    assert (first.owned, second.owned) == ({id: [kept]}, {id: [1 - kept]})


def test_members_of_one_group_on_two_front_ends(pair: tuple[KorvetServer, KorvetServer]) -> None:
    one, other = pair
    topic, group = created(one.port, partitions=4), unique("g")
    members = [Member(port, group, subscribed_topic_names=[topic]) for port in (one.port, other.port)]
    for member in members:
        member.join()
    settled(*members)
    assert sorted(part for member in members for parts in member.owned.values() for part in parts) == [0, 1, 2, 3]
    one.kill()
    survivor = members[1]
    members[0].port = survivor.port
    assert [member.beat()["member_epoch"] for member in members] == [2, 2]
    assert survivor.beat()["assignment"] is None
    one.start()


def test_a_hundred_members_that_come_at_once_are_settled(broker: KorvetServer) -> None:
    topic, group = created(broker.port, partitions=100), unique("g")
    members = [Member(broker.port, group, subscribed_topic_names=[topic]) for _ in range(100)]
    with ThreadPoolExecutor(16) as threads:
        assert {answer["error_code"] for answer in threads.map(Member.join, members)} == {"NONE"}
        for _ in range(ROUNDS):
            assert {answer["error_code"] for answer in threads.map(Member.beat, members)} == {"NONE"}
            if described(broker.port, group)["group_state"] == "Stable":
                break
    assert sorted(part for member in members for parts in member.owned.values() for part in parts) == list(range(100))


def test_a_group_takes_no_more_members_than_it_may_have() -> None:
    with running_broker(broker={"group.consumer.max.size": "1"}) as broker:
        group = unique("g")
        assert Member(broker.port, group).join()["error_code"] == "NONE"
        assert refusal(Member(broker.port, group).join()) == (
            "GROUP_MAX_SIZE_REACHED",
            "The consumer group has reached its maximum capacity of 1 members.",
        )


def test_the_first_assignor_of_the_list_is_the_default() -> None:
    with running_broker(broker={"group.consumer.assignors": "range,uniform"}) as broker:
        group = unique("g")
        topics = [created(broker.port, partitions=3) for _ in range(2)]
        members = [Member(broker.port, group, subscribed_topic_names=topics) for _ in range(2)]
        for member in members:
            member.join()
        assert sorted([sorted(map(len, owned.values())) for owned in after_heartbeats(*members)]) == [[1, 1], [2, 2]]
        assert described(broker.port, group)["assignor_name"] == "range"


def test_a_group_uses_the_assignor_that_its_members_ask_for(broker: KorvetServer) -> None:
    group = unique("g")
    topics = [created(broker.port, partitions=3) for _ in range(2)]
    members = [
        Member(broker.port, group, subscribed_topic_names=topics, server_assignor="range", id=f"m{at}")
        for at in range(2)
    ]
    for member in members:
        member.join()
    assert sorted([sorted(map(len, owned.values())) for owned in after_heartbeats(*members)]) == [[1, 1], [2, 2]]
    for member in members:
        member.beat(server_assignor="uniform")
    assert described(broker.port, group)["assignor_name"] == "uniform"


def test_a_member_that_is_silent_is_given_up_after_the_groups_session_timeout() -> None:
    times = {"min.session.timeout.ms": "500", "min.heartbeat.interval.ms": "100"}
    with running_broker(broker={f"group.consumer.{name}": value for name, value in times.items()}) as broker:
        topic, group = created(broker.port, partitions=2), unique("g")
        configs = [("consumer.heartbeat.interval.ms", "200"), ("consumer.session.timeout.ms", "1000")]
        resource = {
            "resource_type": 32,
            "resource_name": group,
            "configs": [{"name": name, "config_operation": 0, "value": value} for name, value in configs],
        }
        (result,) = ask(broker.port, "incremental_alter_configs", 1, resources=[resource])["responses"]
        assert result["error_code"] == "NONE", result
        silent = Member(broker.port, group, subscribed_topic_names=[topic])
        alive = Member(broker.port, group, subscribed_topic_names=[topic])
        assert silent.join()["heartbeat_interval"] == 200
        alive.join()
        settled(silent, alive)
        until(lambda: alive.beat()["error_code"] == "NONE" and len(described(broker.port, group)["members"]) == 1)
        settled(alive)
        assert alive.owned == {topic_id(broker.port, topic): [0, 1]}
        assert silent.beat()["error_code"] == "UNKNOWN_MEMBER_ID"


def test_a_static_member_comes_back_to_what_it_had(broker: KorvetServer) -> None:
    topic, group = created(broker.port, partitions=4), unique("g")
    members = [Member(broker.port, group, subscribed_topic_names=[topic], instance_id=f"i{at}") for at in range(2)]
    for member in members:
        member.join()
    settled(*members)
    had = members[0].owned
    other = Member(broker.port, group, subscribed_topic_names=[topic], instance_id="i0")
    assert other.join()["error_code"] == "UNRELEASED_INSTANCE_ID"
    assert members[0].leave(-2)["member_epoch"] == -2
    assert other.join()["member_epoch"] == members[1].epoch
    assert other.owned == had
    assert members[1].beat()["assignment"] is None
    assert members[0].beat()["error_code"] == "FENCED_INSTANCE_ID"


def test_redis_is_away(redis_server: Server) -> None:
    with running_broker(redis_url=redis_server.url) as broker:
        group = unique("g")
        member = Member(broker.port, group)
        member.join()
        redis_server.kill()
        try:
            assert beat(broker.port, group, member.id, member.epoch)["error_code"] == "COORDINATOR_NOT_AVAILABLE"
            assert described(broker.port, group)["error_code"] == "COORDINATOR_NOT_AVAILABLE"
        finally:
            redis_server.start()


# ------------------------------------------------------------------ topics that come, grow and go


def test_a_new_topic_that_the_regex_matches_is_dealt_out(broker: KorvetServer) -> None:
    prefix, group = unique("r"), unique("g")
    first = created(broker.port, f"{prefix}-a")
    member = Member(broker.port, group, subscribed_topic_names=None, subscribed_topic_regex=f"{prefix}-.*")
    member.join()
    assert list(member.owned) == [topic_id(broker.port, first)]
    created(broker.port, f"not-{prefix}-b")
    second = created(broker.port, f"{prefix}-c", partitions=2)
    settled(member)
    until(lambda: member.beat()["error_code"] == "NONE" and len(member.owned) == 2)
    assert member.owned == {topic_id(broker.port, first): [0], topic_id(broker.port, second): [0, 1]}


def test_a_member_may_subscribe_by_names_and_by_regex(broker: KorvetServer) -> None:
    names = [created(broker.port) for _ in range(3)]
    member = Member(broker.port, unique("g"), subscribed_topic_names=names[:1], subscribed_topic_regex=names[1])
    member.join()
    assert set(member.owned) == {topic_id(broker.port, name) for name in names[:2]}
    settled(member)
    member.beat(subscribed_topic_regex="")
    settled(member)
    assert set(member.owned) == {topic_id(broker.port, names[0])}
    member.beat(subscribed_topic_names=names)
    settled(member)
    assert set(member.owned) == {topic_id(broker.port, name) for name in names}


def test_topics_that_come_and_go_are_seen_at_every_front_end(pair: tuple[KorvetServer, KorvetServer]) -> None:
    one, other = pair
    topic, group = unique(), unique("g")
    member = Member(other.port, group, subscribed_topic_names=[topic])
    assert member.join()["assignment"] == {"topic_partitions": []}
    created(one.port, topic)
    until(lambda: member.beat()["error_code"] == "NONE" and [*member.owned.values()] == [[0]])
    grown(one.port, topic, 3)
    until(lambda: member.beat()["error_code"] == "NONE" and [*member.owned.values()] == [[0, 1, 2]])
    former = topic_id(one.port, topic)
    dropped(one.port, topic)
    until(lambda: member.beat()["error_code"] == "NONE" and not member.owned)
    until(lambda: create_topics(one.port, {"name": topic})[0]["error_code"] == "NONE")
    until(lambda: member.beat()["error_code"] == "NONE" and bool(member.owned))
    assert former not in member.owned


# ------------------------------------------------------------------ what administrators see


def test_a_group_is_described_with_what_members_have_and_are_to_have(broker: KorvetServer) -> None:
    topic, group = created(broker.port, partitions=2), unique("g")
    first = Member(broker.port, group, "a", subscribed_topic_names=[topic], instance_id="i", rack_id="r")
    second = Member(broker.port, group, "b", subscribed_topic_regex=f"{topic}|x")
    first.join()
    second.join()
    group_ = described(broker.port, group)
    assert (group_["error_code"], group_["group_state"], group_["assignor_name"]) == ("NONE", "Reconciling", "uniform")
    assert (group_["group_epoch"], group_["assignment_epoch"]) == (2, 2)
    one, two = group_["members"]
    assert (one["member_id"], one["instance_id"], one["rack_id"], one["member_epoch"]) == ("a", "i", "r", 1)
    assert (one["client_id"], one["client_host"], one["member_type"]) == ("oracle", "/127.0.0.1", 1)
    assert (one["subscribed_topic_names"], one["subscribed_topic_regex"]) == ([topic], "")
    assert (two["subscribed_topic_names"], two["subscribed_topic_regex"]) == ([], f"{topic}|x")
    assert (places(one["assignment"]), places(two["assignment"])) == ({topic: [0, 1]}, {})
    targets = [places(member["target_assignment"])[topic] for member in (one, two)]
    assert sorted(part for parts in targets for part in parts) == [0, 1]
    settled(first, second)
    assert [places(member["assignment"])[topic] for member in described(broker.port, group)["members"]] == targets
    assert "member_type" not in described(broker.port, group, 0)["members"][0]


def test_the_catalog_is_read_once_for_all_groups_of_a_request(redis_server: Server) -> None:
    many = 200
    with redis_server.client() as server, running_broker(redis_url=redis_server.url) as broker:
        before = function_calls(server)
        answer = ask(broker.port, "consumer_group_describe", 1, group_ids=[unique("g") for _ in range(many)])
        assert {group["error_code"] for group in answer["groups"]} == {"GROUP_ID_NOT_FOUND"}
        assert many <= function_calls(server) - before < 1.5 * many


def test_what_is_no_consumer_group_is_not_described(broker: KorvetServer) -> None:
    nothing, classic = unique("g"), unique("g")
    stable(broker.port, classic)
    asked = {"group_ids": [nothing, classic, ""], "include_authorized_operations": True}
    groups = ask(broker.port, "consumer_group_describe", 1, **asked)["groups"]
    assert [refusal(group) for group in groups] == [
        ("GROUP_ID_NOT_FOUND", f"Group {nothing} not found."),
        ("GROUP_ID_NOT_FOUND", f"Group {classic} is not a consumer group."),
        ("INVALID_GROUP_ID", None),
    ]


def test_what_may_be_done_with_a_group_is_shown_where_it_is_asked_for(broker: KorvetServer) -> None:
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


# ------------------------------------------------------------------ offsets


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
    for topic in (read, other):
        commit(broker.port, group, topic, 7, member_id=member.id, generation_id_or_member_epoch=member.epoch)
    topics = [{"name": topic, "partitions": [{"partition_index": 0}]} for topic in (read, other)]
    answer = ask(broker.port, "offset_delete", 0, group_id=group, topics=topics)
    codes = {topic["name"]: topic["partitions"][0]["error_code"] for topic in answer["topics"]}
    assert (answer["error_code"], codes) == ("NONE", {read: "GROUP_SUBSCRIBED_TO_TOPIC", other: "NONE"})


# ------------------------------------------------------------------ both protocols in one group


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
    for topic, partition in assigned_places(answer["assignment"]):
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
    """Have the member of the consumer protocol get its one partition, the classic one follow where it is told to."""
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
    """Its join has a target made that counts it in."""
    topic, group = created(broker.port, partitions=2), unique("g")
    consumer = Member(broker.port, group, subscribed_topic_names=[topic])
    consumer.join()
    joined = entered(broker.port, group, protocols=subscription(topic))
    assert (joined["error_code"], joined["protocol_name"], joined["leader"]) == ("NONE", "range", "")
    assert assigned(broker.port, group, joined["member_id"], joined["generation_id"]) == ("NONE", {})
    settled_with(broker, consumer, joined["member_id"], topic)
    (one, two) = (places(member["assignment"])[topic] for member in described(broker.port, group)["members"])
    assert sorted(one + two) == [0, 1]


def test_what_a_classic_member_subscribes_to_may_be_any_bytes(broker: KorvetServer) -> None:
    """Its metadata is its own; what is no topic's name keeps nobody from a group."""
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


def test_a_group_stays_what_it_is_where_the_policy_says_so() -> None:
    with running_broker(broker={"group.consumer.migration.policy": "disabled"}) as broker:
        classic, topic = unique("g"), created(broker.port)
        assert entered(broker.port, classic, protocols=subscription(topic))["error_code"] == "NONE"
        assert Member(broker.port, classic).join()["error_code"] == "GROUP_ID_NOT_FOUND"
