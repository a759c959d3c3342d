"""Clients without rights look for what exists, for doors beside the rules, and for the audit log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from korvet.security.acl import Operation, PatternType, Permission, ResourceType
from korvet.security.audit import MOST_LINES_A_SECOND
from tests.api.acls import TURNED_ON, everything, on_cluster, rule, set_rules, whole_budget
from tests.api.raw import ask, created, unique
from tests.api.test_authorization import NOBODYS, REFUSALS, SECRET, T29, codes
from tests.oracle.versions import edges, supported
from tests.support.broker import KorvetServer, running_broker

TOPIC, GROUP, TRANSACTIONAL_ID = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID
READ, WRITE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.DESCRIBE
THEIRS = "g"
"""The group of `REFUSALS`, and here one that exists; and likewise the transactional id x."""
BY_NAME = [
    pytest.param(api, version, marks=() if version in edges(api) else pytest.mark.all)
    for api in REFUSALS
    for version in supported(api)
    if not (api == "produce" and version >= 13) and not (api == "fetch" and version >= 13)
]


@pytest.fixture(scope="module")
def broker() -> Iterator[KorvetServer]:
    """A broker on which a topic, a group and a transactional id of others exist."""
    with running_broker(broker=TURNED_ON) as running:
        set_rules(running, *everything())
        created(running.port, SECRET)
        committed = {"partition_index": 0, "committed_offset": 0, "committed_leader_epoch": -1}
        ask(
            running.port, "offset_commit", 8, group_id=THEIRS, generation_id_or_member_epoch=-1, member_id="",
            topics=[{"name": SECRET, "partitions": [committed]}],
        )  # fmt: skip
        asked = {"transaction_timeout": 1000, "producer_id": -1, "producer_epoch": -1}
        assert ask(running.port, "init_producer_id", 4, transactional_id="x", **asked)["error_code"] == "NONE"
        set_rules(running)
        yield running


def renamed(values: Any, names: Mapping[str, str | None]) -> Any:
    """Values with other names; elements of lists that are, or have, a name that becomes None are left out."""
    if isinstance(values, dict):
        return {field: renamed(value, names) for field, value in values.items()}
    if isinstance(values, list):
        return [renamed(value, names) for value in values if not _is_dropped(value, names)]
    return names.get(values, values) if isinstance(values, str) else values


def _is_dropped(value: Any, names: Mapping[str, str | None]) -> bool:
    dropped = {name for name, new in names.items() if new is None}
    return value in dropped if isinstance(value, str) else isinstance(value, dict) and bool(dropped & _names(value))


def _names(value: dict[str, Any]) -> set[str]:
    return {one for one in value.values() if isinstance(one, str)}


@pytest.mark.parametrize(("api", "version"), BY_NAME)
def test_what_exists_and_what_does_not_look_alike_without_a_right(broker: KorvetServer, api: str, version: int) -> None:
    values = renamed(REFUSALS[api][0], {NOBODYS: None})
    absent = {SECRET: NOBODYS, THEIRS: "none", "x": "none"}
    found = ask(broker.port, api, version, **values)
    assert renamed(found, absent) == ask(broker.port, api, version, **renamed(values, absent))


def test_lists_of_transactions_show_nothing_by_any_filter(broker: KorvetServer) -> None:
    filters: list[dict[str, Any]] = [
        {},
        {"transactional_id_pattern": "x"},
        {"transactional_id_pattern": ".*"},
        {"state_filters": ["Empty"]},
    ]
    for version in supported("list_transactions"):
        for values in filters:
            if version >= 2 or "transactional_id_pattern" not in values:
                assert ask(broker.port, "list_transactions", version, **values)["transaction_states"] == []
    for field, value in (("states_filter", "Empty"), ("types_filter", "classic")):
        assert ask(broker.port, "list_groups", 5, **{field: [value]})["groups"] == []


@pytest.mark.parametrize("version", supported("consumer_group_heartbeat"))
def test_an_expression_is_no_probe_of_names_that_the_client_may_not_describe(
    broker: KorvetServer, version: int
) -> None:
    def code(regex: str) -> set[str]:
        answer = ask(
            broker.port, "consumer_group_heartbeat", version, group_id="probe", member_id=f"m-{version}",
            member_epoch=0, rebalance_timeout=10_000, topic_partitions=[], subscribed_topic_names=[],
            subscribed_topic_regex=regex,
        )  # fmt: skip
        return codes(answer)

    group = rule(GROUP, "probe", READ)
    if version >= 1:
        for rules in (
            [rule(TOPIC, "mine", DESCRIBE)],
            [rule(TOPIC, "m", DESCRIBE, pattern=PatternType.PREFIXED)],
            [rule(TOPIC, "*", DESCRIBE), rule(TOPIC, SECRET, DESCRIBE, Permission.DENY)],
        ):
            set_rules(broker, group, *rules)
            assert code("mine.*") == code(f"{SECRET}.*") == {T29}
    set_rules(broker, group, rule(TOPIC, "*", DESCRIBE))
    assert T29 not in code("mine.*")
    set_rules(broker)


def test_a_denial_counts_at_once_after_the_permission_was_used(broker: KorvetServer) -> None:
    allowed, denied = rule(TOPIC, "*", WRITE), rule(TOPIC, SECRET, WRITE, Permission.DENY)
    asked = {"transactional_id": "y", "acks": -1, "timeout": 1000, "topic_data": REFUSALS["produce"][0]["topic_data"]}
    for rules, expected in (([allowed], False), ([allowed, denied], True), ([allowed], False)):
        set_rules(broker, *rules)
        for _ in range(2):
            answer = ask(broker.port, "produce", 9, **{**asked, "transactional_id": None})
            by_name = {one["name"]: codes(one) for one in answer["responses"]}
            assert (T29 in by_name[SECRET]) == expected
    set_rules(broker)


def test_a_name_cannot_write_lines_into_the_log(broker: KorvetServer) -> None:
    forged = "2026-01-01T00:00:00Z [info     ] changed                        audit=True principal=User:admin"
    name = f"x\n{forged}\n\x1b[2J\u202e"
    whole_budget()
    before = len(broker.log)
    ask(broker.port, "delete_topics", 6, topics=[{"name": name}])
    ask(broker.port, "find_coordinator", 5, key_type=0, coordinator_keys=[name])
    written = broker.log[before:]
    assert written.count("2026-01-01T00:00:00Z") == 2
    assert not any(line.startswith("2026-01-01") for line in written.splitlines())
    assert "\x1b[2J" not in written and "\u202e" not in written


def test_a_flood_of_refusals_is_counted_and_leaves_room_for_changes(broker: KorvetServer) -> None:
    whole_budget()
    before = len(broker.log)
    names = [{"name": unique(), "num_partitions": 1, "replication_factor": 1} for _ in range(5_000)]
    answer = ask(broker.port, "create_topics", 7, topics=names, validate_only=True)
    assert codes(answer) == {T29}
    set_rules(broker, rule(TOPIC, "mine", Operation.CREATE))
    ask(broker.port, "create_topics", 7, topics=[{"name": "mine", "num_partitions": 1, "replication_factor": 1}])
    lines = [line for line in broker.log[before:].splitlines() if "audit=True" in line]
    assert MOST_LINES_A_SECOND <= sum(" denied " in line for line in lines) < 5_000
    assert sum(" changed " in line for line in lines) == 1
    set_rules(broker)


def test_failing_changes_hide_no_change_of_a_password(broker: KorvetServer) -> None:
    """Attack: a client with one right fails to make a topic, again and again."""
    set_rules(broker, rule(TOPIC, "mine", Operation.CREATE), on_cluster(Operation.ALTER))
    wanted = [{"name": "mine", "num_partitions": 1, "replication_factor": 1}]
    secret = {"mechanism": 1, "iterations": 4096, "salt": b"salt", "salted_password": b"x" * 32}
    before = len(broker.log)
    for number in range(10):
        for _ in range(20):
            ask(broker.port, "create_topics", 7, topics=wanted)
        changed = [{"name": f"hidden-{number}", **secret}]
        assert codes(ask(broker.port, "alter_user_scram_credentials", 0, deletions=[], upsertions=changed)) == {"NONE"}
    lines = [line for line in broker.log[before:].splitlines() if " changed " in line]
    assert sum("set SCRAM-SHA-256 of hidden-" in line and "outcome=done" in line for line in lines) == 10
    set_rules(broker)
