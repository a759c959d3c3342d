"""Groups of the consumer protocol after any steps: the readers of each partition, and the group's keys."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import redis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from korvet.assignors import ASSIGNORS
from tests.lua.consumer import FENCED_MEMBER_EPOCH, RETRY, STALE_MEMBER_EPOCH
from tests.lua.consumer_model import CALLS, Classic, Client, FrontEnd, ModelGroup, Modern, Target, partitions_of
from tests.lua.group import GROUP_ID_NOT_FOUND, ILLEGAL_GENERATION, LATE, NONE, UNKNOWN_MEMBER_ID
from tests.lua.machines import bound, run_machine
from tests.lua.mixed import CLASSIC_SESSION_S
from tests.lua.mixed_clients import COOPERATIVE

Clock = Callable[[float], None]
EXAMPLES, STEPS = 40, 40
NAMES = ("a", "ab", "b")
SUBSCRIPTIONS = st.sampled_from([("a", "b"), ("a",), ("a", "ab", "b"), ("b", "none")])
CLASSIC_PROTOCOLS = st.sampled_from([COOPERATIVE, "range"])
LOSSES = st.sampled_from(["", "", "first", "last"])
REGEXES = st.sampled_from(["", "", "", "a.*", "b"])
SOME = st.integers(0, 7)
SESSION_S = 15.0
STEP_S = 3.0
ROUNDS = 24
"""The rounds after which dead members' sessions have ended, and all others have their targets."""
CLASSIC_ONLY = {"protocol_type", "protocol", "leader", "attempt", "joined", "synced", "join_deadline", "sync_deadline"}


class Consumed(RuleBasedStateMachine):
    """Clients come, leave, die and change the protocol; front-ends are stale or lost; topics change and time passes."""

    server: redis.Redis
    set_clock: Clock

    @initialize(
        partitions=st.lists(st.integers(1, 4), min_size=3, max_size=3), classic=st.lists(CLASSIC_PROTOCOLS, max_size=2)
    )
    def start(self, partitions: list[int], classic: Sequence[str] = ()) -> None:
        self.server.flushall()
        self.group = ModelGroup(self.server, type(self).set_clock)
        self.group.session_s = SESSION_S
        self.made = 0
        self.catalog = FrontEnd(self.group)
        self.fronts = [FrontEnd(self.group, self.catalog) for _ in range(2)]
        for name, count in zip(NAMES[:2], partitions, strict=False):
            self._make_topic(name, count)
        self.clients: list[Client] = []
        self.held: list[Target] = []
        self.epochs = (0, 0)
        self.locked: dict[str, float] = {}
        for protocol in classic:
            self._add(Classic(self.group, self.fronts[0], NAMES[:2], protocol=protocol))

    def _make_topic(self, name: str, partitions: int) -> None:
        self.made += 1
        self.catalog.topics[name] = (f"{self.made:032x}", partitions)

    def _front(self, number: int) -> FrontEnd:
        return self.fronts[number % len(self.fronts)]

    def _client(self, number: int) -> Client | None:
        return self.clients[number % len(self.clients)] if self.clients else None

    def _modern(self, number: int) -> Modern | None:
        modern = [client for client in self.clients if isinstance(client, Modern)]
        return modern[number % len(modern)] if modern else None

    def _add(self, client: Client, number: int = 0, loses: str = "") -> None:
        self.clients.append(client)
        client.beat(self._front(number), loses=loses)

    # ------------------------------------------------------------------ clients

    @rule(
        number=SOME,
        names=SUBSCRIPTIONS,
        regex=REGEXES,
        assignor=st.sampled_from(["", "", *ASSIGNORS]),
        instance=st.sampled_from(["", "", "i", "j"]),
        rebalance_s=st.sampled_from([4.0, 9.0, 20.0]),
    )
    def come(
        self, number: int, names: tuple[str, ...], regex: str, assignor: str, instance: str, rebalance_s: float
    ) -> None:
        """A client of the consumer protocol starts."""
        if len(self.clients) < 6 and (not instance or all(one.instance != instance for one in self.clients)):
            self.made += 1
            self._add(Modern(self.group, f"m{self.made}", names, regex, assignor, instance, rebalance_s), number)

    @rule(
        number=SOME,
        names=SUBSCRIPTIONS,
        instance=st.sampled_from(["", "", "i", "j"]),
        protocol=CLASSIC_PROTOCOLS,
        loses=LOSSES,
    )
    def come_classic(self, number: int, names: tuple[str, ...], instance: str, protocol: str, loses: str) -> None:
        if len(self.clients) < 6 and (not instance or all(one.instance != instance for one in self.clients)):
            self._add(Classic(self.group, self._front(number), names, instance, protocol), number, loses)

    @rule(number=SOME, front=SOME, acts=st.sampled_from(["", "act", "give_up"]), loses=LOSSES)
    def beat(self, number: int, front: int, acts: str, loses: str) -> None:
        """A client does a part of its work, and makes its due calls; an answer may be lost."""
        client = self._client(number)
        if client:
            if acts:
                getattr(client, acts)()
            client.beat(self._front(front), loses=loses)

    @rule(
        front=SOME, times=st.integers(1, 3), slow=st.none() | st.integers(0, 1), unlucky=st.integers(0, 3), loses=LOSSES
    )
    def all_beat(self, front: int, times: int, slow: int | None, unlucky: int = 0, loses: str = "") -> None:
        """One member may be slow to give up partitions, and another may lose its answers."""
        for _ in range(times):
            for at, client in enumerate(self.clients):
                if at != slow:
                    client.act()
                client.beat(self._front(front), loses=loses if at == unlucky else "")
                self.nobody_reads_what_another_does()

    @rule(number=SOME, front=SOME, calls=st.integers(1, 3))
    def front_end_is_lost(self, number: int, front: int, calls: int) -> None:
        client = self._client(number)
        if client:
            client.beat(self._front(front), calls=calls)

    @rule(number=SOME, names=SUBSCRIPTIONS, regex=REGEXES)
    def subscribe(self, number: int, names: tuple[str, ...], regex: str) -> None:
        client = self._client(number)
        if client:
            client.subscribe(names, regex)

    @rule(number=SOME, how=st.sampled_from(["leave", "die", "away"]))
    def stop(self, number: int, how: str) -> None:
        client = self._client(number)
        if client:
            self.clients.remove(client)
            if how != "die":
                client.go(-2 if how == "away" and client.instance else -1)

    @rule(number=SOME, front=SOME, comes_as=st.sampled_from(["same", "other"]), loses=LOSSES)
    def start_again(self, number: int, front: int, comes_as: str, loses: str) -> None:
        """A client is closed and comes back; a static one says so, and may have its former id again."""
        client = self._client(number)
        if client is None:
            return
        self.clients.remove(client)
        client.go(-2 if client.instance else -1)
        self.made += 1
        if isinstance(client, Modern) == (comes_as == "same"):
            self._add(Modern(self.group, f"m{self.made}", client.names, instance=client.instance), front, loses)
        else:
            self._add(Classic(self.group, self._front(front), client.names, client.instance), front, loses)

    @rule(number=SOME, step=st.sampled_from([0, 0, -1, 1]))
    def commit(self, number: int, step: int) -> None:
        client = self._modern(number)
        if client is None or client.epoch == 0:
            return
        member = self._members().get(client.id)
        code = self.group.commit({"a:0": "1 -1 t "}, client.id, client.epoch + step)
        if member is None:
            assert code in (UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION, GROUP_ID_NOT_FOUND)
        else:
            assert code == (NONE if client.epoch + step == member["member_epoch"] else STALE_MEMBER_EPOCH)

    @rule(number=SOME, step=st.sampled_from([1, 2]))
    def epoch_of_the_future_is_fenced(self, number: int, step: int) -> None:
        client = self._modern(number)
        member = client and self._members().get(client.id)
        if client and member and member["member_epoch"] >= 0 and not member["is_classic"]:
            answer = self.group.consume(client.id, member["member_epoch"] + step, instance=client.instance, owned="")
            assert answer.code == FENCED_MEMBER_EPOCH

    # ------------------------------------------------------------------ targets

    @rule(front=SOME, refreshes=st.booleans())
    def make_target(self, front: int, refreshes: bool) -> None:
        """A front-end computes a target, and installs it later."""
        if refreshes:
            self._front(front).refresh()
        target = self._front(front).target()
        if target:
            self.held.append(target)

    @precondition(lambda self: self.held)
    @rule(number=SOME, stays=st.booleans())
    def install_target(self, number: int, stays: bool) -> None:
        """A front-end installs a target, perhaps late or twice."""
        at = number % len(self.held)
        target = self.held[at] if stays else self.held.pop(at)
        assert self.fronts[0].install(target) in (NONE, RETRY, GROUP_ID_NOT_FOUND)

    @rule(front=SOME)
    def target_is_the_assignors(self, front: int) -> None:
        self._touch()
        if self.group.kind != "consumer" or self.group.state == "Empty":
            return
        one = self._front(front)
        one.refresh()
        target = one.target()
        assert target
        is_new = target.snapshot["generation"] > target.snapshot["target_epoch"] or (
            target.topics != target.snapshot["topics"]
        )
        assert one.install(target) == NONE
        if is_new:
            after = self.group.snapshot()
            assert {member["member_id"]: member["target"] for member in after["members"]} == target.targets
            assert after["generation"] == after["target_epoch"]

    # ------------------------------------------------------------------ topics and time

    @rule(name=st.sampled_from(NAMES), partitions=st.integers(1, 4), grows=st.booleans())
    def change_topic(self, name: str, partitions: int, grows: bool) -> None:
        """A topic comes, gets more partitions, or goes."""
        known = self.catalog.topics.get(name)
        if known is None:
            self._make_topic(name, partitions)
        elif grows:
            self.catalog.topics[name] = (known[0], known[1] + 1)
        else:
            del self.catalog.topics[name]

    @rule(front=SOME)
    def refresh(self, front: int) -> None:
        self._front(front).refresh()

    @rule(seconds=st.sampled_from([0.5, 1.0, 2.5, 5.0, 9.0, 16.0]))
    def pass_time(self, seconds: float) -> None:
        self.group.pass_time(seconds)

    @rule(seconds=st.sampled_from([4.0, 30.0]))
    def outage(self, seconds: float) -> None:
        self.group.outage(seconds)

    @rule(number=SOME, seconds=st.sampled_from([3.0, 20.0]))
    def call_waits_through_an_outage(self, number: int, seconds: float) -> None:
        """A late heartbeat changes nothing, because its claims may be old. It only holds a settled member's session."""
        client = self._modern(number)
        if client is None:
            return
        self.group.served_until = self.group.now
        self.group.outage(seconds)
        before = self.group.hash()
        code = self.group.consume(client.id, client.epoch, instance=client.instance, owned="").code
        self.group.served_until = None
        assert code in (LATE, NONE)
        assert self.group.hash() == before

    @rule()
    def sweep(self) -> None:
        self._touch()

    def _touch(self) -> None:
        """Let the group do its due work, as the sweep does."""
        self.group.delete_offsets()

    # ------------------------------------------------------------------ invariants

    def _members(self) -> dict[str, dict[str, Any]]:
        """The described members whose sessions have not ended."""
        members: dict[str, dict[str, Any]] = self.group.described().get("members", {})
        return members

    @invariant()
    def all_keep_what_is_theirs(self) -> None:
        members = self._members()
        self._check_readers(members)
        self._check_locked(members)

    def nobody_reads_what_another_does(self) -> None:
        self._check_readers(self._members())

    def _check_readers(self, members: Mapping[str, Any]) -> None:
        readers: dict[str, str] = {}
        for client in self.clients:
            if client.id not in members:
                client.miss()
            for partition in client.partitions() if client.id in members else ():
                assert partition not in readers, (partition, readers[partition], client.id)
                readers[partition] = client.id

    def _check_locked(self, members: Mapping[str, Any]) -> None:
        """No member is taken out early."""
        left = {id for id, ends in self.locked.items() if id not in members and ends > self.group.now * 1000}
        living = {client.id for client in self.clients if client.partitions()}
        assert not left & living
        self.locked = self.group.deadlines()

    @invariant()
    def keys_agree(self) -> None:
        fields, found = self.group.hash(), self.group.described()
        assert self.group.state == found.get("state", "Dead")
        if not found:
            self.epochs = (0, 0)
            return
        assert min(found["generation"], int(fields["generation"])) >= self.epochs[0]
        if fields.get("type") != "consumer":
            assert not [name for name in fields if ":" in name]
            assert not fields.keys() & {"target_epoch", "settled", "consumers", "topics"}
            assert fields["state"] == "Stable" or "catalog_version" not in fields
            self.epochs = (int(fields["generation"]), 0)
        elif float(fields.get("next_due", "inf")) > self.group.now * 1000 and found["type"] == "consumer":
            self._check_consumer_group(fields, found)

    def _check_consumer_group(self, fields: dict[str, str], found: dict[str, Any]) -> None:
        members, generation, target_epoch = found["members"], int(fields["generation"]), int(fields["target_epoch"])
        assert self.epochs[1] <= target_epoch <= generation
        self.epochs = (generation, target_epoch)
        owners: dict[str, str] = {}
        for id, member in members.items():
            for partition in partitions_of(f"{member['owned']} {member['revoking']}"):
                assert owners.setdefault(partition, id) == id
            assert member["member_epoch"] <= target_epoch
            assert (member["member_state"] == "UNREVOKED_PARTITIONS") >= bool(member["revoking"])
        assert {name: id for name, id in fields.items() if len(name.partition(":")[0]) == 32} == owners
        settled = [one for one in members.values() if one["member_state"] == "STABLE"]
        current = [one for one in settled if one["member_epoch"] == target_epoch]
        assert int(fields["settled"]) == len(current)
        modern = [one for one in members.values() if not one["is_classic"]]
        assert int(fields["consumers"]) == len(modern)
        assert self._with_prefix(fields, "settled") == {
            one["member_id"]: f"{one['member_epoch']} {one['session_timeout_ms']}"
            for one in settled
            if not one["is_classic"]
        }
        assert self._with_prefix(fields, "target").items() <= {id: one["target"] for id, one in members.items()}.items()
        expected = "Empty"
        if members:
            expected = "Stable" if len(current) == len(members) else "Reconciling"
            expected = "Assigning" if generation > target_epoch else expected
        assert fields["state"] == found["state"] == expected
        if expected == "Stable":
            assert all(one["owned"] == one["target"] for one in members.values())
        assert self.group.deadlines().keys() == members.keys()
        assert self.group.hash(3) == {one["instance_id"]: id for id, one in members.items() if one["instance_id"]}
        assert not fields.keys() & CLASSIC_ONLY

    def _with_prefix(self, fields: dict[str, str], prefix: str) -> dict[str, str]:
        return {name.partition(":")[2]: value for name, value in fields.items() if name.startswith(prefix + ":")}

    @rule()
    def settle(self) -> None:
        """After enough heartbeats each member has its target, and one member reads each partition."""
        for front in self.fronts:
            front.refresh()
        for turn in range(ROUNDS):
            for client in self.clients:
                # A static client may not have its id at first.
                if isinstance(client, Classic) and turn in (0, ROUNDS // 2):
                    client.look()
                client.act()
                client.beat(self._front(turn))
                self.nobody_reads_what_another_does()
            self.keys_agree()
            self.group.pass_time(STEP_S)
            self.nobody_reads_what_another_does()
        for client in self.clients:
            client.act()
        self._check_settled()
        self.locked = self.group.deadlines()

    def _check_settled(self) -> None:
        if not self.clients:
            return
        topics = self.catalog.topics
        partitions = {
            f"{topics[name][0]}:{index}"
            for client in self.clients
            for name in client.wants(topics)
            for index in range(topics[name][1])
        }
        read = sorted(partition for client in self.clients for partition in client.partitions())
        assert read == sorted(partitions), [(client.id, sorted(client.partitions())) for client in self.clients]
        has_modern = any(isinstance(client, Modern) for client in self.clients)
        assert self.group.kind == ("consumer" if has_modern else "classic")
        assert self.group.state == "Stable"

    def teardown(self) -> None:
        """Settle the group after any steps that went well."""
        if sys.exc_info()[0] is None:
            self.settle()


def test_slow_client_keeps_the_partitions_that_it_still_reads(server: redis.Redis, set_clock: Clock) -> None:
    """The client goes on sending heartbeats that name no owned partitions."""
    crowd = bound(Consumed, server, set_clock)()
    crowd.start([2, 2, 2])
    for client in ("one", "two"):
        crowd._add(Modern(crowd.group, client, ("a", "b"), rebalance_s=20))
        crowd.all_beat(0, 2, None if client == "one" else 0)
    crowd.keys_agree()
    one, two = crowd.clients
    assert one.partitions() > two.partitions() == set()
    crowd.settle()


def test_group_settles_after_any_steps(server: redis.Redis, set_clock: Clock) -> None:
    run_machine(bound(Consumed, server, set_clock), examples=EXAMPLES, steps=STEPS)


assert STEP_S * 3 < CLASSIC_SESSION_S < SESSION_S
assert CALLS > 1
