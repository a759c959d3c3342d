"""``korvet groups``: list, describe, delete, configure groups, reset offsets, like kafka-consumer-groups.sh."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from korvet.cli.ground.options import as_json, changes_options, cluster_options, confirmed
from korvet.cli.ground.output import printable, show_json, show_settings, show_table

if TYPE_CHECKING:
    from korvet.cli.ground.cluster import Cluster
    from korvet.cli.kafka.client import Client
    from korvet.cli.kafka.groups import Group, Member


@click.group()
def groups() -> None:
    """List, describe, delete and configure groups, reset their offsets, and remove members."""


@groups.command("list")
@click.option(
    "--state", "states", multiple=True, help="Only groups in this state, e.g. Stable or Empty. May be given again."
)
@click.option(
    "--type",
    "types",
    multiple=True,
    type=click.Choice(["classic", "consumer", "share"]),
    help="Only groups of this type. May be given again.",
)
@as_json
@cluster_options
def list_(states: tuple[str, ...], types: tuple[str, ...], as_json: bool, cluster: Cluster) -> None:
    """List every group, with its members and its lag.

    \b
    Example:  korvet groups list --state Stable --type consumer
    """
    from korvet.cli.kafka.group_rows import group_rows
    from korvet.cli.kafka.groups import list_groups

    with cluster.client() as client:
        rows = group_rows(client, list_groups(client, states, types))
    described = [
        {
            "group": item.group,
            "type": item.type,
            "state": item.state,
            "protocol_type": item.protocol_type,
            "members": members,
            "lag": lag,
        }
        for item, members, lag in rows
    ]
    if as_json:
        show_json(described)
    else:
        columns = ["GROUP", "TYPE", "STATE", "PROTOCOL TYPE", "MEMBERS", "LAG"]
        show_table(columns, [tuple(one.values()) for one in described])


@groups.command()
@click.argument("names", nargs=-1, metavar="[GROUP…]")
@as_json
@cluster_options
def describe(names: tuple[str, ...], as_json: bool, cluster: Cluster) -> None:
    """Show state, members, offsets and lag of the named groups, or of all.

    While a group is not settled, lines 'not settled:' name the members that it waits for, and deadlines. A group of the
    consumer protocol also has epochs, and for each member its partitions and its target.

    \b
    Example:  korvet groups describe readers
    """
    from korvet.cli.kafka.groups import list_groups

    with cluster.client() as client:
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
    from korvet.cli.kafka.groups import existing_group, group_facts

    group = existing_group(client, group_id)
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
        "assignment": [str(partition) for partition in member.assignment],
        "target": None if member.target is None else [str(partition) for partition in member.target],
    }


def _described_partitions(client: Client, group: Group) -> list[dict[str, Any]]:
    from korvet.cli.kafka.groups import SHARE_TYPE
    from korvet.cli.kafka.offsets import standings

    is_share = group.type == SHARE_TYPE
    assigned = {partition: member for member in group.members for partition in member.assignment}
    # The members of a share group share partitions.
    owners = {} if is_share else assigned
    partitions = []
    for partition, standing in standings(client, group.group, assigned, is_share=is_share).items():
        member = owners.get(partition)
        partitions.append(
            {
                "topic": partition.topic,
                "partition": partition.partition,
                "current_offset": standing.offset,
                "end_offset": standing.end,
                "lag": standing.lag,
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
    click.echo(printable(f"Group {group['group']}{type_}   state {group['state']}{protocol}   {count}"))
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
        click.echo(printable(f"not settled: {sentence}"))


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
            [
                *(member[name] for name in names),
                *(_ranges(member[part] or []) or None for part in ("assignment", "target")),
            ]
            for member in members
        ],
    )


def _ranges(partitions: list[str]) -> str:
    """Partitions `topic-partition`, sorted by number; runs become `topic-first…last`."""
    ranges: list[tuple[str, int, int]] = []
    for topic, _, partition in (topic_partition.rpartition("-") for topic_partition in partitions):
        last = ranges[-1] if ranges else None
        if last is not None and last[0] == topic and last[2] + 1 == int(partition):
            ranges[-1] = (topic, last[1], int(partition))
        else:
            ranges.append((topic, int(partition), int(partition)))
    return ", ".join(f"{topic}-{first}" + (f"…{end}" if end > first else "") for topic, first, end in ranges)


@groups.command()
@click.argument("names", nargs=-1, required=True, metavar="GROUP…")
@confirmed
@cluster_options
def delete(names: tuple[str, ...], execute: bool, cluster: Cluster) -> str | None:
    """Delete groups that have no members, and their offsets; without --execute only show them.

    \b
    Example:  korvet groups delete readers --execute
    """
    from korvet.cli.kafka.group_rows import group_rows
    from korvet.cli.kafka.groups import ListedGroup, delete_group, deletion_hindrance, existing_group

    with cluster.client() as client:
        if not execute:
            described = [existing_group(client, name) for name in dict.fromkeys(names)]
            listed = [
                ListedGroup(group=one.group, state=one.state, protocol_type=one.protocol_type, type=one.type)
                for one in described
            ]
            rows = group_rows(client, listed)
            show_table(["GROUP", "STATE", "MEMBERS", "LAG"], [(one.group, one.state, *rest) for one, *rest in rows])
            return next(filter(None, (deletion_hindrance(client, one.group) for one in described)), None)
        for name in dict.fromkeys(names):
            delete_group(client, name)
            click.echo(f"deleted group {name}")
    return None


@groups.command()
@click.argument("name", metavar="GROUP")
@changes_options
@as_json
@cluster_options
def configure(name: str, values: dict[str, str], unset: tuple[str, ...], as_json: bool, cluster: Cluster) -> None:
    """Change a group's settings, also before it exists; without changes, show the settings in effect.

    \b
    Example:  korvet groups configure workers --set share.auto.offset.reset=earliest
    """
    from korvet.cli.kafka.topics import GROUP, change_settings, describe_settings

    with cluster.client() as client:
        if values or unset:
            change_settings(client, GROUP, name, values, unset)
        settings = describe_settings(client, [name], GROUP)[name]
    if (values or unset) and not as_json:
        click.echo(f"configured group {name}")
    else:
        show_settings(settings, as_json=as_json)


@groups.command("remove-member")
@click.argument("group")
@click.argument("members", nargs=-1, metavar="[MEMBER…]")
@click.option(
    "--instance", "instances", multiple=True, metavar="ID", help="A member by its instance id. May be given again."
)
@click.option("--all", "is_all", is_flag=True, help="Every member.")
@cluster_options
def remove_member(
    group: str, members: tuple[str, ...], instances: tuple[str, ...], is_all: bool, cluster: Cluster
) -> None:
    """Take members out of a group, by the ids that 'groups describe' shows.

    The group rebalances at once, and does not wait for the end of their sessions. A consumer that still runs joins
    again by itself.

    \b
    Example:  korvet groups remove-member readers reader-1-5f2c9a1e-0f3e-4d0c-9f61-1d1f0a6a2f11
    """
    from korvet.cli.kafka.groups import chosen_members, existing_group, remove_member

    if bool(members or instances) == is_all:
        raise click.UsageError("name the members to remove: MEMBER, --instance ID (each may be given again) or --all")
    with cluster.client() as client:
        found = existing_group(client, group)
        for member in found.members if is_all else chosen_members(found, members, instances):
            remove_member(client, group, member)
            click.echo(printable(f"removed member {member.id} ({member.client_id} at {member.host})"))
        if not found.members:
            click.echo(f"group {printable(group)} has no members")


@groups.command("reset-offsets")
@click.argument("group")
@click.option(
    "--topic", "topics", multiple=True, metavar="TOPIC[:PARTITION,…]", help="A topic to reset. May be given again."
)
@click.option("--all-topics", is_flag=True, help="Reset every topic for which the group has offsets.")
@click.option("--to-earliest", is_flag=True, help="To the start of the log.")
@click.option("--to-latest", is_flag=True, help="To the end of the log.")
@click.option("--to-offset", type=click.IntRange(0), metavar="N", help="To an offset.")
@click.option(
    "--to-datetime", metavar="TIME", help="To the first record at or after a time such as 2026-01-31T12:00:00+01:00."
)
@click.option("--shift-by", type=int, metavar="N", help="By N records, back if N is negative.")
@confirmed
@as_json
@cluster_options
def reset_offsets(
    group: str,
    topics: tuple[str, ...],
    all_topics: bool,
    execute: bool,
    as_json: bool,
    cluster: Cluster,
    **goals: Any,
) -> str | None:
    """Set the offsets at which a group without running consumers reads on; without --execute only show them.

    \b
    Example:  korvet groups reset-offsets readers --topic greetings --to-earliest --execute
    """
    from korvet.cli.kafka.reset import execute_reset, parse_goal, plan_reset, reset_hindrance

    if bool(topics) == all_topics:
        raise click.UsageError("name the topics to reset: --topic TOPIC (may be given again) or --all-topics")
    goal = parse_goal(goals)
    with cluster.client() as client:
        resets = plan_reset(client, group, topics, goal)
        if execute:
            execute_reset(client, group, resets)
        hindrance = None if execute else reset_hindrance(client, group)
    if as_json:
        show_json(
            [
                {
                    "topic": item.partition.topic,
                    "partition": item.partition.partition,
                    "current_offset": item.current,
                    "new_offset": item.new,
                }
                for item in resets
            ]
        )
    else:
        show_table(
            ["TOPIC", "PARTITION", "CURRENT", "NEW"],
            [(item.partition.topic, item.partition.partition, item.current, item.new) for item in resets],
        )
    return hindrance
