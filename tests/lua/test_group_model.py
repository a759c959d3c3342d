"""The group functions against a model of Kafka's rules: any order of calls, of any members, over any times and outages.

After each call the whole group must look like the model. What the model leaves open (who leads, how long exactly a
rebalance may take) is bounded and then taken from the library.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tests.lua.group import NONE, RETENTION_S, UNKNOWN_MEMBER_ID, Group, Joined, Protocols, Synced
from tests.lua.group_model import COMPLETING, DEAD, EMPTY, PREPARING, SHORTEST_SESSION, STABLE, Join, Model

Clock = Callable[[float], None]
RETENTION_MS = round(RETENTION_S * 1000)
DAY_MS = 86_400_000
EXAMPLES = 120
STEPS = 40
ROUNDS = 80
"""More than any group needs whose members all call: sessions last half a minute and are held three times in it."""


def subscription(*topics: str) -> bytes:
    """A ConsumerProtocolSubscription of version 0."""
    names = b"".join(len(topic).to_bytes(2, "big") + topic.encode() for topic in topics)
    return b"\0\0" + len(topics).to_bytes(4, "big") + names + b"\xff\xff\xff\xff"


def protocols(*names: str, topics: str = "t") -> Protocols:
    return tuple((name, subscription(*topics)) for name in names)


COUNTS = st.integers(0, 6)
"""Which one of what there is, counted around."""
INSTANCES = st.sampled_from(["", "", "", "i", "j"])
PROTOCOLS = st.sampled_from(
    [
        protocols("range"),
        protocols("range"),
        protocols("range", topics="tu"),
        protocols("range", "roundrobin"),
        protocols("roundrobin", "range"),
        protocols("sticky", "roundrobin", "range"),
        protocols("roundrobin"),
        (),
    ]
)
TYPES = st.sampled_from(["consumer", "consumer", "consumer", "consumer", "connect", ""])
SESSIONS = st.sampled_from([6000, 10_000, 30_000])
REBALANCES = st.sampled_from([5000, 20_000, 60_000])
VERSIONS = st.sampled_from([9, 9, 5, 3])
GENERATIONS = st.sampled_from([0, 0, 0, 0, -1, 1])
"""Added to the present one."""
TIMES = st.one_of(
    st.integers(1, 3000), st.integers(1, 70_000), st.sampled_from([5000, 6000, 10_000, 20_000, 9 * DAY_MS])
)


class Coordinated(RuleBasedStateMachine):
    """The same calls on the library and on the model."""

    server: redis.Redis
    set_clock: Clock

    @initialize(
        delay=st.sampled_from([0, 0, 1000, 3000]),
        max_size=st.sampled_from([2**31 - 1] * 3 + [2]),
        instances=st.lists(st.sampled_from(["", "", "i"]), max_size=3, unique_by=lambda name: name or object()),
    )
    def begin(self, delay: int, max_size: int, instances: list[str]) -> None:
        """A group that settled with some members, or none."""
        self.server.flushall()
        self.group = Group(self.server, type(self).set_clock)
        self.group.initial_delay_ms, self.group.max_size = delay, max_size
        self.model = Model(now=round(self.group.now * 1000), delay=delay, max_size=max_size)
        self.ids: list[str] = []
        self.assignments = 0
        for instance in instances:
            self._enter(Join(instance=instance, protocols=protocols("range")))
        self.everyone_calls_in_good_order()

    def _enter(self, asked: Join) -> None:
        """Join, with the id that is given where one is."""
        id = self._join(asked).member
        if id in self.model.pending:
            self._join(replace(asked, member=id))

    # ------------------------------------------------------------------ members

    def _anyone(self, count: int) -> str:
        """An id that was handed out, the present members' first; or one that nobody has."""
        present = [*self.model.members, *self.model.pending]
        known = present + [id for id in self.ids if id not in present][-2:]
        return known[count] if count < len(known) else (known[0] if known else "nobody")

    def _instance(self, id: str, says: str) -> str:
        """A member's own instance id, unless it says another one."""
        one = self.model.members.get(id)
        return says or (one.instance if one else "")

    def _generation(self, step: int) -> int:
        return self.model.generation + step

    # ------------------------------------------------------------------ JoinGroup

    @rule(
        instance=INSTANCES,
        protocols=PROTOCOLS,
        kind=TYPES,
        session=SESSIONS,
        rebalance=REBALANCES,
        version=VERSIONS,
        goes_on=st.booleans(),
    )
    def join_new(
        self,
        instance: str,
        protocols: Protocols,
        kind: str,
        session: int,
        rebalance: int,
        version: int,
        goes_on: bool,
    ) -> None:
        """A new member, or a static one that was started again; it may use the id that it is given at once."""
        asked = Join(
            instance=instance,
            protocols=protocols,
            protocol_type=kind,
            session=session,
            rebalance=rebalance,
            version=version,
        )
        (self._enter if goes_on else self._join)(asked)

    @rule(
        who=COUNTS,
        says=INSTANCES,
        changes=st.none() | PROTOCOLS,
        session=SESSIONS,
        rebalance=REBALANCES,
        version=VERSIONS,
    )
    def join_again(
        self, who: int, says: str, changes: Protocols | None, session: int, rebalance: int, version: int
    ) -> None:
        id = self._anyone(who)
        one = self.model.members.get(id)
        kept = one.protocols if one else protocols("range")
        self._join(
            Join(
                member=id,
                instance=self._instance(id, says),
                protocols=kept if changes is None else changes,
                session=session,
                rebalance=rebalance,
                version=version,
                protocol_type=self.model.protocol_type or "consumer",
            )
        )

    def _join(self, asked: Join) -> Joined:
        joined = self.group.join(
            asked.member,
            asked.protocols,
            instance=asked.instance,
            session_s=asked.session / 1000,
            rebalance_s=asked.rebalance / 1000,
            protocol_type=asked.protocol_type,
            version=asked.version,
        )
        if not asked.member and joined.member:
            assert joined.member not in self.ids
        before = self._remembered()
        code, kept = self.model.join(asked, joined.member)
        if code not in (NONE, 79):
            assert joined.status == ""
        elif not asked.member:
            self.ids.append(joined.member)
        assert joined.code == code
        self._called(before)
        if code == NONE:
            self._check_joined(joined, kept, asked.version >= 9)
        return joined

    @rule(who=COUNTS, says=INSTANCES)
    def ask_for_the_answer_to_a_join(self, who: int, says: str) -> None:
        id = self._anyone(who)
        self._wait(id, self._instance(id, says))

    def _wait(self, id: str, instance: str) -> Joined:
        joined, before = self.group.wait(id, instance), self._remembered()
        code = self.model.wait(id, instance)
        assert (joined.code, joined.member) == (code, "" if code == UNKNOWN_MEMBER_ID else id)
        self._called(before)
        if code == NONE:
            self._check_joined(joined, "", skips_assignment=False)
        return joined

    def _check_joined(self, joined: Joined, kept: str, skips_assignment: bool) -> None:
        model = self.model
        if model.state == PREPARING:
            assert (joined.status, joined.generation) == ("parked", -1)
            self._check_wait(joined.wait_ms)
            return
        told = (joined.generation, joined.protocol_type, joined.protocol)
        assert told == (model.generation, model.protocol_type, model.protocol)
        leads = joined.member == model.leader
        if kept and not skips_assignment:
            assert (joined.leader, joined.members) == (kept, ())
            return
        assert (joined.leader, joined.skips_assignment) == (model.leader, bool(kept) and leads)
        members = {(id, one.instance, one.metadata(model.protocol)) for id, one in model.members.items()}
        assert set(joined.members) == (members if leads else set())

    def _check_wait(self, wait_ms: int) -> None:
        """A parked call is to come again before its session is over, and not after what happens next."""
        held = min(one.session for one in self.model.members.values()) // 3 + 1
        deadlines = [self.model.join_deadline, self.model.sync_deadline, *self.model.pending.values()]
        waits = [deadline - self.model.now for deadline in deadlines if deadline is not None]
        assert 1 <= wait_ms <= max(1, min([held, *waits]))

    # ------------------------------------------------------------------ the other calls

    @rule(
        who=COUNTS,
        says=INSTANCES,
        step=GENERATIONS,
        kind=st.sampled_from(["", "", "right", "wrong"]),
        for_all=st.booleans(),
    )
    def sync(self, who: int, says: str, step: int, kind: str, for_all: bool) -> None:
        id = self._anyone(who)
        named = {"right": (self.model.protocol_type, self.model.protocol), "wrong": ("consumer", "other")}.get(kind)
        self._sync(id, self._instance(id, says), self._generation(step), named, for_all)

    def _sync(
        self, id: str, instance: str, generation: int, named: tuple[str, str] | None = None, for_all: bool = True
    ) -> Synced:
        self.assignments += 1
        rows = [*self.model.members, "nobody"] if for_all else [id]
        assignments = {row: f"{self.assignments} in {generation} for {row}".encode() for row in rows}
        synced = self.group.sync(id, generation, assignments, instance=instance, protocol=named)
        before = self._remembered()
        code = self.model.sync(id, instance, generation, named, assignments)
        self._check_synced(id, synced, code, before)
        return synced

    @rule(who=COUNTS, says=INSTANCES, step=GENERATIONS)
    def ask_for_the_answer_to_a_sync(self, who: int, says: str, step: int) -> None:
        id = self._anyone(who)
        instance, generation = self._instance(id, says), self._generation(step)
        synced, before = self.group.wait_sync(id, generation, instance), self._remembered()
        self._check_synced(id, synced, self.model.sync(id, instance, generation), before)

    def _check_synced(self, id: str, synced: Synced, code: int, before: Model) -> None:
        assert synced.code == code
        self._called(before)
        if code == NONE and self.model.state == COMPLETING:
            assert synced.is_parked
            self._check_wait(synced.wait_ms)
        elif code == NONE:
            given = self.model.members[id].assignment
            assert (synced.status, synced.assignment) == ("ready", given)
            assert (synced.protocol_type, synced.protocol) == (self.model.protocol_type, self.model.protocol)

    @rule(who=COUNTS, says=INSTANCES, step=GENERATIONS)
    def heartbeat(self, who: int, says: str, step: int) -> None:
        id = self._anyone(who)
        instance, generation = self._instance(id, says), self._generation(step)
        code, before = self.group.heartbeat(id, generation, instance), self._remembered()
        assert code == self.model.heartbeat(id, instance, generation)
        self._called(before)

    @rule(members=st.lists(st.tuples(COUNTS, INSTANCES, st.booleans()), min_size=1, max_size=3))
    def leave(self, members: list[tuple[int, str, bool]]) -> None:
        """By id, by id and instance id, or by instance id alone."""
        ids = [(self._anyone(who), says, by_instance) for who, says, by_instance in members]
        rows = [("" if by_instance else id, self._instance(id, says)) for id, says, by_instance in ids]
        codes, before = self.group.leave(*rows), self._remembered()
        assert codes == self.model.leave(rows)
        self._called(before)

    @rule(
        who=st.none() | COUNTS,
        says=INSTANCES,
        step=st.none() | GENERATIONS,
        version=VERSIONS,
        topics=st.sampled_from(["t", "u", "tu", ""]),
    )
    def commit(self, who: int | None, says: str, step: int | None, version: int, topics: str) -> None:
        id = "" if who is None else self._anyone(who)
        instance = self._instance(id, says) if id else says
        generation = -1 if step is None else self._generation(step)
        self.assignments += 1
        offsets = {f"{topic}:0": f"{self.assignments} -1 id " for topic in topics}
        code = self.group.commit(offsets, id, generation, instance=instance, version=version)
        before = self._remembered()
        assert code == self.model.commit(id, instance, generation, version, offsets)
        self._called(before, commits=True)

    @rule(topic=st.sampled_from(["t", "u"]))
    def delete_offsets(self, topic: str) -> None:
        place = f"{topic}:0"
        outcome, before = self.group.delete_offsets(place), self._remembered()
        expected = self.model.delete_offsets(topic, place)
        self._called(before)
        if self.model.state == PREPARING and expected[0] == NONE:
            # Kafka knows the subscriptions of the last generation, the library those of now.
            assert outcome in ((NONE, [NONE]), (NONE, [86]))
            self.model.offsets = self.group.fetch()
        else:
            assert outcome == expected

    @rule()
    def delete(self) -> None:
        code, before = self.group.delete(), self._remembered()
        assert code == self.model.delete()
        self._called(before)

    # ------------------------------------------------------------------ time

    @rule(ms=TIMES)
    def time_passes(self, ms: int) -> None:
        self._pass(ms)

    @rule(ms=st.integers(1, 100_000))
    def redis_is_away(self, ms: int) -> None:
        """Nobody can call, and front-ends know of it afterwards."""
        began = self.model.now
        self.model.now += ms
        self.group.outage(self.model.now / 1000 - self.group.now)
        self.model.outages = (*self.model.outages, (began, self.model.now))

    def _pass(self, ms: int) -> None:
        self.model.now += ms
        self.group.pass_time(self.model.now / 1000 - self.group.now)

    @rule()
    def everyone_calls_in_good_order(self) -> None:
        """From any state, members that live and call reach a Stable generation, or none of them is left."""
        for _ in range(ROUNDS):
            self._touch()
            state, members = self.model.state, self.model.members
            if state in (DEAD, EMPTY) or (state == STABLE and all(one.synced for one in members.values())):
                return
            parked = [wait_ms for wait_ms in map(self._go_on, list(members)) if wait_ms]
            if self.model.state == PREPARING and self.model.join_deadline is not None:
                self._pass(min([*parked, self.model.join_deadline - self.model.now]))
        raise AssertionError(f"members that call come nowhere: {self.model}")

    def _touch(self) -> None:
        """Do what became due, as the sweep does."""
        before = self._remembered()
        self.group.delete_offsets()
        self.model.advance()
        self._called(before)

    def _go_on(self, id: str) -> int:
        """What a client does next; how long it is parked, 0 where it is not or was thrown out."""
        one = self.model.members.get(id)
        if one is None:
            return 0
        if self.model.state == PREPARING:
            asked = Join(
                member=id,
                instance=one.instance,
                protocols=one.protocols,
                session=one.session,
                rebalance=one.rebalance,
                protocol_type=self.model.protocol_type,
            )
            return (self._wait(id, one.instance) if one.joined else self._join(asked)).wait_ms
        return self._sync(id, one.instance, self.model.generation).wait_ms

    def teardown(self) -> None:
        """Whatever came before: who is silent is given up, though a wait for more members may be extended once."""
        for _ in range(2):
            self._pass(DAY_MS)
            self._touch()
        assert self.model.state in (DEAD, EMPTY)
        self.looks_like_the_model()

    # ------------------------------------------------------------------ what holds after each call

    def _remembered(self) -> Model:
        return copy.deepcopy(self.model)

    def _called(self, before: Model, commits: bool = False) -> None:
        """The library wrote what the model says; what the model leaves open is bounded and taken over."""
        self._adopt_sessions(before)
        self._adopt_times(commits)
        self._adopt_leader()

    def _number(self, name: str) -> int | None:
        text = self.group.field(name)
        return None if text is None else int(text)

    def _adopt_sessions(self, before: Model) -> None:
        """A refused call may hold a session too; nothing else moves one."""
        model = self.model
        scores = cast(Any, self.server.zrange(self.group.keys[2], 0, -1, withscores=True))
        sessions = {id.decode(): round(ends) for id, ends in scores}
        if model.state == DEAD:
            return
        assert set(sessions) == set(model.members) | set(model.pending)
        for id, one in model.members.items():
            known = before.members.get(id)
            allowed = {
                one.ends,
                model.now + one.session,
                model.prolonged(known.ends if known else one.ends, one.session),
            }
            assert sessions[id] in allowed, (id, sessions[id], one.ends)
            one.ends = sessions[id]
        model.pending = {id: sessions[id] for id in model.pending}

    def _adopt_times(self, commits: bool) -> None:
        model = self.model
        if model.state == DEAD:
            return
        for name in ("join_deadline", "sync_deadline"):
            written, expected = self._number(name), getattr(model, name)
            assert (written is None) == (expected is None), (name, written, expected)
            if written is not None and not model.initial:
                needed = max([0, *(one.rebalance for one in model.members.values())])
                assert min(expected, model.now + needed) <= written <= model.prolonged(expected, model.longest)
            setattr(model, name, written)
        model.longest = self._number("rebalance_timeout") or 0
        model.shortest = self._number("session_timeout") or SHORTEST_SESSION
        expires_at = self._number("expires_at")
        assert (expires_at is None) == (model.state != EMPTY)
        if expires_at is not None and model.expires_at == -1:
            assert expires_at == model.now + RETENTION_MS
        elif expires_at is not None and commits:
            assert model.now + RETENTION_MS * 0.999 - 1 <= expires_at <= model.now + RETENTION_MS or (
                expires_at == model.expires_at
            )
        else:
            assert expires_at == model.expires_at
        model.expires_at = expires_at

    def _adopt_leader(self) -> None:
        model = self.model
        if model.state in (DEAD, EMPTY):
            return
        leader = self.group.describe().leader
        if model.state == PREPARING and model.leader is None:
            model.leader = leader if leader in model.members else None
        elif model.leader is None:
            assert leader in model.members
            model.leader = leader
        assert leader == (model.leader or "")
        if model.state != PREPARING and not model.protocol:
            model.protocol = model.chosen()

    @invariant()
    def looks_like_the_model(self) -> None:
        # Reading does not write, so the model must not remember either what became due since the last call.
        now = copy.deepcopy(self.model)
        now.advance()
        if now.state == DEAD:
            assert self.group.state == DEAD
            assert self.group.fetch() == {}
            return
        seen = self.group.describe()
        assert (seen.state, seen.generation, seen.protocol_type) == (now.state, now.generation, now.protocol_type)
        assert seen.leader in ({now.leader} if now.leader else {"", *now.members})
        assert not now.protocol or seen.protocol == now.protocol
        assert seen.member_ids == set(now.members)
        for member in seen.members:
            one = now.members[member.id]
            metadata = one.metadata(seen.protocol) if now.state == STABLE else b""
            assert (member.instance_id, member.metadata, member.assignment) == (one.instance, metadata, one.assignment)
        assert self.group.fetch() == now.offsets
        self._check_keys()

    def _check_keys(self) -> None:
        """An Empty group's keys expire, those of another stay."""
        is_empty = self.group.field("state") == EMPTY
        for key in self.server.keys("korvet:*"):
            assert (self.server.pttl(key) >= 0) == is_empty, key
        counted = [("joined", "joined", (PREPARING,)), ("synced", "synced", (COMPLETING, STABLE))]
        for name, attribute, states in counted:
            if self.group.field("state") in states:
                count = sum(getattr(one, attribute) for one in self.model.members.values())
                assert self._number(name) == count


def test_group_behaves_as_its_model(server: redis.Redis, set_clock: Clock) -> None:
    """The same cases each time, unless KORVET_MODEL_EXAMPLES asks for a number of new ones."""
    wanted = os.environ.get("KORVET_MODEL_EXAMPLES")
    bound = type("BoundCoordinated", (Coordinated,), {"server": server, "set_clock": staticmethod(set_clock)})
    run_state_machine_as_test(
        bound,
        settings=settings(
            max_examples=int(wanted or EXAMPLES),
            stateful_step_count=STEPS,
            derandomize=wanted is None,
            database=None,
            deadline=None,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )
