"""Groups with members of different protocols: upgraded one by one and back, or shared by different clients."""

from collections.abc import Callable

import pytest

from tests.kafka.client import Client
from tests.kafka.conftest import JoinGroup, NewTopic
from tests.kafka.options import MemberOptions
from tests.kafka.process import Administrator
from tests.kafka.records import Record
from tests.kafka.test_groups import PARTITIONS, assert_once_each, await_settled, produce_round, round_of
from tests.kafka.traits import BY_CONSUMER_PROTOCOL, NAMES

OPTIONS = MemberOptions(reset="earliest")
UPGRADES = [pytest.param(name.removesuffix("-consumer"), name, id=name) for name in BY_CONSUMER_PROTOCOL]
OLD_CLIENTS = [name for name in NAMES if f"{name}-consumer" not in BY_CONSUMER_PROTOCOL]


@pytest.mark.parametrize(("classic", "upgraded"), UPGRADES)
def test_members_change_to_the_consumer_protocol_and_back_one_by_one(
    classic: str,
    upgraded: str,
    client_named: Callable[[str], Client],
    administrator: Administrator,
    new_topic: NewTopic,
    group: str,
    join: JoinGroup,
) -> None:
    topic = new_topic(PARTITIONS)
    everybody = [join(client_named(classic), group, topic, OPTIONS) for _ in range(2)]
    running = list(everybody)
    await_settled(running)
    produce_round(administrator, topic, running, "round 0")
    for number, name in enumerate((upgraded, upgraded, classic, classic), 1):
        running.pop(0).leave()
        everybody.append(join(client_named(name), group, topic, OPTIONS))
        running.append(everybody[-1])
        await_settled(running)
        produce_round(administrator, topic, running, f"round {number}")
    for member in running:
        member.leave()
    assert_once_each(everybody, records_of(5))


@pytest.mark.parametrize("classic", OLD_CLIENTS)
def test_consumer_protocol_member_joins_and_leaves_a_classic_member(
    classic: str,
    client_named: Callable[[str], Client],
    administrator: Administrator,
    new_topic: NewTopic,
    group: str,
    join: JoinGroup,
) -> None:
    topic = new_topic(PARTITIONS)
    first = join(client_named(classic), group, topic, OPTIONS)
    await_settled([first])
    produce_round(administrator, topic, [first], "round 0")
    guest = join(client_named("confluent-kafka-consumer"), group, topic, OPTIONS)
    await_settled([first, guest])
    produce_round(administrator, topic, [first, guest], "round 1")
    guest.leave()
    await_settled([first])
    produce_round(administrator, topic, [first], "round 2")
    first.leave()
    assert_once_each([first, guest], records_of(3))


def records_of(rounds: int) -> list[Record]:
    return [record for number in range(rounds) for record in round_of(f"round {number}")]
