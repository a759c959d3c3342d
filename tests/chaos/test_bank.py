"""The bank: its checks bite in books made up for them, and a short run of it. `scripts/chaos --bank` has long ones."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from scripts.chaosrun.bank import checks
from scripts.chaosrun.bank.books import LEDGER, ORDERS, Entry, Order, Posted, entries, partition_of
from scripts.chaosrun.bank.reading import Books
from scripts.chaosrun.bank.run import CLAIMS, judged, keep
from scripts.chaosrun.bank.staff import WORKERS
from scripts.chaosrun.journal import Acknowledged, Event, Place, Transacted, Troubled

PLACE: Place = (ORDERS, 0)
FIRST = Order(transfer="o:0", debtor=0, creditor=1, amount=5)
SECOND = Order(transfer="o:1", debtor=1, creditor=4, amount=7)
THIRD = Order(transfer="o:2", debtor=2, creditor=3, amount=9)
OWN = Order(transfer="t:0", debtor=3, creditor=0, amount=11)


def _post(*written: Entry) -> list[Posted]:
    """Each entry where its account's are, with a marker behind each."""
    ends: dict[int, int] = {}
    posted = []
    for entry in written:
        partition = partition_of(entry.account)
        offset = ends.get(partition, 0)
        ends[partition] = offset + 2
        posted.append(Posted(place=(LEDGER, partition), offset=offset, entry=entry))
    return posted


WRITTEN = [*entries("clerk/1/1", [FIRST, SECOND]), *entries("teller/2/1", [OWN])]


def _books(written: Sequence[Entry] = WRITTEN, *, position: int = 2) -> Books:
    posted = _post(*written)
    balances: dict[int, int] = {}
    for each in posted:
        balances[each.entry.account] = balances.get(each.entry.account, 0) + each.entry.amount
    return Books(
        clerks={PLACE: position},
        accountants={each.place: each.offset + 1 for each in posted},
        balances=balances,
        transactions={entry.transaction for entry in written},
        posted=posted,
        orders={(PLACE, 0): FIRST, (PLACE, 1): SECOND, (PLACE, 2): THIRD},
    )


def _transacted(transaction: str, *, is_commit: bool = True) -> Event:
    return Transacted(at_us=1, client=transaction.partition("/")[0], transaction=transaction, is_commit=is_commit)


def _acknowledged(offset: int, order: Order) -> Event:
    return Acknowledged(at_us=1, client="orderer", place=PLACE, offset=offset, value=order.to_json())


EVENTS = [
    _acknowledged(0, FIRST), _acknowledged(1, SECOND), _acknowledged(2, THIRD), _transacted("clerk/1/1"),
    _transacted("teller/2/1"), _transacted("teller/2/2", is_commit=False), _transacted("accountant-0/1/1"),
]  # fmt: skip


def _found(books: Books, events: Sequence[Event] = EVENTS) -> set[str]:
    """The claims that are contradicted."""
    return {claim for claim, found in judged(books, events).items() if found}


def test_nothing_is_found_in_good_books() -> None:
    books = _books()
    assert _found(books) == set()
    assert checks.rewritten(books.posted, books.posted) == []
    assert checks.rewritten(books.posted[:2], books.posted) == []


@pytest.mark.parametrize("at", range(len(WRITTEN)))
def test_a_lost_half_is_found(at: int) -> None:
    found = _found(_books([*WRITTEN[:at], *WRITTEN[at + 1 :]]))
    assert {"money", "whole", "once"} <= found
    assert ("counted" in found) == (WRITTEN[at].transfer != OWN.transfer)


def test_half_a_transaction_is_found_though_its_transfers_are_whole() -> None:
    assert _found(_books([*WRITTEN[:2], *WRITTEN[4:]])) == {"whole", "counted"}


def test_an_order_that_was_carried_out_twice_is_found() -> None:
    again = entries("clerk/1/2", [FIRST])
    assert _found(_books([*WRITTEN, *again])) == {"once"}


def test_a_record_that_lies_there_twice_is_found() -> None:
    assert {"money", "whole", "once", "order"} <= _found(_books([WRITTEN[0], *WRITTEN]))


def test_money_that_leaks_is_found() -> None:
    leaking = replace(WRITTEN[1], amount=WRITTEN[1].amount - 1)
    assert _found(_books([WRITTEN[0], leaking, *WRITTEN[2:]])) == {"money", "once", "counted"}


def test_halves_in_two_transactions_are_found() -> None:
    apart = [replace(WRITTEN[4], count=1), replace(WRITTEN[5], count=1, number=0, transaction="teller/2/3")]
    assert _found(_books([*WRITTEN[:4], *apart])) == {"once"}


def test_entries_of_a_later_transaction_before_those_of_an_earlier_one_are_found() -> None:
    late = entries("clerk/1/0", [THIRD])
    assert _found(_books([*WRITTEN, *late], position=3)) == set()
    later = entries("clerk/1/0", [replace(THIRD, creditor=5)])
    assert _found(_books([*WRITTEN, *later], position=3)) == {"counted", "order"}


def test_entries_of_a_process_behind_those_of_one_that_fenced_it_are_found() -> None:
    other = entries("clerk/2/1", [replace(FIRST, transfer="t:1")])
    assert _found(_books([*WRITTEN, *other])) == set()
    fenced = entries("clerk/1/2", [replace(FIRST, transfer="t:2")])
    assert _found(_books([*WRITTEN, *fenced, *other])) == set()
    assert _found(_books([*WRITTEN, *other, *fenced])) == {"order"}


def test_an_entry_in_another_account_s_partition_is_found() -> None:
    books = _books()
    moved = [replace(books.posted[0], place=(LEDGER, 3)), *books.posted[1:]]
    assert checks.disordered(moved) == [f"{(LEDGER, 3)} 0 is of account 0"]


def test_a_commit_that_was_acknowledged_and_is_lost_is_found() -> None:
    assert _found(_books(), [*EVENTS, _transacted("teller/2/3")]) == {"committed"}


def test_an_abort_that_was_acknowledged_and_can_be_read_is_found() -> None:
    assert _found(_books(), [*EVENTS, _transacted("teller/2/1", is_commit=False)]) == {"aborted"}


def test_a_transaction_whose_end_nobody_was_told_may_be_there_or_not() -> None:
    told = [event for event in EVENTS if not isinstance(event, Transacted)]
    assert _found(_books(), told) == set()
    assert _found(_books(WRITTEN[:4]), told) == set()


@pytest.mark.parametrize("position", [0, 1, 3])
def test_a_position_that_is_not_what_was_carried_out_is_found(position: int) -> None:
    assert _found(_books(position=position)) == {"counted"}


def test_an_order_that_was_acknowledged_elsewhere_or_lies_there_twice_is_found() -> None:
    assert _found(_books(), [*EVENTS, _acknowledged(3, FIRST)]) == {"orders"}
    books = _books()
    twice = replace(books, orders=books.orders | {(PLACE, 3): THIRD})
    assert _found(twice) == {"orders"}


def test_a_balance_that_counted_an_entry_twice_or_not_is_found() -> None:
    books = _books()
    for wrong in (5, -5):
        assert _found(replace(books, balances=books.balances | {1: books.balances[1] + wrong})) == {"balances"}
    behind = {**books.accountants, (LEDGER, 0): 0}
    assert _found(replace(books, accountants=behind)) == {"balances"}


def test_what_a_watching_reader_saw_and_is_gone_is_found() -> None:
    books = _books()
    assert checks.rewritten(books.posted, books.posted[1:]) != []
    another = replace(books.posted[0], entry=THIRD_ENTRY)
    assert checks.rewritten([another, *books.posted[1:]], books.posted) != []
    assert checks.rewritten(books.posted[1:], books.posted) == [f"{books.posted[0].place} 0 was left out"]


THIRD_ENTRY = entries("clerk/1/9", [THIRD])[0]


def test_a_client_that_waits_in_vain_is_found() -> None:
    stuck = Troubled(at_us=1, client="clerk", text="commit_transaction was not answered", fatal=True)
    assert _found(_books(), [*EVENTS, stuck]) == {"end"}


def test_money_is_neither_lost_nor_made_while_everything_is_killed() -> None:
    few = [post for post in WORKERS if post.name not in ("teller-1", "clerk-2")]
    kept = keep(seconds=5, seed=1, kind="valkey", workers=few)
    assert {CLAIMS[claim]: found for claim, found in kept.violations.items() if found} == {}, kept.did
    assert kept.audits == 2
    assert kept.transfers > kept.orders > 0
    assert kept.happened["Redis killed"] > 0
