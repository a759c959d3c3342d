"""Groups by raw requests: the work of front-end and Redis together. The oracle compares answers with Kafka's."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from typing import Any

import pytest

from korvet.store.keys import Namespace
from tests.api.groups import (
    PROTOCOLS,
    commit,
    committed,
    deleted,
    described,
    entered,
    heartbeat,
    join,
    leave,
    listed,
    stable,
    sync,
)
from tests.api.raw import ask, created, unique
from tests.oracle.messages import request_frame
from tests.support.broker import KorvetServer, running_broker
from tests.support.ported import kafka
from tests.support.redis import Server, running_server
from tests.support.waiting import until

FROZEN_S = 9.0
"""Longer than the members' sessions."""
ODD_NAMES = ["{a}:b", "g r o u p", "группа", "a/b%41", "x" * 1000, ""]


@pytest.fixture
def aside() -> Iterator[ThreadPoolExecutor]:
    """Threads for requests that wait."""
    with ThreadPoolExecutor(8) as threads:
        yield threads


@pytest.fixture(scope="module")
def pair(redis_server: Server) -> Iterator[tuple[KorvetServer, KorvetServer]]:
    """Two front-ends on one Redis, for all tests of this module; a new group does not wait for more members."""
    settings = {"group.initial.rebalance.delay.ms": "0"}
    with redis_server.client() as client:
        client.flushall()
    with (
        running_broker(redis_url=redis_server.url, broker=settings) as one,
        running_broker(redis_url=redis_server.url, broker=settings) as other,
    ):
        yield one, other


def parked(broker: KorvetServer, group: str, size: int) -> None:
    """Wait until the group gathers with that many members."""
    until(lambda: (described(broker.port, group)["group_state"], len(described(broker.port, group)["members"]))
          == ("PreparingRebalance", size))  # fmt: skip


def test_member_that_names_a_protocol_twice_gets_its_answer_and_may_sync(broker: KorvetServer) -> None:
    group = unique("g")
    twice = [{"name": "range", "metadata": b"first"}, {"name": "range", "metadata": b"second"}]
    joined = entered(broker.port, group, protocols=twice)
    assert (joined["error_code"], joined["protocol_name"], joined["members"][0]["metadata"]) == (
        "NONE",
        "range",
        b"first",
    )
    member = joined["member_id"]
    assert sync(broker.port, group, member, 1, {member: b"all"})["assignment"] == b"all"


def test_join_of_more_protocols_or_metadata_than_a_group_holds_is_refused(broker: KorvetServer) -> None:
    many = [{"name": f"p{at}", "metadata": b""} for at in range(101)]
    assert join(broker.port, unique("g"), protocols=many)["error_code"] == "INCONSISTENT_GROUP_PROTOCOL"
    assert join(broker.port, unique("g"), protocols=many[:100])["error_code"] == "MEMBER_ID_REQUIRED"
    large = [{"name": "range", "metadata": bytes(1 << 20)}]
    assert join(broker.port, unique("g"), protocols=large)["error_code"] == "UNKNOWN_SERVER_ERROR"


def test_sync_of_more_assignments_than_a_group_holds_is_refused(broker: KorvetServer) -> None:
    group = unique("g")
    member = entered(broker.port, group)["member_id"]
    assert sync(broker.port, group, member, 1, {member: bytes(1 << 20)})["error_code"] == "UNKNOWN_SERVER_ERROR"
    most = bytes((1 << 20) - len(member))
    assert sync(broker.port, group, member, 1, {member: most})["assignment"] == most


@pytest.mark.parametrize("kind", [0, 1], ids=["group", "transactional id"])
def test_coordinator_is_the_front_end_that_answers(broker: KorvetServer, kind: int) -> None:
    (found,) = ask(broker.port, "find_coordinator", 6, key_type=kind, coordinator_keys=["g"])["coordinators"]
    assert (found["error_code"], found["host"], found["port"]) == ("NONE", "127.0.0.1", broker.port)
    assert found["node_id"] == ask(broker.port, "metadata", 12, topics=[])["brokers"][0]["node_id"]


def test_member_id_begins_with_the_client_id(broker: KorvetServer) -> None:
    first = join(broker.port, unique("g"))
    assert re.fullmatch(r".+-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", first["member_id"])


def test_new_group_waits_for_members_as_long_as_its_setting_says(
    aside: ThreadPoolExecutor, valkey_server: Server
) -> None:
    with running_broker(redis_url=valkey_server.url, broker={"group.initial.rebalance.delay.ms": "3000"}) as broker:
        group = unique("g")
        answers = [future.result(20) for future in [aside.submit(entered, broker.port, group) for _ in range(3)]]
        assert {answer["generation_id"] for answer in answers} == {1}
        assert sorted(len(answer["members"]) for answer in answers) == [0, 0, 3]


def test_members_of_one_group_on_two_front_ends(
    pair: tuple[KorvetServer, KorvetServer], aside: ThreadPoolExecutor
) -> None:
    one, other = pair
    group = unique("g")
    first = stable(one.port, group)
    second = aside.submit(entered, other.port, group)
    parked(one, group, 2)
    assert join(one.port, group, first)["generation_id"] == 2
    member = second.result(20)["member_id"]
    waiting = aside.submit(sync, other.port, group, member, 2)
    sync(one.port, group, first, 2, {member: b"F"})
    assert waiting.result(20)["assignment"] == b"F"
    assert [heartbeat(port, group, who, 2) for port in (one.port, other.port) for who in (first, member)] == [
        "NONE"
    ] * 4


def test_killed_front_end_causes_no_rebalance(
    pair: tuple[KorvetServer, KorvetServer], aside: ThreadPoolExecutor
) -> None:
    one, other = pair
    group = unique("g")
    first = stable(one.port, group)
    parked_there = aside.submit(entered, one.port, group)
    parked(other, group, 2)
    one.kill()
    assert isinstance(parked_there.exception(20), ConnectionError)
    (lost,) = {member["member_id"] for member in described(other.port, group)["members"]} - {first}
    again = aside.submit(join, other.port, group, lost)
    assert join(other.port, group, first)["generation_id"] == 2
    assert again.result(20)["generation_id"] == 2
    sync(other.port, group, first, 2, {first: b"all"})
    one.start()
    assert [heartbeat(port, group, first, 2) for port in (one.port, other.port)] == ["NONE", "NONE"]


def test_parked_members_are_sent_elsewhere_at_drain(aside: ThreadPoolExecutor, valkey_server: Server) -> None:
    with running_broker(redis_url=valkey_server.url, broker={"group.initial.rebalance.delay.ms": "0"}) as broker:
        group = unique("g")
        stable(broker.port, group)
        waiting = aside.submit(entered, broker.port, group)
        parked(broker, group, 2)
        broker.stop()
        assert waiting.result(20)["error_code"] == "COORDINATOR_NOT_AVAILABLE"


@kafka("GroupCoordinatorTest.testCommitAndFetchOffsetsWithEmptyGroup")
@pytest.mark.parametrize("group", ODD_NAMES)
def test_group_id_may_be_any_text(broker: KorvetServer, group: str) -> None:
    topic = created(broker.port)
    assert commit(broker.port, group, topic, 7) == ["NONE"]
    assert committed(broker.port, group, topic, 0) == [7]
    assert listed(broker.port)[group] == "Empty"
    assert deleted(broker.port, group) == ["NONE"]
    assert group not in listed(broker.port)


def test_group_made_again_after_its_deletion_is_listed(pair: tuple[KorvetServer, KorvetServer]) -> None:
    """A front-end lists it too that knew it before and did not see the deletion."""
    one, other = pair
    topic, group = created(one.port), unique("g")
    commit(one.port, group, topic, 1)
    assert deleted(other.port, group) == ["NONE"]
    assert group not in {**listed(one.port), **listed(other.port)}
    commit(one.port, group, topic, 2)
    assert {**listed(one.port), **listed(other.port)}[group] == "Empty"


def test_entry_of_the_index_without_a_group_is_not_listed(pair: tuple[KorvetServer, KorvetServer]) -> None:
    one, other = pair
    group = unique("g")
    with one.redis() as client:
        client.sadd(Namespace().group_index_of(group), group)
    assert group not in {**listed(one.port), **listed(other.port)}


def test_every_group_is_in_the_index_before_it_exists(pair: tuple[KorvetServer, KorvetServer]) -> None:
    group = unique("g")
    stable(pair[0].port, group)
    with pair[0].redis() as client:
        assert client.sismember(Namespace().group_index_of(group), group)
        identity: Any = client.hmget(Namespace().group(group).group, "id", "locator")
    assert re.fullmatch(rb"cgp_[0-9A-HJKMNP-TV-Z]{26}", identity[0])
    assert identity[1] == f"default/consumer-groups/{group}".encode()


def test_groups_of_another_namespace_are_not_seen(redis_server: Server) -> None:
    with (
        running_broker(redis_url=redis_server.url, namespace="a") as one,
        running_broker(redis_url=redis_server.url, namespace="b") as other,
    ):
        group, topic = unique("g"), created(one.port)
        created(other.port, topic)
        commit(one.port, group, topic, 5)
        assert committed(other.port, group, topic, 0) == [-1]
        assert group in listed(one.port) and group not in listed(other.port)
        assert described(other.port, group)["error_code"] == "GROUP_ID_NOT_FOUND"


@kafka("OffsetMetadataManagerTest.testOnPartitionsDeleted")
def test_offset_of_a_former_topic_of_the_same_name_is_none(broker: KorvetServer) -> None:
    topic, group = created(broker.port), unique("g")
    assert commit(broker.port, group, topic, 7) == ["NONE"]
    ask(broker.port, "delete_topics", 5, topic_names=[topic], timeout=10_000)
    assert committed(broker.port, group, topic, 0) == [-1]
    created(broker.port, topic, partitions=2)
    assert committed(broker.port, group, topic, 0, 1) == [-1, -1]
    assert ask(broker.port, "offset_fetch", 7, group_id=group, topics=None)["topics"] == []
    commit(broker.port, group, topic, 3)
    assert committed(broker.port, group, topic, 0, 1) == [3, -1]


def test_topic_that_another_front_end_made_is_known_to_a_commit(pair: tuple[KorvetServer, KorvetServer]) -> None:
    one, other = pair
    topic, group = created(one.port), unique("g")
    assert commit(other.port, group, topic, 1) == ["NONE"]
    ask(one.port, "create_partitions", 3, topics=[{"name": topic, "count": 3, "assignments": None}], timeout=10_000)
    assert commit(other.port, group, topic, 1, 2, 3) == ["NONE"] * 3


def unread(port: int, group: str, topic: str, version: int) -> set[str]:
    """The error codes of an OffsetFetch, which has no offset; aiokafka looks only at the partitions' codes."""
    asked = {"group_id": group, "topics": [{"name": topic, "partition_indexes": [0]}]}
    stable = {"require_stable": True} if version >= 7 else {}
    if version >= 8:
        (answer,) = ask(port, "offset_fetch", version, groups=[asked], **stable)["groups"]
    else:
        answer = ask(port, "offset_fetch", version, **asked, **stable)
    rows = [row for one in answer["topics"] for row in one["partitions"]]
    assert all(row["committed_offset"] == -1 for row in rows)
    return {row["error_code"] for row in rows} | ({answer["error_code"]} if version >= 2 else set())


@kafka(
    "GroupCoordinatorServiceTest.testJoinGroupWhenNotStarted",
    "GroupCoordinatorServiceTest.testSyncGroupWhenNotStarted",
    "GroupCoordinatorServiceTest.testHeartbeatWhenNotStarted",
    "GroupCoordinatorServiceTest.testLeaveGroupWhenNotStarted",
    "GroupCoordinatorServiceTest.testListGroupsWhenNotStarted",
    "GroupCoordinatorServiceTest.testDescribeGroupsWhenNotStarted",
    "GroupCoordinatorServiceTest.testDeleteGroupsWhenNotStarted",
)
def test_members_look_for_the_coordinator_again_while_redis_is_away(aside: ThreadPoolExecutor) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(running_server("valkey", options={"appendonly": "yes", "appendfsync": "always"}))
        settings = {"group.initial.rebalance.delay.ms": "0"}
        broker = stack.enter_context(running_broker(redis_url=server.url, broker=settings))
        port, group, topic = broker.port, unique("g"), created(broker.port)
        member = stable(port, group)
        assert commit(port, group, topic, 4, member_id=member, generation_id_or_member_epoch=1) == ["NONE"]
        waiting = aside.submit(entered, port, group)
        parked(broker, group, 2)
        server.kill()
        unavailable = "COORDINATOR_NOT_AVAILABLE"
        assert waiting.result(20)["error_code"] == unavailable
        assert heartbeat(port, group, member) == unavailable
        assert join(port, group, member)["error_code"] == unavailable
        assert sync(port, group, member, 1)["error_code"] == unavailable
        assert leave(port, group, member)["error_code"] == unavailable
        assert commit(port, group, topic, 5) == [unavailable]
        assert described(port, group)["error_code"] == unavailable
        assert deleted(port, group) == [unavailable]
        assert ask(port, "list_groups", 5)["error_code"] == unavailable
        assert unread(port, group, topic, 1) == {"NOT_COORDINATOR"}
        assert all(unread(port, group, topic, version) == {unavailable, "NOT_COORDINATOR"} for version in range(2, 8))
        assert all(unread(port, group, topic, version) == {unavailable} for version in (8, 9))
        server.start()
        until(lambda: heartbeat(port, group, member) != unavailable)
        assert heartbeat(port, group, member) == "REBALANCE_IN_PROGRESS"
        assert committed(port, group, topic, 0) == [4]


def test_redis_that_stands_still_longer_than_a_session_expires_no_member(aside: ThreadPoolExecutor) -> None:
    """The first call after it is a deletion of the group, which lies in the queue of the frozen server."""
    settings = {"group.initial.rebalance.delay.ms": "0", "group.min.session.timeout.ms": "1"}
    with running_server("valkey") as server, running_broker(redis_url=server.url, broker=settings) as broker:
        port, group = broker.port, unique("g")
        first = join(port, group, version=3, session_timeout=8000)["member_id"]
        second = aside.submit(join, port, group, version=3, session_timeout=8000)
        parked(broker, group, 2)
        join(port, group, first, session_timeout=8000)
        members = [first, second.result(20)["member_id"]]
        sync(port, group, first, 2, dict.fromkeys(members, b"x"))
        assert [heartbeat(port, group, member, 2) for member in members] == ["NONE", "NONE"]
        with server.paused():
            deleting = aside.submit(deleted, port, group)
            assert wait([deleting], FROZEN_S).not_done == {deleting}
        assert deleting.result(20) == ["NON_EMPTY_GROUP"]
        assert [heartbeat(port, group, member, 2) for member in members] == ["NONE", "NONE"]


def test_redis_that_refuses_writes_longer_than_a_session_expires_no_member() -> None:
    settings = {"group.initial.rebalance.delay.ms": "0", "group.min.session.timeout.ms": "1"}
    with running_server("redis") as server, running_broker(redis_url=server.url, broker=settings) as broker:
        port, group = broker.port, unique("g")
        member = join(port, group, version=3, session_timeout=8000)["member_id"]
        sync(port, group, member, 1, {member: b"x"})
        with server.client() as client:
            client.config_set("min-replicas-to-write", 1)
            assert heartbeat(port, group, member, 1) == "COORDINATOR_NOT_AVAILABLE"
            time.sleep(FROZEN_S)
            assert described(port, group)["group_state"] == "Stable"
            client.config_set("min-replicas-to-write", 0)
        assert deleted(port, group) == ["NON_EMPTY_GROUP"]
        assert heartbeat(port, group, member, 1) == "NONE"


def test_existing_groups_go_on_at_maxmemory_and_new_ones_are_refused() -> None:
    """Existing readers go on, and the log can be trimmed; a new group would fill the server further."""
    with running_server("redis") as server, running_broker(redis_url=server.url) as broker, server.client() as client:
        topic, reader, member = created(broker.port), unique("g"), unique("g")
        assert commit(broker.port, reader, topic, 5) == ["NONE"]
        stayed = stable(broker.port, member)
        client.config_set("maxmemory", 1)
        assert commit(broker.port, reader, topic, 6) == ["NONE"]
        assert heartbeat(broker.port, member, stayed) == "NONE"
        assert join(broker.port, member)["error_code"] == "MEMBER_ID_REQUIRED"
        for _ in range(2):
            assert commit(broker.port, "other", topic, 5) == ["COORDINATOR_NOT_AVAILABLE"]
            assert join(broker.port, "other")["error_code"] == "COORDINATOR_NOT_AVAILABLE"
            new_id = {"transactional_id": "t", "transaction_timeout": 1000, "producer_id": -1, "producer_epoch": -1}
            assert ask(broker.port, "init_producer_id", 4, **new_id)["error_code"] == "COORDINATOR_NOT_AVAILABLE"
        assert set(listed(broker.port)) == {reader, member}
        assert not client.keys("*@group:other*")
        assert committed(broker.port, reader, topic, 0) == [6]


def test_group_ids_that_would_exceed_maxmemory_are_refused() -> None:
    """A thousand groups with names of 32 kB took a server of 50 MB to 462 MB."""
    with running_server("redis") as server, running_broker(redis_url=server.url) as broker, server.client() as client:
        topic = created(broker.port)
        for at in range(5):
            with pytest.raises(ConnectionError):
                commit(broker.port, f"{at}" + "é" * 16_000, topic, 5)
        assert not client.keys("*@group*")
        used = client.info("memory")["used_memory"]
        client.config_set("maxmemory", used + (1 << 20))
        codes = [commit(broker.port, f"{at}-" + "é" * 500, topic, 5) for at in range(400)]
        assert codes[0] == ["NONE"] and codes[-1] == ["COORDINATOR_NOT_AVAILABLE"]
        assert client.info("memory")["used_memory"] < used + (2 << 20)


def test_number_of_groups_is_bounded_and_existing_ones_go_on() -> None:
    with running_broker(broker={"korvet.max.groups": "3"}) as broker:
        topic = created(broker.port)
        assert [commit(broker.port, f"g{at}", topic, 5) for at in range(4)] == [["NONE"]] * 3 + [["POLICY_VIOLATION"]]
        assert join(broker.port, "g3")["error_code"] == "POLICY_VIOLATION"
        assert [commit(broker.port, f"g{at}", topic, 6) for at in range(3)] == [["NONE"]] * 3
        assert deleted(broker.port, "g0") == ["NONE"]
        assert commit(broker.port, "g3", topic, 5) == ["NONE"]
        assert broker.log.count("new groups are refused") == 1


def test_number_of_transactional_ids_is_bounded_and_existing_ones_go_on() -> None:
    def init(id: str) -> str:
        code: str = ask(broker.port, "init_producer_id", 4, transactional_id=id, transaction_timeout=1000,
            producer_id=-1, producer_epoch=-1)["error_code"]  # fmt: skip
        return code

    with running_broker(broker={"korvet.max.transactional.ids": "16"}) as broker:
        codes = {id: init(id) for id in map(str, range(40))}
        made = [id for id, code in codes.items() if code == "NONE"]
        assert 10 <= len(made) <= 16 and set(codes.values()) == {"NONE", "POLICY_VIOLATION"}
        assert {init(id) for id in made} == {"NONE"}
        assert broker.log.count("new transactional ids are refused") == 1


def test_parked_member_whose_connection_is_gone_is_given_up(broker: KorvetServer) -> None:
    """No front-end asks for it any more, and its session ends."""
    group = unique("g")
    first = stable(broker.port, group)
    lost = join(broker.port, group)["member_id"]
    values = {"group_id": group, "member_id": lost, "session_timeout": 6000, "rebalance_timeout": 60_000}
    frame = request_frame("join_group", 9, {**values, "protocol_type": "consumer", "protocols": PROTOCOLS}, 1)
    with socket.create_connection(("127.0.0.1", broker.port)) as connection:
        connection.sendall(frame)
        parked(broker, group, 2)
    parked(broker, group, 1)
    assert join(broker.port, group, first)["generation_id"] == 2


@kafka("GroupCoordinatorServiceTest.testJoinGroupWithException testSyncGroupWithException")
def test_key_of_the_wrong_type_disturbs_only_its_group(broker: KorvetServer) -> None:
    group = unique("g")
    with broker.redis() as client:
        client.set(Namespace().group(group).group, "not a hash")
        try:
            assert join(broker.port, group)["error_code"] == "UNKNOWN_SERVER_ERROR"
            assert sync(broker.port, group, "m", 1)["error_code"] == "UNKNOWN_SERVER_ERROR"
            assert heartbeat(broker.port, group, "m") == "UNKNOWN_SERVER_ERROR"
            assert "WRONGTYPE" in broker.log
            stable(broker.port, unique("g"))
        finally:
            client.delete(Namespace().group(group).group)


@pytest.mark.parametrize(("field", "position"), [("t:0", b"garbage"), ("nonsense", b"0 -1 x "), ("t:0", b"\xff 1 2 ")])
def test_unreadable_committed_offset_disturbs_only_its_group(broker: KorvetServer, field: str, position: bytes) -> None:
    bad, good = unique("g"), unique("g")
    for group in (bad, good):
        stable(broker.port, group)
    with broker.redis() as client:
        client.hset(Namespace().group(bad).offsets, field, position)
        try:
            answer = ask(
                broker.port, "offset_fetch", 8,
                groups=[{"group_id": group, "topics": None} for group in (bad, good)], require_stable=False,
            )  # fmt: skip
        finally:
            client.hdel(Namespace().group(bad).offsets, field)
    codes = {group["group_id"]: group["error_code"] for group in answer["groups"]}
    assert codes == {bad: "UNKNOWN_SERVER_ERROR", good: "NONE"}
