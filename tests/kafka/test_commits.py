"""Committed offsets: groups that resume, groups that reset, and groups without a valid offset."""

from collections import Counter
from collections.abc import Callable

import pytest

from tests.kafka.client import Client
from tests.kafka.conftest import JoinGroup, NewTopic
from tests.kafka.options import MemberOptions
from tests.kafka.process import Administrator
from tests.kafka.records import contents, numbered, values
from tests.kafka.traits import MEMBERS, TRAITS, names_where
from tests.kafka.waiting import poll_until

GroupAndTopic = tuple[str, str]


@pytest.mark.parametrize("client", MEMBERS, indirect=True)
def test_group_resumes_after_its_committed_offsets(
    client: Client, administrator: Administrator, new_topic: NewTopic, group: str, join: JoinGroup
) -> None:
    topic = new_topic(2)
    records = numbered(10, partition=0, prefix="first") + numbered(10, partition=1, prefix="second")
    administrator.produce(topic, records)
    by_hand = MemberOptions(reset="earliest", auto_commit=False, max_records=7)
    first = join(client, group, topic, by_hand)
    before = first.await_records(7)
    first.commit()
    first.leave()
    asked = client if TRAITS[client.name].reads_offsets else administrator
    assert asked.committed(group, topic) == dict(Counter(record.partition for record in before))
    second = join(client, group, topic, MemberOptions(reset="earliest"))
    after = second.await_records(13)
    second.leave()
    assert Counter(values(before + after)) == Counter(values(records))


@pytest.mark.parametrize("client", MEMBERS, indirect=True)
def test_member_that_leaves_in_good_order_commits_by_itself(
    client: Client, administrator: Administrator, topic: str, group: str, join: JoinGroup
) -> None:
    administrator.produce(topic, numbered(10))
    first = join(client, group, topic, MemberOptions(reset="earliest"))
    first.await_records(10)
    first.leave()
    assert administrator.committed(group, topic) == {0: 10}
    administrator.produce(topic, numbered(5, prefix="later"))
    second = join(client, group, topic, MemberOptions(reset="earliest"))
    assert contents(second.await_records(5)) == contents(numbered(5, prefix="later"))
    second.leave()


@pytest.mark.parametrize("client", MEMBERS, indirect=True)
def test_new_group_with_reset_to_earliest_reads_from_the_beginning(
    client: Client, administrator: Administrator, topic: str, group: str, join: JoinGroup
) -> None:
    administrator.produce(topic, numbered(10))
    member = join(client, group, topic, MemberOptions(reset="earliest"))
    assert contents(member.await_records(10)) == contents(numbered(10))
    member.leave()


@pytest.mark.parametrize("client", MEMBERS, indirect=True)
@pytest.mark.parametrize("reset", ["latest", None], ids=["latest", "default"])
def test_new_group_with_reset_to_latest_reads_only_later_records(
    client: Client, administrator: Administrator, topic: str, group: str, join: JoinGroup, reset: str | None
) -> None:
    administrator.produce(topic, numbered(10, prefix="earlier"))
    member = join(client, group, topic, MemberOptions(reset=reset))
    sent = 0

    def arrives() -> bool:
        # The test cannot see when the member has looked up the end, so it produces until a record arrives.
        nonlocal sent
        administrator.produce(topic, numbered(1, prefix=f"later-{sent}"))
        sent += 1
        return bool(member.seen.records)

    poll_until(arrives, "a record that was produced later")
    seen = contents(member.await_records(1))
    later = [record for n in range(sent) for record in contents(numbered(1, prefix=f"later-{n}"))]
    first = later.index(seen[0])
    assert seen == later[first : first + len(seen)]
    member.leave()


@pytest.mark.parametrize("client", MEMBERS, indirect=True)
def test_offset_whose_records_are_deleted_is_reset_to_the_beginning(
    client: Client, administrator: Administrator, topic: str, group: str, join: JoinGroup
) -> None:
    records = numbered(15)
    administrator.produce(topic, records)
    administrator.set_offsets(group, topic, {0: 3})
    administrator.delete_records(topic, {0: 10})
    member = join(client, group, topic, MemberOptions(reset="earliest"))
    read = member.await_records(5)
    assert contents(read) == contents(records[10:])
    assert [record.offset for record in read] == list(range(10, 15))
    member.leave()


@pytest.mark.parametrize("client", names_where(lambda traits: traits.sets_offsets), indirect=True)
def test_group_whose_offsets_are_set_resumes_there(
    client: Client, administrator: Administrator, topic: str, group: str, join: JoinGroup
) -> None:
    records = numbered(10)
    administrator.produce(topic, records)
    first = join(client, group, topic, MemberOptions(reset="earliest"))
    first.await_records(10)
    first.leave()
    client.set_offsets(group, topic, {0: 4})
    assert client.committed(group, topic) == {0: 4}
    second = join(client, group, topic, MemberOptions(reset="earliest"))
    assert contents(second.await_records(6)) == contents(records[4:])
    second.leave()


@pytest.mark.parametrize("reader", names_where(lambda traits: traits.reads_offsets))
@pytest.mark.parametrize("committer", MEMBERS)
def test_every_client_reads_each_others_committed_offsets(
    committer: str, reader: str, committed_by: Callable[[str], GroupAndTopic], client_named: Callable[[str], Client]
) -> None:
    group, topic = committed_by(committer)
    assert client_named(reader).committed(group, topic) == {0: 3}


@pytest.fixture(scope="module")
def committed_by(
    client_named: Callable[[str], Client], administrator: Administrator, new_topic: NewTopic
) -> Callable[[str], GroupAndTopic]:
    """Makes a group and a topic of which the named client commits three of five records, once for each client."""
    made: dict[str, GroupAndTopic] = {}

    def commits(name: str) -> GroupAndTopic:
        if name not in made:
            topic = new_topic()
            group = f"group-of-{topic}"
            administrator.produce(topic, numbered(5))
            _commit_three(client_named(name), group, topic)
            made[name] = group, topic
        return made[name]

    return commits


def _commit_three(client: Client, group: str, topic: str) -> None:
    member = client.join(group, topic, MemberOptions(reset="earliest", auto_commit=False, max_records=3))
    try:
        member.await_records(3)
        member.commit()
        member.leave()
    finally:
        member.kill()
