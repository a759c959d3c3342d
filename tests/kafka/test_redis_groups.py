"""Every client's group has a Redis group: it is made at the first Fetch, and then stands at the committed offset."""

import os

import pytest

from korvet.store.keys import Namespace
from tests.kafka.client import Client
from tests.kafka.conftest import JoinGroup
from tests.kafka.options import MemberOptions
from tests.kafka.process import Administrator
from tests.kafka.records import numbered
from tests.kafka.traits import MEMBERS
from tests.kafka.waiting import poll_until
from tests.support.broker import KorvetServer

pytestmark = pytest.mark.skipif("KORVET_TEST_BOOTSTRAP" in os.environ, reason="no other broker has Redis groups")
RECORDS = 10
READ = 7


@pytest.mark.parametrize("client", MEMBERS, indirect=True)
def test_redis_group_is_made_at_the_first_fetch_and_follows_the_commit(
    client: Client, broker: KorvetServer, administrator: Administrator, topic: str, group: str, join: JoinGroup
) -> None:
    administrator.produce(topic, numbered(RECORDS))
    member = join(client, group, topic, MemberOptions(reset="earliest", auto_commit=False, max_records=READ))
    member.await_records(READ)
    # kcat commits by itself when it has read its records.
    first = (0, READ) if client.name == "kcat" else (0,)
    poll_until(lambda: position(broker, topic, group) in first, "the Redis group at the first Fetch")
    member.commit()
    poll_until(lambda: position(broker, topic, group) == READ, "the Redis group at the committed offset")
    member.leave()
    assert position(broker, topic, group) == READ


def position(broker: KorvetServer, topic: str, group: str) -> int:
    """The Redis group's position on the topic's only partition; -1 if there is no such Redis group."""
    with broker.redis() as redis:
        groups = redis.xinfo_groups(Namespace().partition(topic, 0).log)
    found = {one["name"].decode(): one["last-delivered-id"].decode() for one in groups}
    return int(found[group].removesuffix("-0")) if group in found else -1
