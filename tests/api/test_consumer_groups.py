"""Groups of the consumer protocol by raw requests: front-ends and Redis together. The oracle compares answers."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import pytest

from tests.api.consumers import JOIN, ROUNDS, Member, beat, described, function_calls, refusal, settled, topic_id
from tests.api.groups import commit, entered, sync
from tests.api.raw import ask, create_topics, created, unique
from tests.support.broker import KorvetServer, running_broker
from tests.support.redis import Server
from tests.support.waiting import until


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


def test_the_first_assignor_of_the_list_is_the_default() -> None:
    with running_broker(broker={"group.consumer.assignors": "range,uniform"}) as broker:
        group = unique("g")
        topics = [created(broker.port, partitions=3) for _ in range(2)]
        members = [Member(broker.port, group, subscribed_topic_names=topics) for _ in range(2)]
        for member in members:
            member.join()
        assert sorted([sorted(map(len, owned.values())) for owned in after_heartbeats(*members)]) == [[1, 1], [2, 2]]
        assert described(broker.port, group)["assignor_name"] == "range"


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


# ---------------------------------------------------------------------- bounds, offsets, both protocols


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


def test_the_catalog_is_read_once_for_all_groups_of_a_request(redis_server: Server) -> None:
    many = 200
    with redis_server.client() as server, running_broker(redis_url=redis_server.url) as broker:
        before = function_calls(server)
        answer = ask(broker.port, "consumer_group_describe", 1, group_ids=[unique("g") for _ in range(many)])
        assert {group["error_code"] for group in answer["groups"]} == {"GROUP_ID_NOT_FOUND"}
        assert many <= function_calls(server) - before < 1.5 * many


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


def subscription(*topics: str | bytes) -> list[dict[str, Any]]:
    """The protocols of a classic member that subscribes to topics: ConsumerProtocolSubscription, version 0."""
    encoded = [topic.encode() if isinstance(topic, str) else topic for topic in topics]
    names = b"".join(len(name).to_bytes(2, "big") + name for name in encoded)
    metadata = (0).to_bytes(2, "big") + len(topics).to_bytes(4, "big") + names + (-1).to_bytes(4, "big", signed=True)
    return [{"name": "range", "metadata": metadata}]


def listed_type(port: int, group: str) -> str:
    groups = ask(port, "list_groups", 5, states_filter=[], types_filter=[])["groups"]
    return next(str(found["group_type"]) for found in groups if found["group_id"] == group)


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
