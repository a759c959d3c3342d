"""Clients and front-ends of a group of the consumer protocol, whose knowledge may be stale or lost.

Clients behave as Java's and librdkafka's. They read their partitions until they have given them up, and say so with the
next heartbeat. They send all their fields again if the last heartbeat may not have arrived.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

from korvet.assignors import ASSIGNORS, GroupSpec, MemberSpec, preferred
from korvet.store.groups.consumer_types import assignment_text, parse_assignment
from korvet.store.groups.subscriptions import Subscribed
from tests.lua.consumer import FENCED_MEMBER_EPOCH, RETRY, UNRELEASED_INSTANCE_ID, Beat
from tests.lua.group import GROUP_ID_NOT_FOUND, NONE, UNKNOWN_MEMBER_ID, Joined, named, plain
from tests.lua.mixed import MixedGroup, assignment
from tests.lua.mixed_clients import COOPERATIVE, ClassicClient, Partition, by_topic, reported

Topics = dict[str, tuple[str, int]]
"""Id in hex and number of partitions of each topic by its name."""
CALLS, PATIENT_CALLS = 8, 4
"""The most calls of a front-end for one heartbeat, and its calls before it takes the target as it is."""


def partitions_of(text: str) -> set[str]:
    """An assignment's partitions, `topic_id:partition`."""
    topics = (topic.split(":") for topic in text.split())
    return {f"{topic_id}:{partition}" for topic_id, partitions in topics for partition in partitions.split(",")}


def text_of(partitions: Iterable[str]) -> str:
    found: dict[UUID, list[int]] = {}
    for topic_partition in partitions:
        topic_id, _, partition = topic_partition.partition(":")
        found.setdefault(UUID(hex=topic_id), []).append(int(partition))
    return assignment_text(found)


def subscribed(topics: Topics, names: Iterable[str], regex: str) -> set[str]:
    """The names of the existing topics that a member wants."""
    wanted = set(names)
    return {name for name in topics if name in wanted or (regex and re.fullmatch(regex, name))}


def shown(value: Any) -> Any:
    """A value as text; bytes that are no text are replaced, as classic clients send them."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


class Target(NamedTuple):
    """A target that was made from a snapshot and is not installed yet."""

    snapshot: Mapping[str, Any]
    version: int
    topics: str
    assignor: str
    targets: Mapping[str, str]
    changes: Mapping[str, str]


class ModelGroup(MixedGroup):
    """Calls of front-ends; each call tells the catalog that its front-end knows."""

    def described(self) -> dict[str, Any]:
        """The description, its members by their ids; empty if there is no group."""
        code, *flat = self.read("describe")
        assert code in (NONE, GROUP_ID_NOT_FOUND), code
        if code:
            return {}
        found = {name: shown(value) for name, value in named(flat).items()}
        members = [{name: shown(value) for name, value in named(one).items()} for one in found["members"]]
        return {**found, "members": {one["member_id"]: one for one in members}}

    def hash(self, at: int = 0) -> dict[str, str]:
        """A hash of the group; the protocols of classic members are no text."""
        found: Any = self.server.hgetall(self.keys[at])
        return {plain(name): shown(value) for name, value in found.items()}

    def deadlines(self) -> dict[str, float]:
        """The times, in ms, at which members are taken out."""
        found: Any = self.server.zrange(self.keys[2], 0, -1, withscores=True)
        return {plain(id): at for id, at in found}


@dataclass
class FrontEnd:
    """A front-end that serves the group; all front-ends read ``catalog``."""

    group: ModelGroup
    catalog: FrontEnd | None = None
    topics: Topics = field(default_factory=dict)

    @property
    def version(self) -> int:
        """A digest that is equal for equal topics."""
        return zlib.crc32(self.lines(sorted(self.topics)).encode())

    def refresh(self) -> None:
        if self.catalog:
            self.topics = dict(self.catalog.topics)

    def heartbeat(self, member: str, epoch: int, *names: str, calls: int = CALLS, **options: Any) -> Beat | None:
        """Serve a heartbeat; None if the front-end is lost after some calls, before there is an answer."""
        for call in range(calls):
            self.group.catalog_version = self.version
            answer = self.group.consume(member, epoch, *names, anyway=call >= PATIENT_CALLS, **options)
            if answer.status not in ("target", "topics"):
                return answer
            version = self.version
            self.refresh()
            if answer.status == "topics":
                options["given"] = self.lines(answer.topics)
            elif version == self.version:
                self.retarget()
        assert calls < CALLS
        return None

    def join(self, member: str, protocols: Any, *, calls: int = CALLS, **options: Any) -> Joined | None:
        """Serve the join of a classic member; None if the front-end is lost, as in `heartbeat`."""
        answer = self.group.join(member, protocols, **options)
        if answer.status == "target":
            if calls == 1:
                return None
            self.refresh()
            self.retarget()
            answer = self.group.join(answer.member, protocols, **options)
        assert answer.status != "target"
        return answer

    def beat(self, member: str, generation: int, instance: str) -> int:
        """Serve the heartbeat of a classic member."""
        code = self.group.heartbeat(member, generation, instance, [self.version])
        for _ in range(CALLS):
            if code != RETRY:
                break
            self.refresh()
            self.retarget()
            code = self.group.heartbeat(member, generation, instance, [self.version])
        return code

    def lines(self, names: Iterable[str]) -> str:
        found = [(name, *self.topics.get(name, ("-", 0))) for name in names]
        return "\n".join(f"{name} {topic_id} {count}" for name, topic_id, count in found)

    def resolved(self, snapshot: Mapping[str, Any]) -> Subscribed:
        by_member = {
            one["member_id"]: subscribed(self.topics, one["topics"], one["regex"]) for one in snapshot["members"]
        }
        names = set().union(*by_member.values())
        return Subscribed(
            members={
                id: frozenset(UUID(hex=self.topics[name][0]) for name in wanted) for id, wanted in by_member.items()
            },
            partitions={UUID(hex=self.topics[name][0]): self.topics[name][1] for name in names},
            text=self.lines(sorted(names)),
        )

    def target(self) -> Target | None:
        """A target for the present group; None if the group is not of this protocol."""
        if self.group.kind != "consumer":
            return None
        snapshot = self.group.snapshot()
        assignor = preferred(one["assignor"] or None for one in snapshot["members"])
        topics = self.resolved(snapshot)
        targets = self.assigned(snapshot, topics, assignor)
        before = {one["member_id"]: one["target"] for one in snapshot["members"]}
        changes = {member: target for member, target in targets.items() if target != before[member]}
        return Target(snapshot, self.version, topics.text, assignor, targets, changes)

    def install(self, target: Target) -> int:
        self.group.catalog_version = target.version
        return self.group.assign(target.snapshot, target.changes, target.topics, target.assignor)[0]

    def retarget(self) -> None:
        target = self.target()
        if target:
            self.install(target)

    @staticmethod
    def assigned(snapshot: Mapping[str, Any], topics: Subscribed, assignor: str) -> dict[str, str]:
        """The targets that the assignor makes."""
        members = {
            one["member_id"]: MemberSpec(
                id=one["member_id"],
                instance_id=one["instance_id"] or None,
                rack=one["rack"] or None,
                topics=topics.members[one["member_id"]],
                current=parse_assignment(one["target"]),
            )
            for one in snapshot["members"]
        }
        targets = ASSIGNORS[assignor].assign(GroupSpec(members=members, partitions=topics.partitions))
        return {member: assignment_text(target) for member, target in targets.items()}


@dataclass(eq=False)
class Modern:
    """A client that speaks the consumer protocol. It reads ``owned``, and was told to read ``told``."""

    group: ModelGroup
    id: str
    names: tuple[str, ...]
    regex: str = ""
    assignor: str = ""
    instance: str = ""
    rebalance_s: float = 5
    epoch: int = 0
    owned: set[str] = field(default_factory=set)
    told: set[str] = field(default_factory=set)
    said: str | None = None
    """The partitions that its last heartbeat named as owned."""
    is_unsure: bool = True
    """Whether its next heartbeat sends all its fields."""

    def partitions(self) -> set[str]:
        return self.owned

    def beat(self, front: FrontEnd, *, loses: str = "", calls: int = CALLS) -> None:
        """A heartbeat; its answer may be lost, or the front-end after some calls."""
        is_full = self.is_unsure or self.epoch == 0
        owned = text_of(self.owned)
        options: dict[str, Any] = {"owned": owned} if is_full or owned != self.said else {}
        names: tuple[str, ...] = ()
        if is_full:
            names, options["regex"], options["subscribes"] = self.names, self.regex, True
            options["rebalance_s"], options["assignor"] = self.rebalance_s, self.assignor
        answer = front.heartbeat(self.id, self.epoch, *names, instance=self.instance, calls=calls, **options)
        self.said, self.is_unsure = owned, False
        if loses or answer is None:
            self.is_unsure = True
        else:
            self._on(answer)

    def _on(self, answer: Beat) -> None:
        if answer.code in (FENCED_MEMBER_EPOCH, UNKNOWN_MEMBER_ID, GROUP_ID_NOT_FOUND):
            assert self.epoch > 0 or answer.code == GROUP_ID_NOT_FOUND, answer
            self.lose()
        elif answer.code != UNRELEASED_INSTANCE_ID:
            assert (answer.code, answer.status) == (NONE, "ready"), answer
            assert answer.epoch >= self.epoch
            self.epoch = answer.epoch
            if answer.assignment is not None:
                self.told = partitions_of(answer.assignment)

    def act(self) -> None:
        """Stop reading revoked partitions, and read the assigned ones."""
        self.owned = set(self.told)

    def give_up(self) -> None:
        """Stop reading revoked partitions."""
        self.owned &= self.told

    def lose(self) -> None:
        self.epoch, self.owned, self.told, self.said, self.is_unsure = 0, set(), set(), None, True

    def go(self, epoch: int = -1) -> None:
        """Leave, or go away for a while."""
        if self.epoch > 0:
            self.group.part(self.id, epoch, self.instance)
        self.lose()

    def miss(self) -> None:
        """The client is no longer a member; by this protocol it comes back without partitions."""

    def subscribe(self, names: tuple[str, ...], regex: str) -> None:
        self.names, self.regex, self.is_unsure = names, regex, True

    def wants(self, topics: Topics) -> set[str]:
        return subscribed(topics, self.names, self.regex)


class Classic(ClassicClient):
    """A client of the classic protocol. Its partitions belong to the topics of the time of their assignment.

    A cooperative client reads revoked partitions until it has acted; only its heartbeats go on meanwhile. It gives up
    unwanted partitions before it joins, as Java's ConsumerCoordinator.onJoinPrepare does. An eager client also
    supports the cooperative protocol, like a client that is about to change to it.
    """

    group: ModelGroup  # type: ignore[assignment]

    def __init__(
        self,
        group: ModelGroup,
        front: FrontEnd,
        names: tuple[str, ...],
        instance: str = "",
        protocol: str = COOPERATIVE,
    ) -> None:
        super().__init__(group, protocol, instance)  # type: ignore[arg-type]
        self.front, self.names, self.calls = front, names, CALLS
        self.said = names
        """The topics that it wanted when it joined."""
        self.ids: dict[str, str] = {}
        self.told: tuple[set[Partition], dict[str, str]] | None = None
        """Its new assignment, until it reads that."""
        self.was_taken_out = False
        """Whether it still reads former partitions: it was taken out without hearing so, or came back with its id."""
        self.watches = False
        """Whether it looks at topics: a leader, or a static member that may have led. Real clients do less: a leader
        that comes back without its id takes the present topics for those of the assignment (KIP-814)."""

    def partitions(self) -> set[str]:
        """The partitions that it may read."""
        owned = set() if self.was_taken_out else self.owned
        return {f"{self.ids.get(name, name)}:{partition}" for name, partition in owned}

    def miss(self) -> None:
        self.was_taken_out = bool(self.owned)

    def beat(self, front: FrontEnd, *, loses: str = "", calls: int = CALLS) -> None:
        """Make the calls that are due. An answer may be lost, or the front-end may be lost during a join."""
        self.front, self.calls = front, calls
        if self.told is None:
            self.waits = self.waits or ("" if self.names == self.said else "join")
            self.step(loses)
        else:
            self._on_heartbeat(self._send_heartbeat(), loses)

    def look(self) -> None:
        """A leader notices that topics changed."""
        if self.watches and not self.is_parked:
            self.waits = "join"

    def _send_heartbeat(self) -> int:
        return self.front.beat(self.id, self.generation, self.instance)

    def _on_member(self, answer: Joined, loses: str) -> None:
        self.watches = answer.is_leader or bool(self.instance and not self.id and answer.leader)
        super()._on_member(answer, loses)

    def _known_ids(self) -> dict[str, str]:
        """The present ids of topics by name."""
        catalog = self.front.catalog or self.front
        lines = self.group.field("topics") or catalog.lines(catalog.topics)
        return {name: topic_id for name, topic_id, _ in map(str.split, lines.splitlines())}

    def act(self) -> None:
        if self.told is not None:
            (partitions, self.ids), self.told = self.told, None
            super()._take(partitions)

    def give_up(self) -> None:
        if self.told is not None:
            self.owned &= self.told[0]

    def _take(self, partitions: set[Partition]) -> None:
        self.told = partitions, self._known_ids()
        if self.was_taken_out or self.owned <= partitions:
            self.was_taken_out = False
            self.act()

    def _lose(self, code: int) -> None:
        super()._lose(code)
        self.told, self.was_taken_out = None, False

    def go(self, epoch: int = -1) -> None:
        if epoch == -1:
            self.stop()

    def subscribe(self, names: tuple[str, ...], _regex: str) -> None:
        """Want other topics, unless static: without its id, a Stable group would ignore its new subscription."""
        if not self.instance:
            self.names = names

    def wants(self, topics: Topics) -> set[str]:
        return subscribed(topics, self.names, "")

    def _send_join(self) -> Joined | None:
        self.said = self.names
        self.owned = {partition for partition in self.owned if partition[0] in self.names}
        protocols = dict.fromkeys((self.protocol, COOPERATIVE))
        owned = by_topic(self.owned)
        says = [one for name in protocols for one in self.group.says(*self.names, owned=owned, protocol=name)]
        return self.front.join(self.id, says, instance=self.instance, calls=self.calls)

    def _assigned(self, answer: Joined) -> dict[str, bytes]:
        self.front.refresh()
        has = {member: reported(metadata) for member, _, metadata in answer.members}
        wanted = {member: names_in(metadata) for member, _, metadata in answer.members}
        targets: dict[str, set[tuple[str, int]]] = {member: set() for member in has}
        for name, (_, count) in self.front.topics.items():
            readers = sorted(member for member, names in wanted.items() if name in names)
            for partition in range(count if readers else 0):
                reader, topic_partition = readers[partition % len(readers)], (name, partition)
                if not any(topic_partition in owned for member, owned in has.items() if member != reader):
                    targets[reader].add(topic_partition)
        return {member: assignment(by_topic(partitions)) for member, partitions in targets.items()}


def names_in(metadata: bytes) -> set[str]:
    """The topics that a subscription wants."""
    (topics,) = struct.unpack_from(">i", metadata, 2)
    at, names = 6, set()
    for _ in range(topics):
        (length,) = struct.unpack_from(">h", metadata, at)
        names.add(metadata[at + 2 : at + 2 + length].decode())
        at += 2 + length
    return names


Client = Modern | Classic
