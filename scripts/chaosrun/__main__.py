"""Break a running korvet in every way that can be thought of, and show that its clients lose nothing by it.

Three front-ends behind HAProxy over one Redis; 20 consumers in 5 groups (librdkafka: eager, cooperative, static;
aiokafka; the Java client) and two idempotent producers. Each fault acts while all of them work. From what the clients
wrote down, and from Redis itself, is judged: no acknowledged commit is lost, no partition has two owners in one
generation, every acknowledged record reaches every group in order, and groups rebalance only where they may. Exit code
1 where anything of this does not hold.
"""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from scripts.chaosrun.faults import FAULTS, Fault
from scripts.chaosrun.run import CLAIMS, Shown, staged
from scripts.chaosrun.stage import TOPOLOGIES

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
        "rebalances",
        "gave up waiting",
        "answered again",
        "longest silence",
        "violations",
    ):
        found.add_column(heading, justify="right")
    for each in shown:
        count = sum(len(violations) for violations in each.violations.values())
        found.add_row(
            each.fault, each.did, f"{each.records:,}", f"{each.deliveries:,}", f"{each.commits:,}",
            str(each.generations), ", ".join(each.impatient), f"{each.answered_s:.1f} s", f"{each.silence_s:.1f} s",
            str(count),
        )  # fmt: skip
    return found


def _chosen(names: Sequence[str]) -> list[Fault]:
    return [fault for fault in FAULTS if not names or fault.name in names]


@click.command(help=re.sub(r"\n +", " ", __doc__ or ""))
@click.option("--fault", "names", multiple=True, type=click.Choice(NAMES), help="Only this one; may be repeated.")
@click.option("--seconds", default=60.0, show_default=True, type=click.FloatRange(1), help="How long a fault lasts.")
@click.option("--seed", default=1, show_default=True, help="Of what is left to chance.")
@click.option("--redis", "kind", default="valkey", show_default=True, type=click.Choice(["valkey", "redis"]))
@click.option(
    "--session-ms", default=10_000, show_default=True, type=click.IntRange(6_000), help="Session timeout of members."
)
@click.option("--keep", type=click.Path(path_type=Path, file_okay=False), help="Leave journals and logs there.")
def main(
    names: tuple[str, ...], seconds: float, seed: int, kind: str, session_ms: int, keep: Path | None
) -> None:  # fmt: skip
    console = Console(width=None if sys.stdout.isatty() else 160)
    shown: list[Shown] = []
    for topology in TOPOLOGIES:
        faults = [fault for fault in _chosen(names) if fault.topology == topology]
        if not faults:
            continue
        directory = keep / topology if keep else None
        if directory is not None:
            directory.mkdir(parents=True)
        with staged(
            topology, kind="redis" if kind == "redis" else "valkey", seed=seed, session_timeout_ms=session_ms,
            keep=directory,
        ) as play:  # fmt: skip
            for fault in faults:
                click.echo(f"{fault.name}: {(fault.act.__doc__ or '').strip()}", err=True)
                shown.append(play(fault, seconds))
                click.echo(f"  {shown[-1].did}: {'shown' if shown[-1].holds else 'VIOLATED'}", err=True)
    console.print(table(shown))
    for each in shown:
        for claim, violations in each.violations.items():
            for violation in violations:
                console.print(f"[red]{each.fault}[/]: {CLAIMS[claim]}: {violation}", highlight=False)
    if not all(each.holds for each in shown):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
