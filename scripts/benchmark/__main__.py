"""Measure korvet, and other brokers beside it in the same run on the same machine.

This program starts everything on loopback with data in a temporary directory, and stops it. The load generators are
processes of their own that share the machine's processors with the brokers. One round measures every line once on every
broker, one broker after the other, in turn first. A round before them warms up (JVM, caches). The table shows medians.
A ratio is the factor by which korvet is better (above 1) or worse (below 1). A second table has the processor time of
the load generator and of the brokers' processes.

- produce: one librdkafka producer at its defaults (acks=all, linger 5 ms, no compression) to one partition, until the
  last record is acknowledged; "one record a request" sets linger 0 and batches of one; "to 100 partitions" sends each
  record to one at random. The log's ends must agree.
- consume: one librdkafka consumer at its defaults reads one partition, timed from its first record to its last; then
  eight at once read another one, each all of it.
- latency: from before the produce call (linger 0) to the record in a consumer's hand, both librdkafka.
- groups: Heartbeat and OffsetCommit over 50 raw connections, one request in flight on each, each the only member of
  its group; every answer is checked.
- shares: share consumers of one partition over raw connections, which acknowledge with their next ShareFetch (implicit)
  or by a ShareAcknowledge (explicit); the log's batches hold as many records as a poll. Then from before the produce
  call (linger 0) to the record at one of those that wait; and the calls of korvet's Redis while 100 wait.
- scale: members of one group join over raw connections, with a heartbeat every 0.2 s, and the first rebalance delayed
  by nothing on both brokers; the bytes of groups in korvet's Redis, and a heartbeat in microseconds.
- consumers: members of one group of the consumer protocol come at once to its first, over raw connections, with a
  heartbeat every 0.2 s; a settled member's heartbeat, in milliseconds and in microseconds of korvet's Redis.
- process: cold start from the process's start to its ready line (Kafka: to its first answers as a coordinator); memory
  is resident memory of front-end and embedded server together, or of the JVM.
- neighbours (only if --only names it): heartbeats, and Produces and Fetches of one record, one after the other over raw
  connections; alone, beside one producer and 50 consumers of 1 kB, and beside 100 consumers.
- pipeline (only if --only names it; most of an hour): rows a second of read, archive, replay and a stream to a topic on
  Spark, over korvet, beside those of Spark's stock Kafka connector over the same broker, which in replay writes rows in
  any order and in order; rows a second into typed tables, beside those into raw tables alone; and the seconds of an
  archive of an empty topic. Three rounds warm up (--warm-up).

--growth does something else: one table for each kind of growth (partitions, connections, workers, shards, batches,
sizes, codecs), which shows what a request costs as the work grows. --write writes the tables as Markdown.

--calls does something else: a fixed script of requests, without a clock, and what each costs a front-end in processor
time, calls and system calls, beside the floor: a front-end that does nothing but one call and a fixed answer. It needs
strace, and rights to use it.

--way does something else: it sends single records to a waiting consumer, and prints the time of each step of their
way.

--quota does something else: eight producers send all they can to four workers for 50 s, under a quota of 10 MB/s.

--idle does something else: what 1 and 1,000 idle namespaces, and no and 1,000 tenants, cost four workers, in half an
hour.

--topics does something else: the memory of an archive of 500 topics, in half an hour. --heap is that of its Java.

--day does something else: a producer at 20,000 records/s and `korvet pipeline archive --every 10s` run for some minutes
on a topic with korvet.retention=archived; then every record must be in the lake once.
"""

import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol

import click
from rich.console import Console

from scripts.benchmark import idle, quota, targets, way
from scripts.benchmark.growth import TABLES, Growth
from scripts.benchmark.measures import (
    DEFAULT_GROUPS,
    GROUPS,
    PIPELINE,
    PIPELINE_STEPS,
    PIPELINE_WAYS,
    PROCESS,
    START,
    TYPED,
    TYPED_WAYS,
    Measure,
    measures,
)
from scripts.benchmark.profiles import Profiler
from scripts.benchmark.rounds import Results, Starter, Values, run
from scripts.benchmark.tables import growth_table, processor_table, processor_us, table


class _Line(Protocol):
    def line(self) -> str: ...


OTHERS: Mapping[str, Callable[[], Iterable[_Line]]] = {"quota": lambda: [quota.run()], "idle": idle.run, "way": way.run}
"""Other measurements of the program, each as lines of text."""


def starters(names: Sequence[str], *, before: Path | None = None, workers: int = 1) -> list[Starter]:
    """Starters for each of the brokers, each korvet with ``workers`` workers.

    :raises UsageError: a broker needs a directory that is not named.
    """
    known: dict[str, Starter] = {
        "korvet": lambda where: targets.korvet(where, workers=workers),
        "kafka": targets.kafka,
        "metrics": lambda where: targets.korvet(where, "metrics", workers=workers, has_metrics=True),
    }
    if "before" in names:
        if before is None:
            raise click.UsageError("name another checkout of korvet in --before DIR")
        checkout = before.resolve()
        known["before"] = lambda where: targets.korvet(where, "before", checkout, workers=workers)
    return [known[name] for name in names]


def _some_of(known: Sequence[str]) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    def parse(_context: click.Context, _parameter: click.Parameter, value: str) -> list[str]:
        chosen = value.split(",")
        if unknown := sorted(set(chosen) - set(known)):
            raise click.BadParameter(f"{', '.join(unknown)}; known: {', '.join(known)}")
        return chosen

    return parse


def _some_of_or_none(
    known: Sequence[str],
) -> Callable[[click.Context, click.Parameter, str | None], list[str] | None]:
    parse = _some_of(known)
    return lambda context, parameter, value: None if value is None else parse(context, parameter, value)


@click.command(help=re.sub(r"\n +", " ", __doc__ or "").replace("\n- ", "\n\n- "))
@click.option(
    "--against",
    multiple=True,
    type=click.Choice(["kafka", "before", "metrics"]),
    help="Measure this broker too; metrics is korvet with its HTTP port, which is read each second.",
)
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1), help="Rounds that count.")
@click.option(
    "--warm-up", default=3, show_default=True, type=click.IntRange(0), metavar="ROUNDS",
    help="Rounds of the pipeline's warm steps before those that count; Java compiles meanwhile.",
)  # fmt: skip
@click.option(
    "--agree", "agree_percent", type=click.FloatRange(0, 100, min_open=True), metavar="PERCENT",
    help="Go on, to three times the rounds at most, with lines whose odd and even rounds differ by more.",
)  # fmt: skip
@click.option(
    "--seconds", default=3.0, show_default=True, type=click.FloatRange(0.1), help="Length of one measurement."
)
@click.option("--workers", default=1, show_default=True, type=click.IntRange(1), help="Workers of each korvet.")
@click.option(
    "--only", default=",".join(DEFAULT_GROUPS), show_default=True, callback=_some_of(GROUPS),
    help="The groups of measures to run.",
)  # fmt: skip
@click.option(
    "--steps", default=",".join(PIPELINE_STEPS), show_default=True, callback=_some_of(PIPELINE_STEPS),
    help="The steps of the pipeline to run.",
)  # fmt: skip
@click.option(
    "--records",
    default=1_000_000,
    show_default=True,
    type=click.IntRange(1),
    help="Records that pass the pipeline at once.",
)
@click.option(
    "--day", "day_minutes", is_flag=False, flag_value=10.0, type=click.FloatRange(0, min_open=True),
    metavar="[MINUTES]", help="Run a day of an archived topic instead, in so many minutes (by default 10).",
)  # fmt: skip
@click.option(
    "--topics", is_flag=False, flag_value=500, type=click.IntRange(1), metavar="[N]",
    help="Measure an archive of so many topics instead (by default 500).",
)  # fmt: skip
@click.option("--heap", default="1g", show_default=True, metavar="SIZE", help="Its Java's spark.driver.memory.")
@click.option("--calls", "counts_calls", is_flag=True, help="Measure what one request costs instead.")
@click.option("--quota", "other", flag_value="quota", help="Measure how well four workers hold a quota instead.")
@click.option("--idle", "other", flag_value="idle", help="Measure what idle namespaces cost instead.")
@click.option("--way", "other", flag_value="way", help="Measure the steps of single records' ways instead.")
@click.option(
    "--growth", is_flag=False, flag_value=",".join(TABLES), callback=_some_of_or_none(tuple(TABLES)),
    metavar="[TABLES]", help="Measure costs as work grows instead.",
)  # fmt: skip
@click.option(
    "--write",
    "markdown",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the tables of growth or calls there.",
)
@click.option("--json", "json_path", type=click.Path(path_type=Path, dir_okay=False), help="Write every value there.")
@click.option(
    "--profile", "profile_directory", type=click.Path(path_type=Path, file_okay=False), metavar="DIRECTORY",
    help="Write profiles of the brokers' processes in the last round there, by perf and py-spy.",
)  # fmt: skip
@click.option(
    "--before", type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Another checkout of korvet, for --against before.",
)  # fmt: skip
@click.option(
    "--subject", default="korvet", show_default=True, type=click.Choice(["korvet", "kafka"]),
    help="The broker the others are compared with.",
)  # fmt: skip
def main(
    against: tuple[str, ...], rounds: int, warm_up: int, agree_percent: float | None, seconds: float, workers: int,
    only: list[str], steps: list[str], records: int,
    day_minutes: float | None, topics: int | None, heap: str, other: str | None, growth: list[str] | None,
    markdown: Path | None, json_path: Path | None,
    profile_directory: Path | None, before: Path | None, subject: str, counts_calls: bool,
) -> None:  # fmt: skip
    console = Console(width=None if sys.stdout.isatty() else 160)
    if day_minutes is not None:
        _live_a_day(day_minutes, json_path)
        return
    if topics is not None:
        _archive_many(topics, heap)
        return
    if other is not None:
        for figures in OTHERS[other]():
            console.print(figures.line(), highlight=False)
        return
    if counts_calls:
        from scripts.benchmark import calls  # Kafka's schemas

        started = starters(["korvet", *against], before=before, workers=workers)
        _show([calls.run(started, rounds, _say)], markdown, console)
        return
    if growth is not None:
        _grow(growth, markdown, console)
        return
    names = [subject, *(name for name in against if name != subject)]
    chosen = [measure for measure in measures(seconds) if measure.group in only]
    results = Results()
    if chosen or "process" in only:
        profiler = None if profile_directory is None else Profiler(profile_directory)
        agree = None if agree_percent is None else agree_percent / 100
        started = starters(names, before=before, workers=workers)
        results = run(started, chosen, rounds, "process" in only, profiler, agree)
        chosen += [PROCESS] if "process" in only else []
        console.print(table(results.values, chosen, names))
        console.print(processor_table(results.spent, chosen))
    if "pipeline" in only:
        for passed, ways, found in _measure_pipeline(steps, records, rounds, warm_up):
            results.values.update(found)
            console.print(table(found, passed, ways))
    values = {f"{measure}.{key}": dict(brokers) for (measure, key), brokers in results.values.items()}
    about = {"rounds": rounds, "warm_up": warm_up, "seconds": seconds, "records": records, "workers": workers}
    _write(json_path, {**about, "values": values, "processor_us": processor_us(results.spent)})


def _measure_pipeline(
    steps: Sequence[str], records: int, rounds: int, warm_up: int
) -> Iterator[tuple[Sequence[Measure], Sequence[str], Values]]:
    """korvet's pipeline and Spark's stock connector, both over a korvet of their own: a table after the other."""
    from scripts.benchmark import cold, pipeline, typed  # Spark and its packages, which nothing else here needs

    passed = [replace(each, lines=tuple(line for line in each.lines if line.key in steps)) for each in PIPELINE]
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        target = stack.enter_context(targets.korvet(directory))
        try:
            if "start" in steps:
                yield [START], ["korvet"], cold.run(target, directory, rounds, _say)
            spark = stack.enter_context(pipeline.spark_session(directory))
            if any(measure.lines for measure in passed):
                found = pipeline.run(spark, target, directory, passed, records, rounds, warm_up, _say)
                yield passed, PIPELINE_WAYS, found
            if "typed" in steps:
                yield [TYPED], TYPED_WAYS, typed.run(spark, target, directory, records, rounds, warm_up, _say)
        except cold.PipelineFailed as error:
            raise click.ClickException(str(error)) from error


def _live_a_day(minutes: float, json_path: Path | None) -> None:
    """Print a line every ten seconds; ends with 1 if a record is lost or doubled."""
    from scripts.benchmark import cold, day, pipeline

    click.echo(day.Moment.heading())
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        try:
            moments = day.run(Path(name), minutes, lambda moment: click.echo(moment.line()))
            with pipeline.spark_session(Path(name)) as spark:
                day.check_once(spark, day.table(Path(name)), moments[-1].sent)
        except cold.PipelineFailed as error:
            raise click.ClickException(str(error)) from error
    click.echo(day.summary(moments))
    _write(json_path, {"minutes": minutes, "moments": [asdict(moment) for moment in moments]})


def _archive_many(topics: int, heap: str) -> None:
    """Print a line; ends with 1 if the archive fails."""
    from scripts.benchmark import cold
    from scripts.benchmark import topics as many

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        try:
            click.echo(many.run(Path(name), topics, heap, _say).line())
        except cold.PipelineFailed as error:
            raise click.ClickException(str(error)) from error


def _grow(chosen: Sequence[str], markdown: Path | None, console: Console) -> None:
    """Print each table, and write it to the others, as soon as it is measured."""
    found = []
    for name in chosen:
        _say(f"growth of {name}")
        found.append(TABLES[name]())
        _show(found, markdown, console)


def _show(found: Sequence[Growth], markdown: Path | None, console: Console) -> None:
    console.print(growth_table(found[-1]))
    if markdown is not None:
        markdown.write_text("\n".join(each.markdown() for each in found))


def _say(text: str) -> None:
    click.echo(text, err=True)


def _write(json_path: Path | None, about: Mapping[str, Any]) -> None:
    if json_path is not None:
        json_path.write_text(json.dumps({"cpus": os.cpu_count(), **about}, indent=2) + "\n")


if __name__ == "__main__":
    main()
