"""``korvet groups`` on korvet and on Apache Kafka."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace as Facts
from typing import Any

import confluent_kafka
import pytest
from kio.schema.errors import ErrorCode

from korvet.cli import run
from korvet.cli.kafka.client import Client
from korvet.cli.kafka.group_rows import OFFSETS_AT_ONCE, group_rows
from korvet.cli.kafka.groups import ListedGroup, existing_group, list_groups
from korvet.errors import KorvetError
from tests.api.consumers import Member as RawMember
from tests.api.consumers import share_beat
from tests.api.groups import entered, join, leave, stable, sync
from tests.api.raw import created
from tests.cli.conftest import Korvet, Shown
from tests.kafka.waiting import poll_until
from tests.support.broker import KorvetServer
from tests.support.times import DAY, HOUR_MS, MIDNIGHT_MS

Ask = Callable[..., Any]
Produce = Callable[[str, int, Iterable[int]], None]
WITHIN_S = 60.0


@pytest.fixture
def korvet_broker(broker: KorvetServer, capsys: pytest.CaptureFixture[str]) -> Korvet:
    """Run a command on korvet alone: exit code, stdout and stderr."""

    def korvet(*arguments: str) -> Shown:
        capsys.readouterr()
        code = run([*arguments, "--bootstrap-server", broker.bootstrap])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return korvet


@pytest.fixture
def topic(korvet: Korvet, produce: Produce, name: str) -> str:
    """A topic with ten records an hour apart in partition 0 and none in partition 1."""
    korvet("topics", "create", name, "--partitions", "2")
    produce(name, 0, [MIDNIGHT_MS + hour * HOUR_MS for hour in range(10)])
    return name


@pytest.fixture
def group(bootstrap: str, topic: str, name: str) -> str:
    """A group without members that has read four records of partition 0."""
    group = f"{name}-group"
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    consumer.commit(offsets=[confluent_kafka.TopicPartition(topic, 0, 4)], asynchronous=False)
    consumer.close()
    return group


@pytest.fixture
def member(bootstrap: str, topic: str, group: str) -> Iterator[confluent_kafka.Consumer]:
    """The group's only member, which has both partitions."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group, "client.id": "reader"})
    consumer.subscribe([topic])
    deadline = time.monotonic() + WITHIN_S
    while not consumer.assignment():
        assert time.monotonic() < deadline, "the member got no assignment"
        consumer.poll(0.1)
    yield consumer
    consumer.close()


def not_empty(group: str) -> str:
    """The message for the deletion of a group that has members."""
    return f"korvet: group '{group}': NON_EMPTY_GROUP; stop its consumers and try again\n"


def offset(ask: Ask, group: str, partition: int = 0) -> int | None:
    """The group's committed offset in a partition."""
    (described,) = ask("groups", "describe", group)
    found: list[int | None] = [
        item["current_offset"] for item in described["partitions"] if item["partition"] == partition
    ]
    return found[0] if found else None


def test_groups_are_listed_by_state_with_their_lag(ask: Ask, group: str) -> None:
    listed = [item for item in ask("groups", "list") if item["group"] == group]
    assert [(item["state"], item["members"], item["lag"]) for item in listed] == [("Empty", 0, 6)]
    assert group in [item["group"] for item in ask("groups", "list", "--state", "Empty")]
    assert group not in [item["group"] for item in ask("groups", "list", "--state", "Stable")]


class CountingClient(Client):
    """A client that counts its requests."""

    requests = 0

    def ask(self, *arguments: Any) -> Any:
        self.requests += 1
        return super().ask(*arguments)


def test_list_of_many_groups_costs_few_requests_and_has_a_bound(bootstrap: str, topic: str, name: str) -> None:
    listed = []
    for number in range(2 * OFFSETS_AT_ONCE):
        group = f"{name}-{number}"
        consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
        consumer.commit(offsets=[confluent_kafka.TopicPartition(topic, 0, number % 10)], asynchronous=False)
        consumer.close()
        listed.append(ListedGroup(group=group, state="Empty", protocol_type="consumer", type="classic"))
    lags = [10 - number % 10 for number in range(len(listed))]
    with CountingClient(bootstrap) as client:
        assert [(row.members, row.lag) for row in group_rows(client, listed)] == [(0, lag) for lag in lags]
        # The coordinators, the members, offsets in two pieces, leaders and ends.
        assert client.requests == 6
        few = group_rows(client, listed, most_offsets=1)
    assert [row.lag for row in few] == lags[:OFFSETS_AT_ONCE] + [None] * OFFSETS_AT_ONCE


def test_description_shows_offsets_and_lag(korvet: Korvet, ask: Ask, group: str, topic: str) -> None:
    (described,) = ask("groups", "describe", group)
    assert (described["state"], described["members"]) == ("Empty", [])
    assert described["partitions"] == [
        {
            "topic": topic,
            "partition": 0,
            "current_offset": 4,
            "end_offset": 10,
            "lag": 6,
            "member_id": None,
            "host": None,
            "client_id": None,
        }
    ]
    _, out, _ = korvet("groups", "describe", group)
    assert out.splitlines()[0] == f"Group {group}   state Empty   no members"
    assert out.splitlines()[-1].split()[:5] == [topic, "0", "4", "10", "6"]


def test_description_shows_the_groups_own_id_and_locator(
    korvet: Korvet, ask: Ask, group: str, member: confluent_kafka.Consumer, request: pytest.FixtureRequest
) -> None:
    (described,) = ask("groups", "describe", group)
    if request.node.callspec.params["bootstrap"] == "kafka":
        assert (described["id"], described["locator"]) == (None, None)
        return
    assert re.fullmatch("cgp_[0-9A-HJKMNP-TV-Z]{26}", described["id"])
    assert described["locator"] == f"default/consumer-groups/{group}"
    assert korvet("groups", "describe", group)[1].splitlines()[1] == f"{described['id']}   {described['locator']}"
    member.close()
    (left,) = ask("groups", "describe", group)
    assert (left["state"], left["id"]) == ("Empty", described["id"])


def test_description_shows_the_partitions_of_each_member(
    ask: Ask, group: str, member: confluent_kafka.Consumer
) -> None:
    (described,) = ask("groups", "describe", group)
    assert (described["state"], described["protocol"]) == ("Stable", "range")
    assert [(item["client_id"], item["partitions"]) for item in described["members"]] == [("reader", 2)]
    owners = {(item["partition"], item["client_id"], item["member_id"]) for item in described["partitions"]}
    member_id = described["members"][0]["member_id"]
    assert owners == {(0, "reader", member_id), (1, "reader", member_id)}


@pytest.fixture
def subscriber(bootstrap: str, topic: str, group: str) -> Iterator[confluent_kafka.Consumer]:
    """The only member of the group by the consumer protocol, which has both partitions."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "client.id": "reader", "group.protocol": "consumer"}
    )
    consumer.subscribe([topic])
    deadline = time.monotonic() + WITHIN_S
    while len(consumer.assignment()) < 2:
        assert time.monotonic() < deadline, "the member got no assignment"
        consumer.poll(0.1)
    yield consumer
    consumer.close()


def test_groups_are_listed_by_type(
    korvet: Korvet, ask: Ask, group: str, subscriber: confluent_kafka.Consumer, name: str, topic: str
) -> None:
    classic = f"{name}-classic"
    assert korvet("groups", "reset-offsets", classic, "--topic", topic, "--to-latest", "--execute")[0] == 0

    def listed(*options: str) -> dict[str, tuple[str, int]]:
        found = ask("groups", "list", *options)
        return {item["group"]: (item["type"], item["members"]) for item in found if item["group"] in (group, classic)}

    assert listed() == {group: ("consumer", 1), classic: ("classic", 0)}
    assert listed("--type", "consumer") == {group: ("consumer", 1)}
    assert listed("--type", "classic") == {classic: ("classic", 0)}
    assert korvet("groups", "list", "--type", "streams")[0] == 2


def test_description_of_a_consumer_group_shows_epochs_and_targets(
    korvet: Korvet, ask: Ask, group: str, topic: str, subscriber: confluent_kafka.Consumer
) -> None:
    (described,) = ask("groups", "describe", group)
    assert (described["type"], described["state"], described["protocol"]) == ("consumer", "Stable", "uniform")
    assert described["waits"] == []
    (member,) = described["members"]
    assert described["group_epoch"] == described["assignment_epoch"] == member["epoch"] > 0
    assert member["assignment"] == member["target"] == [f"{topic}-0", f"{topic}-1"]
    assert (member["client_id"], member["protocol"], member["partitions"]) == ("reader", "consumer", 2)
    assert {item["member_id"] for item in described["partitions"]} == {member["member_id"]}
    lines = korvet("groups", "describe", group)[1].splitlines()
    assert lines[0] == f"Group {group}   type consumer   state Stable   protocol uniform   1 member"
    assert f"group epoch {member['epoch']}   assignment epoch {member['epoch']}" in lines
    assert lines[-1].split()[-2:] == [f"{topic}-0…1"] * 2


def test_older_broker_shows_groups_without_their_type(
    bootstrap: str, group: str, subscriber: confluent_kafka.Consumer
) -> None:
    class Older(Client):
        def serves(self, api: str, version: int) -> bool:
            return (api, version) == ("consumer_group_describe", 0)

    with Older(bootstrap) as client:
        types = [one.type for one in list_groups(client) if one.group == group]
        assert (types, [member.protocol for member in existing_group(client, group).members]) == (["classic"], [None])


def test_consumer_group_is_reset_and_deleted_when_its_members_left(
    korvet: Korvet, ask: Ask, group: str, topic: str, subscriber: confluent_kafka.Consumer
) -> None:
    reset = ("groups", "reset-offsets", group, "--topic", f"{topic}:0", "--to-latest", "--execute")
    assert korvet("groups", "delete", group, "--execute") == (1, "", not_empty(group))
    assert korvet(*reset)[0] == 1
    subscriber.close()
    assert korvet(*reset)[0] == 0
    assert offset(ask, group) == 10
    assert korvet("groups", "delete", group, "--execute")[0] == 0


def test_description_names_the_members_that_hold_up_a_consumer_group(
    broker: KorvetServer, korvet_broker: Korvet, name: str
) -> None:
    topic = created(broker.port, name, partitions=2)
    one, two = (RawMember(broker.port, name, id, subscribed_topic_names=[topic]) for id in ("one", "two"))

    def waits() -> list[str]:
        lines = korvet_broker("groups", "describe", name)[1].splitlines()
        return [line.removeprefix("not settled: ") for line in lines if line.startswith("not settled: ")]

    one.join()
    two.join()
    assert waits() == [f"one has to give up {topic}-1", f"two waits for {topic}-1, which one still has"]
    one.beat()
    assert waits() == [f"one has to give up {topic}-1", f"two waits for {topic}-1, which one still has"]
    one.beat()
    assert waits() == [f"two has yet to take {topic}-1"]
    two.beat()
    assert waits() == []
    one.leave()
    assert waits() == ["the target is of epoch 2, and a heartbeat has yet to make that of 3"]


def test_description_names_the_members_that_hold_up_a_classic_rebalance(
    broker: KorvetServer, korvet_broker: Korvet, name: str
) -> None:
    def waits() -> list[str]:
        lines = korvet_broker("groups", "describe", name)[1].splitlines()
        found = [line.removeprefix("not settled: ") for line in lines if line.startswith("not settled: ")]
        return [re.sub(r"within \d+\.\d s", "within T", sentence) for sentence in found]

    sleeper = stable(broker.port, name)
    assert waits() == []
    with ThreadPoolExecutor(2) as aside:
        second = aside.submit(entered, broker.port, name)
        poll_until(lambda: len(waits()) == 1, "the rebalance")
        assert waits() == [
            f"{sleeper} at /127.0.0.1 has yet to join the rebalance within T, else the group goes on without it"
        ]
        third = join(broker.port, name)["member_id"]
        assert waits()[1:] == [f"{third} is the id of a new member, which has yet to join with it"]
        leave(broker.port, name, third)
        assert join(broker.port, name, sleeper)["generation_id"] == 2
        member = second.result(20)["member_id"]
    asks = "has yet to ask for its partitions within T, else it is left out"
    assert sorted(waits()) == sorted(
        [
            f"{sleeper} at /127.0.0.1 leads and has yet to hand out the partitions within T",
            f"{member} at /127.0.0.1 {asks}",
        ]
    )
    sync(broker.port, name, sleeper, 2, {member: b"F"})
    assert waits() == [f"{member} at /127.0.0.1 {asks}"]
    sync(broker.port, name, member, 2)
    assert waits() == []


def test_members_names_reach_the_terminal_escaped(broker: KorvetServer, korvet_broker: Korvet, name: str) -> None:
    id = f"{name}-\x1b[2J\u202e"
    RawMember(broker.port, name, id, subscribed_topic_names=[created(broker.port, name)]).join()
    shown = korvet_broker("groups", "describe", name)[1]
    assert f"{name}-\\x1b[2J\\u202e" in shown
    assert "\x1b" not in shown


def test_member_is_removed(korvet: Korvet, ask: Ask, group: str, member: confluent_kafka.Consumer) -> None:
    (described,) = ask("groups", "describe", group)
    id, host = (described["members"][0][part] for part in ("member_id", "host"))
    code, _, err = korvet("groups", "remove-member", group, "nobody")
    advice = f"see its members with: korvet groups describe {group}"
    assert (code, err) == (1, f"korvet: group '{group}' has no member 'nobody'; {advice}\n")
    assert korvet("groups", "remove-member", group)[0] == 2
    assert korvet("groups", "remove-member", group, id) == (0, f"removed member {id} (reader at {host})\n", "")
    assert id not in [one["member_id"] for one in ask("groups", "describe", group)[0]["members"]]


def test_members_of_the_consumer_protocol_are_removed(
    korvet: Korvet, ask: Ask, group: str, subscriber: confluent_kafka.Consumer
) -> None:
    code, out, _ = korvet("groups", "remove-member", group, "--all")
    assert (code, out.startswith("removed member "), out.count("\n")) == (0, True, 1)
    assert ask("groups", "describe", group)[0]["members"] == []
    assert korvet("groups", "remove-member", group, "--all") == (0, f"group {group} has no members\n", "")


def test_static_member_is_removed_by_its_instance_id(korvet: Korvet, ask: Ask, bootstrap: str, name: str) -> None:
    korvet("topics", "create", name)
    settings = {"bootstrap.servers": bootstrap, "group.id": name, "group.instance.id": "one"}
    consumer = confluent_kafka.Consumer(settings)
    consumer.subscribe([name])
    deadline = time.monotonic() + WITHIN_S
    while not consumer.assignment():
        assert time.monotonic() < deadline, "the member got no assignment"
        consumer.poll(0.1)
    consumer.close()
    assert [member["instance_id"] for member in ask("groups", "describe", name)[0]["members"]] == ["one"]
    code, _, err = korvet("groups", "remove-member", name, "--instance", "two")
    assert (code, "has no member with the instance id 'two'" in err) == (1, True)
    assert korvet("groups", "remove-member", name, "--instance", "one")[0] == 0
    assert ask("groups", "describe", name)[0]["members"] == []


def test_unknown_group_is_one_line(korvet: Korvet, name: str) -> None:
    code, _, err = korvet("groups", "describe", name)
    assert (code, err) == (1, f"korvet: no group '{name}'; see all groups with: korvet groups list\n")


def test_group_is_deleted(korvet: Korvet, ask: Ask, group: str) -> None:
    code, out, err = korvet("groups", "delete", group)
    assert (code, out.splitlines()[1].split()) == (1, [group, "Empty", "0", "6"])
    assert err == "nothing was changed; add --execute to do it\n"
    assert korvet("groups", "delete", group, group, "--execute") == (0, f"deleted group {group}\n", "")
    assert group not in [item["group"] for item in ask("groups", "list")]
    code, _, err = korvet("groups", "delete", group, "--execute")
    advice = "see all groups with: korvet groups list"
    assert (code, err) == (1, f"korvet: group '{group}': GROUP_ID_NOT_FOUND; {advice}\n")


def test_group_with_members_is_not_deleted(korvet: Korvet, group: str, member: confluent_kafka.Consumer) -> None:
    assert korvet("groups", "delete", group, "--execute") == (1, "", not_empty(group))
    assert "with 1 member; it can be deleted only while nobody consumes" in korvet("groups", "delete", group)[2]


def test_reset_is_only_shown_without_execute(korvet: Korvet, ask: Ask, group: str, topic: str) -> None:
    code, out, err = korvet("groups", "reset-offsets", group, "--all-topics", "--to-earliest")
    assert (code, err) == (1, "nothing was changed; add --execute to do it\n")
    assert out.splitlines()[1].split() == [topic, "0", "4", "0"]
    assert offset(ask, group) == 4


@pytest.mark.parametrize(
    ("goal", "expected"),
    [
        (["--to-earliest"], 0),
        (["--to-latest"], 10),
        (["--to-offset", "7"], 7),
        (["--to-offset", "700"], 10),
        (["--shift-by", "2"], 6),
        (["--shift-by", "-3"], 1),
        (["--shift-by", "-300"], 0),
        (["--to-datetime", f"{DAY}T03:00:00"], 3),
        (["--to-datetime", f"{DAY}T05:30:00.500+01:00"], 5),
        (["--to-datetime", "2999-01-01T00:00:00Z"], 10),
        # In milliseconds since 1970 these two are -1 and -2, which ask a broker for the end and the start.
        (["--to-datetime", "1969-12-31T23:59:59.999Z"], 0),
        (["--to-datetime", "1969-12-31T23:59:59.998Z"], 0),
    ],
)
def test_offsets_are_reset(korvet: Korvet, ask: Ask, group: str, topic: str, goal: list[str], expected: int) -> None:
    code, _, err = korvet("groups", "reset-offsets", group, "--topic", f"{topic}:0", *goal, "--execute")
    assert (code, err) == (0, "")
    assert offset(ask, group) == expected


def test_partitions_without_an_offset_get_one(korvet: Korvet, ask: Ask, group: str, topic: str) -> None:
    assert korvet("groups", "reset-offsets", group, "--topic", topic, "--to-latest", "--execute")[0] == 0
    assert (offset(ask, group, 0), offset(ask, group, 1)) == (10, 0)


def test_shift_needs_an_offset(korvet: Korvet, group: str, topic: str) -> None:
    code, _, err = korvet("groups", "reset-offsets", group, "--topic", topic, "--shift-by", "1")
    assert (code, err) == (1, f"korvet: cannot shift {topic}-1: the group has committed no offset there\n")


def test_unknown_partition_is_one_line(korvet: Korvet, group: str, topic: str) -> None:
    code, _, err = korvet("groups", "reset-offsets", group, "--topic", f"{topic}:7", "--to-latest")
    assert (code, err) == (1, f"korvet: topic '{topic}' has no partition 7; it has 0 to 1\n")


def test_group_with_members_is_not_reset(
    korvet: Korvet, ask: Ask, group: str, member: confluent_kafka.Consumer
) -> None:
    reset = ("groups", "reset-offsets", group, "--all-topics", "--to-latest")
    hindrance = f"group '{group}' is Stable with 1 member; offsets can be reset only while"
    code, out, err = korvet(*reset)
    assert (code, out.count("\n"), err.startswith(f"nothing was changed; {hindrance}")) == (1, 2, True)
    code, _, err = korvet(*reset, "--execute")
    assert (code, err.startswith(f"korvet: {hindrance}")) == (1, True)


def test_reset_makes_a_group_that_does_not_exist(korvet: Korvet, ask: Ask, topic: str, name: str) -> None:
    group = f"{name}-new"
    assert korvet("groups", "reset-offsets", group, "--topic", topic, "--to-latest", "--execute")[0] == 0
    assert offset(ask, group) == 10


def test_group_of_another_type_is_no_missing_group() -> None:
    class Listing(Client):
        def serves(self, *_: object) -> bool:
            return True

        def brokers(self) -> Iterable[int]:
            return (1,)

        def ask(self, request: Any, *_: object) -> Any:
            none = ErrorCode.none
            match request.schema.__name__:
                case "ListGroupsRequest":
                    one = Facts(group_id="g", group_state="Stable", protocol_type="share", group_type="Share")
                    return Facts(error_code=none, groups=[one])
                case "FindCoordinatorRequest":
                    return Facts(coordinators=[Facts(error_code=none, error_message="", host="h", port=1)])
            none_such = {"group_state": "Dead", "protocol_type": "", "protocol_data": "", "members": ()}
            return Facts(groups=[Facts(error_code=ErrorCode.group_id_not_found, **none_such)])

    with Listing() as client, pytest.raises(KorvetError, match="group 'g' is of the type share, which only Kafka's"):
        existing_group(client, "g")


def test_share_group_is_listed_described_reset_and_deleted(
    broker: KorvetServer, korvet_broker: Korvet, name: str
) -> None:
    korvet, group = korvet_broker, f"{name}-sharing"
    topic = created(broker.port, partitions=2)
    assert korvet("groups", "reset-offsets", group, "--topic", topic, "--to-earliest", "--execute")[0] == 0
    # A group that does not exist yet becomes a consumer group.
    assert korvet("groups", "delete", group, "--execute")[0] == 0
    for member, epoch, *names in (("a", 0, topic), ("b", 0, topic), ("a", 1)):
        assert share_beat(broker.port, group, member, epoch, *names)["error_code"] == "NONE"
    out = korvet("groups", "list", "--type", "share", "--json")[1]
    (listed,) = [one for one in json.loads(out) if one["group"] == group]
    assert listed == {
        "group": group, "type": "share", "state": "Stable", "protocol_type": "share", "members": 2, "lag": None,
    }  # fmt: skip
    (described,) = json.loads(korvet("groups", "describe", group, "--json")[1])
    assert (described["type"], described["protocol"], described["group_epoch"]) == ("share", "simple", 2)
    assert [(one["member_id"], one["partitions"], one["protocol"]) for one in described["members"]] == [
        ("a", 1, "share"), ("b", 1, "share"),
    ]  # fmt: skip
    assert [(one["partition"], one["current_offset"], one["end_offset"]) for one in described["partitions"]] == [
        (0, None, 0), (1, None, 0),
    ]  # fmt: skip
    assert "type share   state Stable   protocol simple   2 members" in korvet("groups", "describe", group)[1]
    reset = ("groups", "reset-offsets", group, "--topic", topic, "--to-latest")
    assert "stop its consumers" in korvet(*reset, "--execute")[2]
    assert "removed member a" in korvet("groups", "remove-member", group, "a")[1]
    assert korvet("groups", "remove-member", group, "--all")[0] == 0
    assert korvet(*reset, "--execute")[0] == 0
    (described,) = json.loads(korvet("groups", "describe", group, "--json")[1])
    assert [(one["current_offset"], one["lag"]) for one in described["partitions"]] == [(0, 0), (0, 0)]
    assert korvet("groups", "reset-offsets", group, "--all-topics", "--shift-by", "5", "--execute")[0] == 0
    assert korvet("groups", "delete", group, "--execute")[0] == 0
    assert "no group" in korvet("groups", "describe", group)[2]


def test_settings_of_a_group_to_come_are_changed_and_taken_back(korvet: Korvet, ask: Ask, name: str) -> None:
    def shown() -> tuple[str, str]:
        settings = {item["name"]: item for item in ask("groups", "configure", name)}
        return settings["share.auto.offset.reset"]["value"], settings["share.auto.offset.reset"]["source"]

    changed = korvet("groups", "configure", name, "--set", "share.auto.offset.reset=earliest")
    assert changed == (0, f"configured group {name}\n", "")
    poll_until(lambda: shown() == ("earliest", "group"), "the setting")
    code, _, err = korvet("groups", "configure", name, "--set", "share.nosuch=1")
    assert (code, err) == (1, f"korvet: group '{name}': INVALID_CONFIG: Unknown group config name: share.nosuch\n")
    korvet("groups", "configure", name, "--unset", "share.auto.offset.reset")
    poll_until(lambda: shown() == ("latest", "default"), "the default")
