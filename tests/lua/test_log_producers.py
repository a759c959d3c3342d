"""Idempotent producers in korvet_log_append: Kafka's ProducerStateManagerTest, UnifiedLogTest, and korvet's additions.

Codes: 45 OUT_OF_ORDER_SEQUENCE_NUMBER, 47 INVALID_PRODUCER_EPOCH.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from tests.lua.log import Log
from tests.support.ported import kafka

LAST_SEQUENCE = 2**31 - 1
DAY_S = 86400


def _fill(log: Log, batches: int, *, producer_id: int = 7, epoch: int = 0, records: int = 3) -> list[int]:
    """Append batches in sequence; their base offsets."""
    return [
        log.append(records, producer=(producer_id, epoch, number * records)).base_offset for number in range(batches)
    ]


@pytest.mark.parametrize("first", [0, 5, LAST_SEQUENCE])
@kafka("ProducerStateManagerTest.testNoValidationOnFirstEntryWhenLoadingLog")
def test_unknown_producer_may_begin_anywhere(log: Log, first: int) -> None:
    assert log.append(producer=(7, 3, first)).code == 0


def test_log_appends_batches_in_sequence(log: Log) -> None:
    assert _fill(log, 8) == list(range(0, 24, 3))


@pytest.mark.parametrize("back", range(1, 6))
@kafka("UnifiedLogTest.testDuplicateAppends")
def test_duplicate_of_the_last_five_batches_gets_its_first_offset(log: Log, back: int) -> None:
    bases = _fill(log, 9)
    before = log.dump()
    first = (9 - back) * 3
    assert log.append(3, producer=(7, 0, first)) == (0, bases[-back], 0, 0)
    assert log.place(3, producer=(7, 0, first)) == (0, bases[-back], 0, 0)
    assert log.dump() == before


def test_duplicate_is_known_without_its_temporary_key(log: Log) -> None:
    log.place(3, producer=(7, 0, 0))
    assert log.place(3, producer=(7, 0, 0), is_sent=False) == (0, 0, 0, 0)


def test_duplicate_older_than_the_last_five_is_out_of_order(log: Log) -> None:
    _fill(log, 9)
    before = log.dump()
    assert log.append(3, producer=(7, 0, 9)) == (45, -1, 0, 0)
    assert log.place(3, producer=(7, 0, 9)) == (45, -1, 0, 0)
    assert log.dump() == before


def test_overlap_that_is_no_exact_duplicate_is_out_of_order(log: Log) -> None:
    _fill(log, 3)
    assert log.append(2, producer=(7, 0, 6)).code == 45
    assert log.append(4, producer=(7, 0, 6)).code == 45
    assert log.append(2, producer=(7, 0, 7)).code == 45


@pytest.mark.parametrize("first", [4, 100, LAST_SEQUENCE])
@kafka("UnifiedLogTest.testNonSequentialAppend")
def test_gap_is_out_of_order_and_writes_nothing(log: Log, first: int) -> None:
    log.append(3, producer=(7, 0, 0))
    before = log.dump()
    assert log.append(producer=(7, 0, first)) == (45, -1, 0, 0)
    assert log.dump() == before


@kafka("ProducerStateManagerTest.testProducerSequenceWrapAround")
def test_sequence_wraps_after_the_last_one(log: Log) -> None:
    log.append(2, producer=(7, 0, LAST_SEQUENCE - 1))
    assert log.append(3, producer=(7, 0, 0)) == (0, 2, 0, 0)
    assert log.append(3, producer=(7, 0, 0)) == (0, 2, 0, 0)
    assert log.append(2, producer=(7, 0, LAST_SEQUENCE - 1)) == (0, 0, 0, 0)


@kafka("ProducerStateManagerTest.testProducerSequenceWithWrapAroundBatchRecord")
def test_log_remembers_a_batch_across_the_last_sequence(log: Log) -> None:
    assert log.append(5, producer=(7, 0, LAST_SEQUENCE - 1)).code == 0
    assert log.state_of(7) == f"0 0|{LAST_SEQUENCE - 1},2,0"
    assert log.append(5, producer=(7, 0, LAST_SEQUENCE - 1)) == (0, 0, 0, 0)
    assert log.append(1, producer=(7, 0, 2)).code == 45
    assert log.append(1, producer=(7, 0, 3)) == (0, 5, 0, 0)


@kafka("UnifiedLogTest.testOldProducerEpoch")
def test_older_epoch_is_fenced(log: Log) -> None:
    log.append(producer=(7, 5, 0))
    before = log.dump()
    assert log.append(producer=(7, 4, 1)) == (47, -1, 0, 0)
    assert log.append(producer=(7, 4, 0)) == (47, -1, 0, 0)
    assert log.place(producer=(7, 4, 1)) == (47, -1, 0, 0)
    assert log.dump() == before


@kafka("ProducerStateManagerTest.testBasicIdMapping")
@kafka("ProducerStateManagerTest.testRejectNonZeroSequenceForDirectEpochBump")
def test_newer_epoch_begins_at_sequence_zero(log: Log) -> None:
    log.append(3, producer=(7, 9, 0))
    assert log.append(producer=(7, 10, 3)).code == 45
    assert log.append(producer=(7, 10, 0)) == (0, 3, 0, 0)
    assert log.append(3, producer=(7, 9, 0)).code == 47


def test_newer_epoch_forgets_the_batches_of_the_old_one(log: Log) -> None:
    _fill(log, 3)
    assert log.append(3, producer=(7, 1, 0)) == (0, 9, 0, 0)
    assert log.append(3, producer=(7, 1, 0)) == (0, 9, 0, 0)
    assert log.append(3, producer=(7, 1, 6)).code == 45
    assert log.state_of(7) == "1 0|0,2,9"


def test_producers_have_sequences_of_their_own(log: Log) -> None:
    _fill(log, 2, producer_id=7)
    assert _fill(log, 2, producer_id=77) == [6, 9]
    assert log.append(3, producer=(7, 0, 6)).base_offset == 12


def test_state_of_a_producer_stays_small(log: Log) -> None:
    _fill(log, 20)
    assert log.state_of(7) == "0 0|57,59,57|54,56,54|51,53,51|48,50,48|45,47,45"


def test_producer_may_have_one_gap_after_history_went_back(log: Log) -> None:
    _fill(log, 2)
    log.run_id = "2" * 40
    appended = log.append(3, producer=(7, 0, 60))
    assert (appended.code, appended.base_offset) == (0, 6)
    assert log.append(3, producer=(7, 0, 60)).base_offset == 6, "a duplicate"
    assert log.append(3, producer=(7, 0, 3)).base_offset == 3, "a duplicate of the old epoch"
    assert log.append(3, producer=(7, 0, 66)).code == 45
    assert log.append(3, producer=(7, 0, 63)).base_offset == 9


def test_batch_below_the_known_sequences_is_refused_in_a_new_history(log: Log) -> None:
    _fill(log, 9)
    log.run_id = "2" * 40
    assert log.append(3, producer=(7, 0, 3)).code == 45


def test_producer_goes_on_in_sequence_in_a_new_epoch(log: Log) -> None:
    _fill(log, 2)
    log.run_id = "2" * 40
    assert log.append(3, producer=(7, 0, 3)) == (0, 3, 0, 0), "a duplicate of the old epoch"
    appended = log.append(3, producer=(7, 0, 6))
    assert (appended.code, appended.base_offset) == (0, 6)
    assert log.append(3, producer=(7, 0, 60)).code == 45


def test_each_producer_has_one_gap_in_a_new_epoch(log: Log) -> None:
    _fill(log, 2)
    log.run_id = "2" * 40
    log.append()
    assert log.append(3, producer=(7, 0, 60)).code == 0


def test_new_producer_removes_one_that_was_silent_for_a_day(log: Log, set_clock: Callable[[float], None]) -> None:
    now = 1_700_000_000.0
    _fill(log, 1, producer_id=1)
    _fill(log, 1, producer_id=2)
    set_clock(now + 0.9 * DAY_S)
    _fill(log, 1, producer_id=3)
    assert log.state_of(1) is not None, "not a day yet"
    log.append(3, producer=(2, 0, 3))
    set_clock(now + 1.1 * DAY_S)
    _fill(log, 1, producer_id=4)
    assert [log.state_of(producer_id) is not None for producer_id in (1, 2, 3, 4)] == [False, True, True, True]
    assert log.append(3, producer=(2, 0, 3)) == (0, 9, 0, 0)


def test_log_forgets_producers_that_come_and_go(log: Log, set_clock: Callable[[float], None]) -> None:
    now, sizes = 1_700_000_000.0, []
    for producer_id in range(2000):
        now += DAY_S / 100
        set_clock(now)
        log.append(producer=(producer_id, 0, 0))
        sizes.append(len(log.producer_ids()))
    assert max(sizes[600:]) < 500
    assert all(later <= earlier + 1 for earlier, later in pairwise(sizes))


def test_batch_that_must_be_the_next_is_refused_after_a_gap(log: Log) -> None:
    assert log.append(3, producer=(7, 0, 3), is_next=True) == (45, -1, 0, 0)
    assert _fill(log, 2) == [0, 3]
    log.run_id = "2" * 40
    before = log.dump()
    assert log.append(3, producer=(7, 0, 9), is_next=True).code == 45
    assert log.append(3, producer=(7, 0, 3), is_next=True)[:2] == (0, 3)
    assert log.dump() == before
    assert log.append(3, producer=(7, 0, 6), is_next=True)[:2] == (0, 6)
