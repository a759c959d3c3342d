"""A group with members of both protocols. Classic members send and get ConsumerProtocol's messages."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests.lua.consumer import TOPICS, Beat, ConsumerGroup, of
from tests.lua.group import MEMBER_ID_REQUIRED, NONE, Joined, Protocols, plain

NEWEST = 3
Named = Mapping[str, Sequence[int]]
"""Partitions by the names of their topics."""
CLASSIC_SESSION_S = 10.0
CLASSIC_REBALANCE_S = 60.0


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _partitions(topics: Named) -> bytes:
    parts = [struct.pack(">i", len(topics))]
    for name, partitions in topics.items():
        parts.append(_text(name) + struct.pack(f">i{len(partitions)}i", len(partitions), *partitions))
    return b"".join(parts)


def _data(data: bytes | None) -> bytes:
    return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data


def subscription(
    topics: Iterable[str], owned: Named | None = None, *, version: int = NEWEST, rack: str | None = None
) -> bytes:
    """A ConsumerProtocolSubscription: the topics that a member wants, and the partitions that it owns."""
    names = list(topics)
    parts = [struct.pack(">hi", version, len(names)), *map(_text, names), _data(None)]
    if version >= 1:
        parts.append(_partitions(owned or {}))
    if version >= 2:
        parts.append(struct.pack(">i", -1))
    if version >= 3:
        parts.append(struct.pack(">h", -1) if rack is None else _text(rack))
    return b"".join(parts)


def assignment(topics: Named, data: bytes | None = None, *, version: int = NEWEST) -> bytes:
    """A ConsumerProtocolAssignment of these partitions."""
    return struct.pack(">h", version) + _partitions(topics) + _data(data)


class MixedGroup(ConsumerGroup):
    """A group whose front-ends look up topics if the functions ask for them."""

    def beat(self, member: str, epoch: int, *names: str, **options: Any) -> Beat:
        answer = self.consume(member, epoch, *names, **options)
        if answer.status == "topics":
            options["given"] = self.catalog_lines(answer.topics)
            answer = self.consume(member, epoch, *names, **options)
            assert answer.status != "topics"
        return super().beat(member, epoch, *names, **options) if answer.status == "target" else answer

    def catalog_lines(self, names: Iterable[str]) -> str:
        """A line for each name; the line of a name without a topic has no id."""
        found = [(name, *self.topics.get(name, ("-", 0))) for name in names]
        return "\n".join(f"{name} {topic_id} {count}" for name, topic_id, count in found)

    # ------------------------------------------------------------------ members of the classic protocol

    def says(
        self, *topics: str, owned: Named | None = None, version: int = NEWEST, protocol: str = "range"
    ) -> Protocols:
        """The protocols of a JoinGroup."""
        return ((protocol, subscription(topics or ("foo", "bar"), owned, version=version)),)

    def classic(self, member: str, protocols: Protocols | None = None, **options: Any) -> Joined:
        """A join by the classic protocol, served as by a front-end."""
        told = {"session_s": CLASSIC_SESSION_S, "rebalance_s": CLASSIC_REBALANCE_S, **options}
        answer = self.join(member, protocols or self.says(), **told)
        if answer.status == "target":
            self.retarget()
            answer = self.join(answer.member, protocols or self.says(), **told)
            assert answer.status != "target"
        return answer

    def newcomer(self, protocols: Protocols | None = None, **options: Any) -> Joined:
        """A dynamic member's join, by the id that the group first hands out."""
        handed_out = self.classic("", protocols, **options)
        assert handed_out.code == MEMBER_ID_REQUIRED
        return self.classic(handed_out.member, protocols, **options)

    def lead(self, leader: str, generation: int, assignments: Mapping[str, bytes], instance: str = "") -> None:
        """The assignments of a classic group's leader."""
        assert self.sync(leader, generation, dict(assignments), instance=instance).code == NONE

    def stable_classic(self, *assigned: Named, **options: Any) -> list[str]:
        """A Stable classic group of members that want foo and bar, each with its assignment; the leader first."""
        self.initial_delay_ms = 1000
        members = [self.newcomer(**options).member for _ in assigned]
        for _ in assigned[:2]:
            self.pass_time(1)
            self.wait(members[0])
        leader = next(one for one in self.settle(*members).values() if one.is_leader)
        given = {member: assignment(topics) for member, topics in zip(members, assigned, strict=True)}
        self.lead(leader.member, leader.generation, given)
        for member in members:
            assert self.sync(member, leader.generation).assignment == given[member]
        assert self.state == "Stable"
        return members

    def synced(self, member: str, generation: int, instance: str = "") -> bytes:
        """The assignment that a member gets by a sync."""
        answer = self.sync(member, generation, instance=instance, protocol=("consumer", "range"))
        assert (answer.code, answer.status) == (NONE, "ready"), answer
        return answer.assignment

    def owners(self) -> dict[str, str]:
        fields: Any = self.server.hgetall(self.keys[0])
        return {plain(name): plain(owner) for name, owner in fields.items() if len(name.partition(b":")[0]) == 32}

    @property
    def fields(self) -> set[str]:
        """The names in the group hash."""
        names: Any = self.server.hkeys(self.keys[0])
        return set(map(plain, names))

    @property
    def kind(self) -> str:
        """The type of the group."""
        return self.field("type") or "classic"


ALL = of(**{name: range(count) for name, (_, count) in TOPICS.items() if name != "zar"})
"""All partitions of foo and bar."""
