"""Groups with more members than one call reads one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import redis

from tests.lua.consumer import ConsumerGroup
from tests.lua.group import (
    GROUP_ID_NOT_FOUND,
    GROUP_MAX_SIZE_REACHED,
    GROUP_SUBSCRIBED_TO_TOPIC,
    INCONSISTENT_GROUP_PROTOCOL,
    NONE,
    REBALANCE_IN_PROGRESS,
    RETENTION_S,
    Group,
    named,
    plain,
)
from tests.lua.mixed import MixedGroup, assignment, subscription

SIZE = 1200
"""A size above group.BATCH."""
MOST_BYTES = 1 << 20
"""The bound in group.METADATA_BYTES."""


def crowd(group: Group) -> list[str]:
    """A classic group whose first rebalance is complete; the leader first."""
    group.initial_delay_ms = 1000
    ids = [f"m{number:04}" for number in range(SIZE)]
    with group.server.pipeline(transaction=False) as calls:
        for member in ids:
            args: tuple[str | int, ...] = (
                group.outages, group.id, group.locator, "", member, "", "client", "/h", 10_000, 60_000, "consumer", 3,
                6000, 1_800_000, group.max_size, 1000, round(RETENTION_S * 1000), "range", "r", "sticky", "s",
            )  # fmt: skip
            calls.fcall("korvet_group_join", len(group.keys), *group.keys, *args)
        calls.execute()
    for _ in range(2):
        group.pass_time(1)
        leader = group.wait(ids[0])
    assert (leader.leader, leader.protocol, len(leader.members)) == (ids[0], "range", SIZE)
    return ids


def consumer_crowd(group: ConsumerGroup) -> list[str]:
    ids = [f"m{number:04}" for number in range(SIZE)]
    for member in ids:
        group.consume(member, 0, "foo", rebalance_s=5, owned="")
    return ids


def expire(group: Group, members: Sequence[str]) -> None:
    """The sessions of these members are over; the sessions of all others are not."""
    others: Any = group.server.zrange(group.keys[2], 0, -1)
    ends: dict[str, float] = {plain(member): (group.now + 3600) * 1000 for member in others}
    group.server.zadd(group.keys[2], ends | dict.fromkeys(members, group.now * 1000))
    group.server.hset(group.keys[0], "next_due", str(round(group.now * 1000)))


def calls_of(server: redis.Redis, run: Callable[[], object]) -> int:
    """The number of commands that a call made."""
    server.config_resetstat()
    run()
    stats: Any = server.info("commandstats")
    return sum(stat["calls"] for name, stat in stats.items() if not name.startswith(("cmdstat_config", "cmdstat_info")))


def test_leader_assigns_to_thousands_of_members(group: Group) -> None:
    ids = crowd(group)
    assignments = {member: member.encode() * 3 for member in ids} | {"nobody": b"x"}
    calls = calls_of(group.server, lambda: group.sync(ids[0], 1, assignments))
    assert calls < 40
    assert group.state == "Stable"
    for member in (ids[0], ids[1], ids[999], ids[-1]):
        assert group.sync(member, 1).assignment == assignments[member]
    assert group.server.hlen(group.keys[1]) == SIZE
    assert group.heartbeat(ids[5], 1) == NONE


def test_large_group_whose_members_all_expired_is_empty_at_once(group: Group) -> None:
    ids = crowd(group)
    expire(group, ids)
    assert group.state == "Empty"
    assert calls_of(group.server, lambda: group.call("offset_delete")) < 30
    assert (group.state, group.generation, group.exists()) == ("Empty", 2, ["group"])


def test_each_call_ends_a_thousand_sessions_that_are_over(group: Group) -> None:
    ids = crowd(group)
    expire(group, ids[1:])
    counts = []
    for _ in range(3):
        group.call("offset_delete")
        counts.append(group.server.hlen(group.keys[1]))
    assert counts == [SIZE - 1000, 1, 1]
    assert (group.state, group.describe().member_ids) == ("PreparingRebalance", {ids[0]})


def told(group: Group, function: str, *args: str) -> set[str]:
    """The ids of the members that a function lists in pages."""
    found = group.read_named(function, *args)
    members, cursor, pages = list(found["members"]), found["cursor"], 1
    while cursor != b"0":
        if function == "describe":
            _, cursor, further = group.read("members", plain(cursor))
        else:
            found = group.read_named(function, plain(cursor))
            cursor, further = found["cursor"], found["members"]
        assert len(further) < 1000
        members += further
        pages += 1
    assert pages > 2
    return {plain(named(member)["member_id"]) for member in members}


def test_large_group_is_described_in_pages(group: Group) -> None:
    ids = crowd(group)
    assert told(group, "describe") == set(ids)


def test_large_consumer_group_is_described_and_snapshot_in_pages(consumers: ConsumerGroup) -> None:
    ids = consumer_crowd(consumers)
    assert told(consumers, "describe") == told(consumers, "snapshot", "0") == set(ids)


def test_outage_keeps_all_members_of_a_large_group(group: Group) -> None:
    crowd(group)
    group.outage(3600)
    group.call("offset_delete")
    group.call("offset_delete")
    assert group.server.hlen(group.keys[1]) == SIZE


@pytest.mark.parametrize("stays", [0, 1])
def test_each_call_takes_a_thousand_members_out_of_a_consumer_group(consumers: ConsumerGroup, stays: int) -> None:
    ids = consumer_crowd(consumers)
    epoch = int(consumers.field("generation") or 0)
    expire(consumers, ids[stays:])
    for _ in range(2):
        consumers.call("offset_delete")
    assert consumers.server.hlen(consumers.keys[1]) == stays
    if not stays:
        assert (consumers.state, consumers.field("generation")) == ("Empty", str(epoch + 1))
    assert consumers.enter("n", "foo").code == NONE


def talkative(group: Group, topics: int, assigned: int = 0) -> None:
    """Three members of a classic group; each wants other topics, and has a partition of some."""
    wanted = [subscription(f"{member}-{topic:05}" for topic in range(topics)) for member in range(3)]
    joined = group.gathered(*((("range", metadata),) for metadata in wanted))
    (leader,) = (one for one in joined if one.is_leader)
    group.sync(
        leader.member,
        leader.generation,
        {
            one.member: assignment({f"{number}-{topic:05}": [0] for topic in range(assigned)})
            for number, one in enumerate(joined)
        },
    )
    assert group.state == "Stable"


def shown(group: Group) -> list[int]:
    """The number of topics that the description shows for each member."""
    return sorted(len(named(member)["topics"]) for member in group.read_named("describe")["members"])


@pytest.mark.parametrize(("topics", "expected"), [(100, [100] * 3), (4000, [0, 0, 4000]), (30_000, [0] * 3)])
def test_description_decodes_no_more_than_one_call_may(group: Group, topics: int, expected: list[int]) -> None:
    talkative(group, topics)
    assert shown(group) == expected


def test_offsets_stay_if_members_want_more_topics_than_one_call_reads(group: Group) -> None:
    talkative(group, 30_000)
    assert group.delete_offsets("t:0") == (NONE, [GROUP_SUBSCRIBED_TO_TOPIC])


def test_classic_group_with_too_much_to_decode_is_not_upgraded(consumers: ConsumerGroup) -> None:
    talkative(consumers, 1000, assigned=30_000)
    assert consumers.consume("new", 0, "foo", rebalance_s=5, owned="").code == GROUP_ID_NOT_FOUND
    assert consumers.state == "Stable"


def test_page_has_fewer_members_if_their_subscriptions_are_long(consumers: ConsumerGroup) -> None:
    # A page ends behind a round of HSCAN, whose size depends on the seed of the server's hashes.
    ids = [f"m{number}" for number in range(48)]
    for member in ids:
        consumers.consume(member, 0, *(f"topic-{topic:05}" for topic in range(3000)), rebalance_s=5, owned="")
    assert len(consumers.read_named("describe")["members"]) < len(ids)
    assert len(consumers.read_named("snapshot")["members"]) < len(ids)
    assert told(consumers, "describe") == told(consumers, "snapshot", "0") == set(ids)


@pytest.mark.parametrize(("shares", "code"), [(True, NONE), (False, GROUP_SUBSCRIBED_TO_TOPIC)])
def test_offsets_stay_if_members_name_more_topics_than_one_call_reads(
    consumers: ConsumerGroup, shares: bool, code: int
) -> None:
    for number in range(21):
        names = [f"{'t' if shares else number}-{topic}" for topic in range(10_000)]
        consumers.consume(f"m{number}", 0, *names, rebalance_s=5, owned="")
    assert consumers.delete_offsets("t:0") == (NONE, [code])


def test_classic_member_that_wants_too_much_does_not_join_a_consumer_group(consumers: ConsumerGroup) -> None:
    consumers.enter("n", "foo")
    wanted = (("range", subscription(f"topic-{topic}" for topic in range(10_001))),)
    assert consumers.entered(wanted).code == INCONSISTENT_GROUP_PROTOCOL


def metadata(share: float) -> tuple[tuple[str, bytes], ...]:
    """A protocol with metadata of this share of the bytes that all members may have."""
    return (("range", bytes(round(share * MOST_BYTES))),)


def test_member_is_refused_if_its_metadata_is_too_much_for_one_leader(group: Group) -> None:
    leader, other = group.gathered(metadata(0.375), metadata(0.375))
    assert sum(len(told) for _, _, told in leader.members) == MOST_BYTES * 3 // 4
    group.assign(leader)
    assert group.join("", metadata(0.275)).refusal == (GROUP_MAX_SIZE_REACHED, "")
    assert group.state == "Stable"
    last = group.entered(metadata(0.25))
    assert last.is_parked
    # No byte is left, but a member with the same metadata adds none.
    assert group.join("", (("range", b"1"),)).code == GROUP_MAX_SIZE_REACHED
    assert group.join(leader.member, metadata(0.375)).is_parked
    assert group.join(other.member, metadata(0.4)).refusal == (GROUP_MAX_SIZE_REACHED, "")
    assert group.heartbeat(other.member, 1) == REBALANCE_IN_PROGRESS
    assert group.join(other.member, metadata(0.375)).code == NONE


def test_settled_group_goes_on_when_a_member_is_refused_for_its_metadata(group: Group) -> None:
    leader, other = group.gathered(metadata(0.5), metadata(0.375))
    group.assign(leader)
    for member in (leader, other):
        assert group.join(member.member, metadata(0.75)).refusal == (GROUP_MAX_SIZE_REACHED, "")
        assert (group.state, group.heartbeat(member.member, 1)) == ("Stable", NONE)


def test_leader_may_still_assign_after_its_join_is_refused(group: Group) -> None:
    leader, _ = group.gathered(metadata(0.5), metadata(0.375))
    assert group.join(leader.member, metadata(0.75)).refusal == (GROUP_MAX_SIZE_REACHED, "")
    group.assign(leader)
    assert group.state == "Stable"


def test_unchanged_member_is_taken_beyond_the_bound(group: Group) -> None:
    leader, other = group.gathered(metadata(0.25), metadata(0.25))
    group.assign(leader)
    group.server.hset(group.keys[0], "metadata_bytes", 2 * MOST_BYTES)
    assert group.join(leader.member, metadata(0.25)).is_parked
    assert group.join(other.member, metadata(0.125)).code == NONE


def test_library_counts_the_metadata_of_older_members(group: Group) -> None:
    leader, _ = group.gathered(metadata(0.375), metadata(0.375))
    group.assign(leader)
    group.server.hdel(group.keys[0], "metadata_bytes")
    assert group.join("", metadata(0.275)).refusal == (GROUP_MAX_SIZE_REACHED, "")
    assert group.entered(metadata(0.25)).is_parked


def test_member_with_too_much_metadata_of_its_own_is_refused(group: Group) -> None:
    assert group.join("", metadata(1.025)).refusal == (GROUP_MAX_SIZE_REACHED, "")
    assert not group.server.exists(*group.keys)
    assert group.entered(metadata(1)).code == NONE


def test_returning_static_member_counts_its_metadata_once(group: Group) -> None:
    group.join("", metadata(1), instance="i")
    again = group.join("", metadata(1), instance="i")
    assert again.code == NONE
    assert group.leave((again.member, "i")) == [NONE]
    assert group.entered(metadata(1)).code == NONE


def test_expired_members_free_their_share_of_metadata(group: Group) -> None:
    ids = crowd(group)
    assert group.field("metadata_bytes") == str(2 * SIZE)
    expire(group, ids)
    group.call("offset_delete")
    assert group.state == "Empty"
    assert group.entered(metadata(1)).code == NONE


def test_classic_members_of_a_consumer_group_share_one_metadata_bound(
    group: Group, set_clock: Callable[[float], None]
) -> None:
    consumers, wanted = MixedGroup(group.server, set_clock), subscription(["foo"])
    consumers.consume("new", 0, "foo", rebalance_s=5, owned="")
    first = consumers.newcomer((("range", wanted + bytes(MOST_BYTES * 3 // 4)),))
    assert first.code == NONE
    assert consumers.classic("", (("range", wanted + bytes(MOST_BYTES // 4)),)).code == GROUP_MAX_SIZE_REACHED
    assert consumers.newcomer((("range", wanted),)).code == NONE
