"""What a share member gets of the ranges that it acquired, its acknowledgements, and whose turn it is to acquire."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import pytest

from korvet.api.shared.share_acknowledgements import acknowledged
from korvet.store.shares.delivered import Aborted, Delivered, delivered
from korvet.store.shares.supply import Supply, Waiter
from korvet.store.shares.types import AcknowledgeType, AcquiredRange
from korvet.wire.batch import CONTROL, HEADER, TRANSACTIONAL, Batch, headers_in, placed_in_log
from tests.oracle.batches import Batch as Script
from tests.oracle.batches import encode
from tests.support.ported import kafka

EVERYTHING = 1000
GAP, ACCEPT, RELEASE, REJECT, RENEW = list(AcknowledgeType)[:5]


# ---------------------------------------------------------------------- acknowledgements


@dataclass(frozen=True)
class Named:
    """A batch of acknowledgements as a request names it."""

    first_offset: int
    last_offset: int
    acknowledge_types: Sequence[int]


def test_neighbours_of_one_type_become_one_acknowledgement() -> None:
    named = [Named(0, 3, [1, 1, 2, 1]), Named(4, 9, [1]), Named(20, 20, [0])]
    assert acknowledged(named, may_renew=False) == [
        (0, 1, ACCEPT), (2, 2, RELEASE), (3, 9, ACCEPT), (20, 20, GAP)
    ]  # fmt: skip


def test_long_acknowledgement_of_one_type_costs_no_more_than_a_short_one() -> None:
    assert acknowledged([Named(0, 2**62, [REJECT])], may_renew=False) == [(0, 2**62, REJECT)]


@kafka("KafkaApisTest.testHandleAcknowledgementsInvalidAcknowledgementBatches")
@pytest.mark.parametrize(
    "named",
    [
        [Named(5, 4, [1])],
        [Named(-2, 4, [1])],
        [Named(0, 4, [1]), Named(3, 6, [1])],
        [Named(0, 4, [])],
        [Named(0, 4, [1, 1])],
        [Named(0, 0, [1, 1])],
        [Named(0, 0, [4])],
        [Named(0, 0, [-1])],
        [Named(0, 1, [1, 5])],
    ],
    ids=str,
)
def test_malformed_acknowledgements_are_refused(named: Sequence[Named]) -> None:
    assert acknowledged(named, may_renew=False) is None


@kafka("KafkaApisTest.testValidateAcknowledgementBatchesForRenew")
def test_renewal_is_allowed_where_the_request_announces_it() -> None:
    assert acknowledged([Named(3, 4, [RENEW])], may_renew=True) == [(3, 4, RENEW)]
    assert acknowledged([Named(3, 4, [5])], may_renew=True) is None


# ---------------------------------------------------------------------- delivered ranges


def header(base: int, last: int, producer: int = -1, attributes: int = 0) -> Batch:
    fields = dict.fromkeys(Batch._fields, 0)
    fields |= {"base_offset": base, "last_offset_delta": last - base, "producer_id": producer, "attributes": attributes}
    return Batch(**fields)


def transactional(base: int, last: int, producer: int) -> Batch:
    return header(base, last, producer, TRANSACTIONAL)


def marker(offset: int, producer: int) -> Batch:
    return header(offset, offset, producer, TRANSACTIONAL | CONTROL)


def split(
    ranges: Sequence[tuple[int, int, int]],
    batches: Sequence[Batch],
    aborted: Sequence[tuple[int, int]] = (),
    batch_size: int = EVERYTHING,
) -> Delivered:
    return delivered([AcquiredRange(*one) for one in ranges], batches, [Aborted(*one) for one in aborted], batch_size)


def test_acquired_range_is_delivered_as_it_is() -> None:
    assert split([(3, 7, 1)], [header(0, 9)]) == Delivered(acquired=[AcquiredRange(3, 7, 1)])


@kafka("SharePartitionTest.testAcquireWithBatchSizeAndMultipleBatches")
def test_long_range_is_split_where_batches_begin() -> None:
    batches = [header(0, 4), header(5, 9), header(10, 14), header(15, 19)]
    assert split([(0, 19, 1)], batches, batch_size=8).acquired == [(0, 9, 1), (10, 19, 1)]
    assert split([(0, 19, 1)], batches, batch_size=20).acquired == [(0, 19, 1)]
    assert split([(0, 19, 1)], batches, batch_size=1).acquired == [(0, 4, 1), (5, 9, 1), (10, 14, 1), (15, 19, 1)]


def test_ranges_of_other_counts_stay_apart() -> None:
    found = split([(0, 1, 2), (2, 5, 1), (8, 9, 1)], [header(0, 9)])
    assert found == Delivered(acquired=[AcquiredRange(0, 1, 2), AcquiredRange(2, 5, 1), AcquiredRange(8, 9, 1)])


def test_offsets_that_compaction_removed_are_gaps() -> None:
    found = split([(0, 19, 1), (25, 29, 2)], [header(3, 4), header(8, 9), header(20, 22), header(40, 44)])
    assert found.acquired == [(3, 4, 1), (8, 9, 1)]
    assert found.gaps == [(0, 2, 1), (5, 7, 1), (10, 19, 1), (25, 29, 2)]
    assert not found.unread


def test_offsets_after_the_last_batch_are_unread() -> None:
    found = split([(0, 19, 1), (30, 39, 2)], [header(0, 9)])
    assert (found.acquired, found.gaps, found.unread) == ([(0, 9, 1)], [], [(10, 19, 1), (30, 39, 2)])
    assert split([(0, 19, 1)], []).unread == [(0, 19, 1)]


@kafka("SharePartitionTest.testFetchAbortedTransactionRecordBatchesForOnlyAbortedTransactions")
def test_records_of_aborted_transactions_are_gaps() -> None:
    batches = [
        transactional(0, 4, 1), transactional(5, 9, 2), marker(10, 1), transactional(11, 14, 1), marker(15, 1),
        header(16, 17), marker(18, 2),
    ]  # fmt: skip
    found = split([(0, 18, 1)], batches, aborted=[(2, 5), (1, 0)])
    assert found.gaps == [(0, 4, 1), (5, 9, 1)]
    assert found.acquired == [(10, 18, 1)]


@kafka("SharePartitionTest.testFetchAbortedTransactionRecordBatchesForAbortedAndCommittedTransactions")
def test_committed_transaction_before_an_aborted_one_of_its_producer_is_delivered() -> None:
    batches = [transactional(0, 4, 1), marker(5, 1), transactional(6, 9, 1), marker(10, 1)]
    found = split([(0, 10, 1)], batches, aborted=[(1, 6)])
    assert (found.acquired, found.gaps) == ([(0, 5, 1), (10, 10, 1)], [(6, 9, 1)])


def test_headers_are_found_wherever_buffers_end() -> None:
    datas = [encode(Script(count=count, value=b"v" * 50)) for count in (1, 3, 200)]
    placed = [part for at, data in enumerate(datas) for part in placed_in_log(data, at * 1000, 7)]
    whole = b"".join(placed)
    expected = [HEADER.unpack_from(data)[6] for data in datas]
    for buffers in (placed, [whole], [whole[at : at + 1] for at in range(len(whole))], [whole[:30], b"", whole[30:]]):
        found = list(headers_in(buffers))
        assert [(one.base_offset, one.leader_epoch) for one in found] == [(0, 7), (1000, 7), (2000, 7)]
        assert [one.last_offset_delta for one in found] == expected


# ---------------------------------------------------------------------- turns


class Requests:
    """Requests that wait for a supply, and which of them were woken."""

    def __init__(self, supply: Supply, count: int) -> None:
        self.woken: list[int] = []
        self.waiters = [Waiter(partial(self._wake, number)) for number in range(count)]
        for waiter in self.waiters:
            supply.wait(waiter)

    def _wake(self, number: int) -> None:
        self.woken.append(number)

    def taken(self) -> list[int]:
        woken, self.woken = self.woken, []
        return woken


def emptied() -> Supply:
    supply = Supply()
    supply.end(supply.begin(), has_more=False)
    return supply


def test_news_of_one_append_wakes_one_of_many_waiters() -> None:
    supply = emptied()
    requests = Requests(supply, 100)
    supply.tell()
    supply.tell()
    assert requests.taken() == [0]
    supply.end(supply.begin(requests.waiters[0]), has_more=False)
    assert requests.taken() == []
    assert not supply.may_have


def test_news_during_a_call_wake_the_next_waiter_after_it() -> None:
    supply = emptied()
    requests = Requests(supply, 3)
    supply.tell()
    call = supply.begin(requests.waiters[0])
    supply.tell()
    assert requests.taken() == [0]
    supply.end(call, has_more=False)
    assert requests.taken() == [1]


def test_backlog_wakes_waiters_faster_and_faster() -> None:
    supply = emptied()
    requests = Requests(supply, 8)
    supply.tell()
    rounds, under_way = [], requests.taken()
    while under_way:
        rounds.append(len(under_way))
        for number in under_way:
            supply.end(supply.begin(requests.waiters[number]), has_more=True)
        under_way = requests.taken()
    assert rounds == [1, 2, 4, 1]
    assert supply.may_call()


def test_new_request_does_not_call_while_there_is_nothing() -> None:
    supply = Supply()
    assert supply.may_call()
    call = supply.begin()
    assert not supply.may_call()
    supply.end(call, has_more=False)
    assert not supply.may_call() and not supply.may_have
    supply.tell()
    assert supply.may_call()


def test_waiter_that_leaves_passes_its_turn_on() -> None:
    supply = emptied()
    requests = Requests(supply, 3)
    supply.leave(requests.waiters[1])
    supply.tell()
    supply.leave(requests.waiters[0])
    assert requests.taken() == [0, 2]
    supply.leave(requests.waiters[2])
    assert supply.is_idle and supply.may_call()


def test_failed_call_lets_the_next_waiter_try() -> None:
    supply = emptied()
    requests = Requests(supply, 2)
    supply.tell()
    supply.end(supply.begin(requests.waiters[0]), has_more=None)
    assert requests.taken() == [0, 1]
