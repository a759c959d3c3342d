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
- consumers: members of one group of the consumer protocol come at once to its first, over raw connections, with a
  heartbeat every 0.2 s; a settled member's heartbeat, in milliseconds and in microseconds of korvet's Redis.
- process: cold start from the process's start to its ready line (Kafka: to its first answers as a coordinator); memory
  is resident memory of front-end and embedded server together, or of the JVM.
- pipeline (only where --only names it; some minutes): rows a second of read, archive and replay on Spark, over korvet,
  beside those of Spark's stock Kafka connector over the same broker.

With --day nothing of that is done: a producer at 20,000 records/s and `korvet pipeline archive --every 10s` run for
some minutes on a topic with korvet.retention=archived; then every record must be in the lake once.
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
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from scripts.benchmark import targets
from scripts.benchmark.measures import (
    DEFAULT_GROUPS,
    GROUPS,
    PIPELINE,
    PIPELINE_STEPS,
    PIPELINE_WAYS,
    PROCESS,
    Line,
    Measure,
    measures,
)
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


def _some_of(known: Sequence[str]) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    def parse(_context: click.Context, _parameter: click.Parameter, value: str) -> list[str]:
        chosen = value.split(",")
        if unknown := sorted(set(chosen) - set(known)):
            raise click.BadParameter(f"{', '.join(unknown)}; known: {', '.join(known)}")
        return chosen

    return parse


@click.command(help=re.sub(r"\n +", " ", __doc__ or "").replace("\n- ", "\n\n- "))
@click.option("--against", multiple=True, type=click.Choice(["kafka", "prototype"]), help="Measure this broker too.")
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1), help="Rounds that count.")
@click.option(
    "--seconds", default=3.0, show_default=True, type=click.FloatRange(0.1), help="Length of one measurement."
)
@click.option(
    "--only", default=",".join(DEFAULT_GROUPS), show_default=True, callback=_some_of(GROUPS),
    help="What to measure.",
)  # fmt: skip
@click.option(
    "--steps", default=",".join(PIPELINE_STEPS), show_default=True, callback=_some_of(PIPELINE_STEPS),
    help="What of the pipeline.",
)  # fmt: skip
@click.option(
    "--records",
    default=1_000_000,
    show_default=True,
    type=click.IntRange(1),
    help="How many pass the pipeline at once.",
)
@click.option(
    "--day", "day_minutes", is_flag=False, flag_value=10.0, type=click.FloatRange(0, min_open=True),
    metavar="[MINUTES]", help="Live a day of an archived topic instead, in so many minutes (10 where not said).",
)  # fmt: skip
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
    against: tuple[str, ...], rounds: int, seconds: float, only: list[str], steps: list[str], records: int,
    day_minutes: float | None, json_path: Path | None, prototype: Path | None, subject: str,
) -> None:  # fmt: skip
    console = Console(width=None if sys.stdout.isatty() else 160)
    if day_minutes is not None:
        _live_a_day(day_minutes, json_path)
        return
    names = [subject, *(name for name in against if name != subject)]
    chosen = [measure for measure in measures(seconds) if measure.group in only]
    results: Results = {}
    if chosen or "process" in only:
        results.update(run(_starters(names, prototype), chosen, rounds, "process" in only))
        chosen += [PROCESS] if "process" in only else []
        console.print(table(results, chosen, names))
    if "pipeline" in only:
        passed = [replace(each, lines=tuple(line for line in each.lines if line.key in steps)) for each in PIPELINE]
        results.update(_measure_pipeline(passed, records, rounds))
        console.print(table(results, passed, PIPELINE_WAYS))
    values = {f"{measure}.{key}": dict(brokers) for (measure, key), brokers in results.items()}
    _write(json_path, {"rounds": rounds, "seconds": seconds, "records": records, "values": values})


def _measure_pipeline(passed: Sequence[Measure], records: int, rounds: int) -> Results:
    """korvet's pipeline and Spark's stock connector, both over a korvet of their own."""
    from scripts.benchmark import pipeline  # Spark and what belongs to it, which nothing else here needs

    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        target = stack.enter_context(targets.korvet(directory))
        spark = stack.enter_context(pipeline.spark_session(directory))
        try:
            return pipeline.run(spark, target, directory, passed, records, rounds, _say)
        except pipeline.PipelineFailed as error:
            raise click.ClickException(str(error)) from error


def _live_a_day(minutes: float, json_path: Path | None) -> None:
    """Tell every ten seconds how it goes; ends with 1 where a record is lost or doubled."""
    from scripts.benchmark import day, pipeline

    click.echo(day.Moment.heading())
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        try:
            moments = day.run(Path(name), minutes, lambda moment: click.echo(moment.line()))
            with pipeline.spark_session(Path(name)) as spark:
                day.check_once(spark, day.table(Path(name)), moments[-1].sent)
        except pipeline.PipelineFailed as error:
            raise click.ClickException(str(error)) from error
    click.echo(day.summary(moments))
    _write(json_path, {"minutes": minutes, "moments": [asdict(moment) for moment in moments]})


def _say(text: str) -> None:
    click.echo(text, err=True)


def _write(json_path: Path | None, about: Mapping[str, Any]) -> None:
    if json_path is not None:
        json_path.write_text(json.dumps({"cpus": os.cpu_count(), **about}, indent=2) + "\n")


if __name__ == "__main__":
    main()
