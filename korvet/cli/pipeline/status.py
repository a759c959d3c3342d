"""``korvet pipeline status``: how fresh the lake's tables are, without Spark."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta

import click

from korvet.cli.ground.options import as_json
from korvet.cli.ground.output import show_json, show_table
from korvet.cli.pipeline.options import Common, lake, without_spark
from korvet.unknown import known


@click.command()
@lake
@click.option("--topic", "topics", multiple=True, metavar="NAME", help="Only this topic's tables. May be given again.")
@as_json
@without_spark
def status(common: Common, lake: str, topics: tuple[str, ...], as_json: bool) -> None:
    """Show how fresh the lake's tables are, without starting Spark.

    BEHIND counts the offsets that a table lacks of its topic. AGE is the time since its last batch.

    \b
    Example:  korvet pipeline status --lake lake
    """
    from korvet.cli.pipeline.progress import log_to_stderr
    from korvet.cli.pipeline.running import end, need_packages

    log_to_stderr(common)
    need_packages()
    from korvet.pipeline.status import StatusConfig, lake_status

    found = lake_status(
        StatusConfig(bootstrap_servers=common.bootstrap_server, lake=lake, topics=topics, client=common.client)
    )
    if as_json:
        show_json([asdict(one) for one in found])
    else:
        show_table(
            ["TOPIC", "TABLE", "BEHIND", "AGE", "BYTES", "FILES"],
            [(one.topic, one.table, one.behind, _age(one.age_s), one.bytes, one.files) for one in found],
        )
    end(one.error for one in found if one.error is not None)


def _age(seconds: float | None) -> str:
    return known(seconds, lambda seconds: str(timedelta(seconds=round(seconds))))
