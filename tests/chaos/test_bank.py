"""The bank's checks on made-up books, and short runs of the bank. `scripts/chaos --bank` makes long runs."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from scripts.chaosrun.bank import checks
from scripts.chaosrun.bank.books import LEDGER, ORDERS, Entry, Order, Posted, entries, partition_of
from scripts.chaosrun.bank.reading import Books
from scripts.chaosrun.bank.run import CLAIMS, judged, keep
from scripts.chaosrun.bank.staff import WORKERS
from scripts.chaosrun.journal import Acknowledged, Event, Partition, Transacted, Troubled

PARTITION: Partition = (ORDERS, 0)
FIRST = Order(transfer="o:0", debtor=0, creditor=1, amount=5)
SECOND = Order(transfer="o:1", debtor=1, creditor=4, amount=7)
THIRD = Order(transfer="o:2", debtor=2, creditor=3, amount=9)
OWN = Order(transfer="t:0", debtor=3, creditor=0, amount=11)


def _post(*written: Entry) -> list[Posted]:
    """Each entry in its account's partition, with a marker behind it."""
    ends: dict[int, int] = {}
    posted = []
    for entry in written:
        partition = partition_of(entry.account)
        offset = ends.get(partition, 0)
        ends[partition] = offset + 2
        posted.append(Posted(partition=(LEDGER, partition), offset=offset, entry=entry))
    return posted


WRITTEN = [*entries("clerk/1/1", [FIRST, SECOND]), *entries("teller/2/1", [OWN])]


def _books(written: Sequence[Entry] = WRITTEN, *, position: int = 2) -> Books:
    posted = _post(*written)
    balances: dict[int, int] = {}
    for each in posted:
        balances[each.entry.account] = balances.get(each.entry.account, 0) + each.entry.amount
    return Books(
        clerks={PARTITION: position},
        accountants={each.partition: each.offset + 1 for each in posted},
        balances=balances,
        transactions={entry.transaction for entry in written},
        posted=posted,
        orders={(PARTITION, 0): FIRST, (PARTITION, 1): SECOND, (PARTITION, 2): THIRD},
    )


def _transacted(transaction: str, *, is_commit: bool = True) -> Event:
    return Transacted(at_us=1, client=transaction.partition("/")[0], transaction=transaction, is_commit=is_commit)


def _acknowledged(offset: int | None, order: Order) -> Event:
    return Acknowledged(at_us=1, client="orderer", partition=PARTITION, offset=offset, value=order.to_json())


EVENTS = [
    _acknowledged(0, FIRST), _acknowledged(1, SECOND), _acknowledged(None, THIRD), _transacted("clerk/1/1"),
    _transacted("teller/2/1"), _transacted("teller/2/2", is_commit=False), _transacted("accountant-0/1/1"),
]  # fmt: skip


def _found(books: Books, events: Sequence[Event] = EVENTS) -> set[str]:
    """The claims that the books violate."""
    return {claim for claim, found in judged(books, events).items() if found}


def test_checks_find_nothing_in_good_books() -> None:
    books = _books()
    assert _found(books) == set()
    assert checks.rewritten(books.posted, books.posted) == []
    assert checks.rewritten(books.posted[:2], books.posted) == []


@pytest.mark.parametrize("at", range(len(WRITTEN)))
def test_checks_find_a_lost_half(at: int) -> None:
    found = _found(_books([*WRITTEN[:at], *WRITTEN[at + 1 :]]))
    assert {"money", "whole", "once"} <= found
    assert ("counted" in found) == (WRITTEN[at].transfer != OWN.transfer)


def test_checks_find_half_a_transaction_of_whole_transfers() -> None:
    assert _found(_books([*WRITTEN[:2], *WRITTEN[4:]])) == {"whole", "counted"}


def test_checks_find_an_order_carried_out_twice() -> None:
    again = entries("clerk/1/2", [FIRST])
    assert _found(_books([*WRITTEN, *again])) == {"once"}


def test_checks_find_a_record_written_twice() -> None:
    assert {"money", "whole", "once", "order"} <= _found(_books([WRITTEN[0], *WRITTEN]))


def test_checks_find_money_that_leaks() -> None:
    leaking = replace(WRITTEN[1], amount=WRITTEN[1].amount - 1)
    assert _found(_books([WRITTEN[0], leaking, *WRITTEN[2:]])) == {"money", "once", "counted"}


def test_checks_find_halves_in_two_transactions() -> None:
    apart = [replace(WRITTEN[4], count=1), replace(WRITTEN[5], count=1, number=0, transaction="teller/2/3")]
    assert _found(_books([*WRITTEN[:4], *apart])) == {"once"}


def test_checks_find_entries_of_transactions_out_of_order() -> None:
    late = entries("clerk/1/0", [THIRD])
    assert _found(_books([*WRITTEN, *late], position=3)) == set()
    later = entries("clerk/1/0", [replace(THIRD, creditor=5)])
    assert _found(_books([*WRITTEN, *later], position=3)) == {"counted", "order"}


def test_checks_find_entries_of_a_fenced_process() -> None:
    other = entries("clerk/2/1", [replace(FIRST, transfer="t:1")])
    assert _found(_books([*WRITTEN, *other])) == set()
    fenced = entries("clerk/1/2", [replace(FIRST, transfer="t:2")])
    assert _found(_books([*WRITTEN, *fenced, *other])) == set()
    assert _found(_books([*WRITTEN, *other, *fenced])) == {"order"}


def test_checks_find_an_entry_in_another_accounts_partition() -> None:
    books = _books()
    moved = [replace(books.posted[0], partition=(LEDGER, 3)), *books.posted[1:]]
    assert checks.disordered(moved) == [f"{(LEDGER, 3)} 0 is of account 0"]


def test_checks_find_an_acknowledged_commit_that_is_lost() -> None:
    assert _found(_books(), [*EVENTS, _transacted("teller/2/3")]) == {"committed"}


def test_checks_find_an_acknowledged_abort_that_readers_see() -> None:
    assert _found(_books(), [*EVENTS, _transacted("teller/2/1", is_commit=False)]) == {"aborted"}


def test_checks_accept_a_transaction_of_unknown_end_with_or_without_records() -> None:
    told = [event for event in EVENTS if not isinstance(event, Transacted)]
    assert _found(_books(), told) == set()
    assert _found(_books(WRITTEN[:4]), told) == set()


@pytest.mark.parametrize("position", [0, 1, 3])
def test_checks_find_a_position_that_differs_from_the_orders_carried_out(position: int) -> None:
    assert _found(_books(position=position)) == {"counted"}


def test_checks_find_an_order_at_another_offset_or_at_two() -> None:
    assert _found(_books(), [*EVENTS, _acknowledged(3, FIRST)]) == {"orders"}
    books = _books()
    twice = replace(books, orders=books.orders | {(PARTITION, 3): THIRD})
    assert _found(twice) == {"orders"}


def test_checks_find_a_balance_with_an_entry_twice_or_missing() -> None:
    books = _books()
    for wrong in (5, -5):
        assert _found(replace(books, balances=books.balances | {1: books.balances[1] + wrong})) == {"balances"}
    behind = {**books.accountants, (LEDGER, 0): 0}
    assert _found(replace(books, accountants=behind)) == {"balances"}


def test_checks_find_a_record_gone_since_a_reader_saw_it() -> None:
    books = _books()
    assert checks.rewritten(books.posted, books.posted[1:]) != []
    another = replace(books.posted[0], entry=THIRD_ENTRY)
    assert checks.rewritten([another, *books.posted[1:]], books.posted) != []
    assert checks.rewritten(books.posted[1:], books.posted) == [f"{books.posted[0].partition} 0 was left out"]


THIRD_ENTRY = entries("clerk/1/9", [THIRD])[0]


def test_checks_find_a_client_that_waits_in_vain() -> None:
    stuck = Troubled(at_us=1, client="clerk", text="commit_transaction was not answered", fatal=True)
    assert _found(_books(), [*EVENTS, stuck]) == {"end"}


def test_bank_keeps_its_money_while_all_processes_are_killed() -> None:
    few = [post for post in WORKERS if post.name not in ("teller-1", "clerk-2")]
    kept = keep(seconds=5, seed=1, kind="valkey", workers=few)
    assert {CLAIMS[claim]: found for claim, found in kept.violations.items() if found} == {}, kept.did
    assert kept.audits == 2
    assert kept.transfers > kept.orders > 0
    assert kept.happened["Redis killed"] > 0


def test_checks_do_not_require_commits_answered_during_a_cut() -> None:
    lost = _transacted("clerk/1/9")
    assert _found(_books(), [*EVENTS, lost]) == {"committed"}
    found = judged(_books(), [*EVENTS, replace(lost, at_us=5)], lambda at_us: at_us != 5)
    assert not any(found.values())


@pytest.mark.all
def test_bank_sees_no_partial_transaction_while_redis_loses_writes() -> None:
    few = [post for post in WORKERS if post.name not in ("teller-1", "clerk-2")]
    kept = keep(seconds=5, seed=2, kind="valkey", workers=few, cuts=True)
    assert {CLAIMS[claim]: found for claim, found in kept.violations.items() if found} == {}, kept.did
    assert kept.happened["Redis killed, its file cut"] > 0
    assert kept.transfers > kept.orders > 0


@pytest.mark.all
@pytest.mark.parametrize("cuts", [False, True])
def test_bank_keeps_its_money_in_a_tier(cuts: bool) -> None:
    few = [post for post in WORKERS if post.name not in ("teller-1", "clerk-2")]
    kept = keep(seconds=15, seed=3, kind="valkey", workers=few, cuts=cuts, has_tier=True)
    assert {CLAIMS[claim]: found for claim, found in kept.violations.items() if found} == {}, kept.did
    assert kept.transfers > kept.orders > 0
    assert kept.happened["records only in the tier"] > 0
