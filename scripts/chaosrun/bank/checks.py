"""The checks of the books, on the records of a read_committed reader and on the answers that clients got.

Each function returns the violations it found.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set

from scripts.chaosrun.bank.books import LEDGER, Order, Posted, partition_of
from scripts.chaosrun.checks import few
from scripts.chaosrun.journal import Acknowledged, Event, Partition, Transacted


def leaks(posted: Iterable[Posted]) -> list[str]:
    """Money that came from nowhere or went there."""
    total = sum(each.entry.amount for each in posted)
    return [f"the ledger's sum is {total}"] if total else []


def torn(posted: Iterable[Posted]) -> list[str]:
    """Transactions with a missing or a doubled entry."""
    found: dict[str, list[int]] = defaultdict(list)
    counts: dict[str, int] = {}
    for each in posted:
        found[each.entry.transaction].append(each.entry.number)
        counts[each.entry.transaction] = each.entry.count
    return few(
        f"{transaction} has the entries {sorted(numbers)} of {counts[transaction]}"
        for transaction, numbers in sorted(found.items())
        if sorted(numbers) != list(range(counts[transaction]))
    )


def miscounted(posted: Iterable[Posted]) -> list[str]:
    """Transfers that are not exactly two entries of one transaction, with the sum 0."""
    found: dict[str, list[Posted]] = defaultdict(list)
    for each in posted:
        found[each.entry.transfer].append(each)
    return few(
        f"{transfer} has the amounts {[half.entry.amount for half in halves]}"
        f" in {sorted({half.entry.transaction for half in halves})}"
        for transfer, halves in sorted(found.items())
        if len(halves) != 2
        or sum(half.entry.amount for half in halves) != 0
        or len({half.entry.transaction for half in halves}) != 1
    )


def forgotten(there: Set[str], events: Iterable[Event]) -> list[str]:
    """Transactions that were acknowledged as committed, and cannot be read."""
    return few(
        f"{event.transaction} was committed and is not there"
        for event in events
        if isinstance(event, Transacted) and event.is_commit and event.transaction not in there
    )


def undead(there: Set[str], events: Iterable[Event]) -> list[str]:
    """Transactions that were acknowledged as aborted and can be read."""
    return few(
        f"{event.transaction} was aborted and can be read"
        for event in events
        if isinstance(event, Transacted) and not event.is_commit and event.transaction in there
    )


def disordered(posted: Iterable[Posted]) -> list[str]:
    """Entries that are not in their process's order, come from a fenced process, or are not in their partition.

    Processes of one name fence each other by InitProducerId, in any order. The writes of a fenced process may not
    follow the writes of the process that fenced it.
    """
    found = []
    last: dict[tuple[Partition, str], tuple[int, int, int]] = {}
    gone: set[tuple[Partition, str, int]] = set()
    for each in sorted(posted, key=lambda each: (each.partition, each.offset)):
        client, incarnation, number = each.entry.transaction.split("/")
        at = (int(incarnation), int(number), each.entry.number)
        before = last.get((each.partition, client), (-1, -1, -1))
        if (each.partition, client, at[0]) in gone or (at[0] == before[0] and at <= before):
            found.append(f"{each.partition} {each.offset}: {client}'s {at} comes after {before}")
        elif at[0] != before[0]:
            gone.add((each.partition, client, before[0]))
        if each.partition != (LEDGER, partition_of(each.entry.account)):
            found.append(f"{each.partition} {each.offset} is of account {each.entry.account}")
        last[each.partition, client] = at
    return few(found)


def uncounted(
    orders: Mapping[tuple[Partition, int], Order], posted: Iterable[Posted], committed: Mapping[Partition, int]
) -> list[str]:
    """Orders below the clerks' committed positions that are not in the ledger as ordered, and others that are.

    :param orders: partition and offset -> order.
    """
    found: dict[str, set[tuple[int, int]]] = defaultdict(set)
    for each in posted:
        found[each.entry.transfer].add((each.entry.account, each.entry.amount))
    wrong = []
    for (partition, offset), order in orders.items():
        owed = {(order.debtor, -order.amount), (order.creditor, order.amount)}
        position = committed.get(partition, 0)
        if found.get(order.transfer, set()) != (owed if offset < position else set()):
            wrong.append(
                f"{order.transfer} ({partition} {offset}, the position is {position}) has {found.get(order.transfer)}"
            )
    return few(wrong)


def misplaced(orders: Mapping[tuple[Partition, int], Order], events: Iterable[Event]) -> list[str]:
    """Acknowledged orders that are not where they were acknowledged, and orders that are there twice."""
    places = {(partition, at, order) for (partition, offset), order in orders.items() for at in (offset, None)}
    found = [
        f"{event.value} is not at {event.partition} {event.offset}"
        for event in events
        if isinstance(event, Acknowledged) and (event.partition, event.offset, Order.parse(event.value)) not in places
    ]
    counts = Counter(order.transfer for order in orders.values())
    return few([*found, *(f"{transfer} is there {count} times" for transfer, count in counts.items() if count > 1)])


def rewritten(watched: Iterable[Posted], posted: Sequence[Posted]) -> list[str]:
    """Entries that only the reader of all the time has read, and entries that it left out below its position."""
    seen = {(each.partition, each.offset): each.entry for each in watched}
    now = {(each.partition, each.offset): each.entry for each in posted}
    reached: dict[Partition, int] = {}
    for partition, offset in seen:
        reached[partition] = max(reached.get(partition, -1), offset)
    return few([
        *(f"{partition} {offset} was read as {entry}, and is {now.get((partition, offset))}"
          for (partition, offset), entry in sorted(seen.items()) if now.get((partition, offset)) != entry),
        *(f"{partition} {offset} was left out" for partition, offset in sorted(now)
          if offset <= reached.get(partition, -1) and (partition, offset) not in seen),
    ])  # fmt: skip


def unbalanced(balances: Mapping[int, int], posted: Iterable[Posted], committed: Mapping[Partition, int]) -> list[str]:
    """Accounts with a balance other than the sum of the ledger's entries below the accountants' committed positions.

    :param balances: account -> its last written balance.
    """
    sums: dict[int, int] = defaultdict(int)
    for each in posted:
        if each.offset < committed.get(each.partition, 0):
            sums[each.entry.account] += each.entry.amount
    return few(
        f"account {account} has {balances.get(account, 0)}, its entries make {sums[account]}"
        for account in sorted({*balances, *sums})
        if balances.get(account, 0) != sums[account]
    )
