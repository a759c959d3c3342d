"""``korvet pipeline replay``: sealed or archived records into a topic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from korvet.cli.ground.options import Function, as_json
from korvet.cli.ground.output import show_json
from korvet.cli.ground.times import Time
from korvet.cli.pipeline.options import Common, common

if TYPE_CHECKING:
    from korvet.pipeline.replay.config import ReplayConfig, ReplayResult


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
@click.option("--tier", metavar="DIR|URL", help="The tier of the topic: its segments are copied.")
@click.option(
    "--tier-namespace", default="default", show_default=True, metavar="NAME", help="The topic's namespace in the tier."
)
@click.option(
    "--lake",
    metavar="DIR|URL",
    help="Without --tier, the directory of the Delta tables: rows become records, on Spark.",
)
@click.option("--topic", required=True, metavar="NAME", help="The sealed or archived topic.")
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
    "--name", metavar="NAME", help="The replay's name, by which it goes on.  [default: from source, range and target]"
)
@click.option(
    "--version", type=click.IntRange(0), metavar="N", help="The version of the lake's table.  [default: the newest]"
)
@click.option("--create", is_flag=True, help="Create the topic if it is missing.")
@click.option("--into-archived", is_flag=True, help="Allow a replay to the very topic that was sealed or archived.")
@as_json
@common
def replay(common: Common, partitions: tuple[int, ...], as_json: bool, **others: Any) -> None:
    """Write sealed or archived records to a topic, each once and in order, whatever is killed meanwhile.

    The same command goes on where it was. Ctrl-C ends it after the running transactions. With --tier batches are copied
    byte for byte, without Spark.

    \b
    Example:  korvet pipeline replay --tier s3://bucket/prefix --topic orders --to orders-again --create
    """
    from korvet.cli.pipeline.running import end
    from korvet.pipeline.replay.config import ReplayConfig

    if others["tier"] is not None:
        # It may come from a config file, where all verbs have it.
        others["lake"] = None
    config = ReplayConfig(
        bootstrap_servers=common.bootstrap_server, partitions=partitions or None, client=common.client, **others
    )
    result = _from_lake(common, config) if config.tier is None else _from_tier(common, config.tier, config)
    if as_json:
        show_json(asdict(result))
    else:
        what = f"{result.records} records" if result.version is None else f"{result.records} of {result.total} records"
        version = "" if result.version is None else f", from version {result.version}"
        left = "" if result.complete else "; the same command goes on"
        click.echo(f"replay {result.name}: {what} to topic {result.target} in {result.seconds:.1f} s{version}{left}")
    end((), is_cut=not result.complete)


def _from_tier(common: Common, tier: str, config: ReplayConfig) -> ReplayResult:
    from korvet.cli.kafka.client import Client
    from korvet.cli.kafka.security import client_security
    from korvet.cli.pipeline.progress import log_to_stderr, replay_progress
    from korvet.cli.pipeline.running import stoppable
    from korvet.cli.replay.run import replay_segments

    log_to_stderr(common)
    security = client_security(config.client)
    with stoppable() as stop, replay_progress(common) as progress:
        return replay_segments(
            lambda: Client(config.bootstrap_servers, security), tier, config, stop=stop, progress=progress
        )


def _from_lake(common: Common, config: ReplayConfig) -> ReplayResult:
    from korvet.cli.pipeline.progress import replay_progress
    from korvet.cli.pipeline.running import spark_session, stoppable

    with spark_session(common, "replay") as spark:
        from korvet.pipeline.replay.run import replay as run

        with stoppable() as stop, replay_progress(common) as progress:
            return run(spark, config, stop=stop, progress=progress)
