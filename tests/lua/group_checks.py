"""The group functions and their model, called together: their answers and the whole group after each call must agree.

The model leaves open which member leads, and how long exactly a rebalance may take. The library's values are checked
against bounds and taken over.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, cast

import redis
from hypothesis.stateful import RuleBasedStateMachine, invariant

from tests.lua.group import NONE, RETENTION_S, UNKNOWN_MEMBER_ID, Group, Joined, Synced
from tests.lua.group_model import COMPLETING, DEAD, EMPTY, PREPARING, SHORTEST_SESSION, STABLE, Join, Model

Clock = Callable[[float], None]
RETENTION_MS = round(RETENTION_S * 1000)
NUMBERS = {"join_deadline", "sync_deadline", "rebalance_timeout", "session_timeout", "expires_at"}
"""Fields of the group that the model takes over."""


class Checked(RuleBasedStateMachine):
    """The calls of which the rules consist."""

    server: redis.Redis
    set_clock: Clock

    def _start(self, delay: int, max_size: int) -> None:
        self.server.flushall()
        self.group = Group(self.server, type(self).set_clock)
        self.group.initial_delay_ms, self.group.max_size = delay, max_size
        self.model = Model(now=round(self.group.now * 1000), delay=delay, max_size=max_size)
        self.ids: list[str] = []
        self.assignments = 0

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
        """A front-end must repeat a parked call before the session ends, and no later than the next event."""
        held = min(one.session for one in self.model.members.values()) // 3 + 1
        deadlines = [self.model.join_deadline, self.model.sync_deadline, *self.model.pending.values()]
        waits = [deadline - self.model.now for deadline in deadlines if deadline is not None]
        assert 1 <= wait_ms <= max(1, min([held, *waits]))

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

    def _heartbeat(self, id: str, instance: str, generation: int) -> None:
        code, before = self.group.heartbeat(id, generation, instance), self._remembered()
        assert code == self.model.heartbeat(id, instance, generation)
        self._called(before)

    def _pass(self, ms: int) -> None:
        self.model.now += ms
        self.group.pass_time(self.model.now / 1000 - self.group.now)

    def _touch(self) -> None:
        """Let the group do its due work, as the sweep does."""
        before = self._remembered()
        self.group.delete_offsets()
        self.model.advance()
        self._called(before)

    # ------------------------------------------------------------------ invariants after each call

    def _remembered(self) -> Model:
        return copy.deepcopy(self.model)

    def _called(self, before: Model, commits: bool = False) -> None:
        """The library wrote the model's state; open values are within bounds and taken over."""
        self._adopt_sessions(before)
        self._adopt_times(commits)
        self._adopt_leader()

    def _fields(self) -> dict[str, bytes]:
        fields = cast(dict[bytes, bytes], self.server.hgetall(self.group.keys[0]))
        return {name.decode(): text for name, text in fields.items()}

    def _adopt_sessions(self, before: Model) -> None:
        """A refused call may also hold a session; nothing else moves it."""
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
        numbers = {name: int(text) for name, text in self._fields().items() if name in NUMBERS}
        for name in ("join_deadline", "sync_deadline"):
            written, expected = numbers.get(name), getattr(model, name)
            assert (written is None) == (expected is None), (name, written, expected)
            if model.initial:
                assert written == expected
            elif written is not None:
                needed = max([0, *(one.rebalance for one in model.members.values())])
                assert min(expected, model.now + needed) <= written <= model.prolonged(expected, model.longest)
            setattr(model, name, written)
        model.resumed = int(self._fields().get("resumed", 0))
        model.longest = numbers.get("rebalance_timeout", 0)
        model.shortest = numbers.get("session_timeout") or SHORTEST_SESSION
        expires_at = numbers.get("expires_at")
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
            assert leader in model.candidates and leader in model.members
            model.leader = leader
        assert leader == (model.leader or "")
        if model.state != PREPARING and not model.protocol:
            model.protocol = model.chosen()

    @invariant()
    def looks_like_the_model(self) -> None:
        # A read does not write, so the model must also forget its due work since the last call.
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
        """The keys of an Empty group expire; the keys of any other group stay."""
        fields = self._fields()
        state = fields["state"].decode()
        for key in self.server.keys("korvet:*"):
            assert (self.server.pttl(key) >= 0) == (state == EMPTY), key
        counted = [("joined", "joined", (PREPARING,)), ("synced", "synced", (COMPLETING, STABLE))]
        for name, attribute, states in counted:
            if state in states:
                count = sum(getattr(one, attribute) for one in self.model.members.values())
                assert int(fields[name]) == count
