"""The queue's checks on made-up journals, and a short run of a queue. `scripts/chaos --queue` makes long runs."""

from collections.abc import Iterator

import pytest

from scripts.chaosrun.faults import FAULTS
from scripts.chaosrun.journal import Event, Settled, Taken
from scripts.chaosrun.queue import checks
from scripts.chaosrun.queue.load import Queue
from scripts.chaosrun.queue.members import Kind, kind
from scripts.chaosrun.run import Shown, staged
from tests.chaos.test_faults import Play

SESSION_MS = 6_000
LOCK_MS = 6_000
SECONDS = 3.0
FAULTS_PLAYED = ("outage", "redis")


def _taken(at_ms: int, client: str, value: str = "p:0", deliveries: int = 1) -> Event:
    return Taken(
        at_us=at_ms * 1000, client=client, group="g", partition=("t", 0), offset=0, value=value, deliveries=deliveries
    )  # fmt: skip


def _settled(at_ms: int, client: str, kind: Kind = "accept", value: str = "p:0", error: str = "") -> Event:
    return Settled(at_us=at_ms * 1000, client=client, group="g", value=value, kind=kind, error=error)


GOOD = [
    _taken(1, "a"), _taken(2, "b", deliveries=2), _settled(3, "a", "release"), _settled(4, "b"),
    _taken(5, "c", "p:1"), _settled(6, "c", "reject", "p:1"),
    _taken(7, "d", "p:2"), _settled(8, "d", value="p:2", error="no answer"), _taken(9, "e", "p:2", 2),
    _settled(10, "e", value="p:2"),
]  # fmt: skip
OWED = {"p:0", "p:1", "p:2"}
LETTERS = {"p:1"}


def test_checks_find_nothing_in_a_good_run_of_a_queue() -> None:
    assert checks.lost(OWED, GOOD, LETTERS) == []
    assert checks.came_after_end(GOOD, LETTERS) == []
    assert checks.missing_letters(OWED, GOOD, LETTERS) == []
    assert checks.over_delivered(GOOD, 2) == []
    assert checks.ended_early(GOOD, LOCK_MS, []) == []
    assert checks.came_again(GOOD) == 1


def test_record_that_was_only_released_is_lost() -> None:
    assert checks.lost({*OWED, "p:3"}, [*GOOD, _taken(11, "a", "p:3"), _settled(12, "a", "release", "p:3")], LETTERS)


def test_finished_record_may_not_come_again_unless_history_was_lost() -> None:
    again = [*GOOD, _taken(11, "a", deliveries=3)]
    assert checks.came_after_end(again, LETTERS) == ["p:0 came to a after b had finished it"]
    assert checks.came_after_end(again, LETTERS, [(4_000, 4_000)]) == []


def test_late_acceptance_of_a_record_that_others_finished_is_no_second_one() -> None:
    assert checks.came_after_end([*GOOD, _settled(11, "a")], LETTERS) == []


def test_accepted_record_may_not_become_a_dead_letter() -> None:
    assert checks.came_after_end(GOOD, {*LETTERS, "p:0"}) == ["p:0 was accepted, and is a dead letter"]


def test_rejected_record_has_to_become_a_dead_letter() -> None:
    assert checks.missing_letters(OWED, GOOD, set()) == ["p:1 was rejected by c, and is no dead letter"]


def test_record_comes_no_more_often_than_the_limit_says() -> None:
    assert checks.over_delivered(GOOD, 1) == [
        f"p:{n} was delivered 2 times to {who}" for n, who in ((0, "b"), (2, "e"))
    ]


def test_lock_that_ends_in_an_outage_ends_early() -> None:
    hung = [_taken(1, "a"), _taken(9_001, "b")]
    assert checks.ended_early(hung, LOCK_MS, []) == []
    assert checks.ended_early(hung, LOCK_MS, [(500_000, 8_500_000)]) == ["b got p:0 1000 ms after a got it"]


def test_acknowledgement_refused_after_an_outage_shows_that_its_lock_ended() -> None:
    hung = [_taken(1, "a"), _settled(9_001, "a", error="INVALID_RECORD_STATE")]
    assert checks.ended_early(hung, LOCK_MS, []) == []
    assert checks.ended_early(hung, LOCK_MS, [(500_000, 8_500_000)]) == ["p:0 was refused 1000 ms after a got it"]


@pytest.mark.parametrize(("value", "deliveries", "expected"), [
    ("p:0", 1, "accept"), ("p:41", 1, "reject"), ("p:2", 5, "release"), ("p:3", 1, "release"), ("p:3", 2, "accept"),
])  # fmt: skip
def test_consumers_settle_a_record_by_its_number(value: str, deliveries: int, expected: Kind) -> None:
    assert kind(value, deliveries) == expected


@pytest.fixture(scope="module")
def queue() -> Iterator[Play]:
    with staged("single", kind="valkey", seed=1, session_timeout_ms=SESSION_MS, records_per_s=20, of=Queue) as play:
        yield play


@pytest.mark.all
@pytest.mark.parametrize("name", FAULTS_PLAYED)
def test_queue_loses_no_record_during(name: str, queue: Play) -> None:
    [fault] = [fault for fault in FAULTS if fault.name == name]
    shown: Shown = queue(fault, SECONDS)
    assert {claim: found for claim, found in shown.violations.items() if found} == {}, shown.did
    assert shown.records > 0
    assert shown.commits > 0
