"""Stderr while a verb runs: progress on a terminal, else a line of a log for each step."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO, cast

import structlog

from korvet.cli.pipeline.options import Common
from korvet.server.ground.logs import configure_logging

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from korvet.pipeline.archive import ArchiveProgress
    from korvet.pipeline.lake.maintain import TableMaintained
    from korvet.pipeline.replay import ReplayProgress

log = structlog.get_logger()


class _Stderr:
    """The current stderr: a progress display replaces it while it draws, and makes room for lines."""

    def write(self, text: str) -> None:
        sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


def is_live(common: Common) -> bool:
    """True if stderr is a terminal that can be drawn on, and its form is text."""
    return common.log_format == "text" and sys.stderr.isatty() and _console().is_interactive


def log_to_stderr(common: Common) -> None:
    """Send the log of this process to stderr in the form that the flag names."""
    configure_logging("debug" if common.debug else "info", common.log_format)
    if is_live(common):
        structlog.configure(logger_factory=structlog.WriteLoggerFactory(cast(TextIO, _Stderr())))


@contextmanager
def archive_progress(common: Common) -> Iterator[Callable[[ArchiveProgress], None]]:
    """A function that takes each batch that is in the lake."""
    if not is_live(common):
        yield _log_batch
        return
    from rich.live import Live

    latest: dict[str, ArchiveProgress] = {}
    rows: dict[str, int] = {}
    with Live(console=_console(), refresh_per_second=4) as live:

        def show(batch: ArchiveProgress) -> None:
            latest[batch.topic] = batch
            rows[batch.topic] = rows.get(batch.topic, 0) + batch.rows
            live.update(_batches(latest, rows))

        yield show


@contextmanager
def replay_progress(common: Common) -> Iterator[Callable[[ReplayProgress], None]]:
    """A function that takes a replay's progress."""
    if not is_live(common):
        yield _log_replay
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]:,.0f} records/s"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=_console()) as bars:
        bar = bars.add_task("replay", total=None, rate=0.0)

        def show(state: ReplayProgress) -> None:
            bars.update(bar, completed=state.records, total=state.total, rate=state.records_per_s)

        yield show


@contextmanager
def maintain_progress(common: Common) -> Iterator[Callable[[TableMaintained], None]]:
    """A function that takes each finished table."""
    if not is_live(common):
        yield _log_table
        return
    console = _console()
    with console.status("maintaining tables"):
        yield lambda done: console.print(f"{done.table}: done", markup=False, highlight=False)


def _console() -> Console:
    from rich.console import Console

    return Console(stderr=True)


def _batches(latest: dict[str, ArchiveProgress], rows: dict[str, int]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("TOPIC", overflow="fold")
    for name in ("BATCH", "RECORDS", "RECORDS/S", "BEHIND"):
        table.add_column(name, justify="right")
    for topic in sorted(latest):
        batch = latest[topic]
        numbers = (f"{batch.batch_id}", f"{rows[topic]:,}", f"{batch.rows_per_s:,.0f}", f"{batch.behind:,}")
        table.add_row(Text(topic), *numbers)
    return table


def _log_batch(batch: ArchiveProgress) -> None:
    log.info(
        "archived a batch",
        topic=batch.topic,
        batch_id=batch.batch_id,
        records=batch.rows,
        records_per_s=round(batch.rows_per_s, 1),
        behind=batch.behind,
    )


def _log_replay(state: ReplayProgress) -> None:
    log.info(
        "replayed",
        replay=state.name,
        records=state.records,
        total=state.total,
        records_per_s=round(state.records_per_s, 1),
    )


def _log_table(done: TableMaintained) -> None:
    log.info("maintained", table=done.table, files_compacted=done.files_compacted, files_written=done.files_written)
