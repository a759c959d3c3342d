"""Faults one after the other under one load, and the results of each."""

import math
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from scripts.chaosrun import checks
from scripts.chaosrun.faults import Fault, Outcome, Scene
from scripts.chaosrun.journal import Acknowledged, Committed, Consumed, Settled, Taken, now_us
from scripts.chaosrun.load import RECORDS_PER_S, Load, LoadError
from scripts.chaosrun.queue.checks import came_again
from scripts.chaosrun.stage import Topology, running_stage
from scripts.chaosrun.watch import watched
from tests.support.redis import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """One fault's events and results. `violations`: claim -> the facts that contradict it.

    `commits` are of offsets, or of the settled records of a queue, whose records came `again` although no consumer had
    released them. `generations` counts the generations of all groups; `rejoined` are groups with members that say that
    they joined again of their own accord. `answered_s` is the time from the end of the fault until every client got an
    answer again. `silence_s` is the longest time that the client `silent` got no answer.
    """

    fault: str
    did: str
    records: int
    deliveries: int
    commits: int
    again: int
    generations: int
    rejoined: list[str]
    answered_s: float
    silence_s: float
    silent: str
    violations: dict[str, list[str]]

    @property
    def holds(self) -> bool:
        return not any(self.violations.values())


CLAIMS = {
    "commits": "no acknowledged commit is lost",
    "history": "no committed offset goes back",
    "owners": "no partition has two owners at once",
    "delivery": "every record reaches every group",
    "order": "records come in order, and lie at one offset",
    "lost": "every record is accepted, rejected or a dead letter",
    "once": "no finished record comes again",
    "letters": "every rejected record is a dead letter",
    "locks": "no lock ends before its time, and no record comes more often than it may",
    "clients": "no client gives up",
    "groups": "groups do not rebalance, or no more than they may",
}


def play(fault: Fault, scene: Scene) -> Shown:
    """Let the fault act once all groups are Stable, wait until they are again, and judge."""
    load = scene.load
    before, since = load.await_settled(), now_us()
    answered_s = math.inf
    with watched(load.states) as samples:
        try:
            outcome = fault.act(scene)
            answered_s = load.await_answered(now_us())
            load.await_settled()
        except LoadError as error:
            outcome = Outcome(did="", violations=[str(error)])
    after, until = load.states(), now_us()
    violations = load.judged(since, checks.outages(since, samples) if fault.only_hangs else None)
    violations["groups"] = list(outcome.violations)
    violations["history"] = checks.went_back(samples, load.forgiven)
    during = [event for event in load.events if since <= event.at_us <= until]
    ended, forgot = checks.ended_sessions(during), checks.forgot_topics(during)
    kept = {name: before[name] for name in fault.keeps(load)}
    patient = {name: was for name, was in kept.items() if ended.isdisjoint(load.members(name))}
    most = {name: sum(forgot[client] for client in load.members(name)) for name in kept}
    # A static member that its client gave up comes back under another id, without a rebalance.
    dynamic = {name: was for name, was in kept.items() if not load.groups[name].is_static}
    violations["groups"] += checks.rebalanced(patient, after, most) + checks.replaced(dynamic, after, ended)
    silence_s, silent = checks.longest_silence(load.events, load.clients, since, until)
    return Shown(
        fault=fault.name,
        did=outcome.did,
        records=sum(isinstance(event, Acknowledged) for event in during),
        deliveries=sum(isinstance(event, Consumed | Taken) for event in during),
        commits=sum(len(event.offsets) for event in during if isinstance(event, Committed))
        + sum(isinstance(event, Settled) and not event.error for event in during),
        again=came_again(during),
        generations=sum(max(0, after[name].generation - was.generation) for name, was in before.items()),
        rejoined=[name for name in load.groups if not (ended | set(forgot)).isdisjoint(load.members(name))],
        answered_s=answered_s,
        silence_s=silence_s,
        silent=silent,
        violations=violations,
    )


@contextmanager
def staged(
    topology: Topology,
    *,
    kind: Kind,
    seed: int,
    session_timeout_ms: int,
    records_per_s: float = RECORDS_PER_S,
    of: type[Load] = Load,
    keep: Path | None = None,
) -> Iterator[Callable[[Fault, float], Shown]]:
    """A stage and a load of that topology; the function plays a fault of it for about so many seconds.

    `of` is the kind of the load. `keep` keeps journals and logs; without it they are deleted.
    """
    with ExitStack() as stack:
        directory = keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kv")))
        stage = stack.enter_context(running_stage(topology, kind, directory))
        load = of(stage, directory, session_timeout_ms, records_per_s)
        stack.callback(load.kill)
        load.start()
        chance = random.Random(seed)
        yield lambda fault, seconds: play(fault, Scene(stage=stage, load=load, seconds=seconds, chance=chance))
        load.stop()
