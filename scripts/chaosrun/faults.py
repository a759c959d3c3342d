"""The faults: the harm of each to the stage while the load runs, and the groups that may not notice."""

import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from scripts.chaosrun.journal import now_us
from scripts.chaosrun.load import Load, Protocol
from scripts.chaosrun.rebalances import GUESTS, Guest, await_rebalance, generations
from scripts.chaosrun.slots import Mover
from scripts.chaosrun.stage import Stage, Topology, kill_and_start

SHORT_FREEZE_S: Final = 3.0
STALL_S: Final = 4.0
REDIS_DOWN_S: Final = 1.0
FAILED_OVER_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The stage and the load of a fault, which lasts about `seconds`."""

    stage: Stage
    load: Load
    seconds: float
    chance: random.Random

    def is_over(self, began: float) -> bool:
        return time.monotonic() - began >= self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A fault's events, and the violations that it found."""

    did: str
    violations: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """`keeps`: the groups that may neither rebalance nor lose a member while it acts, unless their clients say so.

    `only_hangs`: Redis hangs, and nothing else fails, so that no lock may end.
    """

    name: str
    topology: Topology
    act: Callable[[Scene], Outcome]
    keeps: Callable[[Load], list[str]]
    only_hangs: bool = False

    @property
    def is_of_queues(self) -> bool:
        """True if it also acts on a queue: it lets no member come or go."""
        return self.keeps is _every_group


def _every_group(load: Load) -> list[str]:
    return list(load.groups)


def _those_without_guests(load: Load) -> list[str]:
    return [name for name in load.groups if name not in GUESTS]


def kill_frontends(scene: Scene) -> Outcome:
    """Kill a random front-end every second, but never the last one that serves, and start it again at once.

    It waits while a client has had no answer for a quarter of a session. On a busy machine a start takes seconds, so
    kills in a row would end sessions, and rightly so.
    """
    killed, began = 0, time.monotonic()
    while not scene.is_over(began):
        due = time.monotonic() + 1
        if len(up := scene.stage.up()) > 1 and scene.load.is_answered(within_ms=scene.load.session_timeout_ms // 4):
            kill_and_start(scene.chance.choice(up))
            killed += 1
        time.sleep(max(0.0, due - time.monotonic()))
    scene.stage.balancer.wait_until_up()
    return Outcome(did=f"{killed} front-ends killed in {time.monotonic() - began:.0f} s")


def stall_frontends(scene: Scene) -> Outcome:
    """Let a random front-end hang until the balancer has given it up, and go on with its former requests."""
    stalled, began = 0, time.monotonic()
    while not scene.is_over(began):
        victim = scene.chance.choice(scene.stage.frontends)
        os.kill(victim.pid, signal.SIGSTOP)
        try:
            time.sleep(STALL_S)
        finally:
            os.kill(victim.pid, signal.SIGCONT)
        stalled += 1
        time.sleep(1)
    scene.stage.balancer.wait_until_up()
    return Outcome(did=f"{stalled} times a front-end hung for {STALL_S:.0f} s")


def freeze_and_kill(scene: Scene) -> Outcome:
    """Let Redis hang, and kill front-ends whose calls it has yet to read."""
    frozen, began = 0, time.monotonic()
    while not scene.is_over(began):
        assert scene.stage.server is not None
        with scene.stage.server.paused():
            time.sleep(1)
            for victim in scene.chance.sample(scene.stage.frontends, 2):
                kill_and_start(victim)
            time.sleep(SHORT_FREEZE_S)
        frozen += 1
        scene.stage.balancer.wait_until_up()
    return Outcome(did=f"{frozen} times frozen for {1 + SHORT_FREEZE_S:.0f} s, two front-ends killed meanwhile")


def black_out(scene: Scene) -> Outcome:
    """Redis and all front-ends are killed, and come back after one and a half sessions."""
    assert scene.stage.server is not None
    scene.stage.server.kill()
    for frontend in scene.stage.frontends:
        frontend.kill()
    away_s = scene.load.session_timeout_ms * 1.5 / 1000
    time.sleep(away_s)
    scene.stage.server.start()
    for frontend in scene.stage.frontends:
        frontend.start(wait=False)
    scene.stage.balancer.wait_until_up()
    return Outcome(did=f"all away for {away_s:.0f} s, a session is {scene.load.session_timeout_ms / 1000:.0f} s")


def kill_while_rebalancing(scene: Scene) -> Outcome:
    """Members come and go, undisturbed once, and then with a front-end killed in the middle of each rebalance."""
    undisturbed = {(name, joins): 0 for name in GUESTS for joins in (True, False)}
    violations: list[str] = []
    killed = further = 0
    began = time.monotonic()
    is_first = True
    while is_first or not scene.is_over(began):
        for name in GUESTS:
            guest = Guest(scene.load, name)
            for joins in (True, False):
                before = generations(scene.load)[name]
                guest.toggle()
                if not is_first:
                    await_rebalance(scene.load, name, before)
                    time.sleep(scene.chance.uniform(0, 0.5))
                    kill_and_start(scene.chance.choice(scene.stage.up()))
                    killed += 1
                taken = scene.load.await_settled()[name].generation - before
                if is_first:
                    undisturbed[name, joins] = taken
                    continue
                least = undisturbed[name, joins]
                further += taken > least
                if taken > least + 1:
                    what = "joined" if joins else "left"
                    violations.append(f"{name}: {taken} generations when one {what}, undisturbed it is {least}")
                scene.stage.balancer.wait_until_up()
        is_first = False
    did = f"{killed} rebalances, a front-end killed in each; {further} took one more"
    return Outcome(did=did, violations=violations)


def drop_subscribers(scene: Scene) -> Outcome:
    """Cut all subscriptions of front-ends five times a second, while members come and go."""
    dropped = moved = 0
    within_s = 6 * scene.load.session_timeout_ms / 1000
    guests = [Guest(scene.load, name) for name in GUESTS]
    began = time.monotonic()
    while not scene.is_over(began):
        for guest in guests:
            guest.toggle()
        moved += len(guests)
        due = time.monotonic() + 5
        while time.monotonic() < due or not all(guest.has_settled() for guest in guests):
            with scene.stage.redis() as client:
                dropped += client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
            time.sleep(0.2)
            if time.monotonic() > due + within_s:
                violation = f"a group without pub/sub did not settle in {within_s:.0f} s"
                return Outcome(did=f"{dropped} dropped", violations=[violation])
    for guest in guests:
        guest.go()
    return Outcome(did=f"{dropped} subscribers dropped, {moved} members came or went")


def freeze_redis(scene: Scene) -> Outcome:
    """Let Redis hang repeatedly, for less than a session."""
    frozen, began = 0, time.monotonic()
    while not scene.is_over(began):
        assert scene.stage.server is not None
        with scene.stage.server.paused():
            time.sleep(SHORT_FREEZE_S)
        frozen += 1
        time.sleep(SHORT_FREEZE_S)
    return Outcome(did=f"{frozen} times frozen for {SHORT_FREEZE_S:.0f} s")


def outlast_sessions(scene: Scene) -> Outcome:
    """Let Redis hang once, for one and a half sessions."""
    assert scene.stage.server is not None
    frozen_s = scene.load.session_timeout_ms * 1.5 / 1000
    with scene.stage.server.paused():
        time.sleep(frozen_s)
    return Outcome(did=f"frozen for {frozen_s:.0f} s, a session is {scene.load.session_timeout_ms / 1000:.0f} s")


def kill_redis(scene: Scene) -> Outcome:
    """Kill Redis repeatedly; it comes back with its append-only file."""
    killed, began = 0, time.monotonic()
    while not scene.is_over(began):
        assert scene.stage.server is not None
        scene.stage.server.kill()
        time.sleep(REDIS_DOWN_S)
        scene.stage.server.start()
        killed += 1
        time.sleep(scene.chance.uniform(2, 5))
    return Outcome(did=f"{killed} times killed, back after {REDIS_DOWN_S:.0f} s from its file")


def die_silently(scene: Scene) -> Outcome:
    """Kill half of two groups and all of another one; their members must expire without their help."""
    load = scene.load
    halved, emptied = ("eager", "uniform"), "aio"
    gone = [(name, load.processes(name)[0]) for name in halved]
    gone += [(emptied, process) for process in load.processes(emptied)]
    for group, process in gone:
        load.take_away(group, process, crash=True)
    began = time.monotonic()
    load.until(lambda: load.states()[emptied].state in ("Empty", "Dead"), lambda: f"{emptied} is not empty")
    emptied_s = time.monotonic() - began
    load.await_settled()
    halved_s = time.monotonic() - began
    for group, process in gone:
        load.add_members(group, process.names)
    others = " and ".join(halved)
    did = f"8 members killed: {emptied} is empty after {emptied_s:.1f} s, {others} go on with 2 after {halved_s:.1f} s"
    return Outcome(did=did)


def change_protocols(scene: Scene) -> Outcome:
    """Change the members of a group to the other protocol one by one, until none speaks the first, and back."""
    load, name = scene.load, "mixed"
    chosen = load.groups[name]
    violations: list[str] = []
    changed = 0
    turns: tuple[Protocol | None, ...] = ("consumer", "classic", None)
    for wanted in turns:
        for number in range(chosen.processes):
            members = chosen.names(number)
            process = next(each for each in load.processes(name) if each.names == members)
            load.take_away(name, process, crash=False)
            load.add_members(name, members, wanted or chosen.protocol(number))
            state = load.await_settled()[name]
            changed += 1
        if wanted is not None and state.type != wanted:
            violations.append(f"all members of {name} speak {wanted}, and it is {state.type}")
    return Outcome(did=f"{changed} members restarted with another protocol", violations=violations)


def fail_over(scene: Scene) -> Outcome:
    """The primary dies, and a replica that follows asynchronously takes its place."""
    assert scene.stage.sentinel is not None
    began = now_us()
    scene.stage.sentinel.fail_over()
    took_s = (now_us() - began) / 1e6
    # Asynchronous replication may lose the writes that the replica has not seen.
    scene.load.forgiven.append((began - 1_000_000, now_us()))
    return Outcome(did=f"the primary killed, the replica named after {took_s:.1f} s")


def fail_back(scene: Scene) -> Outcome:
    """The replica leads for a while, and then the former primary again, the same process with other data."""
    sentinel = scene.stage.sentinel
    assert sentinel is not None
    began = now_us()
    for _ in range(2):
        sentinel.hand_over()
        time.sleep(FAILED_OVER_S)
    # Neither server hands on its very last writes.
    scene.load.forgiven.append((began - 1_000_000, now_us()))
    return Outcome(did=f"the replica led for {FAILED_OVER_S:.0f} s, then the former primary again")


def refuse_writes(scene: Scene) -> Outcome:
    """Redis answers, and takes no writes for one and a half sessions."""
    refused_s = scene.load.session_timeout_ms * 1.5 / 1000
    with scene.stage.redis() as client:
        client.config_set("min-replicas-to-write", 1)
        try:
            time.sleep(refused_s)
        finally:
            client.config_set("min-replicas-to-write", 0)
    return Outcome(did=f"no writes for {refused_s:.0f} s, a session is {scene.load.session_timeout_ms / 1000:.0f} s")


def move_slots(scene: Scene) -> Outcome:
    """The slots of groups, partitions and the catalog, one after the other to another node."""
    assert scene.stage.cluster is not None
    mover = Mover(scene.stage.cluster, list(scene.load.groups), scene.chance)
    moved, began = 0, time.monotonic()
    while not scene.is_over(began):
        mover.move_one()
        moved += 1
        time.sleep(0.1)
    return Outcome(did=f"{moved} slots moved")


FAULTS: Final = (
    Fault(name="frontends", topology="single", act=kill_frontends, keeps=_every_group),
    Fault(name="rebalance", topology="single", act=kill_while_rebalancing, keeps=_those_without_guests),
    Fault(name="pubsub", topology="single", act=drop_subscribers, keeps=_those_without_guests),
    Fault(name="stall", topology="single", act=stall_frontends, keeps=_every_group),
    Fault(name="freeze", topology="single", act=freeze_redis, keeps=_every_group, only_hangs=True),
    Fault(name="outage", topology="single", act=outlast_sessions, keeps=_every_group, only_hangs=True),
    Fault(name="refused", topology="single", act=refuse_writes, keeps=_every_group),
    Fault(name="both", topology="single", act=freeze_and_kill, keeps=_every_group),
    Fault(name="blackout", topology="single", act=black_out, keeps=_every_group),
    Fault(name="redis", topology="single", act=kill_redis, keeps=_every_group),
    Fault(
        name="silent", topology="single", act=die_silently,
        keeps=lambda load: [name for name in load.groups if name not in ("eager", "aio", "uniform")],
    ),
    Fault(
        name="protocols", topology="single", act=change_protocols,
        keeps=lambda load: [name for name in load.groups if name != "mixed"],
    ),
    Fault(name="failback", topology="sentinel", act=fail_back, keeps=_every_group),
    # The last one of its stage, because the primary stays dead.
    Fault(name="sentinel", topology="sentinel", act=fail_over, keeps=_every_group),
    Fault(name="slots", topology="cluster", act=move_slots, keeps=_every_group),
)  # fmt: skip
