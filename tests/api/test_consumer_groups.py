"""Members of the consumer protocol by raw requests: front-ends, assignors and Redis together."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import pytest

from tests.api.consumers import (
    JOIN,
    ROUNDS,
    Member,
    beat,
    described,
    function_calls,
    refusal,
    settled,
    topic_id,
)
from tests.api.raw import ask, create_topics, created, unique
from tests.api.rdkafka import until
from tests.support.broker import KorvetServer, running_broker
from tests.support.ported import kafka
from tests.support.redis import Server


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
    """The partitions of each member once the group is Stable."""
    settled(*members)
    return [member.owned for member in members]


# ---------------------------------------------------------------------- members


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


def test_silent_member_expires_after_the_groups_session_timeout() -> None:
    times = {"min.session.timeout.ms": "500", "min.heartbeat.interval.ms": "100"}
    with running_broker(broker={f"group.consumer.{name}": value for name, value in times.items()}) as broker:
        topic, group = created(broker.port, partitions=2), unique("g")
        configs = [("consumer.heartbeat.interval.ms", "200"), ("consumer.session.timeout.ms", "5000")]
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


def test_heartbeat_interval_of_a_group_counts_from_its_change_to_its_removal(broker: KorvetServer) -> None:
    topic, group = created(broker.port), unique("g")
    member = Member(broker.port, group, subscribed_topic_names=[topic])
    asked = member.join()["heartbeat_interval"]
    for operation, value, counts in ((0, "7000", 7000), (1, None, asked)):
        configs = [{"name": "consumer.heartbeat.interval.ms", "config_operation": operation, "value": value}]
        resource = {"resource_type": 32, "resource_name": group, "configs": configs}
        (result,) = ask(broker.port, "incremental_alter_configs", 1, resources=[resource])["responses"]
        assert result["error_code"] == "NONE", result
        assert member.beat()["heartbeat_interval"] == counts


def test_static_member_comes_back_to_its_partitions(broker: KorvetServer) -> None:
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


def test_heartbeats_without_redis_are_retriable(redis_server: Server) -> None:
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


# ---------------------------------------------------------------------- topics that come, grow and go


def test_new_topic_that_the_regex_matches_is_assigned(broker: KorvetServer) -> None:
    prefix, group = unique("r"), unique("g")
    first = created(broker.port, f"{prefix}-a")
    member = Member(broker.port, group, subscribed_topic_names=None, subscribed_topic_regex=f"{prefix}-.*")
    member.join()
    assert member.owned == {}
    member.beat()
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
    assert set(member.owned) == {topic_id(broker.port, names[0])}
    member.beat()
    assert set(member.owned) == {topic_id(broker.port, name) for name in names[:2]}
    settled(member)
    member.beat(subscribed_topic_regex="")
    settled(member)
    assert set(member.owned) == {topic_id(broker.port, names[0])}
    member.beat(subscribed_topic_names=names)
    settled(member)
    assert set(member.owned) == {topic_id(broker.port, name) for name in names}


def test_every_front_end_sees_topics_come_and_go(pair: tuple[KorvetServer, KorvetServer]) -> None:
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
