"""The group functions against a model of Kafka's rules: calls in any order, of any members, with pauses and outages.

After each call the whole group must agree with the model: see `group_checks`.
"""

from __future__ import annotations

from dataclasses import replace

import redis
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from tests.lua.group import NONE, Protocols
from tests.lua.group_checks import Checked, Clock
from tests.lua.group_model import DEAD, EMPTY, PREPARING, STABLE, Join, Member
from tests.lua.machines import bound, run_machine

DAY_MS = 86_400_000
EXAMPLES = 80
STEPS = 40
ROUNDS = 80
"""More rounds than a group needs if all members call: a session lasts half a minute, and members call thrice in it."""


def subscription(*topics: str) -> bytes:
    """A ConsumerProtocolSubscription of version 0."""
    names = b"".join(len(topic).to_bytes(2, "big") + topic.encode() for topic in topics)
    return b"\0\0" + len(topics).to_bytes(4, "big") + names + b"\xff\xff\xff\xff"


def protocols(*names: str, topics: str = "t") -> Protocols:
    return tuple((name, subscription(*topics)) for name in names)


COUNTS = st.integers(0, 6)
"""A choice of one of several things: a number modulo their count."""
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
"""A difference to the present generation."""
TIMES = st.one_of(
    st.integers(1, 3000), st.integers(1, 70_000), st.sampled_from([5000, 6000, 10_000, 20_000, 9 * DAY_MS])
)


class Coordinated(Checked):
    """The steps that members, administrators and time take in a group."""

    @initialize(
        delay=st.sampled_from([0, 0, 1000, 3000]),
        max_size=st.sampled_from([2**31 - 1] * 3 + [2]),
        instances=st.lists(st.sampled_from(["", "", "i"]), max_size=3, unique_by=lambda name: name or object()),
        speaks=st.sampled_from([protocols("range"), protocols("range", "roundrobin")]),
    )
    def begin(self, delay: int, max_size: int, instances: list[str], speaks: Protocols) -> None:
        """Begin with a settled group of some members, or none."""
        self._start(delay, max_size)
        for instance in instances:
            self._enter(Join(instance=instance, protocols=speaks))
            speaks = tuple(reversed(speaks))
        self.everyone_calls_in_good_order()

    def _enter(self, asked: Join) -> None:
        """Join, and join again with the member id if the group hands one out."""
        id = self._join(asked).member
        if id in self.model.pending:
            self._join(replace(asked, member=id))

    # ------------------------------------------------------------------ members

    def _anyone(self, count: int) -> str:
        """A handed out member id, first of present members; or an unknown one."""
        present = [*self.model.members, *self.model.pending]
        known = present + [id for id in self.ids if id not in present][-2:]
        return known[count] if count < len(known) else (known[0] if known else "nobody")

    def _instance(self, id: str, says: str) -> str:
        """A member's own instance id, unless the step names another one."""
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
        self, instance: str, protocols: Protocols, kind: str, session: int, rebalance: int, version: int, goes_on: bool
    ) -> None:
        """A new member, or a restarted static one; it may use its handed out id at once."""
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

    @rule(who=COUNTS, changes=st.none() | PROTOCOLS, version=VERSIONS)
    def a_static_member_starts_again(self, who: int, changes: Protocols | None, version: int) -> None:
        static = [one for one in self.model.members.values() if one.instance]
        if static:
            one = static[who % len(static)]
            asked = self._again("", one)
            self._join(replace(asked, version=version, protocols=one.protocols if changes is None else changes))

    @rule(who=COUNTS, says=INSTANCES)
    def ask_for_the_answer_to_a_join(self, who: int, says: str) -> None:
        id = self._anyone(who)
        self._wait(id, self._instance(id, says))

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

    @rule(who=COUNTS, says=INSTANCES, step=GENERATIONS)
    def ask_for_the_answer_to_a_sync(self, who: int, says: str, step: int) -> None:
        id = self._anyone(who)
        instance, generation = self._instance(id, says), self._generation(step)
        synced, before = self.group.wait_sync(id, generation, instance), self._remembered()
        self._check_synced(id, synced, self.model.sync(id, instance, generation), before)

    @rule(who=COUNTS, says=INSTANCES, step=GENERATIONS)
    def heartbeat(self, who: int, says: str, step: int) -> None:
        id = self._anyone(who)
        self._heartbeat(id, self._instance(id, says), self._generation(step))

    @rule(members=st.lists(st.tuples(COUNTS, INSTANCES, st.booleans()), min_size=1, max_size=3))
    def leave(self, members: list[tuple[int, str, bool]]) -> None:
        """A member leaves by its id, its id and instance id, or its instance id alone."""
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
        partition = f"{topic}:0"
        outcome, before = self.group.delete_offsets(partition), self._remembered()
        expected = self.model.delete_offsets(topic, partition)
        self._called(before)
        if self.model.state == PREPARING and expected[0] == NONE:
            # Kafka knows the subscriptions of the last generation, and the library the present ones.
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

    @rule(quiet=st.sampled_from([0, 0, 7000, 35_000]), ms=st.integers(1, 100_000))
    def redis_is_away(self, quiet: int, ms: int) -> None:
        """No client calls for a while. Then no client can, and front-ends know of that afterwards."""
        self._pass(quiet)
        began = self.model.now
        self.model.now += ms
        self.group.outage(self.model.now / 1000 - self.group.now)
        self.model.outages = (*self.model.outages, (began, self.model.now))

    @rule()
    def everyone_calls_in_good_order(self) -> None:
        """From any state, living members reach a Stable generation, or no member is left."""
        for _ in range(ROUNDS):
            self._touch()
            state, members = self.model.state, self.model.members
            if state in (DEAD, EMPTY) or (state == STABLE and all(one.synced for one in members.values())):
                return
            parked = [wait_ms for wait_ms in map(self._go_on, list(members)) if wait_ms]
            if self.model.state == PREPARING and self.model.join_deadline is not None:
                self._pass(min([*parked, self.model.join_deadline - self.model.now]))
        raise AssertionError(f"members that call come nowhere: {self.model}")

    def _go_on(self, id: str) -> int:
        """Make a client's next call; returns the time for which it is parked, or 0 if it is not parked or is out."""
        one = self.model.members.get(id)
        if one is None:
            return 0
        if self.model.state == PREPARING:
            joined = self._wait(id, one.instance) if one.joined else self._join(self._again(id, one))
            return joined.wait_ms
        return self._sync(id, one.instance, self.model.generation).wait_ms

    def _again(self, id: str, one: Member) -> Join:
        """A member repeats its join."""
        return Join(
            member=id,
            instance=one.instance,
            protocols=one.protocols,
            session=one.session,
            rebalance=one.rebalance,
            protocol_type=self.model.protocol_type,
        )

    @rule(come=st.lists(st.booleans(), min_size=3, max_size=3))
    def some_do_not_join_in_time(self, come: list[bool]) -> None:
        """All members live, but only some join again before the rebalance ends."""
        self._touch()
        for id, comes in zip(list(self.model.members), come, strict=False):
            if comes and id in self.model.members:
                again = self._again(id, self.model.members[id])
                # The follower wants other topics, because an unchanged one begins no rebalance.
                self._join(replace(again, protocols=protocols(*(name for name, _ in again.protocols), topics="tu")))
        for _ in range(ROUNDS):
            if self.model.state != PREPARING or self.model.join_deadline is None:
                return
            for id in list(self.model.members):
                one = self.model.members.get(id)
                if one and one.joined:
                    self._wait(id, one.instance)
                elif one:
                    self._heartbeat(id, one.instance, self.model.generation)
            if self.model.join_deadline is not None:
                self._pass(min(3000, max(1, self.model.join_deadline - self.model.now)))

    def teardown(self) -> None:
        """After any steps silent members expire, although a wait for more members may be extended once."""
        for _ in range(2):
            self._pass(DAY_MS)
            self._touch()
        assert self.model.state in (DEAD, EMPTY)
        self.looks_like_the_model()


def test_group_behaves_as_its_model(server: redis.Redis, set_clock: Clock) -> None:
    run_machine(bound(Coordinated, server, set_clock), examples=EXAMPLES, steps=STEPS)
