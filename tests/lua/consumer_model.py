"""Clients and front-ends of a group of the consumer protocol: what each of them knows, which may be stale or lost.

Clients behave as Java's and librdkafka's: they read what they were told until they have given it up, say so with the
next heartbeat, and say everything of themselves where they do not know whether the last one arrived.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

from korvet.store.assignors import ASSIGNORS, GroupSpec, MemberSpec, preferred
from korvet.store.consumer_types import assignment_text, parse_assignment
from korvet.store.subscriptions import Subscribed
from tests.lua.consumer import FENCED_MEMBER_EPOCH, RETRY, UNRELEASED_INSTANCE_ID, Beat
from tests.lua.group import GROUP_ID_NOT_FOUND, NONE, UNKNOWN_MEMBER_ID, Joined, named, plain
from tests.lua.mixed import MixedGroup, assignment
from tests.lua.mixed_clients import COOPERATIVE, ClassicClient, Place, by_topic, reported

Topics = dict[str, tuple[str, int]]
"""Id in hex and number of partitions of each topic by its name."""
CALLS, PATIENT_CALLS = 8, 4
"""Of one heartbeat by a front-end, and those before it takes the target as it is."""


def places_of(text: str) -> set[str]:
    """An assignment's places `topic_id:partition`."""
    topics = (topic.split(":") for topic in text.split())
    return {f"{topic_id}:{partition}" for topic_id, partitions in topics for partition in partitions.split(",")}


def text_of(places: Iterable[str]) -> str:
    found: dict[UUID, list[int]] = {}
    for place in places:
        topic_id, _, partition = place.partition(":")
        found.setdefault(UUID(hex=topic_id), []).append(int(partition))
    return assignment_text(found)


def subscribed(topics: Topics, names: Iterable[str], regex: str) -> set[str]:
    """The names of the topics that there are of those that a member wants."""
    wanted = set(names)
    return {name for name in topics if name in wanted or (regex and re.fullmatch(regex, name))}


def shown(value: Any) -> Any:
    """What clients of the classic protocol say is no text."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


class Target(NamedTuple):
    """A target that was made from a snapshot, and is yet to be installed."""

    snapshot: Mapping[str, Any]
    version: int
    topics: str
    assignor: str
    targets: Mapping[str, str]
    changes: Mapping[str, str]


class ModelGroup(MixedGroup):
    """Calls of front-ends, each of which tells of the catalog that it knows."""

    def described(self) -> dict[str, Any]:
        found = {name: shown(value) for name, value in self.read_named("describe").items()}
        members = [{name: shown(value) for name, value in named(one).items()} for one in found["members"]]
        return {**found, "members": {one["member_id"]: one for one in members}}

    def hash(self, at: int = 0) -> dict[str, str]:
        """A hash of the group; the protocols of classic members are no text."""
        found: Any = self.server.hgetall(self.keys[at])
        return {plain(name): shown(value) for name, value in found.items()}

    def deadlines(self) -> dict[str, float]:
        """When members are to be taken out, in ms."""
        found: Any = self.server.zrange(self.keys[2], 0, -1, withscores=True)
        return {plain(id): at for id, at in found}


@dataclass
class FrontEnd:
    """One of those that serve the group; ``catalog`` is the one that all read from."""

    group: ModelGroup
    catalog: FrontEnd | None = None
    topics: Topics = field(default_factory=dict)

    @property
    def version(self) -> int:
        """The same where there are the same topics."""
        return zlib.crc32(self.lines(sorted(self.topics)).encode())

    def refresh(self) -> None:
        if self.catalog:
            self.topics = dict(self.catalog.topics)

    def heartbeat(self, member: str, epoch: int, *names: str, calls: int = CALLS, **options: Any) -> Beat | None:
        """Serve a heartbeat; None where the front-end is lost before there is an answer, after some calls."""
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
        """Serve the join of a classic member; None where the front-end is lost as `heartbeat` says."""
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
        """A target as the group is now; None where it is none of this protocol."""
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
        """What the assignor makes of a group."""
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
    """A client that speaks the consumer protocol. ``owned`` is what it reads, ``told`` what it is to read."""

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
    """What it said last that it owns."""
    is_unsure: bool = True
    """It says everything of itself with its next heartbeat."""

    def places(self) -> set[str]:
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
                self.told = places_of(answer.assignment)

    def act(self) -> None:
        """Give up what it is no longer to read, and read what it is."""
        self.owned = set(self.told)

    def give_up(self) -> None:
        """Only the first half of it."""
        self.owned &= self.told

    def lose(self) -> None:
        self.epoch, self.owned, self.told, self.said, self.is_unsure = 0, set(), set(), None, True

    def go(self, epoch: int = -1) -> None:
        """Leave, or go away for a while."""
        if self.epoch > 0:
            self.group.part(self.id, epoch, self.instance)
        self.lose()

    def miss(self) -> None:
        """It is none of the group's members; by this protocol it comes back only with nothing."""

    def subscribe(self, names: tuple[str, ...], regex: str) -> None:
        self.names, self.regex, self.is_unsure = names, regex, True

    def wants(self, topics: Topics) -> set[str]:
        return subscribed(topics, self.names, self.regex)


class Classic(ClassicClient):
    """A client of the classic protocol; places are those of the topics when it was told of them.

    A cooperative one reads what it is to give up until it has acted; only its heartbeats go on meanwhile. What it does
    not want any more it gives up before it joins, as Java's ConsumerCoordinator.onJoinPrepare has it. An eager one
    knows the cooperative protocol, too, as clients do that are on their way to it.
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
        """What it wanted when it joined."""
        self.ids: dict[str, str] = {}
        self.told: tuple[set[Place], dict[str, str]] | None = None
        """What it is to read, until it does."""
        self.was_taken_out = False
        """It has not heard of it, or came back with its id, and reads what it had until it is told what it is to."""
        self.watches = False
        """It looks at topics: a leader, or a static one that may have been. That is more than clients do: a leader that
        comes back without its id takes topics as they are then for those of the assignment (KIP-814)."""

    def places(self) -> set[str]:
        """Those that it may read."""
        owned = set() if self.was_taken_out else self.owned
        return {f"{self.ids.get(name, name)}:{partition}" for name, partition in owned}

    def miss(self) -> None:
        self.was_taken_out = bool(self.owned)

    def beat(self, front: FrontEnd, *, loses: str = "", calls: int = CALLS) -> None:
        """What is due; an answer may be lost, or the front-end that serves a join before there is one."""
        self.front, self.calls = front, calls
        if self.told is None:
            self.waits = self.waits or ("" if self.names == self.said else "join")
            self.step(loses)
        else:
            self._on_heartbeat(self._send_heartbeat(), loses)

    def look(self) -> None:
        """A leader sees that topics changed."""
        if self.watches and not self.is_parked:
            self.waits = "join"

    def _send_heartbeat(self) -> int:
        return self.front.beat(self.id, self.generation, self.instance)

    def _on_member(self, answer: Joined, loses: str) -> None:
        self.watches = answer.is_leader or bool(self.instance and not self.id and answer.leader)
        super()._on_member(answer, loses)

    def _known_ids(self) -> dict[str, str]:
        """Those of the topics by name that an assignment speaks of now."""
        catalog = self.front.catalog or self.front
        lines = self.group.field("topics") or catalog.lines(catalog.topics)
        return {name: topic_id for name, topic_id, _ in map(str.split, lines.splitlines())}

    def act(self) -> None:
        if self.told is not None:
            (places, self.ids), self.told = self.told, None
            super()._take(places)

    def give_up(self) -> None:
        if self.told is not None:
            self.owned &= self.told[0]

    def _take(self, places: set[Place]) -> None:
        self.told = places, self._known_ids()
        if self.was_taken_out or self.owned <= places:
            self.was_taken_out = False
            self.act()

    def _lose(self, code: int) -> None:
        super()._lose(code)
        self.told, self.was_taken_out = None, False

    def go(self, epoch: int = -1) -> None:
        if epoch == -1:
            self.stop()

    def subscribe(self, names: tuple[str, ...], _regex: str) -> None:
        """A static one may have no id yet, and what such a one wants anew is nothing to a Stable classic group."""
        if not self.instance:
            self.names = names

    def wants(self, topics: Topics) -> set[str]:
        return subscribed(topics, self.names, "")

    def _send_join(self) -> Joined | None:
        self.said = self.names
        self.owned = {place for place in self.owned if place[0] in self.names}
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
                reader, place = readers[partition % len(readers)], (name, partition)
                if not any(place in owned for member, owned in has.items() if member != reader):
                    targets[reader].add(place)
        return {member: assignment(by_topic(places)) for member, places in targets.items()}


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
