"""The chaos checks: each finds its violation in made-up journals, and nothing in those of a good run."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import KafkaError

from scripts.chaosrun import checks
from scripts.chaosrun.checks import GroupState
from scripts.chaosrun.confluent_members import is_fatal
from scripts.chaosrun.journal import (
    Acknowledged,
    Assigned,
    Committed,
    Consumed,
    Event,
    Journal,
    Journals,
    Logged,
    Partition,
    Revoked,
    Troubled,
)

GROUP = "g"
PARTITION: Partition = ("t", 0)
OTHER: Partition = ("t", 1)


def _assigned(
    at_us: int, client: str, generation: int, *owned: Partition, added: Sequence[Partition] | None = None
) -> Event:
    return Assigned(
        at_us=at_us, client=client, group=GROUP, member_id=f"{client}-id", generation=generation,
        added=list(owned if added is None else added), owned=list(owned),
    )  # fmt: skip


def _revoked(at_us: int, client: str, *partitions: Partition) -> Revoked:
    return Revoked(at_us=at_us, client=client, group=GROUP, partitions=list(partitions), lost=False)


def _consumed(at_us: int, client: str, offset: int, *, generation: int = 1, value: str = "") -> Event:
    return Consumed(
        at_us=at_us, client=client, group=GROUP, member_id=f"{client}-id", generation=generation, partition=PARTITION,
        offset=offset, value=value or f"p:{offset}",
    )  # fmt: skip


def _committed(at_us: int, client: str, offset: int) -> Event:
    return Committed(at_us=at_us, client=client, group=GROUP, offsets=[(PARTITION, offset)])


def _acknowledged(at_us: int, offset: int | None, value: str = "") -> Event:
    return Acknowledged(at_us=at_us, client="p", partition=PARTITION, offset=offset, value=value or f"p:{offset}")


def _state(
    committed: int = 0, *, generation: int = 1, members: Sequence[str] = ("a-id",), state: str = "Stable"
) -> GroupState:
    return GroupState(
        state=state, generation=generation, members={member: member for member in members},
        committed={PARTITION: committed},
    )  # fmt: skip


GOOD_RUN = [
    _assigned(1, "a", 1, PARTITION, OTHER),
    _acknowledged(2, 0),
    _consumed(3, "a", 0),
    _acknowledged(4, 1),
    _consumed(5, "a", 1),
    _committed(6, "a", 2),
    _revoked(7, "a", PARTITION),
    _assigned(8, "a", 2, OTHER, added=[]),
    _assigned(9, "b", 2, PARTITION),
    _acknowledged(10, None, "p:2"),
    _consumed(11, "b", 2, generation=2),
    _committed(12, "b", 3),
]


def test_checks_find_nothing_in_a_good_run() -> None:
    states = {GROUP: _state(3)}
    assert checks.lost_commits(GOOD_RUN, states) == []
    assert checks.forgotten_positions(GOOD_RUN) == []
    assert checks.shared_partitions(GOOD_RUN) == []
    assert checks.overlapping_owners(GOOD_RUN) == []
    assert checks.undelivered(GOOD_RUN, [GROUP]) == {}
    assert checks.disordered(GOOD_RUN) == []
    assert checks.repeated(GOOD_RUN) == []
    assert checks.gave_up(GOOD_RUN) == []
    assert checks.rebalanced(states, states) == []
    assert checks.replaced(states, states) == []


def test_commit_above_the_brokers_position_is_lost() -> None:
    assert checks.lost_commits(GOOD_RUN, {GROUP: _state(2)}) == [
        "g t:0: b's commit of 3 was acknowledged, the broker has 2"
    ]
    nothing = GroupState(state="Dead", generation=-1, members={}, committed={})
    assert len(checks.lost_commits(GOOD_RUN, {GROUP: nothing})) == 1


def test_commit_acknowledged_while_history_may_be_lost_is_not_owed() -> None:
    assert checks.lost_commits(GOOD_RUN, {GROUP: _state(2)}, forgiven=[(12, 13)]) == []
    assert len(checks.lost_commits(GOOD_RUN, {GROUP: _state(2)}, forgiven=[(13, 14)])) == 1


def test_owner_that_begins_below_a_commit_got_a_forgotten_position() -> None:
    events = [
        *GOOD_RUN,
        _revoked(13, "b", PARTITION),
        _assigned(14, "c", 3, PARTITION),
        _consumed(15, "c", 2, generation=3),
    ]
    assert checks.forgotten_positions(events) == ["c began ('t', 0) at 2, 3 had been committed"]


def test_commit_acknowledged_after_an_assignment_is_not_forgotten() -> None:
    events = [_assigned(1, "a", 1, PARTITION), _committed(2, "b", 3), _consumed(3, "a", 2)]
    assert checks.forgotten_positions(events) == []


def test_committed_offset_may_not_go_back() -> None:
    samples = [(at, {GROUP: state}) for at, state in enumerate([_state(2), _state(3), _state(1)])]
    assert checks.went_back(samples) == ["g: ('t', 0) went back from 3 to 1"]
    assert checks.went_back(samples, forgiven=[(2, 2)]) == []
    assert checks.went_back(samples[:2]) == []


def test_two_clients_assigned_one_partition_in_one_generation_share_it() -> None:
    events = [_assigned(1, "a", 1, PARTITION), _revoked(2, "a", PARTITION), _assigned(3, "b", 1, PARTITION)]
    assert checks.shared_partitions(events) == ["g, generation 1: ('t', 0) belongs to a and b"]


def test_partition_kept_over_a_rebalance_keeps_its_owner() -> None:
    events = [
        _assigned(1, "a", 1, PARTITION),
        _assigned(2, "a", 2, PARTITION, added=[]),
        _assigned(3, "b", 2, PARTITION),
    ]
    assert len(checks.shared_partitions(events)) == 1


def test_two_clients_that_consume_one_partition_in_one_generation_share_it() -> None:
    assert len(checks.shared_partitions([_consumed(1, "a", 0), _consumed(2, "b", 0)])) == 1
    assert checks.shared_partitions([_consumed(1, "a", 0), _consumed(2, "b", 0, generation=2)]) == []


def test_partition_assigned_before_its_owner_gave_it_up_has_two_owners() -> None:
    events = [_assigned(1, "a", 1, PARTITION), _assigned(2000, "b", 2, PARTITION), _revoked(5000, "a", PARTITION)]
    assert checks.overlapping_owners(events) == ["g: b got ('t', 0) 3 ms before a gave it up"]
    assert checks.overlapping_owners(sorted(events, key=lambda event: isinstance(event, Assigned))) != []


def test_partition_consumed_after_its_loss_has_two_owners() -> None:
    events = [_assigned(1, "a", 1, PARTITION), _assigned(2000, "b", 2, PARTITION), _consumed(3000, "a", 7)]
    assert len(checks.overlapping_owners(events)) == 1
    assert checks.overlapping_owners(events[:2]) == []


def test_consumer_protocol_member_owns_only_partitions_that_it_read() -> None:
    events = [
        _assigned(1, "a", 1, PARTITION), _consumed(2, "a", 0), _assigned(2000, "b", 2, PARTITION),
        _revoked(5000, "a", PARTITION), _consumed(6000, "b", 1, generation=2),
    ]  # fmt: skip
    assert checks.overlapping_owners(events, {"a", "b"}) == ["g: b got ('t', 0) 3 ms before a gave it up"]
    without_a_s, without_b_s = ([event for event in events if event != events[at]] for at in (1, 4))
    assert checks.overlapping_owners(without_a_s, {"a"}) == []
    assert checks.overlapping_owners(without_b_s, {"b"}) == []
    assert len(checks.overlapping_owners(without_a_s, {"b"})) == 1
    assert len(checks.overlapping_owners(without_b_s, {"a"})) == 1
    reads_late = [*without_a_s, _consumed(4000, "a", 0)]
    assert len(checks.overlapping_owners(reads_late, {"a", "b"})) == 1


def test_member_that_lost_a_partition_may_have_known_late() -> None:
    lost = replace(_revoked(5, "a", PARTITION), lost=True)
    events = [_assigned(1, "a", 1, PARTITION), _assigned(2, "b", 2, PARTITION), _consumed(3, "a", 7), lost]
    assert checks.overlapping_owners(events[:3]) != []
    assert checks.overlapping_owners(events) == []


def test_partition_that_comes_back_was_not_owned_in_between() -> None:
    events = [
        _assigned(1, "a", 1, PARTITION), _revoked(2, "a", PARTITION), _assigned(3, "b", 2, PARTITION),
        _revoked(4, "b", PARTITION), _assigned(5, "a", 3, PARTITION), _consumed(6, "a", 0),
    ]  # fmt: skip
    assert checks.overlapping_owners(events) == []


def test_record_that_a_group_has_not_seen_is_undelivered() -> None:
    assert checks.undelivered([*GOOD_RUN, _acknowledged(13, 3)], [GROUP, "h"]) == {GROUP: 1, "h": 4}


def test_other_record_at_an_acknowledged_offset_does_not_replace_it() -> None:
    events = [_acknowledged(1, 0, "p:0"), _consumed(2, "a", 0, value="q:7")]
    assert checks.undelivered(events, [GROUP]) == {GROUP: 1}


@pytest.mark.parametrize("offset", [0, 1, 3])
def test_record_before_the_last_one_or_beyond_the_next_is_out_of_order(offset: int) -> None:
    events = [_assigned(1, "a", 1, PARTITION), _consumed(2, "a", 0), _consumed(3, "a", 1), _consumed(4, "a", offset)]
    assert checks.disordered(events) == [f"a got ('t', 0) {offset} after 1"]


def test_records_come_again_to_a_new_owner_and_after_a_new_assignment() -> None:
    events = [
        _assigned(1, "a", 1, PARTITION), _consumed(2, "a", 0), _consumed(3, "a", 1),
        _assigned(4, "b", 2, PARTITION), _consumed(5, "b", 0, generation=2),
        _assigned(6, "a", 3, PARTITION), _consumed(7, "a", 0, generation=3),
    ]  # fmt: skip
    assert checks.disordered(events) == []


def test_record_at_two_offsets_was_appended_twice() -> None:
    events = [_acknowledged(1, 0, "p:0"), _consumed(2, "a", 1, value="p:0")]
    assert checks.repeated(events) == ["p:0 lies at [(('t', 0), 0), (('t', 0), 1)]"]


def test_client_gave_up_only_if_its_error_was_fatal() -> None:
    error = Troubled(at_us=1, client="a", text="fenced", fatal=True)
    passing = Troubled(at_us=1, client="b", text="coordinator not available", fatal=False)
    assert checks.gave_up([error, passing]) == ["a: fenced"]


def test_librdkafka_client_reports_its_end_by_code_or_by_flag() -> None:
    assert is_fatal(KafkaError(KafkaError._FATAL))
    assert is_fatal(KafkaError(KafkaError.FENCED_INSTANCE_ID, "fenced", True))
    assert not is_fatal(KafkaError(KafkaError.UNKNOWN_MEMBER_ID))


def test_group_with_another_generation_rebalanced() -> None:
    before, after = {GROUP: _state(generation=3)}, {GROUP: _state(generation=5)}
    assert checks.rebalanced(before, after) == ["g went from generation 3 to 5"]
    assert checks.rebalanced(before, after, {GROUP: 2}) == []
    assert len(checks.rebalanced(before, after, {GROUP: 1, "another": 2})) == 1
    assert checks.rebalanced(after, before, {GROUP: 2}) == ["g went from generation 5 to 3"]


def test_member_with_a_new_id_was_replaced() -> None:
    before, after = {GROUP: _state(members=["a-id", "b-id"])}, {GROUP: _state(members=["a-id", "c-id"])}
    assert checks.replaced(before, after) == ["g lost b-id"]
    assert checks.replaced(before, after, {"b-id"}) == []
    assert len(checks.replaced(before, after, {"a-id"})) == 1


def test_log_of_librdkafka_shows_that_a_client_ended_its_session() -> None:
    ended = Logged(
        at_us=1, client="a",
        text="SESSTMOUT [a#consumer-1] [thrd:main]: Consumer group session timed out (in join-state steady) after "
        "10204 ms without a successful response from the group coordinator (broker 5, last error was Local: Broker "
        "transport failure): revoking assignment and rejoining group",
    )  # fmt: skip
    assert checks.ended_sessions([*GOOD_RUN, ended, _rejoined(2, "b", "orders=[]")]) == {"a"}


UNREACHABLE = "Rebootstrapping with [/127.0.0.1:13540]"


def _rejoined(at_us: int, client: str, partitions: str) -> Event:
    return Logged(
        at_us=at_us, client=client,
        text="Request joining group due to: cached metadata has changed from (version2: {orders=[NO_RACKS, NO_RACKS]}) "
        f"at the beginning of the rebalance to (version34: {{{partitions}}})",
    )  # fmt: skip


def test_java_client_without_a_broker_forgets_its_topics_and_rejoins_once() -> None:
    unreachable = [Logged(at_us=at, client="a", text=UNREACHABLE) for at in (1, 2)]
    rejoined = _rejoined(3, "a", "payments=[], my.orders-1=[]")
    assert checks.forgot_topics([rejoined, *unreachable]) == {"a": 1}
    assert checks.forgot_topics([*unreachable, rejoined, _rejoined(4, "a", "orders=[]")]) == {"a": 1}


@pytest.mark.parametrize("partitions", ["orders=[NO_RACKS]", "orders=[], payments=[NO_RACKS, NO_RACKS]"])
def test_java_client_that_rejoins_for_other_partitions_forgot_no_topics(partitions: str) -> None:
    unreachable = Logged(at_us=1, client="a", text=UNREACHABLE)
    assert checks.forgot_topics([unreachable, _rejoined(2, "a", partitions)]) == {}


def test_java_client_that_reached_a_broker_forgot_no_topics() -> None:
    unreachable = Logged(at_us=1, client="b", text=UNREACHABLE)
    assert checks.forgot_topics([unreachable, _rejoined(2, "a", "orders=[]")]) == {}
    assert checks.forgot_topics([replace(unreachable, client="a", at_us=3), _rejoined(2, "a", "orders=[]")]) == {}


def test_clients_without_a_sign_of_life_are_unanswered() -> None:
    assert checks.unanswered(GOOD_RUN, ["a", "b", "p"], since_us=8) == {"a"}
    assert checks.answered_after(GOOD_RUN, ["b", "p"], since_us=8) == pytest.approx(2e-6)


def test_longest_silence_counts_from_the_beginning_to_the_end() -> None:
    seconds = [_consumed(at * 1_000_000, "a", at) for at in (1, 2, 5)]
    assert checks.longest_silence(seconds, ["a"], 0, 6_000_000) == (3.0, "a")
    assert checks.longest_silence(seconds, ["a"], 0, 9_000_000) == (4.0, "a")
    assert checks.longest_silence(seconds, ["a", "b"], 0, 6_000_000) == (6.0, "b")


def test_events_come_back_from_a_journal_as_they_were_written(tmp_path: Path) -> None:
    with Journal(tmp_path / "a.jsonl") as journal:
        for event in [*GOOD_RUN, Troubled(at_us=1, client="a", text="fenced", fatal=True)]:
            journal.add(event)
    journals = Journals(tmp_path)
    assert journals.read()[: len(GOOD_RUN)] == GOOD_RUN
    assert journals.read() == []


def test_journal_reader_leaves_half_a_line_until_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with Journal(path) as journal:
        journal.add(GOOD_RUN[0])
    line = path.read_bytes()
    journals = Journals(tmp_path)
    path.write_bytes(line + line[:20])
    assert len(journals.read()) == 1
    path.write_bytes(line + line)
    assert len(journals.read()) == 1


def test_time_before_the_first_answer_of_redis_is_an_outage() -> None:
    assert checks.outages(1_000_000, [(9_000_000, {}), (9_100_000, {})]) == [(1_000_000, 9_000_000)]
