"""ShareFetch of records that only a tier has."""

from __future__ import annotations

import select
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.api.raw import unique
from tests.api.test_cold_fetch import hanging, sealed
from tests.api.test_share_fetch import WAIT_MS, Member, Topic, acquired, part
from tests.support.broker import KorvetServer, running_broker


@pytest.fixture(scope="module")
def tiered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KorvetServer]:
    with running_broker(tier=str(tmp_path_factory.mktemp("tier"))) as broker:
        yield broker


@pytest.fixture
def topic(tiered: KorvetServer) -> Topic:
    topic = Topic(tiered, unique("share"), partitions=12)
    for _ in range(5):
        topic.append(3)
    return topic


@pytest.mark.parametrize("hot", [(1,), (5,), tuple(range(1, 12))])
def test_hanging_tier_holds_up_no_other_partition(tiered: KorvetServer, topic: Topic, hot: tuple[int, ...]) -> None:
    (path,) = sealed(tiered, topic.name, [0, 15])
    topic.append(2, index=hot[-1])
    member = Member(tiered, topic.group)
    with closing(member.connection.socket), hanging(path):
        answer = member.fetch(part(topic.id), *(part(topic.id, index=index) for index in hot), max_wait=30 * WAIT_MS)
        assert (acquired(answer), acquired(answer, hot[-1])) == ([], [(0, 1, 1)])


def test_member_that_waits_for_the_tier_holds_up_no_other_member(tiered: KorvetServer, topic: Topic) -> None:
    (path,) = sealed(tiered, topic.name, [0, 15])
    topic.acquire("gone", lock_ms=2000)
    cold, hot = Member(tiered, topic.group), Member(tiered, topic.group)
    with closing(cold.connection.socket), closing(hot.connection.socket), hanging(path), tiered.redis() as client:
        cold.fetch(part(topic.id), part(topic.id, index=1))
        hot.fetch(part(topic.id, index=1))
        cold.send(max_wait=30 * WAIT_MS)
        while not any(cold.id.encode() in one for one in client.zrange(topic.keys(topic.group)[3], 0, -1)):
            time.sleep(0.05)
        hot.send(max_wait=30 * WAIT_MS)
        topic.append(2, index=1)
        sockets = [cold.connection.socket, hot.connection.socket]
        assert select.select(sockets, [], [], WAIT_MS / 1000)[0] == [hot.connection.socket]
        assert acquired(hot.connection.receive(), 1) == [(0, 1, 1)]


def test_records_come_when_the_tier_has_them(tiered: KorvetServer, topic: Topic) -> None:
    (path,) = sealed(tiered, topic.name, [0, 15])
    member = Member(tiered, topic.group)
    with closing(member.connection.socket):
        with hanging(path):
            member.send(part(topic.id), part(topic.id, index=1), max_wait=3 * WAIT_MS)
            time.sleep(0.3)
        assert acquired(member.connection.receive()) == [(0, 14, 1)]
