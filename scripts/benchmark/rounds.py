"""Rounds: every line is measured once on every broker in each of them."""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import click
import redis

from scripts.benchmark.measures import Measure
from scripts.benchmark.processes import CLIENT, ProcessorTime, processor_times, resident_mb, spent
from scripts.benchmark.profiles import Profiler
from scripts.benchmark.targets import ROOT, Target

Starter = Callable[[Path], AbstractContextManager[Target]]
Values = dict[tuple[str, str], dict[str, list[float]]]
"""(measure, line's key) -> broker -> one value a round"""
COLD_STARTS = 3
MOST_ROUNDS = 3
REST_S = 0.1
RESTS = 600


class Spent(NamedTuple):
    """Processor time of one measurement, by role, and the ``number`` of records or requests, 0 if it counts none."""

    times: dict[str, ProcessorTime]
    number: int


@dataclass(frozen=True, slots=True)
class Results:
    """The measured values. ``spent``: measure -> broker -> one value a round."""

    values: Values = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    spent: dict[str, dict[str, list[Spent]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))


def work(job: Mapping[str, Any], target: Target) -> tuple[dict[str, float], Spent]:
    """Have a worker process do a job on a broker. Returns its result, and what it spent.

    :raises ClickException: the job failed.
    """
    command = [sys.executable, "-m", "scripts.benchmark.worker", json.dumps({**job, "address": target.address})]
    before = processor_times(target.pids)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    times = spent(before, processor_times(target.pids))
    if done.returncode != 0:
        raise click.ClickException(f"{job['job']} against {target.address} failed:\n{done.stderr[-3000:]}")
    report = json.loads(done.stdout)
    result: dict[str, float] = report["result"]
    return result, Spent({CLIENT: ProcessorTime(**report["spent"]), **times}, int(result.pop("count", 0)))


def _preload(target: Target, measure: Measure) -> None:
    target.create_topic(measure.topic)
    settings = {"linger_ms": "50", "batch_num_messages": str(measure.batch_records)}
    job = {"job": "produce", "topic": measure.topic, "value_bytes": measure.value_bytes, "seconds": 300,
           "most": measure.preload, "settings": settings}  # fmt: skip
    work(job, target)


def _measure(target: Target, measure: Measure, round_number: int) -> tuple[dict[str, float], Spent]:
    if measure.preload:
        return work({**measure.job, "topic": measure.topic}, target)
    job = {**measure.job, "redis_url": target.redis_url} if measure.needs_redis else measure.job
    if not measure.needs_topic:
        return work(job, target)
    topic = f"{measure.name}-{round_number}"
    target.create_topic(topic, partitions=measure.partitions)
    try:
        return work({**job, "topic": topic}, target)
    finally:
        target.delete_topic(topic)


def _measure_process(starters: Sequence[Starter], running: Sequence[Target], idle: Mapping[str, float]) -> Values:
    """Cold starts beside the running brokers, and the memory of these."""
    values: Values = defaultdict(lambda: defaultdict(list))
    for target in running:
        values["process", "cold_start_s"][target.name].append(target.ready_s)
        values["process", "idle_mb"][target.name].append(idle[target.name])
        values["process", "used_mb"][target.name].append(resident_mb(target.pids))
    for _ in range(COLD_STARTS - 1):
        for start in starters:
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory, start(Path(directory)) as target:
                values["process", "cold_start_s"][target.name].append(target.ready_s)
    return values


def _can_measure(target: Target, measure: Measure) -> bool:
    return target.redis_url is not None or not measure.needs_redis


def run(
    starters: Sequence[Starter],
    chosen: Sequence[Measure],
    rounds: int,
    with_process: bool,
    profiler: Profiler | None = None,
    agree: float | None = None,
) -> Results:
    """Start the brokers, measure, stop them. The last of ``rounds`` is profiled if there is a profiler.

    :param agree: a part; measures that `differs` by more go on, to `MOST_ROUNDS` times the rounds at most.
    """
    results = Results()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        running = [stack.enter_context(start(directory)) for start in starters]
        idle = {target.name: resident_mb(target.pids) for target in running}
        by_topic = {m.topic: m for m in chosen if m.preload}
        preloaded = [(target, m) for target in running for m in by_topic.values()]
        for target, measure in preloaded:
            _preload(target, measure)
        for number in range((MOST_ROUNDS if agree is not None else 1) * rounds + 1):
            due = [m for m in chosen if number <= rounds or (agree is not None and differs(results, m, agree))]
            if not due:
                break
            click.echo(round_name(number, rounds), err=True)
            for measure in due:
                for target in running if number % 2 else reversed(running):
                    if _can_measure(target, measure):
                        let_rest(running)
                        with _profiled(profiler if number == rounds else None, target, measure):
                            found, cost = _measure(target, measure, number)
                        if number:
                            _note(results, measure, target, found, cost)
        for target, measure in preloaded:
            target.delete_topic(measure.topic)
        if with_process:
            results.values.update(_measure_process(starters, running, idle))
    return results


def round_name(number: int, rounds: int, warm_up: int = 1) -> str:
    """A round's name. Those before the first one warm up."""
    return f"round {number} of {rounds}" if number > 0 else f"warming up, {number + warm_up} of {warm_up}"


def differs(results: Results, measure: Measure, part: float) -> bool:
    """True if the medians of a measure's odd and even rounds differ by more than a part of the larger one."""
    for line in measure.lines:
        for values in results.values[measure.name, line.key].values():
            few, many = sorted(map(statistics.median, (values[::2], values[1::2] or values)))
            if many - few > part * many:
                return True
    return False


def let_rest(running: Sequence[Target]) -> None:
    """Wait until no Redis rewrites its append-only file: what came before would slow down what is measured next."""
    for url in (target.redis_url for target in running if target.redis_url is not None):
        with redis.Redis.from_url(url) as server:
            for _ in range(RESTS):
                if not server.info("persistence")["aof_rewrite_in_progress"]:
                    break
                time.sleep(REST_S)


def _profiled(profiler: Profiler | None, target: Target, measure: Measure) -> AbstractContextManager[None]:
    return nullcontext() if profiler is None else profiler.profiled(f"{measure.name}-{target.name}", target.pids)


def _note(results: Results, measure: Measure, target: Target, found: Mapping[str, float], cost: Spent) -> None:
    for line in measure.lines:
        results.values[measure.name, line.key][target.name].append(found[line.key])
    results.spent[measure.name][target.name].append(cost)
