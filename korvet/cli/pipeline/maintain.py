"""``korvet pipeline maintain``: the care of the lake's tables."""

from __future__ import annotations

from dataclasses import asdict

import click

from korvet.cli.ground.options import as_json
from korvet.cli.ground.output import show_json, show_table
from korvet.cli.ground.times import Duration
from korvet.cli.pipeline.options import Common, common, lake

_S_PER_HOUR = 3600
_BYTES_PER_MIB = 1 << 20


@click.command()
@lake
@click.option("--topic", "topics", multiple=True, metavar="NAME", help="Only this topic's tables. May be given again.")
@click.option(
    "--retention",
    type=Duration(),
    default="168h",
    show_default=True,
    metavar="7d",
    help="Delete files that no version of the tables in this last time needs.",
)
@click.option("--force", is_flag=True, help="Allow a retention of less than a week.")
@click.option(
    "--file-size",
    type=click.IntRange(1),
    default=128,
    show_default=True,
    metavar="MIB",
    help="The size of the files it makes, about.",
)
@click.option(
    "--expire-after",
    type=Duration(),
    metavar="90d",
    help="Delete rows archived longer ago, by whole days; at least 1d.  [default: keep all]",
)
@as_json
@common
def maintain(
    common: Common,
    lake: str,
    topics: tuple[str, ...],
    retention: float,
    force: bool,
    file_size: int,
    expire_after: float | None,
    as_json: bool,
) -> None:
    """Make large files of small ones, and delete old rows and files that are no longer needed.

    Archives may run meanwhile. Ctrl-C ends it after the current table.

    \b
    Example:  korvet pipeline maintain --lake lake
    """
    from korvet.cli.pipeline.progress import maintain_progress
    from korvet.cli.pipeline.running import end, spark_session, stoppable

    with spark_session(common, "maintain") as spark:
        from korvet.pipeline.lake.maintain import MaintainConfig
        from korvet.pipeline.lake.maintain import maintain as run

        config = MaintainConfig(
            lake=lake,
            topics=topics,
            retention_hours=retention / _S_PER_HOUR,
            force=force,
            file_bytes=file_size * _BYTES_PER_MIB,
            expire_hours=None if expire_after is None else expire_after / _S_PER_HOUR,
        )
        with stoppable() as stop, maintain_progress(common) as progress:
            result = run(spark, config, stop=stop, progress=progress)
        was_cut = stop.is_set()
    tables = sorted(result.tables.values(), key=lambda done: done.table)
    if as_json:
        show_json([asdict(done) for done in tables])
    else:
        show_table(
            ["TABLE", "FILES COMPACTED", "INTO", "ROWS EXPIRED"],
            [(done.table, done.files_compacted, done.files_written, done.rows_expired) for done in tables],
        )
    end(result.failed.values(), is_cut=was_cut)
