"""Measure korvet, and other brokers beside it in the same run on the same machine.

Everything is started here on loopback with data in a temporary directory, and stopped. The load generators are
processes of their own that share the machine's processors with the brokers. One round measures every line once on every
broker, one broker after the other, in turn first. Round 0 warms up (JVM, caches) and is not counted; the table shows
medians of the others. A ratio is the factor by which korvet is better (above 1) or worse (below 1).

- produce: one librdkafka producer at its defaults (acks=all, linger 5 ms, no compression) to one partition, until the
  last record is acknowledged; "one record a request" sets linger 0 and batches of one. The log's end must agree.
- consume: one librdkafka consumer at its defaults reads one partition, timed from its first record to its last.
- latency: from before the produce call (linger 0) to the record in a consumer's hand, both librdkafka.
- groups: Heartbeat and OffsetCommit over 50 raw connections, one request in flight on each, each the only member of
  its group; every answer is checked.
- scale: members of one group join over raw connections, with a heartbeat every 0.2 s, and the first rebalance delayed
  by nothing on both brokers; what groups take of korvet's Redis in bytes, and a heartbeat in microseconds.
- process: cold start from the process's start to its ready line (Kafka: to its first answers as a coordinator); memory
  is resident memory of front-end and embedded server together, or of the JVM.
"""

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from scripts.benchmark import targets
from scripts.benchmark.measures import GROUPS, PROCESS, Line, Measure, measures
from scripts.benchmark.targets import ROOT, Target

Starter = Callable[[Path], AbstractContextManager[Target]]
Results = dict[tuple[str, str], dict[str, list[float]]]  # (measure, line's key) -> broker -> one value a round
COLD_STARTS = 3
PRELOAD_SETTINGS = {"linger_ms": "50"}


def _work(job: Mapping[str, Any], address: str) -> dict[str, float]:
    command = [sys.executable, "-m", "scripts.benchmark.worker", json.dumps({**job, "address": address})]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode != 0:
        raise click.ClickException(f"{job['job']} against {address} failed:\n{done.stderr[-3000:]}")
    result: dict[str, float] = json.loads(done.stdout)
    return result


def _preload(target: Target, measure: Measure) -> None:
    target.create_topic(measure.name)
    job = {"job": "produce", "topic": measure.name, "value_bytes": measure.value_bytes, "seconds": 300,
           "most": measure.preload, "settings": PRELOAD_SETTINGS}  # fmt: skip
    _work(job, target.address)


def _measure(target: Target, measure: Measure, round_number: int) -> dict[str, float]:
    if measure.preload:
        return _work({**measure.job, "topic": measure.name}, target.address)
    if measure.needs_redis:
        return _work({**measure.job, "redis_url": target.redis_url}, target.address)
    if not measure.needs_topic:
        return _work(measure.job, target.address)
    topic = f"{measure.name}-{round_number}"
    target.create_topic(topic)
    try:
        return _work({**measure.job, "topic": topic}, target.address)
    finally:
        target.delete_topic(topic)


def _measure_process(starters: Sequence[Starter], running: Sequence[Target], idle: Mapping[str, float]) -> Results:
    """Cold starts beside the running brokers, and what those hold."""
    results: Results = defaultdict(lambda: defaultdict(list))
    for target in running:
        results["process", "cold_start_s"][target.name].append(target.ready_s)
        results["process", "idle_mb"][target.name].append(idle[target.name])
        results["process", "used_mb"][target.name].append(targets.resident_mb(target.pids))
    for _ in range(COLD_STARTS - 1):
        for start in starters:
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory, start(Path(directory)) as target:
                results["process", "cold_start_s"][target.name].append(target.ready_s)
    return results


def run(starters: Sequence[Starter], chosen: Sequence[Measure], rounds: int, with_process: bool) -> Results:
    """Start the brokers, measure, stop them."""
    results: Results = defaultdict(lambda: defaultdict(list))
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        running = [stack.enter_context(start(directory)) for start in starters]
        idle = {target.name: targets.resident_mb(target.pids) for target in running}
        preloaded = [(target, m) for target in running for m in chosen if m.preload]
        for target, measure in preloaded:
            _preload(target, measure)
        for number in range(rounds + 1):
            click.echo(f"round {number} of {rounds}{' (warming up)' if number == 0 else ''}", err=True)
            for measure in chosen:
                for target in running if number % 2 else reversed(running):
                    if (measure.needs_groups and not target.has_groups) or (
                        measure.needs_redis and target.redis_url is None
                    ):
                        continue
                    result = _measure(target, measure, number)
                    for line in measure.lines if number else ():
                        results[measure.name, line.key][target.name].append(result[line.key])
        for target, measure in preloaded:
            target.delete_topic(measure.name)
        if with_process:
            results.update(_measure_process(starters, running, idle))
    return results


def _shown(value: float, unit: str) -> str:
    if unit in ("ms", "s", "us"):
        return f"{value:.2f}"
    return f"{value:,.0f}"


def table(results: Results, chosen: Sequence[Measure], names: Sequence[str]) -> Table:
    """Medians of every line and how many times better the first broker is than each other."""
    shown = Table(title=f"medians; ratio: how many times better {names[0]} is", title_justify="left")
    for heading in ("measure", "generator", "unit"):
        shown.add_column(heading)
    for heading in (*names, *(f"/ {name}" for name in names[1:])):
        shown.add_column(heading, justify="right")
    for measure in chosen:
        for line in measure.lines:
            medians = {name: statistics.median(v) for name, v in results[measure.name, line.key].items()}
            values = [_shown(medians[name], line.unit) if name in medians else "-" for name in names]
            ratios = [_ratio(medians, names[0], name, line) for name in names[1:]]
            shown.add_row(line.label, measure.generator, line.unit, *values, *ratios)
    return shown


def _ratio(medians: Mapping[str, float], ours: str, other: str, line: Line) -> str:
    if ours not in medians or other not in medians:
        return "-"
    better, worse = (medians[other], medians[ours]) if line.less_is_better else (medians[ours], medians[other])
    return f"{better / worse:.2f}" if worse else "-"


def _starters(names: Sequence[str], prototype: Path | None) -> list[Starter]:
    known: dict[str, Starter] = {"korvet": targets.korvet, "kafka": targets.kafka}
    if "prototype" in names:
        if prototype is None:
            raise click.UsageError("--prototype DIR or KORVET_PROTOTYPE says where frontend.py and log.lua are")
        directory = prototype.resolve()
        known["prototype"] = lambda where: targets.prototype(where, directory)
    return [known[name] for name in names]


def _groups(_context: click.Context, _parameter: click.Parameter, value: str) -> list[str]:
    chosen = value.split(",")
    if unknown := sorted(set(chosen) - set(GROUPS)):
        raise click.BadParameter(f"{', '.join(unknown)}; known: {', '.join(GROUPS)}")
    return chosen


@click.command(help=re.sub(r"\n +", " ", __doc__ or "").replace("\n- ", "\n\n- "))
@click.option("--against", multiple=True, type=click.Choice(["kafka", "prototype"]), help="Measure this broker too.")
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1), help="Rounds that count.")
@click.option(
    "--seconds", default=3.0, show_default=True, type=click.FloatRange(0.1), help="Length of one measurement."
)
@click.option("--only", default=",".join(GROUPS), show_default=True, callback=_groups, help="What to measure.")
@click.option("--json", "json_path", type=click.Path(path_type=Path, dir_okay=False), help="Write every value there.")
@click.option(
    "--prototype", envvar="KORVET_PROTOTYPE", type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Where the prototype's frontend.py and log.lua are.",
)  # fmt: skip
@click.option(
    "--subject", default="korvet", show_default=True, type=click.Choice(["korvet", "kafka", "prototype"]),
    help="The broker the others are compared with.",
)  # fmt: skip
def main(
    against: tuple[str, ...], rounds: int, seconds: float, only: list[str], json_path: Path | None,
    prototype: Path | None, subject: str,
) -> None:  # fmt: skip
    names = [subject, *(name for name in against if name != subject)]
    chosen = [measure for measure in measures(seconds) if measure.group in only]
    results = run(_starters(names, prototype), chosen, rounds, "process" in only)
    if "process" in only:
        chosen.append(PROCESS)
    Console(width=None if sys.stdout.isatty() else 160).print(table(results, chosen, names))
    if json_path is not None:
        values = {f"{measure}.{key}": dict(brokers) for (measure, key), brokers in results.items()}
        about = {"cpus": os.cpu_count(), "rounds": rounds, "seconds": seconds}
        json_path.write_text(json.dumps({**about, "values": values}, indent=2) + "\n")


if __name__ == "__main__":
    main()
