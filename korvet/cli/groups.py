"""``korvet groups``: list, describe and delete consumer groups, reset their offsets, like kafka-consumer-groups.sh."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from korvet.cli.options import as_json, bootstrap_server
from korvet.cli.output import say_note, show_json, show_table
from korvet.errors import KorvetError

if TYPE_CHECKING:
    from korvet.cli.kafka.client import Client
    from korvet.cli.kafka.groups import Group, Member
    from korvet.cli.kafka.reset import Reset


@click.group()
def groups() -> None:
    """List, describe and delete consumer groups, and reset their offsets."""


@groups.command("list")
@click.option(
    "--state", "states", multiple=True, help="Only groups in this state, e.g. Stable or Empty. May be repeated."
)
@click.option(
    "--type",
    "types",
    multiple=True,
    type=click.Choice(["classic", "consumer"]),
    help="Only groups of this protocol. May be repeated.",
)
@as_json
@bootstrap_server
def list_(states: tuple[str, ...], types: tuple[str, ...], as_json: bool, bootstrap_server: str) -> None:
    """List every group."""
    from korvet.cli.kafka.client import Client
    from korvet.cli.kafka.groups import list_groups

    with Client(bootstrap_server) as client:
        found = list_groups(client, states, types)
    if as_json:
        show_json(
            [
                {"group": item.group, "type": item.type, "state": item.state, "protocol_type": item.protocol_type}
                for item in found
            ]
        )
    else:
        show_table(
            ["GROUP", "TYPE", "STATE", "PROTOCOL TYPE"],
            [(item.group, item.type, item.state, item.protocol_type) for item in found],
        )


@groups.command()
@click.argument("names", nargs=-1, metavar="[GROUP…]")
@as_json
@bootstrap_server
def describe(names: tuple[str, ...], as_json: bool, bootstrap_server: str) -> None:
    """Show state, members, offsets and lag of the named groups, or of all.

    Of groups of the consumer protocol also epochs, what each member has and is to have, and what is still waited for.
    """
    from korvet.cli.kafka.client import Client
    from korvet.cli.kafka.groups import list_groups

    with Client(bootstrap_server) as client:
        chosen = list(dict.fromkeys(names)) or [item.group for item in list_groups(client)]
        described = [_description(client, group) for group in chosen]
    if as_json:
        show_json(described)
        return
    for index, group in enumerate(described):
        if index:
            click.echo()
        _show_description(group)


def _description(client: Client, group_id: str) -> dict[str, Any]:
    from korvet.cli.kafka.groups import STATE_DEAD, describe_group, group_facts

    group = describe_group(client, group_id)
    if group.state == STATE_DEAD:
        raise KorvetError(f"no group {group_id!r}; see those there are with: korvet groups list")
    facts = group_facts(client, group_id)
    return {
        "group": group_id,
        "id": facts.get("id"),
        "locator": facts.get("locator"),
        "type": group.type,
        "state": group.state,
        "protocol_type": group.protocol_type,
        "protocol": group.protocol,
        "group_epoch": group.epoch,
        "assignment_epoch": group.target_epoch,
        "waits": facts["waits"].split("; ") if facts.get("waits") else [],
        "members": [_described_member(member) for member in group.members],
        "partitions": _described_partitions(client, group),
    }


def _described_member(member: Member) -> dict[str, Any]:
    return {
        "member_id": member.id,
        "instance_id": member.instance_id,
        "host": member.host,
        "client_id": member.client_id,
        "partitions": len(member.assignment),
        "protocol": member.protocol,
        "epoch": member.epoch,
        "assignment": [str(place) for place in member.assignment],
        "target": None if member.target is None else [str(place) for place in member.target],
    }


def _described_partitions(client: Client, group: Group) -> list[dict[str, Any]]:
    from korvet.cli.kafka.groups import LATEST, committed_offsets, log_offsets

    offsets = committed_offsets(client, group.group)
    owners = {place: member for member in group.members for place in member.assignment}
    places = sorted({*offsets, *owners})
    ends = log_offsets(client, places, LATEST)
    partitions = []
    for place in places:
        member, offset, end = owners.get(place), offsets.get(place), ends.get(place)
        partitions.append(
            {
                "topic": place.topic,
                "partition": place.partition,
                "current_offset": offset,
                "end_offset": end,
                "lag": None if offset is None or end is None else max(end - offset, 0),
                "member_id": member.id if member else None,
                "host": member.host if member else None,
                "client_id": member.client_id if member else None,
            }
        )
    return partitions


def _show_description(group: dict[str, Any]) -> None:
    members = len(group["members"])
    type_ = "" if group["group_epoch"] is None else f"   type {group['type']}"
    protocol = f"   protocol {group['protocol']}" if group["protocol"] else ""
    count = f"{members or 'no'} member{'s' if members != 1 else ''}"
    click.echo(f"Group {group['group']}{type_}   state {group['state']}{protocol}   {count}")
    if group["id"]:
        click.echo(f"{group['id']}   {group['locator']}")
    if group["group_epoch"] is not None:
        click.echo(f"group epoch {group['group_epoch']}   assignment epoch {group['assignment_epoch']}")
    if group["partitions"]:
        show_table(
            ["TOPIC", "PARTITION", "CURRENT", "END", "LAG", "CONSUMER ID", "HOST", "CLIENT ID"],
            [tuple(item.values()) for item in group["partitions"]],
        )
    else:
        click.echo("no offsets, no partitions")
    if group["group_epoch"] is None:
        _show_idle(group["members"])
    elif members:
        _show_targets(group["members"])
    for sentence in group["waits"]:
        click.echo(f"not settled: {sentence}")


def _show_idle(members: list[dict[str, Any]]) -> None:
    idle = [member for member in members if not member["partitions"]]
    if idle:
        click.echo("members without partitions:")
        names = ("member_id", "instance_id", "host", "client_id")
        show_table(
            ["CONSUMER ID", "INSTANCE ID", "HOST", "CLIENT ID"], [[member[name] for name in names] for member in idle]
        )


def _show_targets(members: list[dict[str, Any]]) -> None:
    names = ("member_id", "instance_id", "host", "client_id", "protocol", "epoch")
    show_table(
        ["CONSUMER ID", "INSTANCE ID", "HOST", "CLIENT ID", "SPEAKS", "EPOCH", "CURRENT ASSIGNMENT", "TARGET"],
        [
            [*(member[name] for name in names), *(_ranges(member[part]) or None for part in ("assignment", "target"))]
            for member in members
        ],
    )


def _ranges(places: list[str]) -> str:
    """Places `topic-partition`, sorted as numbers, as `topic-first…last` where they follow each other."""
    ranges: list[tuple[str, int, int]] = []
    for topic, _, partition in (place.rpartition("-") for place in places):
        last = ranges[-1] if ranges else None
        if last is not None and last[0] == topic and last[2] + 1 == int(partition):
            ranges[-1] = (topic, last[1], int(partition))
        else:
            ranges.append((topic, int(partition), int(partition)))
    return ", ".join(f"{topic}-{first}" + (f"…{end}" if end > first else "") for topic, first, end in ranges)


@groups.command()
@click.argument("names", nargs=-1, required=True, metavar="GROUP…")
@bootstrap_server
def delete(names: tuple[str, ...], bootstrap_server: str) -> None:
    """Delete groups that have no members, and their offsets."""
    from korvet.cli.kafka.client import Client
    from korvet.cli.kafka.groups import delete_group

    with Client(bootstrap_server) as client:
        for name in names:
            delete_group(client, name)
            click.echo(f"deleted group {name}")


@groups.command("reset-offsets")
@click.argument("group")
@click.option(
    "--topic", "topics", multiple=True, metavar="TOPIC[:PARTITION,…]", help="What to reset. May be given again."
)
@click.option("--all-topics", is_flag=True, help="Reset every topic the group has offsets in.")
@click.option("--to-earliest", is_flag=True, help="To the start of the log.")
@click.option("--to-latest", is_flag=True, help="To the end of the log.")
@click.option("--to-offset", type=click.IntRange(0), metavar="N", help="To an offset.")
@click.option(
    "--to-datetime", metavar="TIME", help="To the first record at or after a time such as 2026-01-31T12:00:00+01:00."
)
@click.option("--shift-by", type=int, metavar="N", help="By so many records, back where N is negative.")
@click.option("--dry-run", is_flag=True, help="Only show what would be done; so it is without --execute.")
@click.option("--execute", is_flag=True, help="Do it.")
@as_json
@bootstrap_server
def reset_offsets(
    group: str,
    topics: tuple[str, ...],
    all_topics: bool,
    dry_run: bool,
    execute: bool,
    as_json: bool,
    bootstrap_server: str,
    **goals: Any,
) -> None:
    """Set what a group without running consumers reads next."""
    from korvet.cli.kafka.client import Client
    from korvet.cli.kafka.reset import parse_goal, plan_reset

    if bool(topics) == all_topics:
        raise click.UsageError("say what to reset: --topic TOPIC (may be given again) or --all-topics")
    if dry_run and execute:
        raise click.UsageError("--dry-run and --execute exclude each other")
    goal = parse_goal(goals)
    with Client(bootstrap_server) as client:
        resets = plan_reset(client, group, topics, goal)
        if execute:
            _execute(client, group, resets)
    if as_json:
        show_json(
            [
                {
                    "topic": item.place.topic,
                    "partition": item.place.partition,
                    "current_offset": item.current,
                    "new_offset": item.new,
                }
                for item in resets
            ]
        )
    else:
        show_table(
            ["TOPIC", "PARTITION", "CURRENT", "NEW"],
            [(item.place.topic, item.place.partition, item.current, item.new) for item in resets],
        )
    if not execute:
        say_note("nothing was changed; add --execute to do it")


def _execute(client: Client, group_id: str, resets: list[Reset]) -> None:
    from korvet.cli.kafka.groups import STATE_DEAD, STATE_EMPTY, commit_offsets, describe_group

    group = describe_group(client, group_id)
    if group.state not in (STATE_EMPTY, STATE_DEAD):
        raise KorvetError(
            f"group {group_id!r} is {group.state} with {len(group.members)} members; "
            "offsets can be reset only while nobody consumes: stop its consumers and try again"
        )
    commit_offsets(client, group_id, {item.place: item.new for item in resets})
