"""``korvet topics trim``: remove a topic's oldest records now, whatever its retention."""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING, Final

import click

from korvet.cli.ground.options import as_json, cluster_options, confirmed, partitions_option
from korvet.cli.ground.output import show_json, show_table
from korvet.cli.ground.times import Time, milliseconds

if TYPE_CHECKING:
    from korvet.cli.ground.cluster import Cluster
    from korvet.cli.kafka.trim import Goal, Trim

_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kMGT]i?)?B", re.IGNORECASE)
_UNITS: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_MOST: Final = (1 << 63) - 1


class Before(click.ParamType["datetime | int"]):
    """An offset or a time."""

    name = "before"

    def convert(
        self, value: datetime | int | str, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime | int:
        if isinstance(value, str) and value.isdecimal():
            return min(int(value), _MOST)
        return value if isinstance(value, int) else Time().convert(value, param, ctx)


@click.command()
@click.argument("topic")
@partitions_option
@click.option(
    "--before", type=Before(), metavar="OFFSET|TIME|24h", help="Remove records below an offset or before a time."
)
@click.option("--keep", metavar="N|SIZE", help="Keep the newest N records, or a SIZE such as 100MB, of each partition.")
@click.option("--all", "is_all", is_flag=True, help="Remove every record that there is now.")
@confirmed
@as_json
@cluster_options
def trim(
    topic: str,
    partitions: tuple[int, ...],
    before: datetime | int | None,
    keep: str | None,
    is_all: bool,
    execute: bool,
    as_json: bool,
    cluster: Cluster,
) -> None:
    """Remove a topic's oldest records for good; without --execute only show the effect.

    Offsets go on as they are, and groups that were not as far read on at the new start. Since --keep SIZE counts with
    the average record of each partition, it keeps about as much.

    \b
    Examples:  korvet topics trim clicks --before 7d --execute
               korvet topics trim clicks --partition 0 --keep 100MB
    """
    from korvet.cli.kafka.topics import chosen_partitions
    from korvet.cli.kafka.trim import execute_trim, plan_trim

    goal = _goal(before, keep, is_all)
    with cluster.client() as client:
        trims = plan_trim(client, chosen_partitions(client, topic, partitions), goal)
        if execute:
            execute_trim(client, trims)
    if as_json:
        show_json(list(map(_described, trims)))
    else:
        show_table(
            ["TOPIC", "PARTITION", "START", "NEW START", "END", "REMOVED", "BYTES", "ABOUT LEFT"],
            [tuple(_described(item).values()) for item in trims],
        )


def _goal(before: datetime | int | None, keep: str | None, is_all: bool) -> Goal:
    from korvet.cli.kafka.trim import Goal

    if [before is not None, keep is not None, is_all].count(True) != 1:
        raise click.UsageError("name the records to remove: exactly one of --before, --keep, --all")
    if keep is not None:
        return _kept(keep)
    if before is None:
        return Goal(kind="all")
    if isinstance(before, int):
        return Goal(kind="offset", value=before)
    return Goal(kind="time", value=max(0, milliseconds(before)))


def _kept(text: str) -> Goal:
    from korvet.cli.kafka.trim import Goal

    if text.isdecimal():
        return Goal(kind="records", value=min(int(text), _MOST))
    size = _SIZE.fullmatch(text)
    if size is None:
        raise click.BadParameter(
            f"{text!r} is no number of records and no size; want 1000, or a size such as 500kB, 100MB or 2GiB",
            param_hint="--keep",
        )
    unit = (size[2] or "").lower()
    size_bytes = float(size[1]) * (1024 if unit.endswith("i") else 1000) ** _UNITS[unit.removesuffix("i")]
    return Goal(kind="bytes", value=min(int(size_bytes), _MOST))


def _described(item: Trim) -> dict[str, str | int | None]:
    return {
        "topic": item.partition.topic,
        "partition": item.partition.partition,
        "start_offset": item.start,
        "new_start_offset": item.new_start,
        "end_offset": item.end,
        "removed": item.records,
        "bytes": item.size_bytes,
        "left_bytes": item.left_bytes,
    }
