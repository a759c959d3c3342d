"""Clients of a group in which both protocols are spoken, as Java's consumers behave: what each of them thinks it owns.

The group's server knows who owns what by its own account; what counts is that no two living clients read the same
partition at any time, and that all partitions are read in the end.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from itertools import count
from typing import Any

from tests.lua.consumer import FENCED_MEMBER_EPOCH, TOPICS, UNRELEASED_INSTANCE_ID
from tests.lua.group import (
    GROUP_ID_NOT_FOUND,
    ILLEGAL_GENERATION,
    MEMBER_ID_REQUIRED,
    NONE,
    REBALANCE_IN_PROGRESS,
    UNKNOWN_MEMBER_ID,
    Joined,
    Synced,
)
from tests.lua.mixed import CLASSIC_SESSION_S, MixedGroup, assignment

Place = tuple[str, int]
READ = ("foo", "bar")
PLACES = [(name, partition) for name in READ for partition in range(TOPICS[name][1])]
NAMES = {topic_id: name for name, (topic_id, _) in TOPICS.items()}
COOPERATIVE = "cooperative-sticky"
REBALANCE_S = 60.0
STEP_S = 3.0
"""Sessions of classic members are held three times in it."""
assert STEP_S * 3 < CLASSIC_SESSION_S


def by_topic(places: Iterable[Place]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for name, partition in sorted(places):
        topics.setdefault(name, []).append(partition)
    return topics


def as_text(places: Iterable[Place]) -> str:
    """As the functions of the consumer protocol are told of them."""
    topics = sorted((TOPICS[name][0], partitions) for name, partitions in by_topic(places).items())
    return " ".join(f"{topic_id}:{','.join(map(str, partitions))}" for topic_id, partitions in topics)


def from_text(text: str) -> set[Place]:
    topics = (topic.split(":") for topic in text.split())
    return {(NAMES[topic_id], int(partition)) for topic_id, partitions in topics for partition in partitions.split(",")}


def topics_at(data: bytes, at: int) -> set[Place]:
    """Topics with partitions as ConsumerProtocol has them in assignments and subscriptions."""
    places = set()
    (topics,) = struct.unpack_from(">i", data, at)
    at += 4
    for _ in range(topics):
        (length,) = struct.unpack_from(">h", data, at)
        name = data[at + 2 : at + 2 + length].decode()
        (partitions,) = struct.unpack_from(">i", data, at + 2 + length)
        at += 2 + length + 4
        places |= {(name, partition) for partition in struct.unpack_from(f">{partitions}i", data, at)}
        at += 4 * partitions
    return places


def reported(metadata: bytes) -> set[Place]:
    """What a subscription says that its member owns."""
    (topics,) = struct.unpack_from(">i", metadata, 2)
    at = 6
    for _ in range(topics):
        at += 2 + int(struct.unpack_from(">h", metadata, at)[0])
    return topics_at(metadata, at + 4)


def shares(members: Iterable[str]) -> dict[str, set[Place]]:
    """Every partition in turn to each member."""
    ids = sorted(members)
    found: dict[str, set[Place]] = {member: set() for member in ids}
    for at, place in enumerate(PLACES):
        found[ids[at % len(ids)]].add(place)
    return found


class SharedGroup(MixedGroup):
    """The front-end's assignor gives every partition in turn to each member."""

    def retarget(self) -> None:
        snapshot = self.snapshot()
        targets = shares(member["member_id"] for member in snapshot["members"])
        lines = "\n".join(f"{name} {TOPICS[name][0]} {TOPICS[name][1]}" for name in sorted(READ))
        flat = {member: as_text(places) for member, places in targets.items()}
        assert self.assign(snapshot, flat, lines)[0] == NONE


class ConsumerClient:
    """Speaks the consumer protocol."""

    def __init__(self, group: SharedGroup, name: str, instance: str = "") -> None:
        self.group, self.id, self.instance = group, name, instance
        self.epoch = 0
        self.owned: set[Place] = set()

    def step(self) -> None:
        names = READ if self.epoch == 0 else ()
        joining: Mapping[str, Any] = {"rebalance_s": REBALANCE_S} if self.epoch == 0 else {}
        answer = self.group.beat(
            self.id, self.epoch, *names, owned=as_text(self.owned), instance=self.instance, **joining
        )
        if answer.code in (FENCED_MEMBER_EPOCH, UNKNOWN_MEMBER_ID, GROUP_ID_NOT_FOUND):
            assert answer.code != GROUP_ID_NOT_FOUND or self.epoch > 0
            self.owned, self.epoch = set(), 0
        elif answer.code != UNRELEASED_INSTANCE_ID:
            assert (answer.code, answer.status) == (NONE, "ready"), answer
            self.epoch = answer.epoch
            if answer.assignment is not None:
                self.owned = from_text(answer.assignment)

    def stop(self) -> None:
        if self.epoch > 0:
            self.group.part(self.id, -1, self.instance)
        self.owned = set()


class ClassicClient:
    """Speaks the classic protocol, and gives up all that it has before it joins unless it is cooperative.

    It keeps its id where an answer is lost, and joins again where that was a join's or a sync's.
    """

    def __init__(self, group: SharedGroup, protocol: str, instance: str = "") -> None:
        self.group, self.protocol, self.instance = group, protocol, instance
        self.id, self.generation, self.waits = "", -1, "join"
        self.is_parked = False
        self.owned: set[Place] = set()

    def step(self, loses: str = "") -> None:
        """Make the calls that are due; the answer of the `first` or the `last` of them may be lost."""
        if self.waits == "join":
            self._on_joined(self._wait_for_join() if self.is_parked else self._join(), loses)
        elif self.waits == "sync":
            self._on_synced(self.group.wait_sync(self.id, self.generation, self.instance), loses)
        else:
            self._on_heartbeat(self._send_heartbeat(), loses)

    def stop(self) -> None:
        if self.id:
            self.group.leave((self.id, self.instance))
        self.owned = set()

    def _join(self) -> Joined | None:
        if self.protocol != COOPERATIVE:
            self.owned = set()
        return self._send_join()

    def _send_join(self) -> Joined | None:
        """None where nobody is left to give the answer."""
        says = self.group.says(*READ, owned=by_topic(self.owned), protocol=self.protocol)
        return self.group.classic(self.id, says, instance=self.instance)

    def _send_heartbeat(self) -> int:
        return self.group.heartbeat(self.id, self.generation, self.instance)

    def _wait_for_join(self) -> Joined:
        return self.group.wait(self.id, self.instance)

    def _lose(self, code: int) -> None:
        """The member is none any more, or none of this generation."""
        self.owned, self.generation, self.waits, self.is_parked = set(), -1, "join", False
        if code == UNKNOWN_MEMBER_ID:
            self.id = ""

    def _join_again(self) -> None:
        self.waits, self.is_parked = "join", False

    def _on_joined(self, answer: Joined | None, loses: str) -> None:
        if answer is None or loses == "first":
            self._join_again()
        elif answer.code == MEMBER_ID_REQUIRED:
            self.id = answer.member
            self._on_joined(self._join(), loses)
        elif loses and (answer.is_parked or answer.code != NONE):
            self._join_again()
        elif answer.code == NONE:
            self._on_member(answer, loses)
        elif answer.code == REBALANCE_IN_PROGRESS:
            self.is_parked = False
        else:
            assert answer.code == UNKNOWN_MEMBER_ID, answer
            self._lose(answer.code)

    def _on_member(self, answer: Joined, loses: str) -> None:
        self.id, self.is_parked = answer.member, answer.is_parked
        if not self.is_parked:
            self.generation, self.waits = answer.generation, "sync"
            assigned = self._assigned(answer) if answer.is_leader else {}
            self._on_synced(self.group.sync(self.id, self.generation, assigned, instance=self.instance), loses)

    def _assigned(self, answer: Joined) -> dict[str, bytes]:
        """What a leader assigns; a cooperative one gives nothing away that its owner has yet to give up."""
        targets = shares(member for member, _, _ in answer.members)
        if self.protocol == COOPERATIVE:
            has = {member: reported(metadata) for member, _, metadata in answer.members}
            for member, places in targets.items():
                others = set().union(*(owned for other, owned in has.items() if other != member))
                places -= others
        return {member: assignment(by_topic(places)) for member, places in targets.items()}

    def _on_synced(self, answer: Synced, loses: str) -> None:
        if loses or answer.code == REBALANCE_IN_PROGRESS:
            self._join_again()
        elif answer.code in (UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION):
            self._lose(answer.code)
        elif not answer.is_parked:
            assert answer.code == NONE
            self.waits = ""
            self._take(topics_at(answer.assignment, 2) if answer.assignment else set())

    def _take(self, places: set[Place]) -> None:
        """Read what it is to; who had to give something up joins again to say so."""
        if self.owned - places:
            self.waits = "join"
        self.owned = places

    def _on_heartbeat(self, code: int, loses: str) -> None:
        if loses:
            return
        if code == REBALANCE_IN_PROGRESS:
            self.waits = "join"
        elif code != NONE:
            assert code in (UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION), code
            self._lose(code)


Client = ConsumerClient | ClassicClient


class Crowd:
    """All clients of a group. After each step of one of them, no two own the same partition."""

    def __init__(self, group: SharedGroup, protocol: str) -> None:
        self.group, self.protocol = group, protocol
        self.clients: list[Client] = []
        self._numbers = count(1)

    def add(self, is_classic: bool, instance: str = "") -> Client:
        client = self._made(is_classic, instance)
        self.clients.append(client)
        self.step(client)
        return client

    def _made(self, is_classic: bool, instance: str) -> Client:
        if is_classic:
            return ClassicClient(self.group, self.protocol, instance)
        return ConsumerClient(self.group, f"consumer-{next(self._numbers)}", instance)

    def step(self, client: Client) -> None:
        client.step()
        self.check()

    def check(self) -> None:
        owners: dict[Place, Client] = {}
        for client in self.clients:
            for place in client.owned:
                assert place not in owners, (place, vars(owners[place]), vars(client))
                owners[place] = client

    def stop(self, client: Client) -> None:
        """A client leaves, as one does that is closed."""
        client.stop()
        self.clients.remove(client)

    def switch(self, client: Client) -> None:
        """A client is closed and comes back with the other protocol. A static one says nothing when it goes."""
        instance = client.instance
        if not instance:
            client.stop()
        elif isinstance(client, ConsumerClient) and client.epoch > 0:
            self.group.part(client.id, -2, instance)
        self.clients.remove(client)
        self.add(isinstance(client, ConsumerClient), instance)

    def go_round(self) -> None:
        """All of them are heard of, and some time passes."""
        for client in list(self.clients):
            self.step(client)
        self.group.pass_time(STEP_S)

    def settle(self, rounds: int) -> None:
        """After enough rounds every partition is read, and by nobody twice."""
        for _ in range(rounds):
            self.go_round()
        if self.clients:
            owned = sorted(place for client in self.clients for place in client.owned)
            assert owned == sorted(PLACES), [vars(client) for client in self.clients]
            has_consumers = any(isinstance(client, ConsumerClient) for client in self.clients)
            assert self.group.kind == ("consumer" if has_consumers else "classic")
