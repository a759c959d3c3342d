"""The checks that must hold after every fault, on the clients' journals. Each function returns the violations it found.

`Forgiven` are the times whose acknowledged writes a failover to an asynchronous replica may lose. All others are owed.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Final

from scripts.chaosrun.journal import (
    Acknowledged,
    Assigned,
    Committed,
    Consumed,
    Event,
    Logged,
    Partition,
    Revoked,
    Taken,
    Troubled,
)

Times = Sequence[tuple[int, int]]  # from and to, in µs since 1970
Forgiven = Times
SHOWN: Final = 5
# librdkafka logs this when it got no answer for a session: it revokes all, and joins as a new member.
SESSION_ENDED: Final = "SESSTMOUT"
# The Java client logs this when it reaches no broker (KIP-899), and its group's leader when it then forgot topics.
_REBOOTSTRAPPED: Final = "Rebootstrapping with "
_FORGOT: Final = re.compile(
    r"Request joining group due to: cached metadata has changed from .* at the beginning of the rebalance "
    r"to \(version\d+: \{([\w.-]+=\[\](, )?)*\}\)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupState:
    """A group as `korvet_group_describe` shows it. `members`: member id -> client id. `committed`: its offsets.

    Of the type `consumer` a generation is the group's epoch.
    """

    state: str
    generation: int
    members: Mapping[str, str]
    committed: Mapping[Partition, int]
    type: str = "classic"


def is_owed(event: Event, forgiven: Forgiven) -> bool:
    """True unless Redis may have lost the effect of an acknowledgement."""
    return not any(since <= event.at_us <= until for since, until in forgiven)


def few(found: Iterable[str]) -> list[str]:
    """So many as anyone reads."""
    every = list(found)
    return every[:SHOWN] + ([f"and {len(every) - SHOWN} more"] if len(every) > SHOWN else [])


def lost_commits(events: Iterable[Event], states: Mapping[str, GroupState], forgiven: Forgiven = ()) -> list[str]:
    """Groups' final offsets that are below an acknowledged commit."""
    highest: dict[tuple[str, Partition], tuple[int, str]] = {}
    for event in events:
        if isinstance(event, Committed) and is_owed(event, forgiven):
            for partition, offset in event.offsets:
                highest[event.group, partition] = max(
                    highest.get((event.group, partition), (-1, "")), (offset, event.client)
                )
    return few(
        f"{group} {topic}:{index}: {client}'s commit of {offset} was acknowledged, the broker has {found}"
        for (group, (topic, index)), (offset, client) in sorted(highest.items())
        if (found := states[group].committed.get((topic, index), -1)) < offset
    )


def forgotten_positions(events: Iterable[Event], forgiven: Forgiven = ()) -> list[str]:
    """Owners that began below an offset with an acknowledged commit before their assignment."""
    found = []
    committed: dict[tuple[str, Partition], int] = defaultdict(int)
    owed: dict[tuple[str, str, Partition], int] = {}
    for event in sorted(events, key=lambda event: event.at_us):
        if isinstance(event, Committed) and is_owed(event, forgiven):
            for partition, offset in event.offsets:
                committed[event.group, partition] = max(committed[event.group, partition], offset)
        elif isinstance(event, Assigned):
            for partition in event.added:
                owed[event.client, event.group, partition] = committed[event.group, partition]
        elif isinstance(event, Consumed):
            least = owed.pop((event.client, event.group, event.partition), 0)
            if event.offset < least:
                found.append(f"{event.client} began {event.partition} at {event.offset}, {least} had been committed")
    return few(found)


def went_back(samples: Iterable[tuple[int, Mapping[str, GroupState]]], forgiven: Forgiven = ()) -> list[str]:
    """Committed offsets that were lower than in an earlier sample: (µs since 1970, groups)."""
    found = []
    highest: dict[tuple[str, Partition], int] = {}
    for at_us, groups in samples:
        for group, state in groups.items():
            for partition, offset in state.committed.items():
                before = highest.get((group, partition), offset)
                if offset < before and not any(since <= at_us <= until for since, until in forgiven):
                    found.append(f"{group}: {partition} went back from {before} to {offset}")
                highest[group, partition] = offset
    return few(found)


def shared_partitions(events: Iterable[Event]) -> list[str]:
    """Partitions that two clients owned in one generation, by their assignments and by their records.

    A static member that comes back gets another member id, and its partitions, in the same generation.
    """
    owners: dict[tuple[str, int, Partition], set[str]] = defaultdict(set)
    for event in events:
        if isinstance(event, Assigned):
            for partition in event.owned:
                owners[event.group, event.generation, partition].add(event.client)
        elif isinstance(event, Consumed) and event.generation >= 0:
            owners[event.group, event.generation, event.partition].add(event.client)
    return few(
        f"{group}, generation {generation}: {partition} belongs to {' and '.join(sorted(clients))}"
        for (group, generation, partition), clients in sorted(owners.items())
        if len(clients) > 1
    )


@dataclass(slots=True)
class _Span:
    """A time in which a client owned a partition, as far as known: until it gave it up, or to its last record."""

    client: str
    since_us: int
    until_us: int
    has_read: bool = False


def overlapping_owners(events: Iterable[Event], consumer_clients: Collection[str] = ()) -> list[str]:
    """Partitions that were assigned to a client before another one gave them up, by the times of their callbacks.

    A client that lost its partitions does not know since when, so such times do not count. Neither do times in which a
    client of the consumer protocol read no record of the partition. docs/chaos.md explains why such a client may hold a
    partition that it has given up.

    Source: CurrentAssignmentBuilder.ownsRevokedPartitions; rd_kafka_cgrp_consumer_serve, F_SEND_FULL_REQUEST;
    AbstractHeartbeatRequestManager.onErrorResponse
    """
    spans: dict[tuple[str, Partition], list[_Span]] = defaultdict(list)
    current: dict[tuple[str, str, Partition], _Span] = {}
    for event in sorted(events, key=lambda event: event.at_us):
        if isinstance(event, Assigned):
            for partition in event.added:
                span = _Span(event.client, event.at_us, event.at_us)
                current[event.client, event.group, partition] = span
                spans[event.group, partition].append(span)
        elif isinstance(event, Revoked):
            for partition in event.partitions:
                if (ended := current.pop((event.client, event.group, partition), None)) is not None:
                    ended.until_us = ended.since_us if event.lost else event.at_us
        elif isinstance(event, Consumed) and (event.client, event.group, event.partition) in current:
            span = current[event.client, event.group, event.partition]
            span.until_us, span.has_read = event.at_us, True
    return few(
        f"{group}: {later.client} got {partition} {(earlier.until_us - later.since_us) / 1e3:.0f} ms before "
        f"{earlier.client} gave it up"
        for (group, partition), owned in sorted(spans.items())
        for earlier, later in pairwise(span for span in owned if span.has_read or span.client not in consumer_clients)
        if earlier.client != later.client and later.since_us < earlier.until_us
    )


def undelivered(events: Iterable[Event], groups: Iterable[str], forgiven: Forgiven = ()) -> dict[str, int]:
    """The number of acknowledged records that each group has not seen, without groups that have seen all."""
    owed: set[tuple[Partition, str]] = set()
    seen: dict[str, set[tuple[Partition, str]]] = {group: set() for group in groups}
    for event in events:
        if isinstance(event, Acknowledged) and is_owed(event, forgiven):
            owed.add((event.partition, event.value))
        elif isinstance(event, Consumed) and event.group in seen:
            seen[event.group].add((event.partition, event.value))
    return {group: missing for group, had in seen.items() if (missing := len(owed - had))}


def disordered(events: Iterable[Event], forgiven: Forgiven = ()) -> list[str]:
    """Records out of order, twice or left out while one member owned the partition.

    If history may be lost, a log may begin again at a lower offset: order is owed only for times that are not forgiven.
    """
    found = []
    last: dict[tuple[str, str, Partition], int] = {}
    for event in sorted(events, key=lambda event: event.at_us):
        if isinstance(event, Assigned | Revoked):
            for partition in event.added if isinstance(event, Assigned) else event.partitions:
                last.pop((event.client, event.group, partition), None)
        elif isinstance(event, Consumed):
            key = (event.client, event.group, event.partition)
            if key in last and event.offset != last[key] + 1 and not forgiven:
                found.append(f"{event.client} got {event.partition} {event.offset} after {last[key]}")
            last[key] = event.offset
    return few(found)


def repeated(events: Iterable[Event]) -> list[str]:
    """Records of an idempotent producer that lie at two offsets."""
    positions: dict[str, set[tuple[Partition, int]]] = defaultdict(set)
    for event in events:
        if isinstance(event, Acknowledged | Consumed) and event.offset is not None:
            positions[event.value].add((event.partition, event.offset))
    return few(f"{value} lies at {sorted(where)}" for value, where in sorted(positions.items()) if len(where) > 1)


def gave_up(events: Iterable[Event]) -> list[str]:
    """Clients that do not go on."""
    return few(f"{event.client}: {event.text}" for event in events if isinstance(event, Troubled) and event.fatal)


def ended_sessions(events: Iterable[Event]) -> set[str]:
    """Clients that ended their session themselves by their log, and so came back as new members."""
    return {event.client for event in events if isinstance(event, Logged) and SESSION_ENDED in event.text}


def forgot_topics(events: Iterable[Event]) -> Counter[str]:
    """The number of times that clients join again without partitions, after they had reached no broker.

    If they lost partitions otherwise, the broker did not report it.
    """
    unreachable: set[str] = set()
    times: Counter[str] = Counter()
    for event in sorted(events, key=lambda event: event.at_us):
        if not isinstance(event, Logged):
            continue
        if event.text.startswith(_REBOOTSTRAPPED):
            unreachable.add(event.client)
        elif event.client in unreachable and _FORGOT.fullmatch(event.text):
            unreachable.remove(event.client)
            times[event.client] += 1
    return times


def rebalanced(
    before: Mapping[str, GroupState], after: Mapping[str, GroupState], most: Mapping[str, int] = MappingProxyType({})
) -> list[str]:
    """Groups that had more generations in between than `most` allows, which is none for a group without an entry."""
    return [
        f"{group} went from generation {was.generation} to {after[group].generation}"
        for group, was in before.items()
        if not was.generation <= after[group].generation <= was.generation + most.get(group, 0)
    ]


def replaced(
    before: Mapping[str, GroupState], after: Mapping[str, GroupState], ended: Collection[str] = ()
) -> list[str]:
    """Groups with changed member ids, except for clients that ended their sessions themselves."""
    return [
        f"{group} lost {', '.join(sorted(gone))}"
        for group, was in before.items()
        if (gone := {id for id in set(was.members) - set(after[group].members) if was.members[id] not in ended})
    ]


def signs_of_life(events: Iterable[Event]) -> dict[str, list[int]]:
    """The times of each client's answers, in µs since 1970."""
    signs: dict[str, list[int]] = defaultdict(list)
    for event in events:
        if isinstance(event, Assigned | Consumed | Committed | Acknowledged | Taken):
            signs[event.client].append(event.at_us)
    return signs


def unanswered(events: Iterable[Event], clients: Iterable[str], since_us: int) -> set[str]:
    """The clients that got no answer since."""
    signs = signs_of_life(event for event in events if event.at_us > since_us)
    return {client for client in clients if client not in signs}


def answered_after(events: Iterable[Event], clients: Iterable[str], since_us: int) -> float:
    """The time in s until the last of the clients was answered; each of them was."""
    signs = signs_of_life(event for event in events if event.at_us > since_us)
    return max(min(signs[client]) - since_us for client in clients) / 1e6


def longest_silence(events: Iterable[Event], clients: Iterable[str], since_us: int, until_us: int) -> tuple[float, str]:
    """The longest time in s that a client got no answer, and the client."""
    signs = signs_of_life(event for event in events if since_us < event.at_us < until_us)
    longest = (0.0, "")
    for client in clients:
        times = [since_us, *sorted(signs.get(client, [])), until_us]
        gap = max(later - earlier for earlier, later in pairwise(times))
        longest = max(longest, (gap / 1e6, client))
    return longest


def outages(since_us: int, samples: Iterable[tuple[int, object]]) -> Times:
    """The times since then without an answer of Redis for a second."""
    times = [since_us, *(at_us for at_us, _ in samples)]
    return [(before, after) for before, after in pairwise(times) if after - before > 1_000_000]
