"""Offsets of transactions: cases of Kafka's OffsetMetadataManagerTest and GroupCoordinatorTest."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from tests.lua.group import (
    FENCED_INSTANCE_ID,
    GROUP_ID,
    GROUP_ID_NOT_FOUND,
    ILLEGAL_GENERATION,
    NONE,
    RETENTION_S,
    UNINDEXED,
    UNKNOWN_MEMBER_ID,
)
from tests.lua.transaction import INVALID_TXN_STATE, OUTCOMES
from tests.lua.transaction_group import FIRST, TransactionGroup, position
from tests.support.ported import kafka


@pytest.fixture
def group(server: redis.Redis, set_clock: Callable[[float], None]) -> TransactionGroup:
    return TransactionGroup(server, set_clock)


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
