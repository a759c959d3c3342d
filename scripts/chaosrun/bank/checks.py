"""What has to hold of the books, judged from what a read_committed reader found and from what clients were told.

Each function returns the violations it found.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set

from scripts.chaosrun.bank.books import LEDGER, Order, Posted, partition_of
from scripts.chaosrun.checks import few
from scripts.chaosrun.journal import Acknowledged, Event, Place, Transacted


def leaks(posted: Iterable[Posted]) -> list[str]:
    """Money that came from nowhere or went there."""
    total = sum(each.entry.amount for each in posted)
    return [f"the ledger's sum is {total}"] if total else []


def torn(posted: Iterable[Posted]) -> list[str]:
    """Transactions of which something is missing, or is there twice."""
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
    """Transfers that are not exactly two entries, of which one takes what the other gives, in one transaction."""
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
    """Transactions that were acknowledged as committed and are not among those that are there."""
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
    """Entries that are not in their process's order, come from one that was fenced, or are not in their partition.

    Processes of one name fence each other by InitProducerId, in whatever order they come to that; what one of them
    wrote may not stand behind what the one wrote that fenced it.
    """
    found = []
    last: dict[tuple[Place, str], tuple[int, int, int]] = {}
    gone: set[tuple[Place, str, int]] = set()
    for each in sorted(posted, key=lambda each: (each.place, each.offset)):
        client, incarnation, number = each.entry.transaction.split("/")
        at = (int(incarnation), int(number), each.entry.number)
        before = last.get((each.place, client), (-1, -1, -1))
        if (each.place, client, at[0]) in gone or (at[0] == before[0] and at <= before):
            found.append(f"{each.place} {each.offset}: {client}'s {at} comes behind {before}")
        elif at[0] != before[0]:
            gone.add((each.place, client, before[0]))
        if each.place != (LEDGER, partition_of(each.entry.account)):
            found.append(f"{each.place} {each.offset} is of account {each.entry.account}")
        last[each.place, client] = at
    return few(found)


def uncounted(
    orders: Mapping[tuple[Place, int], Order], posted: Iterable[Posted], committed: Mapping[Place, int]
) -> list[str]:
    """Orders below the clerks' committed positions that are not in the ledger as ordered, and others that are.

    :param orders: place and offset -> order.
    """
    found: dict[str, set[tuple[int, int]]] = defaultdict(set)
    for each in posted:
        found[each.entry.transfer].add((each.entry.account, each.entry.amount))
    wrong = []
    for (place, offset), order in orders.items():
        owed = {(order.debtor, -order.amount), (order.creditor, order.amount)}
        is_due = offset < committed.get(place, 0)
        if found.get(order.transfer, set()) != (owed if is_due else set()):
            where = "below" if is_due else "at or above"
            wrong.append(f"{order.transfer} ({place} {offset}, {where} the position) has {found.get(order.transfer)}")
    return few(wrong)


def misplaced(orders: Mapping[tuple[Place, int], Order], events: Iterable[Event]) -> list[str]:
    """Acknowledged orders that are not where they were acknowledged, and orders that are there twice."""
    found = [
        f"{event.value} is not at {event.place} {event.offset}"
        for event in events
        if isinstance(event, Acknowledged) and orders.get((event.place, event.offset)) != Order.parse(event.value)
    ]
    counts = Counter(order.transfer for order in orders.values())
    return few([*found, *(f"{transfer} is there {count} times" for transfer, count in counts.items() if count > 1)])


def rewritten(watched: Iterable[Posted], posted: Sequence[Posted]) -> list[str]:
    """What somebody read who watched all the time and nobody reads now, and what he left out below what he read."""
    seen = {(each.place, each.offset): each.entry for each in watched}
    now = {(each.place, each.offset): each.entry for each in posted}
    reached: dict[Place, int] = {}
    for place, offset in seen:
        reached[place] = max(reached.get(place, -1), offset)
    return few([
        *(f"{place} {offset} was read as {entry}, and is {now.get((place, offset))}"
          for (place, offset), entry in sorted(seen.items()) if now.get((place, offset)) != entry),
        *(f"{place} {offset} was left out" for place, offset in sorted(now)
          if offset <= reached.get(place, -1) and (place, offset) not in seen),
    ])  # fmt: skip


def unbalanced(balances: Mapping[int, int], posted: Iterable[Posted], committed: Mapping[Place, int]) -> list[str]:
    """Accounts whose balance is not what the ledger has of them below the accountants' committed positions.

    :param balances: account -> the last balance that was written.
    """
    sums: dict[int, int] = defaultdict(int)
    for each in posted:
        if each.offset < committed.get(each.place, 0):
            sums[each.entry.account] += each.entry.amount
    return few(
        f"account {account} has {balances.get(account, 0)}, its entries make {sums[account]}"
        for account in sorted({*balances, *sums})
        if balances.get(account, 0) != sums[account]
    )
