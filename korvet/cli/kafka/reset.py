"""The new offsets of a group's reset. Source: kafka.tools.consumer ConsumerGroupCommand.resetOffsets."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import click

from korvet.cli.kafka.client import Client
from korvet.cli.kafka.groups import SHARE_TYPE, describe_group, members_in_the_way
from korvet.cli.kafka.offsets import (
    TopicPartition,
    alter_share_offsets,
    commit_offsets,
    committed_offsets,
    log_limits,
    offsets_at,
    share_offsets,
)
from korvet.cli.kafka.topics import chosen_partitions
from korvet.errors import ConfigError, KorvetError

GOALS = ("to_earliest", "to_latest", "to_offset", "to_datetime", "shift_by")


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """One of `GOALS` and its number: an offset, a time in ms since 1970, or a distance; 0 for the others."""

    kind: str
    value: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset:
    """One partition's offset now (None if none is committed) and after the reset."""

    partition: TopicPartition
    current: int | None
    new: int


def parse_goal(flags: Mapping[str, Any]) -> Goal:
    """The one goal among a command's flags.

    :raises click.UsageError: unless there is exactly one.
    """
    given = [name for name in GOALS if flags[name] is not None and flags[name] is not False]
    if len(given) != 1:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in GOALS)
        raise click.UsageError(f"name the goal: exactly one of {names}")
    kind, value = given[0], flags[given[0]]
    if kind == "to_datetime":
        value = parse_time(value)
    return Goal(kind=kind, value=int(value))


def parse_time(text: str) -> int:
    """Milliseconds since 1970 of an ISO 8601 time; a time without a zone is in UTC, as in Kafka's tools.

    :raises ConfigError: if it is no such time.
    """
    try:
        time = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{text!r} is no time: want ISO 8601 such as 2026-01-31T12:00:00+01:00") from None
    if time.tzinfo is None:
        time = time.replace(tzinfo=datetime.UTC)
    return int(time.timestamp() * 1000)


def plan_reset(client: Client, group: str, topics: Iterable[str], goal: Goal) -> list[Reset]:
    """The effect of a reset on the named topics (``topic`` or ``topic:0,2``), else on all of the group's offsets.

    New offsets are kept between the start and the end of each log.
    """
    is_share = _is_share(client, group)
    shares = share_offsets(client, group) if is_share else {}
    committed = {one: start for one, (start, _) in shares.items()} if is_share else committed_offsets(client, group)
    partitions = _named_partitions(client, topics) or sorted(committed)
    if not partitions:
        raise KorvetError(f"group {group!r} has no offsets; name the topics to reset with --topic")
    starts, ends = log_limits(client, partitions)
    partitions = [partition for partition in partitions if partition in starts]
    wanted = _wanted(client, partitions, goal, starts, ends, committed)
    return [
        Reset(
            partition=partition,
            current=committed.get(partition),
            new=min(max(wanted[partition], starts[partition]), ends[partition]),
        )
        for partition in partitions
    ]


def reset_hindrance(client: Client, group: str) -> str | None:
    """The reason why the group's offsets cannot be reset now, or None."""
    return members_in_the_way(client, group, "offsets can be reset only while nobody consumes")


def execute_reset(client: Client, group: str, resets: Iterable[Reset]) -> None:
    """Commit the planned offsets.

    :raises KorvetError: if the group has members.
    """
    if hindrance := reset_hindrance(client, group):
        raise KorvetError(hindrance)
    set_offsets = alter_share_offsets if _is_share(client, group) else commit_offsets
    set_offsets(client, group, {reset.partition: reset.new for reset in resets})


def _is_share(client: Client, group: str) -> bool:
    return describe_group(client, group).type == SHARE_TYPE


def _wanted(
    client: Client,
    partitions: list[TopicPartition],
    goal: Goal,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    committed: Mapping[TopicPartition, int],
) -> Mapping[TopicPartition, int]:
    match goal.kind:
        case "to_earliest":
            return starts
        case "to_latest":
            return ends
        case "to_offset":
            return dict.fromkeys(partitions, goal.value)
        case "to_datetime":
            return offsets_at(client, ends, goal.value)
    missing = [str(partition) for partition in partitions if partition not in committed]
    if missing:
        raise KorvetError(f"cannot shift {', '.join(missing)}: the group has committed no offset there")
    return {partition: committed[partition] + goal.value for partition in partitions}


def _named_partitions(client: Client, topics: Iterable[str]) -> list[TopicPartition]:
    wanted = dict(_parse_topic(text) for text in topics)
    topic_partitions = []
    for name, partitions in wanted.items():
        topic_partitions += chosen_partitions(client, name, partitions)
    return topic_partitions


def _parse_topic(text: str) -> tuple[str, list[int]]:
    name, separator, partitions = text.partition(":")
    try:
        return name, [int(item) for item in partitions.split(",")] if separator else []
    except ValueError:
        raise click.BadParameter(f"{text!r}: want TOPIC or TOPIC:0,1,2", param_hint="--topic") from None
