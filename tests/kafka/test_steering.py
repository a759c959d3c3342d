"""Members of both group protocols that pause partitions and seek in them."""

from __future__ import annotations

import pytest

from tests.kafka.client import Client
from tests.kafka.conftest import JoinGroup, NewTopic
from tests.kafka.options import MemberOptions
from tests.kafka.process import Administrator
from tests.kafka.records import contents, numbered, values
from tests.kafka.test_groups import PARTITIONS, await_settled, round_of
from tests.kafka.traits import BY_BOTH_PROTOCOLS
from tests.kafka.waiting import poll_until


@pytest.mark.parametrize("client", BY_BOTH_PROTOCOLS, indirect=True)
def test_paused_partitions_are_kept_unread_while_others_move(
    client: Client, administrator: Administrator, new_topic: NewTopic, group: str, join: JoinGroup
) -> None:
    topic, options = new_topic(PARTITIONS), MemberOptions(reset="earliest", cooperative=True)
    first = join(client, group, topic, options)
    await_settled([first])
    first.pause(range(PARTITIONS))
    second = join(client, group, topic, options)
    await_settled([first, second])
    records, kept = round_of("paused"), first.seen.assignment
    administrator.produce(topic, records)
    read = second.await_records(PARTITIONS - len(kept))
    first.resume(kept[:1])
    read += first.await_records(1)
    assert sorted(record.partition or 0 for record in read) == sorted([*second.seen.assignment, kept[0]])
    assert len(first.seen.records) == 1
    assert first.seen.assignment == kept
    first.resume(kept[1:])
    first.await_records(len(kept))
    for member in (first, second):
        member.leave()
    seen = first.seen.records + second.seen.records
    assert sorted(values(seen), key=str) == sorted(values(records), key=str)


@pytest.mark.parametrize("client", BY_BOTH_PROTOCOLS, indirect=True)
def test_member_reads_from_where_it_seeks_and_commits_from_there(
    client: Client, administrator: Administrator, topic: str, group: str, join: JoinGroup
) -> None:
    records = numbered(10)
    administrator.produce(topic, records)
    member = join(client, group, topic, MemberOptions(reset="earliest", auto_commit=False))
    member.await_records(10)
    member.commit()
    member.pause([0])
    member.seek(0, 4)
    member.commit()
    assert administrator.committed(group, topic) == {0: 4}
    member.resume([0])
    assert contents(member.await_records(16)[10:]) == contents(records[4:])
    member.seek(0, "beginning")
    assert contents(member.await_records(26)[16:]) == contents(records)
    member.pause([0])
    administrator.produce(topic, numbered(5, prefix="skipped"))
    member.seek(0, "end")
    member.resume([0])

    def arrives() -> bool:
        # The test cannot see when the member has looked up the end, so it produces until a record arrives.
        administrator.produce(topic, numbered(1, prefix="later"))
        return len(member.seen.records) > 26

    poll_until(arrives, "a record that was produced later")
    later = member.await_records(27)[26]
    assert contents([later]) == contents(numbered(1, prefix="later"))
    member.commit()
    assert 15 < administrator.committed(group, topic)[0] <= (member.seen.records[-1].offset or 0) + 1
    member.leave()
