"""Share groups after any steps: what members are assigned, and the group's keys."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import redis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from korvet.assignors import SIMPLE, GroupSpec, MemberSpec, changed
from korvet.store.groups.consumer_types import assignment_text, parse_assignment
from tests.lua.consumer import FENCED_MEMBER_EPOCH, Beat
from tests.lua.group import NONE, UNKNOWN_MEMBER_ID, plain
from tests.lua.machines import bound, run_machine
from tests.lua.sharing import ShareGroup

EXAMPLES, STEPS = 30, 40
SESSION_S = 45.0
CALLS, PATIENT_CALLS = 8, 4
SUBSCRIPTIONS = st.sampled_from([("a",), ("a", "b"), ("b",), ("b", "none")])
SOME = st.integers(0, 7)


@dataclass
class Client:
    """A client, by what it knows. It names its topics until it has an answer, as it may not have arrived."""

    id: str
    names: tuple[str, ...]
    epoch: int = 0
    assignment: str = ""
    is_sure: bool = False


@dataclass
class FrontEnd:
    """A front-end with what it knows of the catalog, and a snapshot that it took and has not used yet."""

    topics: dict[str, tuple[str, int]] = field(default_factory=dict)
    held: dict[str, Any] | None = None


class Shared(RuleBasedStateMachine):
    """Clients come, leave and die, answers are lost, front-ends are stale, topics change and time passes."""

    server: redis.Redis
    set_clock: Callable[[float], None]

    @initialize()
    def start(self) -> None:
        self.server.flushall()
        self.group = ShareGroup(self.server, type(self).set_clock)
        self.group.session_s = SESSION_S
        self.made = 0
        self.topics: dict[str, tuple[str, int]] = {}
        self.fronts = [FrontEnd(), FrontEnd()]
        self.clients: list[Client] = []
        self.epochs = (0, 0)
        for name in "ab":
            self._make_topic(name, 2)

    def _make_topic(self, name: str, partitions: int) -> None:
        self.made += 1
        self.topics[name] = (f"{self.made:032x}", partitions)

    def _version(self, front: FrontEnd) -> int:
        return zlib.crc32(repr(sorted(front.topics.items())).encode())

    def _make_target(self, front: FrontEnd, snapshot: dict[str, Any]) -> None:
        """As `ConsumerGroups._make_target` does."""
        self.group.catalog_version = self._version(front)
        self.group.topics = front.topics
        wanted = {name for one in snapshot["members"] for name in one["topics"] if name in front.topics}
        members = {
            one["member_id"]: MemberSpec(
                id=one["member_id"],
                topics=frozenset(UUID(front.topics[name][0]) for name in one["topics"] if name in wanted),
                current=parse_assignment(one["target"]),
            )
            for one in snapshot["members"]
        }
        partitions = {UUID(front.topics[name][0]): front.topics[name][1] for name in wanted}
        spec = GroupSpec(members=members, partitions=partitions)
        targets = changed(spec, SIMPLE.assign(spec))
        self.group.assign(snapshot, {id: assignment_text(target) for id, target in targets.items()}, assignor="simple")

    def _heartbeat(self, client: Client, front: FrontEnd, epoch: int, *names: str) -> Beat:
        for call in range(CALLS):
            self.group.catalog_version = self._version(front)
            answer = self.group.consume(client.id, epoch, *names, anyway=call >= PATIENT_CALLS)
            if answer.status != "target":
                return answer
            known, front.topics = self._version(front), dict(self.topics)
            if known == self._version(front):
                self._make_target(front, self.group.snapshot())
        raise AssertionError("the group changes again and again")

    def _beat(self, client: Client, front: FrontEnd, *, is_lost: bool = False) -> None:
        names = () if client.is_sure and client.epoch else client.names
        answer = self._heartbeat(client, front, client.epoch, *names)
        client.is_sure = not is_lost and answer.code == NONE
        if is_lost:
            return
        if answer.code != NONE:
            assert answer.code in (UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH)
            client.epoch, client.assignment = 0, ""
            return
        client.epoch = answer.epoch
        client.assignment = client.assignment if answer.assignment is None else answer.assignment
        assert client.assignment == self.group.member(client.id).owned

    # ------------------------------------------------------------------ steps

    @rule(names=SUBSCRIPTIONS, at=SOME, is_lost=st.booleans())
    def join(self, names: tuple[str, ...], at: int, is_lost: bool) -> None:
        self.made += 1
        self.clients.append(Client(f"m{self.made:03d}", names))
        self._beat(self.clients[-1], self.fronts[at % 2], is_lost=is_lost)

    @precondition(lambda self: self.clients)
    @rule(number=SOME, at=SOME, is_lost=st.booleans())
    def beat(self, number: int, at: int, is_lost: bool) -> None:
        self._beat(self.clients[number % len(self.clients)], self.fronts[at % 2], is_lost=is_lost)

    @precondition(lambda self: self.clients)
    @rule(number=SOME, names=SUBSCRIPTIONS, at=SOME, is_lost=st.booleans())
    def subscribe(self, number: int, names: tuple[str, ...], at: int, is_lost: bool) -> None:
        client = self.clients[number % len(self.clients)]
        client.names, client.is_sure = names, False
        self._beat(client, self.fronts[at % 2], is_lost=is_lost)

    @precondition(lambda self: self.clients)
    @rule(number=SOME, is_dead=st.booleans())
    def leave(self, number: int, is_dead: bool) -> None:
        client = self.clients.pop(number % len(self.clients))
        if not is_dead:
            assert self.group.consume(client.id, -1).code in (NONE, UNKNOWN_MEMBER_ID)

    @rule(name=st.sampled_from("ab"), partitions=st.integers(0, 5), is_due=st.sampled_from([True, False, False, False]))
    def change_topic(self, name: str, partitions: int, is_due: bool) -> None:
        """A topic is made anew, or deleted."""
        if is_due and partitions:
            self._make_topic(name, partitions)
        elif is_due:
            self.topics.pop(name, None)

    @precondition(lambda self: self.group.exists())
    @rule(at=SOME)
    def take_snapshot(self, at: int) -> None:
        self.fronts[at % 2].held = self.group.snapshot()

    @rule(at=SOME)
    def use_snapshot(self, at: int) -> None:
        """A front-end goes on after a pause."""
        front = self.fronts[at % 2]
        if front.held is not None and self.group.exists():
            self._make_target(front, front.held)
            front.held = None

    @rule(seconds=st.sampled_from([1.0, 20.0, 46.0]), is_outage=st.booleans())
    def wait(self, seconds: float, is_outage: bool) -> None:
        (self.group.outage if is_outage else self.group.pass_time)(seconds)

    # ------------------------------------------------------------------ what holds

    @invariant()
    def group_is_whole(self) -> None:
        if not hasattr(self, "group") or not self.group.exists():
            return
        found: Any = self.server.hgetall(self.group.keys[0])
        fields = {plain(name): plain(value) for name, value in found.items()}
        ids = {plain(id) for id in self.server.hkeys(self.group.keys[1])}
        assert {plain(id) for id in self.server.zrange(self.group.keys[2], 0, -1)} == ids
        for prefix in ("sharing:", "target:"):
            assert {name.removeprefix(prefix) for name in fields if name.startswith(prefix)} <= ids
        assert not [name for name in fields if len(name.partition(":")[0]) == 32]
        assert self.server.pttl(self.group.keys[0]) == -1
        epochs = int(fields["generation"]), int(fields["target_epoch"])
        assert epochs[0] >= max(epochs[1], self.epochs[0]) and epochs[1] >= self.epochs[1]
        self.epochs = epochs
        members = self.group.members()
        assert (self.group.state == "Stable") == bool(members)
        for member in members.values():
            assert member.previous_epoch <= member.epoch <= epochs[1]

    def teardown(self) -> None:
        """In the end the clients that live share all partitions of their topics."""
        front = FrontEnd(topics=dict(self.topics))
        for _ in range(4):
            self.group.pass_time(SESSION_S / 3)
            for client in self.clients:
                self._beat(client, front)
        if not self.clients:
            return
        generation, target_epoch = self.group.epochs
        assert generation == target_epoch
        assert set(self.group.members()) == {client.id for client in self.clients}
        for client in self.clients:
            assert client.epoch == target_epoch
            topics = {self.topics[name][0] for name in client.names if name in self.topics}
            assert {id.hex for id in parse_assignment(client.assignment)} <= topics
        shared = {
            (id, number)
            for client in self.clients
            for id, numbers in parse_assignment(client.assignment).items()
            for number in numbers
        }
        wanted = [self.topics[name] for client in self.clients for name in client.names if name in self.topics]
        assert shared == {(UUID(id), number) for id, count in wanted for number in range(count)}


def test_clients_that_live_share_all_partitions_whatever_happened(
    server: redis.Redis, set_clock: Callable[[float], None]
) -> None:
    run_machine(bound(Shared, server, set_clock), examples=EXAMPLES, steps=STEPS)
