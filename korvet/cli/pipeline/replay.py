"""``korvet pipeline replay``: archived records into a topic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from korvet.cli.ground.options import Function, as_json
from korvet.cli.ground.output import show_json
from korvet.cli.ground.times import Time
from korvet.cli.pipeline.options import Common, common, lake

_WORK_IS_LEFT = 130


def _offsets(flag: str, help_text: str) -> Callable[[Function], Function]:
    """A flag that takes an offset for all partitions, or repeatedly an offset for one partition."""

    def parse(
        context: click.Context, parameter: click.Parameter, given: tuple[str, ...]
    ) -> int | dict[int, int] | None:
        if len(given) == 1 and given[0].isdecimal():
            return int(given[0])
        found: dict[int, int] = {}
        for text in given:
            partition, _, offset = text.partition(":")
            if not partition.isdecimal() or not offset.isdecimal():
                raise click.BadParameter(f"{text!r} is neither an offset nor of the form PARTITION:OFFSET")
            found[int(partition)] = int(offset)
        return found or None

    return click.option(flag, multiple=True, metavar="N|P:N", callback=parse, help=help_text)


@click.command()
@lake
@click.option("--topic", required=True, metavar="NAME", help="The archived topic.")
@click.option("--to", metavar="NAME", help="The topic that gets the records.  [default: the one of the same name]")
@click.option(
    "--partition",
    "partitions",
    type=click.IntRange(0),
    multiple=True,
    metavar="N",
    help="Only this partition. May be given again.",
)
@_offsets("--from-offset", "The first offset, of all partitions or of partition P. May be given again.")
@_offsets("--to-offset", "The first offset after the end, of all partitions or of partition P. May be given again.")
@click.option("--from-time", type=Time(), metavar="TIME|24h", help="Records of this time or later.")
@click.option("--to-time", type=Time(), metavar="TIME|24h", help="Records before this time.")
@click.option("--rate", type=click.FloatRange(0, min_open=True), metavar="N", help="The most records a second.")
@click.option(
    "--name", metavar="NAME", help="The replay's name, by which it goes on.  [default: from table, range and target]"
)
@click.option("--version", type=click.IntRange(0), metavar="N", help="The table's version.  [default: the newest]")
@click.option("--create", is_flag=True, help="Create the topic if it is missing.")
@click.option("--into-archived", is_flag=True, help="Allow a replay to the topic whose archive it reads.")
@as_json
@common
def replay(common: Common, partitions: tuple[int, ...], as_json: bool, **others: Any) -> None:
    """Write archived records to a topic, each once and in order, whatever is killed meanwhile.

    The same command goes on where it was. Ctrl-C ends it after the running transactions.

    \b
    Example:  korvet pipeline replay --lake lake --topic orders --to orders-again --create
    """
    from korvet.cli.pipeline.progress import log_to_stderr, replay_progress
    from korvet.cli.pipeline.running import spark_session, stoppable

    log_to_stderr(common)
    with spark_session(common, "replay") as spark:
        from korvet.pipeline.replay import ReplayConfig
        from korvet.pipeline.replay import replay as run

        config = ReplayConfig(
            bootstrap_servers=common.bootstrap_server, partitions=partitions or None, client=common.client, **others
        )
        with stoppable() as stop, replay_progress(common) as progress:
            result = run(spark, config, stop=stop, progress=progress)
    if as_json:
        show_json({name: getattr(result, name) for name in result.__slots__})
    else:
        left = "" if result.complete else "; the same command goes on"
        click.echo(
            f"replay {result.name}: {result.records} of {result.total} records to topic {result.target} "
            f"in {result.seconds:.1f} s, from version {result.version}{left}"
        )
    if not result.complete:
        raise click.exceptions.Exit(_WORK_IS_LEFT)
