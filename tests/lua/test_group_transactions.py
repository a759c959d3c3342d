"""Offsets of transactions.

The cases of Kafka's own tests are in tests/lua/kafka.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from tests.lua.consumer import INVALID_REQUEST
from tests.lua.group import (
    LATE,
    NONE,
)
from tests.lua.transaction import INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE, OUTCOMES
from tests.lua.transaction_group import FIRST, TransactionGroup, position


@pytest.fixture
def group(server: redis.Redis, set_clock: Callable[[float], None]) -> TransactionGroup:
    return TransactionGroup(server, set_clock)


@pytest.mark.parametrize("order", [(7, 8, 9), (9, 8, 7), (8, 9, 7), (8, 7, 9)])
def test_last_commit_counts_if_transactions_end_in_any_order(group: TransactionGroup, order: tuple[int, ...]) -> None:
    for producer_id in (7, 8, 9):
        group.hold({"t:0": producer_id, "t:1": 20 - producer_id}, producer=(producer_id, 0))
    group.commit({"t:1": position(99)})
    group.hold({"t:2": 8}, producer=(8, 0))
    for producer_id in order:
        group.end("commit", FIRST, producer_id)
    assert group.committed() == {"t:0": "9", "t:1": "99", "t:2": "8"}
    fields: Any = group.server.hkeys(group.pending)
    assert {field for field in fields if not field.isdigit()} <= {b"", b"#", b"~", b"=t:0", b"=t:2"}


def test_later_transaction_ignores_commits_of_ended_transactions(group: TransactionGroup) -> None:
    group.hold({"t:0": 5})
    group.hold({"t:1": 1}, producer=(8, 0))
    group.end()
    group.end("commit", producer_id=8)
    group.commit({"t:0": position(6)})
    group.hold({"t:0": 7}, FIRST + 1)
    group.commit({"t:0": position(5)})
    group.end("commit", FIRST + 1)
    assert group.committed("t:0") == {"t:0": "5"}


def crowd(start: int, end: int) -> dict[str, int]:
    return {f"t:{number}": number for number in range(start, end)}


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_transaction_with_thousands_of_offsets_ends_in_steps(group: TransactionGroup, outcome: str) -> None:
    for start in (0, 1000, 2000, 1500, 3000):
        assert group.hold(crowd(start, start + 1000)) == NONE
    group.hold({"t:1": 77, "t:2500": 78})
    steps = [group.end(outcome) or group.more for _ in range(6)]
    assert steps == [True] * 5 + [False]
    assert group.hold({"t:0": 1}) == INVALID_TXN_STATE
    wanted = {partition: str(number) for partition, number in crowd(0, 4000).items()} | {"t:1": "77", "t:2500": "78"}
    assert group.all_committed() == (wanted if outcome == "commit" else {})
    assert group.field("transactions") == "0"


def test_transaction_takes_no_offsets_while_it_ends(group: TransactionGroup) -> None:
    for start in (0, 1000):
        assert group.hold(crowd(start, start + 1000)) == NONE
    assert (group.end(), group.more) == (NONE, True)
    assert group.hold({"t:0": 1}) == INVALID_TXN_STATE
    assert group.stable_offsets("t:0", "t:1000") == {"t:0": "0", "t:1000": "unstable"}
    assert (group.end(), group.more) == (NONE, False)
    assert group.stable_offsets("t:1000") == {"t:1000": "1000"}


def test_transaction_holds_no_more_than_a_bounded_number_of_offsets(group: TransactionGroup) -> None:
    outcomes = [group.hold(crowd(start, start + 1000)) for start in range(0, 65_000, 1000)]
    assert outcomes == [NONE] * 64 + [INVALID_REQUEST]


def calls_of(group: TransactionGroup, run: Callable[[], object]) -> dict[str, int]:
    """The number of times that a call made each command."""
    group.server.config_resetstat()
    run()
    stats: Any = group.server.info("commandstats")
    return {name.removeprefix("cmdstat_"): stat["calls"] for name, stat in stats.items()}


def test_holds_of_other_partitions_slow_no_fetch_and_no_deletion(group: TransactionGroup) -> None:
    for number in range(100):
        group.hold({"t:0": 5}, FIRST + number, producer=(number, 0))
    fetching = calls_of(group, lambda: group.stable_offsets("t:0", "t:1"))
    assert fetching.keys().isdisjoint({"hgetall", "hscan"}) and fetching["hmget"] <= 3
    deleting = calls_of(group, group.remove)
    assert sum(calls for name, calls in deleting.items() if name in {"hset", "hget", "hdel", "hgetall"}) < 10
    assert group.stable_offsets("t:0") == {"t:0": ""}


def test_later_offsets_of_the_same_transaction_count(group: TransactionGroup) -> None:
    group.hold({"t:0": 5, "t:1": 1})
    group.hold({"t:0": 7})
    group.hold({})
    group.end()
    assert group.committed() == {"t:0": "7", "t:1": "1"}


# ---------------------------------------------------------------------- rights to commit


def test_producer_of_an_old_client_names_no_member(group: TransactionGroup) -> None:
    group.stable()
    assert group.hold({"t:0": 5}) == NONE


# ---------------------------------------------------------------------- late steps


def test_late_commit_is_not_taken_into_the_next_transaction(group: TransactionGroup) -> None:
    group.hold({"t:0": 5})
    group.end("abort")
    before = group.dump()
    assert group.hold({"t:0": 6}) == INVALID_TXN_STATE
    assert group.dump() == before
    assert group.hold({"t:0": 7}, FIRST + 1) == NONE
    assert group.hold({"t:0": 8}) == INVALID_TXN_STATE
    group.end("commit", FIRST + 1)
    assert group.committed() == {"t:0": "7"}


def test_commit_verified_before_the_end_is_refused_after_the_end(group: TransactionGroup) -> None:
    assert group.end("commit") == NONE
    assert group.hold({"t:0": 5}) == INVALID_TXN_STATE
    assert group.state == "Dead"


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_late_end_does_not_end_the_next_transaction(group: TransactionGroup, outcome: str) -> None:
    group.hold({"t:0": 5})
    group.end()
    group.hold({"t:0": 9}, FIRST + 1)
    before = group.dump()
    assert group.end(outcome) == NONE
    assert group.dump() == before


def test_older_epoch_commits_nothing(group: TransactionGroup) -> None:
    group.hold({"t:0": 5}, producer=(7, 3))
    group.end()
    assert group.hold({"t:0": 6}, FIRST + 1, producer=(7, 2)) == INVALID_PRODUCER_EPOCH
    assert group.hold({"t:0": 6}, FIRST + 1, producer=(7, 3)) == NONE


def test_next_transaction_drops_one_that_was_never_ended(group: TransactionGroup) -> None:
    group.hold({"t:0": 5, "t:1": 5})
    assert group.hold({"t:0": 6}, FIRST + 9) == NONE
    assert group.field("transactions") == "1"
    group.end("commit", FIRST + 9)
    assert group.committed() == {"t:0": "6"}
    group.hold({"t:0": 7}, FIRST + 10)
    group.end("commit", FIRST + 20)
    assert group.committed() == {"t:0": "6"}
    assert group.field("transactions") == "0"


def test_commit_that_waited_in_an_outage_is_late(group: TransactionGroup) -> None:
    group.served_until = group.now
    group.pass_time(60)
    assert group.hold({"t:0": 5}) == LATE
    assert group.server.keys("korvet:*") == []


# ---------------------------------------------------------------------- expiry and deletion


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_transaction_goes_on_after_its_group_was_deleted(group: TransactionGroup, outcome: str) -> None:
    group.commit({"t:0": position(1)})
    group.hold({"t:0": 5, "t:1": 6})
    assert group.remove() == NONE
    assert group.hold({"t:1": 7}) == NONE
    assert group.stable_offsets("t:0", "t:1") == {"t:0": "", "t:1": "unstable"}
    assert group.server.pttl(group.pending) == -1
    group.end(outcome)
    assert group.committed() == ({"t:1": "7"} if outcome == "commit" else {})
    assert group.field("transactions") == "0"
    assert group.hold({"t:1": 8}) == INVALID_TXN_STATE


# ---------------------------------------------------------------------- deleted offsets


def test_offset_committed_after_its_deletion_counts(group: TransactionGroup) -> None:
    group.commit({"t:0": position(1)})
    group.hold({"t:0": 5}, producer=(8, 0))
    group.hold({"t:0": 6})
    group.end("commit", producer_id=8)
    group.delete_offsets("t:0")
    assert group.hold({"t:0": 7}) == NONE
    group.end("commit")
    assert group.committed() == {"t:0": "7"}


def test_offsets_stay_if_the_pending_key_has_the_wrong_type(group: TransactionGroup) -> None:
    group.commit({"t:0": position(5)})
    group.server.set(group.pending, "text")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        group.delete_offsets("t:0")
    assert group.committed() == {"t:0": "5"}


def test_group_deleted_without_its_pending_key_can_be_used_again(group: TransactionGroup) -> None:
    group.hold({"t:0": 5})
    assert group.delete() == NONE
    group.hold({"t:0": 6}, FIRST + 1)
    group.end("commit", FIRST + 1)
    assert (group.committed(), group.field("transactions")) == ({"t:0": "6"}, "0")


def test_group_forgets_producers_of_closed_transactions_after_a_day(group: TransactionGroup) -> None:
    for number in range(60):
        group.hold({"t:0": 5}, FIRST + number, producer=(number, 0))
        group.end("commit", FIRST + number, number)
    group.pass_time(86_401)
    for number in range(100, 140):
        later = FIRST + 86_401_000_000 + number
        group.hold({"t:0": 5}, later, producer=(number, 0))
        group.end("commit", later, number)
    fields: Any = group.server.hkeys(group.pending)
    assert {int(field) for field in fields if field.isdigit()} == set(range(100, 140))
    assert len(fields) <= 40 + len(["", "#", "~", "=t:0"])


def test_offset_without_transactions_makes_no_pending_key(group: TransactionGroup) -> None:
    group.commit({"t:0": position(1)})
    assert group.stable_offsets("t:0") == {"t:0": "1"}
    assert not group.server.exists(group.pending)


def test_group_stays_whole_if_its_pending_key_has_the_wrong_type(group: TransactionGroup) -> None:
    group.commit({"t:0": position(5)})
    group.server.set(group.pending, "text")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        group.remove()
    assert group.committed("t:0") == {"t:0": "5"}


def test_group_keeps_a_transactional_id_with_a_nul_whole(group: TransactionGroup) -> None:
    assert group.hold({"t:0": 5}, transactional_id="app\0other") == NONE
    assert group.server.hget(group.pending, "7") == f"0 -1 {FIRST} app\0other".encode()
