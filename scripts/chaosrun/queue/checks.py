"""The checks of a queue, on the journals of its producers and consumers. Each returns the violations that it found.

A record is its value, which no other has: after lost writes another record may have its offset. A settlement with an
error may have happened or not, so it counts as neither.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Set
from typing import Final

from scripts.chaosrun.checks import Forgiven, Times, few, is_owed
from scripts.chaosrun.journal import Event, Settled, Taken

REFUSALS: Final = ("INVALID_RECORD_STATE", "InvalidRecordState", "does not hold")
"""In the errors of members that no longer hold a record, by their clients."""


def lost(owed: Set[str], events: Iterable[Event], letters: Set[str]) -> list[str]:
    """Finished records that no member accepted or rejected, and that are no dead letters.

    :param owed: records that were acknowledged, and are finished.
    """
    settled = {event.value for event in events if isinstance(event, Settled) and event.kind != "release"}
    return few(f"{value} is lost" for value in sorted(owed - settled - letters))


def came_after_end(events: Iterable[Event], letters: Set[str], forgiven: Forgiven = ()) -> list[str]:
    """Records that were delivered once more after a member had finished them, and accepted ones that are dead letters.

    A member whose lock has ended may get no error, as in Kafka: others finished the record, and the start is past it.
    So only the last delivery counts.
    """
    found, last, accepted = [], dict[str, int](), dict[str, int]()
    taken: dict[tuple[str, str], int] = {}
    ended: dict[str, tuple[int, str]] = {}
    for event in sorted(events, key=lambda event: event.at_us):
        if isinstance(event, Taken):
            taken[event.client, event.value] = event.deliveries
            last[event.value] = max(last.get(event.value, 0), event.deliveries)
            deliveries, client = ended.get(event.value, (event.deliveries, ""))
            if event.deliveries > deliveries:
                found.append(f"{event.value} came to {event.client} after {client} had finished it")
        elif isinstance(event, Settled) and event.kind != "release" and not event.error and is_owed(event, forgiven):
            deliveries = taken.get((event.client, event.value), 0)
            ended[event.value] = max(ended.get(event.value, (0, "")), (deliveries, event.client))
            if event.kind == "accept":
                accepted[event.value] = max(accepted.get(event.value, 0), deliveries)
    wrong = (value for value, deliveries in accepted.items() if value in letters and deliveries == last.get(value, 0))
    return few([*found, *(f"{value} was accepted, and is a dead letter" for value in sorted(wrong))])


def missing_letters(owed: Set[str], events: Iterable[Event], letters: Set[str], forgiven: Forgiven = ()) -> list[str]:
    """Rejected records that are no dead letters. `owed` as for `lost`."""
    return few(
        f"{event.value} was rejected by {event.client}, and is no dead letter"
        for event in events
        if isinstance(event, Settled) and event.kind == "reject" and not event.error
        and is_owed(event, forgiven) and event.value in owed - letters
    )  # fmt: skip


def ended_early(events: Iterable[Event], lock_ms: int, outages: Times) -> list[str]:
    """Records that came again, or whose acknowledgement was refused, before their lock was over.

    An outage prolongs it. A client notes a record after it was locked, and works on others first. So half of the lock
    is enough. It may note the answer to a release after others got the record.
    """
    found = []
    ordered = sorted(events, key=lambda event: event.at_us)
    ended: dict[tuple[str, str], list[Settled]] = defaultdict(list)
    for event in ordered:
        if isinstance(event, Settled):
            ended[event.client, event.value].append(event)
    held: dict[str, Taken] = {}
    for event in ordered:
        if isinstance(event, Taken):
            before, held[event.value] = held.get(event.value), event
            of_holder = ended[before.client, before.value] if before is not None else []
            end = next((one for one in of_holder if before is not None and one.at_us > before.at_us), None)
            is_over = end is not None and (end.kind == "release" or end.at_us < event.at_us)
        elif isinstance(event, Settled):
            before = held.get(event.value)
            is_over = not any(word in event.error for word in REFUSALS)
        else:
            continue
        if before is None or is_over or (isinstance(event, Settled) and event.client != before.client):
            continue
        away_us = sum(max(0, min(to, event.at_us) - max(since, before.at_us)) for since, to in outages)
        locked_ms = (event.at_us - before.at_us - away_us) / 1000
        if locked_ms < lock_ms / 2:
            what = f"{event.client} got {event.value}" if isinstance(event, Taken) else f"{event.value} was refused"
            found.append(f"{what} {locked_ms:.0f} ms after {before.client} got it")
    return few(found)


def over_delivered(events: Iterable[Event], limit: int) -> list[str]:
    """Records that were delivered more often than they may be."""
    return few(
        f"{event.value} was delivered {event.deliveries} times to {event.client}"
        for event in events
        if isinstance(event, Taken) and event.deliveries > limit
    )


def came_again(events: Iterable[Event]) -> int:
    """The number of records that came again although no member had released them."""
    taken = Counter(event.value for event in events if isinstance(event, Taken))
    released = Counter(event.value for event in events if isinstance(event, Settled) and event.kind == "release")
    return sum(count - released[value] > 1 for value, count in taken.items())
