"""``korvet pipeline report``: lags, throughput and size."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from korvet.cli.ground.options import as_json
from korvet.cli.ground.output import say_note, show_json, show_table
from korvet.cli.ground.times import Duration, Time
from korvet.cli.pipeline.options import Common, common, lake
from korvet.errors import KorvetError
from korvet.unknown import total

if TYPE_CHECKING:
    from korvet.pipeline.report import Report

_STEPS = " ▁▂▃▄▅▆▇█"
_SPARK_WIDTH = 30


@click.command()
@lake
@click.option("--topic", "topics", multiple=True, metavar="NAME", help="Only this topic. May be given again.")
@click.option("--group", "groups", multiple=True, metavar="ID", help="Only this group's lag. May be given again.")
@click.option("--lags/--no-lags", default=True, show_default=True, help="Ask the broker for groups' lags.")
@click.option(
    "--since", type=Time(), default="24h", show_default=True, metavar="TIME|24h", help="The start of the report's time."
)
@click.option("--until", type=Time(), metavar="TIME|1h", help="The end of that time.  [default: now]")
@click.option(
    "--interval",
    type=Duration(),
    metavar="10s",
    help="The interval of the throughput.  [default: one that makes at most 150]",
)
@click.option("--to", metavar="DIR|URL", help="Append the figures to the tables in this directory.")
@click.option(
    "--format",
    type=click.Choice(["delta", "parquet"]),
    default="delta",
    show_default=True,
    help="The format of the tables of --to.",
)
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="Write a page with plots to this file.")
@as_json
@common
def report(
    common: Common,
    lake: str,
    topics: tuple[str, ...],
    groups: tuple[str, ...],
    lags: bool,
    since: datetime,
    until: datetime | None,
    interval: float | None,
    to: str | None,
    format: str,
    html: Path | None,
    as_json: bool,
) -> None:
    """Show the lag of groups, and how many records each interval has in the lake.

    The throughput counts records whose timestamps are in the report's time; the size is that of the whole lake.

    \b
    Example:  korvet pipeline report --lake lake --html report.html
    """
    from korvet.cli.pipeline.running import spark_session

    with spark_session(common, "report") as spark:
        from korvet.pipeline.report import ReportConfig, html_page, save
        from korvet.pipeline.report import report as run

        config = ReportConfig(
            bootstrap_servers=common.bootstrap_server if lags else None,
            lake=lake,
            topics=topics,
            groups=groups,
            since=since,
            until=until or datetime.now(UTC),
            interval_s=interval,
            client=common.client,
        )
        made = run(spark, config)
        if to is not None:
            save(spark, made, to, "parquet" if format == "parquet" else "delta")
            say_note(f"appended to {to}")
    for topic in made.unarchived:
        say_note(f"alarm: {topic}")
    for group in made.unreadable:
        say_note(f"left out of the lags: {group.reason}")
    for loss in made.losses:
        say_note(f"the archive went on without offsets: {loss}")
    if html is not None:
        _write(html, html_page(made))
        say_note(f"wrote {html}")
    if as_json:
        show_json(made.to_json())
    else:
        _show(made, lags)


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, "utf-8")
    except OSError as error:
        raise KorvetError(f"cannot write {file}: {error.strerror}") from None


def _show(made: Report, with_lags: bool) -> None:
    if with_lags:
        show_table(
            ["GROUP", "TOPIC", "PARTITION", "COMMITTED", "END", "LAG"],
            [(lag.group, lag.topic, lag.partition, lag.committed, lag.end, lag.lag) for lag in made.lags],
        )
        click.echo()
    show_table(
        ["TOPIC", "RECORDS", "BYTES", "WHEN", "RECORDS IN THE LAKE", "ON DISK", "FILES"],
        [_topic(made, topic) for topic in made.topics],
    )


def _topic(made: Report, topic: str) -> tuple[object, ...]:
    from korvet.pipeline.report.figures import bytes_text

    intervals = [interval for interval in made.intervals if interval.topic == topic]
    days = [day for day in made.days if day.topic == topic]
    return (
        topic,
        sum(interval.records for interval in intervals),
        bytes_text(sum(interval.bytes for interval in intervals)),
        _course(made, {interval.start: interval.records for interval in intervals}),
        total(day.records for day in days),
        bytes_text(sum(day.bytes for day in days)),
        sum(day.files for day in days),
    )


def _course(made: Report, records: dict[datetime, int]) -> str:
    """Columns over the report's time, as high as their numbers of records."""
    span = made.until - made.since
    columns = [0] * _SPARK_WIDTH
    for start, count in records.items():
        at = int((max(start, made.since) - made.since) / span * _SPARK_WIDTH)
        columns[min(at, _SPARK_WIDTH - 1)] += count
    most = max(columns) or 1
    return "".join(_STEPS[-(-count * (len(_STEPS) - 1) // most)] for count in columns)
