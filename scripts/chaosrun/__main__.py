"""Break a running korvet in every known way, and show that its clients lose nothing.

Three front-ends behind HAProxy over one Redis; 36 consumers in 9 groups (librdkafka: eager, cooperative, static;
aiokafka; the Java client; librdkafka and Java by the consumer protocol, and a group of both protocols) and two
idempotent producers. Each fault acts while all of them work. The run judges the clients' journals and the state in
Redis: no acknowledged commit is lost, no partition has two owners at once, every acknowledged record reaches every
group in order, and groups rebalance only if they may. The exit code is 1 if a check fails.
"""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from scripts.chaosrun.bank.run import CLAIMS as BANK_CLAIMS
from scripts.chaosrun.bank.run import Kept, keep
from scripts.chaosrun.faults import FAULTS, Fault
from scripts.chaosrun.load import Load
from scripts.chaosrun.pipeline.archive import SOURCES, Archived, Source, keep_archives
from scripts.chaosrun.pipeline.replay import keep_replays, verdicts
from scripts.chaosrun.queue.load import Queue
from scripts.chaosrun.run import CLAIMS, Shown, staged
from scripts.chaosrun.stage import TOPOLOGIES
from tests.support.redis import Kind

NAMES = [fault.name for fault in FAULTS]


def table(shown: Sequence[Shown]) -> Table:
    """A row for each fault."""
    found = Table(title="What was shown", title_justify="left")
    for heading in ("fault", "what happened"):
        found.add_column(heading)
    for heading in (
        "records",
        "delivered",
        "commits",
        "came again",
        "rebalances",
        "joined again by themselves",
        "answered again",
        "longest silence",
        "violations",
    ):
        found.add_column(heading, justify="right")
    for each in shown:
        count = sum(len(violations) for violations in each.violations.values())
        found.add_row(
            each.fault, each.did, f"{each.records:,}", f"{each.deliveries:,}", f"{each.commits:,}", str(each.again),
            str(each.generations), ", ".join(each.rejoined), f"{each.answered_s:.1f} s", f"{each.silence_s:.1f} s",
            str(count),
        )  # fmt: skip
    return found


def bank_table(kept: Kept) -> Table:
    """The events in the bank, a row for each."""
    found = Table(title="The bank", title_justify="left", show_header=False)
    found.add_column()
    found.add_column(justify="right")
    counts = {
        "orders": kept.orders, "transfers": kept.transfers, "transactions committed": kept.committed,
        "transactions aborted": kept.aborted, "committed without an answer to the client": kept.unknown,
        **dict(sorted(kept.happened.items())), "audits": kept.audits,
        "violations": sum(len(violations) for violations in kept.violations.values()),
    }  # fmt: skip
    found.add_row("seconds", f"{kept.seconds:.0f}")
    for name, count in counts.items():
        found.add_row(name, f"{count:,}")
    return found


def _keep_bank(
    console: Console,
    seconds: float,
    seed: int,
    kind: Kind,
    directory: Path | None,
    *,
    cuts: bool,
    has_tier: bool,
) -> bool:
    if directory is not None:
        directory.mkdir(parents=True)
    kept = keep(
        seconds=seconds, seed=seed, kind=kind, directory=directory, cuts=cuts, has_tier=has_tier,
        report=lambda text: click.echo(text, err=True),
    )  # fmt: skip
    console.print(bank_table(kept))
    for claim, violations in kept.violations.items():
        for violation in violations:
            console.print(f"[red]bank[/]: {BANK_CLAIMS[claim]}: {violation}", highlight=False)
    return kept.stands


def archive_table(runs: Sequence[Archived]) -> Table:
    """A row for each run."""
    found = Table(title="Archives under kill -9", title_justify="left")
    for heading in ("source", "records", "seconds", "what happened", "batches", "duplicates", "violations"):
        found.add_column(heading, justify="left" if heading in ("source", "what happened") else "right")
    for run in runs:
        source = f"{run.source}, without application transactions" if run.is_control else run.source
        found.add_row(
            source, f"{run.records:,}", f"{run.seconds:.0f}", run.did, str(run.batches), f"{run.duplicates:,}",
            "these are meant" if run.is_control and run.holds else str(len(run.violations)),
        )  # fmt: skip
    return found


def _keep_archives(
    console: Console, sources: Sequence[Source], records: int, seed: int, kind: Kind, directory: Path | None
) -> bool:
    runs = keep_archives(
        sources=sources, records=records, seed=seed, kind=kind, directory=directory,
        report=lambda text: click.echo(text, err=True),
    )  # fmt: skip
    console.print(archive_table(runs))
    for run in runs:
        for violation in [] if run.is_control else run.violations:
            console.print(f"[red]archive[/] with source {run.source}: {violation}", highlight=False)
    return all(run.holds for run in runs)


def _keep_replays(console: Console, records: int, seed: int) -> bool:
    found = keep_replays(records=records, seed=seed, report=lambda text: click.echo(text, err=True))
    console.print(verdicts(found))
    return all(each.holds for each in found)


def _chosen(names: Sequence[str], *, queue: bool) -> list[Fault]:
    possible = [fault for fault in FAULTS if fault.is_of_queues or not queue]
    return [fault for fault in possible if not names or fault.name in names]


def _play(
    console: Console,
    chosen: Sequence[Fault],
    seconds: float,
    seed: int,
    kind: Kind,
    session_ms: int,
    directory: Path | None,
    of: type[Load],
) -> bool:
    shown: list[Shown] = []
    for topology in TOPOLOGIES:
        faults = [fault for fault in chosen if fault.topology == topology]
        if not faults:
            continue
        kept = directory / topology if directory else None
        if kept is not None:
            kept.mkdir(parents=True)
        with staged(topology, kind=kind, seed=seed, session_timeout_ms=session_ms, of=of, keep=kept) as play:
            for fault in faults:
                click.echo(f"{fault.name}: {(fault.act.__doc__ or '').strip()}", err=True)
                shown.append(play(fault, seconds))
                click.echo(f"  {shown[-1].did}: {'shown' if shown[-1].holds else 'VIOLATED'}", err=True)
    console.print(table(shown))
    for each in shown:
        for claim, violations in each.violations.items():
            for violation in violations:
                console.print(f"[red]{each.fault}[/]: {CLAIMS[claim]}: {violation}", highlight=False)
    return all(each.holds for each in shown)


@click.command(help=re.sub(r"\n +", " ", __doc__ or ""))
@click.option("--fault", "names", multiple=True, type=click.Choice(NAMES), help="Only this one; may be repeated.")
@click.option("--queue", is_flag=True, help="Share consumers and Redis workers of a queue, and no consumer groups.")
@click.option("--archive", is_flag=True, help="Archives of topics in a lake under kill -9, and no other fault.")
@click.option(
    "--source", "sources", multiple=True, type=click.Choice(SOURCES), help="Archives by this one; may be repeated."
)
@click.option(
    "--records",
    default=1_000_000,
    show_default=True,
    type=click.IntRange(10_000),
    help="How many are archived, or replayed.",
)
@click.option("--replay", is_flag=True, help="A replay of a topic from a lake under kill -9, and no other fault.")
@click.option("--bank", is_flag=True, help="Transactions under kill -9, and no other fault.")
@click.option("--cut", is_flag=True, help="With --bank: Redis loses its last writes each time it is killed.")
@click.option("--tier", "has_tier", is_flag=True, help="With --bank: most records are only in a tier.")
@click.option(
    "--seconds", default=60.0, show_default=True, type=click.FloatRange(1), help="How long a fault, or the bank, lasts."
)
@click.option("--seed", default=1, show_default=True, help="Of what is left to chance.")
@click.option("--redis", "kind", default="valkey", show_default=True, type=click.Choice(["valkey", "redis"]))
@click.option(
    "--session-ms", default=10_000, show_default=True, type=click.IntRange(6_000), help="Session timeout of members."
)
@click.option(
    "--keep", "directory", type=click.Path(path_type=Path, file_okay=False), help="Leave journals and logs there."
)
def main(
    names: tuple[str, ...],
    queue: bool,
    archive: bool,
    sources: tuple[Source, ...],
    records: int,
    replay: bool,
    bank: bool,
    cut: bool,
    has_tier: bool,
    seconds: float,
    seed: int,
    kind: Kind,
    session_ms: int,
    directory: Path | None,
) -> None:
    console = Console(width=None if sys.stdout.isatty() else 160)
    if archive:
        raise SystemExit(not _keep_archives(console, sources or SOURCES, records, seed, kind, directory))
    if replay:
        raise SystemExit(not _keep_replays(console, records, seed))
    if bank:
        raise SystemExit(not _keep_bank(console, seconds, seed, kind, directory, cuts=cut, has_tier=has_tier))
    faults = _chosen(names, queue=queue)
    if not faults:
        raise click.UsageError("these faults let members of groups come and go, and are none of a queue")
    raise SystemExit(not _play(console, faults, seconds, seed, kind, session_ms, directory, Queue if queue else Load))


if __name__ == "__main__":
    main()
