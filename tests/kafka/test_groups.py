"""Groups of three over six partitions: members join, leave and die, and each partition keeps exactly one owner."""

import functools
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

import pytest

from tests.kafka.client import Client, Member
from tests.kafka.conftest import JoinGroup, NewTopic
from tests.kafka.options import MemberOptions
from tests.kafka.process import Administrator
from tests.kafka.records import Record, numbered, values
from tests.kafka.traits import BY_BOTH_PROTOCOLS, MEMBERS
from tests.kafka.waiting import poll_until, wait_until

Result = TypeVar("Result")

PARTITIONS = 6
SESSION_TIMEOUT_MS = 15_000
EACH_PROTOCOL = ("confluent-kafka", "java-consumer")
OF_A_KILLED_MEMBER = [name if name in EACH_PROTOCOL else pytest.param(name, marks=pytest.mark.all) for name in MEMBERS]
"""The broker does the same for all clients of a protocol, and each waits for the end of a session."""
# Kafka misses a dead member after its session; the others learn it at their next heartbeat, every three seconds.
SETTLE_TIMEOUT_S = 90.0


@pytest.mark.parametrize("client", MEMBERS, indirect=True)
def test_partitions_move_when_a_member_joins_and_when_one_leaves(
    client: Client, administrator: Administrator, new_topic: NewTopic, group: str, join: JoinGroup
) -> None:
    topic = new_topic(PARTITIONS)
    options = MemberOptions(reset="earliest")
    members = _at_once(2, lambda _: join(client, group, topic, options))
    await_settled(members)
    produce_round(administrator, topic, members, "two")
    members.append(join(client, group, topic, options))
    await_settled(members)
    produce_round(administrator, topic, members, "three")
    members[0].leave()
    await_settled(members[1:])
    produce_round(administrator, topic, members[1:], "two again")
    _at_once(2, lambda n: members[1 + n].leave())
    assert_once_each(members, [record for name in ("two", "three", "two again") for record in round_of(name)])


@pytest.mark.parametrize("client", OF_A_KILLED_MEMBER, indirect=True)
def test_partitions_of_a_killed_member_move_to_the_others(
    client: Client, administrator: Administrator, new_topic: NewTopic, group: str, join: JoinGroup
) -> None:
    topic = new_topic(PARTITIONS)
    options = MemberOptions(reset="earliest", session_timeout_ms=SESSION_TIMEOUT_MS)
    members = _at_once(3, lambda _: join(client, group, topic, options))
    await_settled(members)
    produce_round(administrator, topic, members, "before")
    members[1].kill()
    survivors = [members[0], members[2]]
    administrator.produce(topic, round_of("meanwhile"))
    await_settled(survivors)
    produce_round(administrator, topic, survivors, "after")
    _await_values(survivors, round_of("meanwhile"))
    _at_once(2, lambda n: survivors[n].leave())
    # The new owners may read the killed member's uncommitted records again, and read all other records once.
    readers = readers_of(survivors)
    both_rounds = [record.value for record in round_of("meanwhile") + round_of("after")]
    assert {value: readers[value] for value in both_rounds if len(readers[value]) != 1} == {}


@pytest.mark.parametrize("client", BY_BOTH_PROTOCOLS, indirect=True)
def test_static_member_that_returns_keeps_its_partitions_without_a_rebalance(
    client: Client, administrator: Administrator, new_topic: NewTopic, group: str, join: JoinGroup
) -> None:
    topic = new_topic(PARTITIONS)
    # A member comes back as a new process, and its session must not end before that.
    lasting = MemberOptions(reset="earliest", session_timeout_ms=120_000)
    options = [replace(lasting, instance_id=f"instance-{n}") for n in range(2)]
    members = _at_once(2, lambda n: join(client, group, topic, options[n]))
    await_settled(members)
    produce_round(administrator, topic, members, "before")
    owned, told = members[0].seen.assignment, members[1].seen.assignments
    members[0].leave()
    members[0] = join(client, group, topic, options[0])
    await_settled(members)
    assert members[0].seen.assignment == owned
    produce_round(administrator, topic, members, "after")
    assert members[1].seen.assignments == told
    _at_once(2, lambda n: members[n].leave())


@pytest.mark.parametrize("client", BY_BOTH_PROTOCOLS, indirect=True)
def test_member_that_subscribes_to_a_pattern_reads_topics_that_come_later(
    client: Client, administrator: Administrator, new_topic: NewTopic, group: str, join: JoinGroup
) -> None:
    first = new_topic()
    administrator.produce(first, numbered(3, prefix="first"))
    member = join(client, group, first, MemberOptions(reset="earliest", pattern=f"^{first}(-more)?"))
    member.await_records(3)
    administrator.create_topic(f"{first}-more", 1)
    administrator.create_topic(f"other-{first}", 1)
    for name in (f"{first}-more", f"other-{first}"):
        poll_until(functools.partial(administrator.serves, name, 1), f"the topic {name}")
        administrator.produce(name, numbered(3, prefix=name))
    seen = values(member.await_records(6))
    assert sorted(seen, key=str) == sorted(
        values(numbered(3, prefix="first") + numbered(3, prefix=f"{first}-more")), key=str
    )
    member.leave()


def _at_once(count: int, act: Callable[[int], Result]) -> list[Result]:
    """Let members start and end at the same time, as in production. This also takes longest."""
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(act, range(count)))


def round_of(name: str) -> list[Record]:
    """One record for each partition."""
    return [Record(value=f"{name}-{p}".encode(), partition=p) for p in range(PARTITIONS)]


def await_settled(members: list[Member]) -> None:
    """Wait until each partition has exactly one owner, and the members' shares differ by at most one.

    In the consumer protocol partitions move one by one, so each has an owner before all have moved.
    """

    def settled() -> bool:
        assignments = [member.seen.assignment for member in members]
        sizes = sorted(map(len, assignments))
        owned = sorted(partition for assignment in assignments for partition in assignment)
        return owned == list(range(PARTITIONS)) and sizes[0] >= 1 and sizes[-1] - sizes[0] <= 1

    wait_until(settled, lambda: f"one owner each: {[member.seen for member in members]}", SETTLE_TIMEOUT_S)


def assert_once_each(members: list[Member], records: list[Record]) -> None:
    """Each record came once, because each of these clients commits before it gives a partition away."""
    readers = readers_of(members)
    assert {value: where for value, where in readers.items() if len(where) > 1} == {}
    assert readers.keys() == {record.value for record in records}


def readers_of(members: list[Member]) -> dict[bytes | None, list[tuple[int, int | None, int | None]]]:
    """The readers of each value: the member's number, the partition and the offset."""
    readers: dict[bytes | None, list[tuple[int, int | None, int | None]]] = defaultdict(list)
    for number, member in enumerate(members):
        for record in member.seen.records:
            readers[record.value].append((number, record.partition, record.offset))
    return readers


def produce_round(administrator: Administrator, topic: str, members: list[Member], name: str) -> None:
    """One new record for each partition reaches only the partition's owner."""
    administrator.produce(topic, round_of(name))
    _await_values(members, round_of(name))
    wanted = {record.value for record in round_of(name)}
    for member in members:
        got = [record.partition for record in member.seen.records if record.value in wanted]
        assert sorted(p for p in got if p is not None) == member.seen.assignment


def _await_values(members: list[Member], records: list[Record]) -> None:
    def seen() -> set[bytes | None]:
        return {record.value for member in members for record in member.seen.records}

    wanted = {record.value for record in records}
    wait_until(lambda: wanted <= seen(), lambda: f"{wanted - seen()}: {[member.seen for member in members]}")
