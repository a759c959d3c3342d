"""The functions korvet_group_describe, _state and _delete; and groups on a full server.

The cases of Kafka's own tests are in tests/lua/kafka.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from tests.lua.group import (
    GROUP_ID,
    GROUP_ID_NOT_FOUND,
    NON_EMPTY_GROUP,
    NONE,
    RANGE,
    RETENTION_S,
    Group,
    Member,
)


def state(name: str, generation: int, *, members: int, pending: int = 0) -> list[Any]:
    """The reply of korvet_group_state for a consumer group."""
    told = {
        b"state": name.encode(), b"generation": generation, b"protocol_type": b"consumer", b"members": members,
        b"pending": pending, b"type": b"classic",
    }  # fmt: skip
    return [NONE, *(part for pair in told.items() for part in pair)]


def test_stable_group_is_described_with_metadata_and_assignments(group: Group) -> None:
    leader, follower = group.stable(2, client="app")
    described = group.describe()
    assert described[:7] == (GROUP_ID, "default/consumer-groups/g", "Stable", 2, "consumer", "range", leader)
    assert set(described.members) == {
        Member(member, "", "app", "/10.0.0.1", b"range-metadata", member.encode()) for member in (leader, follower)
    }


def test_description_of_a_rebalancing_group_has_no_metadata(group: Group) -> None:
    (member,) = group.stable()
    group.entered()
    described = group.describe()
    assert described.state == "PreparingRebalance"
    assert {one.metadata for one in described.members} == {b""}
    assert {one.id: one.assignment for one in described.members}[member] == member.encode()


def test_description_hides_assignments_of_a_broken_off_generation(group: Group) -> None:
    """GroupMetadataManager.resetAndPropagateAssignmentWithError."""
    (member,) = group.stable()
    assert group.join(member).generation == 2
    assert group.describe().members[0].assignment == member.encode()
    group.entered()
    assert {one.assignment for one in group.describe().members} == {b""}


def test_description_shows_instance_ids(group: Group) -> None:
    member = group.join(instance="i").member
    assert [(one.id, one.instance_id) for one in group.describe().members] == [(member, "i")]


def test_unknown_group_is_not_found(group: Group) -> None:
    assert group.read("describe") == [GROUP_ID_NOT_FOUND]
    assert group.read("state") == [GROUP_ID_NOT_FOUND]


def test_state_is_told_without_members(group: Group) -> None:
    group.stable(2)
    assert group.read("state") == state("Stable", 2, members=2)


def test_description_takes_out_members_that_expired(group: Group) -> None:
    first, _ = group.stable(2, session_s=10)
    group.pass_time(4)
    group.heartbeat(first, 2)
    group.pass_time(6)
    assert group.read("state") == state("PreparingRebalance", 2, members=1)
    assert group.describe().member_ids == {first}


def test_id_that_has_yet_to_join_is_no_member(group: Group) -> None:
    group.known()
    assert (group.state, group.describe().members) == ("Empty", ())


def test_empty_group_is_deleted_with_its_offsets(group: Group) -> None:
    (member,) = group.stable()
    group.commit({"t:0": "5 -1 aa "}, member, 1)
    group.leave((member, ""))
    assert group.delete() == NONE
    assert group.exists() == []
    assert group.delete() == GROUP_ID_NOT_FOUND


def test_group_with_members_is_not_deleted(group: Group) -> None:
    (member,) = group.stable()
    assert group.delete() == NON_EMPTY_GROUP
    group.entered()
    assert group.delete() == NON_EMPTY_GROUP
    group.join(member)
    assert (group.state, group.delete()) == ("CompletingRebalance", NON_EMPTY_GROUP)


def test_group_is_deleted_if_all_its_members_expired(group: Group) -> None:
    group.stable(2, session_s=10)
    group.pass_time(10)
    assert group.delete() == NONE


def test_group_with_only_a_pending_id_is_deleted(group: Group) -> None:
    """Pending members do not keep a group."""
    group.known()
    assert group.delete() == NONE
    assert group.exists() == []


def test_expired_group_is_not_found_and_its_remains_go(group: Group) -> None:
    group.commit({"t:0": "5 -1 aa "})
    group.pass_time(RETENTION_S)
    assert group.delete() == GROUP_ID_NOT_FOUND
    assert group.exists() == []


def test_full_server_still_runs_groups(group: Group, server: redis.Redis) -> None:
    """A refusal would stop readers. Then korvet would trim no read records, and free no memory."""
    (member,) = group.stable()
    client: Any = server
    client.config_set("maxmemory", 1)
    assert group.heartbeat(member, 1) == NONE
    assert group.commit({"t:0": "5 -1 aa "}, member, 1) == NONE
    assert group.fetch() == {"t:0": "5 -1 aa "}
    assert group.entered().is_parked
    assert group.join(member).is_parked is False
    assert group.leave((member, "")) == [NONE]
    assert group.read("state")[0] == NONE


def test_group_has_five_hundred_members(group: Group) -> None:
    """The members are more than a batch of arguments."""
    answers = group.gathered(*[RANGE] * 500, session_s=60)
    assert len(answers[0].members) == 500
    group.assign(answers[0])
    for answer in answers:
        assert group.sync(answer.member, 1).assignment == answer.member.encode()
    assert group.read("state") == state("Stable", 1, members=500)
    assert group.field("sync_deadline") is None


@pytest.mark.parametrize("key", range(5))
def test_key_of_the_wrong_type_is_an_error_and_changes_nothing(group: Group, server: redis.Redis, key: int) -> None:
    client: Any = server
    (member,) = group.stable()
    client.delete(group.keys[key])
    client.set(group.keys[key], "x")
    before = {name: client.dump(name) for name in group.keys}
    if key != 4:
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            group.join(instance="i")
        assert {name: client.dump(name) for name in group.keys} == before
    else:
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            group.commit({"t:0": "5 -1 aa "}, member, 1)


@pytest.mark.parametrize("key", range(1, 5))
def test_group_is_not_made_if_a_key_has_another_type(group: Group, server: redis.Redis, key: int) -> None:
    """The call writes nothing."""
    client: Any = server
    client.set(group.keys[key], "x")
    calls: list[Callable[[], object]] = [
        lambda: group.join(instance="i"), lambda: group.join(), lambda: group.commit({"t:0": "5 -1 aa "}),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            call()
        assert client.keys("korvet:*") == [group.keys[key].encode()]


def test_group_without_its_hash_is_made_anew_with_its_offsets(group: Group, server: redis.Redis) -> None:
    """The former members are unknown to the new group, also members with instance ids."""
    assert group.commit({"t:0": "5 -1 aa "}) == NONE
    group.join(instance="i")
    group.known()
    server.delete(group.keys[0])
    joined = group.join(instance="i")
    assert (joined.generation, joined.members) == (1, ((joined.member, "i", b"range-metadata"),))
    assert group.read("state") == state("CompletingRebalance", 1, members=1)
    assert group.fetch() == {"t:0": "5 -1 aa "}
    assert group.heartbeat(joined.member, 1, "i") == NONE
    server.delete(group.keys[0])
    assert group.commit({"t:1": "6 -1 aa "}) == NONE
    assert group.exists() == ["group", "offsets"]
