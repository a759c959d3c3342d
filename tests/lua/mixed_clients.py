"""Clients of a group of both protocols. They behave as Java's consumers, and each keeps the partitions that it reads.

The group's server keeps its own account of owners. The tests check the clients instead: no two living clients read the
same partition at any time, and clients read all partitions in the end.
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

Partition = tuple[str, int]
READ = ("foo", "bar")
PARTITIONS = [(name, partition) for name in READ for partition in range(TOPICS[name][1])]
NAMES = {topic_id: name for name, (topic_id, _) in TOPICS.items()}
COOPERATIVE = "cooperative-sticky"
REBALANCE_S = 60.0
STEP_S = 3.0
"""The time of a round; a classic member's session lasts more than three rounds."""
assert STEP_S * 3 < CLASSIC_SESSION_S


def by_topic(partitions: Iterable[Partition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for name, partition in sorted(partitions):
        topics.setdefault(name, []).append(partition)
    return topics


def as_text(topic_partitions: Iterable[Partition]) -> str:
    """Partitions as text for the functions of the consumer protocol."""
    topics = sorted((TOPICS[name][0], partitions) for name, partitions in by_topic(topic_partitions).items())
    return " ".join(f"{topic_id}:{','.join(map(str, partitions))}" for topic_id, partitions in topics)


def from_text(text: str) -> set[Partition]:
    topics = (topic.split(":") for topic in text.split())
    return {(NAMES[topic_id], int(partition)) for topic_id, partitions in topics for partition in partitions.split(",")}


def topics_at(data: bytes, at: int) -> set[Partition]:
    """The partitions of ConsumerProtocol's topics, from an assignment or a subscription."""
    topic_partitions = set()
    (topics,) = struct.unpack_from(">i", data, at)
    at += 4
    for _ in range(topics):
        (length,) = struct.unpack_from(">h", data, at)
        name = data[at + 2 : at + 2 + length].decode()
        (partitions,) = struct.unpack_from(">i", data, at + 2 + length)
        at += 2 + length + 4
        topic_partitions |= {(name, partition) for partition in struct.unpack_from(f">{partitions}i", data, at)}
        at += 4 * partitions
    return topic_partitions


def reported(metadata: bytes) -> set[Partition]:
    """The partitions that a subscription reports as owned."""
    (topics,) = struct.unpack_from(">i", metadata, 2)
    at = 6
    for _ in range(topics):
        at += 2 + int(struct.unpack_from(">h", metadata, at)[0])
    return topics_at(metadata, at + 4)


def shares(members: Iterable[str]) -> dict[str, set[Partition]]:
    """Each member's share: the partitions go to the members in turn."""
    ids = sorted(members)
    found: dict[str, set[Partition]] = {member: set() for member in ids}
    for at, partition in enumerate(PARTITIONS):
        found[ids[at % len(ids)]].add(partition)
    return found


class SharedGroup(MixedGroup):
    """A group whose assignor gives the partitions to the members in turn."""

    def retarget(self) -> None:
        snapshot = self.snapshot()
        targets = shares(member["member_id"] for member in snapshot["members"])
        lines = "\n".join(f"{name} {TOPICS[name][0]} {TOPICS[name][1]}" for name in sorted(READ))
        flat = {member: as_text(partitions) for member, partitions in targets.items()}
        assert self.assign(snapshot, flat, lines)[0] == NONE


class ConsumerClient:
    """A client that speaks the consumer protocol."""

    def __init__(self, group: SharedGroup, name: str, instance: str = "") -> None:
        self.group, self.id, self.instance = group, name, instance
        self.epoch = 0
        self.owned: set[Partition] = set()

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
    """A client that speaks the classic protocol. Unless it is cooperative, it gives up all partitions before it joins.

    If an answer is lost, it keeps its id. If the answer of a join or a sync is lost, it joins again.
    """

    def __init__(self, group: SharedGroup, protocol: str, instance: str = "") -> None:
        self.group, self.protocol, self.instance = group, protocol, instance
        self.id, self.generation, self.waits = "", -1, "join"
        self.is_parked = False
        self.owned: set[Partition] = set()

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
        """The answer, or None if its front-end is lost."""
        says = self.group.says(*READ, owned=by_topic(self.owned), protocol=self.protocol)
        return self.group.classic(self.id, says, instance=self.instance)

    def _send_heartbeat(self) -> int:
        return self.group.heartbeat(self.id, self.generation, self.instance)

    def _wait_for_join(self) -> Joined:
        return self.group.wait(self.id, self.instance)

    def _lose(self, code: int) -> None:
        """The client was taken out, or is of another generation."""
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
        """A leader's assignments; a cooperative one does not assign a partition that its owner has yet to give up."""
        targets = shares(member for member, _, _ in answer.members)
        if self.protocol == COOPERATIVE:
            has = {member: reported(metadata) for member, _, metadata in answer.members}
            for member, partitions in targets.items():
                others = set().union(*(owned for other, owned in has.items() if other != member))
                partitions -= others
        return {member: assignment(by_topic(partitions)) for member, partitions in targets.items()}

    def _on_synced(self, answer: Synced, loses: str) -> None:
        if loses or answer.code == REBALANCE_IN_PROGRESS:
            self._join_again()
        elif answer.code in (UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION):
            self._lose(answer.code)
        elif not answer.is_parked:
            assert answer.code == NONE
            self.waits = ""
            self._take(topics_at(answer.assignment, 2) if answer.assignment else set())

    def _take(self, partitions: set[Partition]) -> None:
        """Read the assigned partitions; a client that had to give some up joins again to say so."""
        if self.owned - partitions:
            self.waits = "join"
        self.owned = partitions

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
        owners: dict[Partition, Client] = {}
        for client in self.clients:
            for partition in client.owned:
                assert partition not in owners, (partition, vars(owners[partition]), vars(client))
                owners[partition] = client

    def stop(self, client: Client) -> None:
        """A client leaves, as a closed client does."""
        client.stop()
        self.clients.remove(client)

    def switch(self, client: Client) -> None:
        """A client is closed and comes back with the other protocol. A static classic client does not leave first."""
        instance = client.instance
        if not instance:
            client.stop()
        elif isinstance(client, ConsumerClient) and client.epoch > 0:
            self.group.part(client.id, -2, instance)
        self.clients.remove(client)
        self.add(isinstance(client, ConsumerClient), instance)

    def go_round(self) -> None:
        """Each client makes a step, and then some time passes."""
        for client in list(self.clients):
            self.step(client)
        self.group.pass_time(STEP_S)

    def settle(self, rounds: int) -> None:
        """Assert that after some rounds each partition has exactly one reader."""
        for _ in range(rounds):
            self.go_round()
        if self.clients:
            owned = sorted(partition for client in self.clients for partition in client.owned)
            assert owned == sorted(PARTITIONS), [vars(client) for client in self.clients]
            has_consumers = any(isinstance(client, ConsumerClient) for client in self.clients)
            assert self.group.kind == ("consumer" if has_consumers else "classic")
