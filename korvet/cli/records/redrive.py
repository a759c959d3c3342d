"""``korvet topics redrive``: dead letters back to their topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from korvet.cli.ground.options import as_json, cluster_options
from korvet.cli.ground.output import say_note, show_json, show_table
from korvet.cli.ground.stopping import stopped_in_order

if TYPE_CHECKING:
    from korvet.cli.ground.cluster import Cluster

_GROUP_PREFIX: Final = "korvet-redrive-"


@click.command()
@click.argument("topic")
@click.option("--to", metavar="TOPIC", help="The topic that gets them.  [default: the one where each failed]")
@click.option("-n", "--max-records", type=click.IntRange(1), metavar="N", help="End after N dead letters.")
@click.option(
    "-g", "--group", metavar="GROUP", help=f"The group that keeps the place.  [default: {_GROUP_PREFIX}TOPIC]"
)
@click.option("--dry-run", is_flag=True, help="Only count them.")
@as_json
@cluster_options
def redrive(
    topic: str,
    to: str | None,
    max_records: int | None,
    group: str | None,
    dry_run: bool,
    as_json: bool,
    cluster: Cluster,
) -> None:
    """Send the dead letters of share groups back, each exactly once, as the records that failed.

    They go to the topics and partitions that their headers name, without these headers. A group keeps the place: the
    next run goes on there. A dead letter without a copy of its record gets it from its topic. One that cannot be sent
    is named on stderr, and then the exit code is 1.

    \b
    Example:  korvet topics redrive dlq.orders --max-records 100
    """
    from korvet.cli.kafka.redrive import Redrive

    if to == topic:
        raise click.UsageError("--to names the topic of the dead letters itself; name another one")
    group = group or f"{_GROUP_PREFIX}{topic}"
    with stopped_in_order(), cluster.client() as client:
        work = Redrive(client, topic, group, to=to, most=max_records, execute=not dry_run)
        failures = 0
        for sentence in work.run():
            say_note(sentence)
            failures += 1
    rows = [(*at, records) for at, records in sorted(work.sent.items())]
    if as_json:
        names = ("topic", "partition", "records")
        show_json({"group": group, "partitions": [dict(zip(names, row, strict=True)) for row in rows]})
    elif rows:
        show_table(["TOPIC", "PARTITION", "WOULD GET" if dry_run else "GOT"], rows)
    elif not failures:
        say_note(f"group {group} has sent back all dead letters of topic {topic}")
    if failures:
        raise click.exceptions.Exit(1)
