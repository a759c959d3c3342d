"""``korvet pipeline archive``: topics into the lake."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from korvet.cli.ground.options import as_json, isolation_option
from korvet.cli.ground.output import show_json, show_table
from korvet.cli.ground.times import Duration
from korvet.cli.pipeline.options import Common, common, lake, metrics_port, pairs, schema_registry
from korvet.errors import KorvetError

if TYPE_CHECKING:
    from korvet.pipeline.archive import ArchiveResult

_S_PER_HOUR = 3600


@click.command()
@lake
@click.option("--topic", "topics", multiple=True, metavar="NAME", help="A topic to archive. May be given again.")
@click.option("--pattern", metavar="REGEX", help="Topics to archive; new ones join while it runs.")
@click.option(
    "--every",
    type=Duration(),
    metavar="10s",
    help="Go on, with a batch at this interval.  [default: end when all records are in]",
)
@click.option(
    "--maintain-every",
    type=Duration(),
    metavar="1h",
    help="With --every: compact the tables at this interval, as 'maintain' does.  [default: never]",
)
@click.option(
    "--expire-after",
    type=Duration(),
    metavar="90d",
    help="With --maintain-every: delete rows archived longer ago; at least 1d.  [default: keep all]",
)
@click.option(
    "--source",
    type=click.Choice(["korvet", "kafka"]),
    default="korvet",
    show_default=True,
    help="korvet's reader, or Spark's own connector, whose jars Spark must have.",
)
@click.option(
    "--tier",
    metavar="DIR|URL",
    help="The tier of the brokers: what is sealed is read there.  [default: the brokers serve all records]",
)
@click.option(
    "--tier-namespace",
    default="default",
    show_default=True,
    metavar="NAME",
    help="The namespace of the brokers' listener.",
)
@click.option(
    "--starting",
    type=click.Choice(["earliest", "latest"]),
    default="earliest",
    show_default=True,
    help="The first offset of a topic that the lake does not have.",
)
@click.option("--max-offsets-per-trigger", type=click.IntRange(1), metavar="N", help="The most offsets in a batch.")
@isolation_option
@click.option(
    "--fail-on-data-loss/--no-fail-on-data-loss",
    default=True,
    show_default=True,
    help="End if records are gone that were not archived.",
)
@click.option(
    "--take-over", is_flag=True, help="Have retention count this lake from now on, and not the one that it counts."
)
@click.option(
    "--checkpoints",
    expose_value=False,
    hidden=True,
    deprecated="archives keep no checkpoints; older ones may be deleted",
)
@click.option(
    "--table",
    type=click.Choice(["latest"]),
    help="A further table of each topic: latest has the newest record of each key.",
)
@pairs(
    "--schema",
    table="schemas",
    form="TOPIC=FILE",
    help_text="A topic's JSON Schema, instead of its setting korvet.value.schema. May be given again.",
)
@schema_registry
@metrics_port
@as_json
@common
def archive(
    common: Common,
    topics: tuple[str, ...],
    pattern: str | None,
    every: float | None,
    maintain_every: float | None,
    expire_after: float | None,
    schemas: dict[str, str],
    metrics: tuple[str, int] | None,
    as_json: bool,
    **others: Any,
) -> None:
    """Write topics to Delta tables, each record once, whatever is killed meanwhile.

    Without --topic and --pattern these are the topics with the setting korvet.lake.tables. When it is run again, it
    goes on where it was. Ctrl-C ends it after the running batches.

    \b
    Example:  korvet pipeline archive --topic orders --lake lake --every 10s
    """
    if maintain_every is not None and every is None:
        raise click.UsageError("Option '--maintain-every' needs '--every'.")
    if others["tier"] is not None and others["source"] != "korvet":
        raise click.UsageError("Option '--tier' needs '--source korvet'.")
    if expire_after is not None and maintain_every is None:
        raise click.UsageError("Option '--expire-after' needs '--maintain-every'.")
    texts = {topic: schema_text(Path(file)) for topic, file in schemas.items()}
    from korvet.cli.pipeline.progress import archive_progress
    from korvet.cli.pipeline.running import end, served_figures, spark_session, stoppable

    with served_figures(metrics) as registry, spark_session(common, "archive") as spark:
        from korvet.pipeline.archive import ArchiveConfig
        from korvet.pipeline.archive import archive as run

        config = ArchiveConfig(
            bootstrap_servers=common.bootstrap_server,
            topics=topics,
            pattern=pattern,
            every_s=every,
            maintain_every_s=maintain_every,
            expire_hours=None if expire_after is None else expire_after / _S_PER_HOUR,
            schemas=texts,
            client=common.client,
            **others,
        )
        with stoppable() as stop, archive_progress(common) as progress:
            result = run(spark, config, stop=stop, progress=progress, metrics=registry)
        was_cut = stop.is_set() and every is None
    _show(result, as_json)
    end(result.failed.values(), is_cut=was_cut)


def schema_text(file: Path) -> str:
    """The text of a schema's file.

    :raises KorvetError: if it cannot be read.
    """
    try:
        return file.read_text("utf-8")
    except OSError as error:
        raise KorvetError(f"cannot read schema {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise KorvetError(f"cannot read schema {file}: it is not UTF-8") from None


def _show(result: ArchiveResult, as_json: bool) -> None:
    if as_json:
        topics = {topic: asdict(done) for topic, done in sorted(result.topics.items())}
        show_json({topic: {"records": fields.pop("rows"), **fields} for topic, fields in topics.items()})
    else:
        show_table(
            ["TOPIC", "RECORDS", "BATCHES", "IN THE LAKE BELOW"],
            [(topic, done.rows, done.batches, _below(done.offsets)) for topic, done in sorted(result.topics.items())],
        )


def _below(offsets: dict[int, int] | Any) -> str:
    return " ".join(f"{number}:{offset}" for number, offset in sorted(offsets.items())) or "-"
