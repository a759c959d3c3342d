"""Offsets of transactions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from tests.lua.consumer import INVALID_REQUEST
from tests.lua.group import (
    FENCED_INSTANCE_ID,
    GROUP_ID,
    GROUP_ID_NOT_FOUND,
    ILLEGAL_GENERATION,
    LATE,
    NONE,
    RETENTION_S,
    UNINDEXED,
    UNKNOWN_MEMBER_ID,
)
from tests.lua.transaction import INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE, OUTCOMES
from tests.lua.transaction_group import FIRST, TransactionGroup, position
from tests.support.ported import kafka


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


@kafka("OffsetMetadataManagerTest.testReplayTransactionEndMarkerWithCommit")
@kafka("GroupCoordinatorTest.testBasicFetchTxnOffsets")
@kafka("GroupCoordinatorTest.testFetchTxnOffsetsWithAbort")
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_offsets_count_after_their_transaction_commits(group: TransactionGroup, outcome: str) -> None:
    assert group.hold({"t:0": 5, "t:1": 6}) == NONE
    assert group.committed("t:0", "t:1") == {"t:0": "", "t:1": ""}
    assert group.end(outcome) == NONE
    is_committed = outcome == "commit"
    assert sorted(group.released[::2]) == (["t:0", "t:1"] if is_committed else [])
    assert group.committed("t:0", "t:1") == ({"t:0": "5", "t:1": "6"} if is_committed else {"t:0": "", "t:1": ""})
    before = group.dump()
    assert [group.end(again) for again in (outcome, *OUTCOMES)] == [NONE] * 3
    assert group.dump() == before


@kafka("OffsetMetadataManagerTest.testFetchOffsetsWithPendingTransactionalOffsets")
@kafka("OffsetMetadataManagerTest.testFetchAllOffsetsWithPendingTransactionalOffsets")
@kafka("GroupCoordinatorTest.testFetchPendingTxnOffsetsWithAbort")
@kafka("GroupCoordinatorTest.testFetchPendingTxnOffsetsWithCommit")
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_offset_is_unstable_while_a_transaction_may_change_it(group: TransactionGroup, outcome: str) -> None:
    group.commit({"t:0": position(1), "t:2": position(3)})
    group.hold({"t:0": 5, "t:1": 6})
    assert group.stable_offsets("t:0", "t:1", "t:2", "t:3") == {
        "t:0": "unstable",
        "t:1": "unstable",
        "t:2": "3",
        "t:3": "",
    }
    assert group.stable_offsets() == {"t:0": "unstable", "t:2": "3"}
    assert group.committed() == {"t:0": "1", "t:2": "3"}
    group.end(outcome)
    stable = {"t:0": "5", "t:1": "6", "t:2": "3"} if outcome == "commit" else {"t:0": "1", "t:2": "3"}
    assert group.stable_offsets() == group.committed() == stable


@kafka("GroupCoordinatorTest.testFetchTxnOffsetsIgnoreSpuriousCommit")
def test_end_of_a_transaction_without_offsets_changes_no_offset(group: TransactionGroup) -> None:
    group.commit({"t:0": position(1)})
    assert [group.end("commit"), group.end("commit", FIRST + 1)] == [NONE, NONE]
    assert group.committed() == {"t:0": "1"}


@kafka("GroupCoordinatorTest.testFetchTxnOffsetsOneProducerMultipleGroups")
def test_groups_of_one_transaction_end_one_by_one(server: redis.Redis, set_clock: Callable[[float], None]) -> None:
    one, other = TransactionGroup(server, set_clock, "one"), TransactionGroup(server, set_clock, "other")
    assert [one.hold({"t:0": 5}), other.hold({"t:0": 8})] == [NONE, NONE]
    one.end()
    assert (one.committed(), other.committed()) == ({"t:0": "5"}, {})
    other.end()
    assert other.committed() == {"t:0": "8"}


@kafka("GroupCoordinatorTest.testFetchTxnOffsetsMultipleProducersOneGroup")
def test_producers_of_one_group_end_one_by_one(group: TransactionGroup) -> None:
    group.hold({"t:0": 5})
    group.hold({"t:1": 9}, FIRST + 1, producer=(8, 0))
    group.end("commit", FIRST + 1, 8)
    assert group.stable_offsets("t:0", "t:1") == {"t:0": "unstable", "t:1": "9"}
    group.end("abort")
    assert group.stable_offsets() == {"t:1": "9"}
    assert group.field("transactions") == "0"


@kafka("OffsetMetadataManagerTest.testReplayTransactionEndMarkerKeepsTheMostRecentCommittedOffset")
def test_later_commit_outlasts_the_offset_of_a_transaction(group: TransactionGroup) -> None:
    group.hold({"t:0": 100, "t:1": 100})
    group.commit({"t:0": position(101)})
    group.end()
    assert group.committed() == {"t:0": "101", "t:1": "100"}


@kafka("OffsetMetadataManagerTest.testGenericGroupTransactionalOffsetCommit")
@kafka("GroupCoordinatorTest.testTxnCommitOffsetWithLegalGeneration")
@kafka("GroupCoordinatorTest.testTxnCommitOffsetWithKnownMemberId")
def test_member_commits_in_its_generation(group: TransactionGroup) -> None:
    (member,) = group.stable()
    generation = group.generation
    assert group.hold({"t:0": 5}, member=member, generation=generation) == NONE
    group.end()
    assert group.committed() == {"t:0": "5"}


@kafka("OffsetMetadataManagerTest.testGenericGroupTransactionalOffsetCommitWithIllegalGenerationId")
@kafka("OffsetMetadataManagerTest.testGenericGroupTransactionalOffsetCommitWithUnknownMemberId")
@kafka("GroupCoordinatorTest.testTxnCommitOffsetWithIllegalGeneration")
@kafka("GroupCoordinatorTest.testTxnCommitOffsetWithInvalidMemberId")
def test_producer_with_a_wrong_generation_or_member_commits_nothing(group: TransactionGroup) -> None:
    (member,) = group.stable()
    generation = group.generation
    assert group.hold({"t:0": 5}, member=member, generation=generation + 1) == ILLEGAL_GENERATION
    assert group.hold({"t:0": 5}, member=member, generation=generation - 1) == ILLEGAL_GENERATION
    assert group.hold({"t:0": 5}, member="nobody", generation=generation) == UNKNOWN_MEMBER_ID
    assert group.hold({"t:0": 5}, member="nobody") == UNKNOWN_MEMBER_ID
    assert not group.server.exists(group.pending)


@kafka("GroupCoordinatorTest.testTxnCommitOffsetWithFencedInstanceId")
def test_fenced_instance_commits_nothing(group: TransactionGroup) -> None:
    leader = group.join(instance="i")
    group.assign(leader)
    member, generation = leader.member, leader.generation
    fenced = group.hold({"t:0": 5}, member="another", instance="i", generation=generation)
    assert fenced == FENCED_INSTANCE_ID
    assert group.hold({"t:0": 5}, member=member, instance="j", generation=generation) == UNKNOWN_MEMBER_ID
    assert group.hold({"t:0": 5}, member=member, instance="i", generation=generation) == NONE


@kafka("OffsetMetadataManagerTest.testGenericGroupTransactionalOffsetCommitWithUnknownGroupId")
def test_commit_without_a_generation_makes_the_group(group: TransactionGroup) -> None:
    assert group.hold({"t:0": 5}, member="m", generation=3) == ILLEGAL_GENERATION
    group.id = group.locator = ""
    assert group.hold({"t:0": 5}) == UNINDEXED
    assert group.server.keys("korvet:*") == []
    group.id, group.locator = GROUP_ID, "default/consumer-groups/g"
    assert group.hold({"t:0": 5}) == NONE
    assert group.state == "Empty"


@kafka("OffsetMetadataManagerTest.testCleanupExpiredOffsetsWithPendingTransactionalOffsets")
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_group_with_an_open_transaction_does_not_expire(group: TransactionGroup, outcome: str) -> None:
    group.commit({"t:0": position(1)})
    group.hold({"t:0": 5})
    group.pass_time(2 * RETENTION_S)
    assert (group.state, group.committed()) == ("Empty", {"t:0": "1"})
    assert group.server.pttl(group.keys[0]) == -1
    assert group.server.pttl(group.pending) == -1
    group.end(outcome)
    if outcome == "commit":
        assert (group.state, group.committed()) == ("Empty", {"t:0": "5"})
        group.pass_time(RETENTION_S)
    assert (group.state, group.committed()) == ("Dead", {})
    assert all(group.server.pttl(key) > 0 for key in (group.keys[0], group.pending))


@kafka("OffsetMetadataManagerTest.testDeleteGroupAllOffsetsWithPendingTransactionalOffsets")
def test_deleted_group_takes_its_open_transactions_along(group: TransactionGroup) -> None:
    group.hold({"t:0": 5})
    assert group.remove() == NONE
    assert group.remove() == GROUP_ID_NOT_FOUND
    assert (group.state, group.stable_offsets()) == ("Dead", {})
    assert group.end() == NONE
    assert (group.state, group.committed(), group.released) == ("Dead", {}, [])
    assert group.hold({"t:0": 6}) == INVALID_TXN_STATE
    assert group.hold({"t:0": 7}, FIRST + 1) == NONE
    group.end("commit", FIRST + 1)
    assert group.committed() == {"t:0": "7"}


@kafka("OffsetMetadataManagerTest.testGenericGroupOffsetDeleteWithPendingTransactionalOffsets")
@kafka("OffsetMetadataManagerTest.testReplayWithTombstoneAndPendingTransactionalOffsets")
def test_transactions_drop_a_deleted_offset_that_they_hold(group: TransactionGroup) -> None:
    group.commit({"t:0": position(1)})
    group.hold({"t:0": 5, "t:1": 6})
    group.hold({"t:0": 7}, producer=(8, 0))
    assert group.delete_offsets("t:0", "u:0") == (NONE, [NONE, NONE])
    assert group.stable_offsets("t:0", "t:1") == {"t:0": "", "t:1": "unstable"}
    group.end("commit", producer_id=8)
    group.end("commit")
    assert group.released == ["t:1", "a" * 32]
    assert group.committed() == {"t:1": "6"}
