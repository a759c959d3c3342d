"""Where a group's offsets should go. Source: kafka.tools.consumer ConsumerGroupCommand.resetOffsets."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import click

from korvet.cli.kafka.client import Client
from korvet.cli.kafka.groups import EARLIEST, LATEST, TopicPartition, committed_offsets, log_offsets
from korvet.cli.kafka.topics import describe_topics
from korvet.errors import ConfigError, KorvetError

GOALS = ("to_earliest", "to_latest", "to_offset", "to_datetime", "shift_by")


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """One of `GOALS` and its number: an offset, a time in ms since 1970, or a distance; 0 for the others."""

    kind: str
    value: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset:
    """One partition's offset now (None: nothing committed) and after the reset."""

    place: TopicPartition
    current: int | None
    new: int


def parse_goal(flags: Mapping[str, Any]) -> Goal:
    """The one goal among a command's flags.

    :raises click.UsageError: when there is none or more than one.
    """
    given = [name for name in GOALS if flags[name] is not None and flags[name] is not False]
    if len(given) != 1:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in GOALS)
        raise click.UsageError(f"say where to: exactly one of {names}")
    kind, value = given[0], flags[given[0]]
    if kind == "to_datetime":
        value = parse_time(value)
    return Goal(kind=kind, value=int(value))


def parse_time(text: str) -> int:
    """Milliseconds since 1970 of an ISO 8601 time; one without a zone is in UTC, as in Kafka's tools.

    :raises ConfigError: when it is no such time.
    """
    try:
        time = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{text!r} is no time: want ISO 8601 such as 2026-01-31T12:00:00+01:00") from None
    if time.tzinfo is None:
        time = time.replace(tzinfo=datetime.UTC)
    return int(time.timestamp() * 1000)


def plan_reset(client: Client, group: str, topics: Iterable[str], goal: Goal) -> list[Reset]:
    """What a reset would do to the named topics (``topic`` or ``topic:0,2``), or to all the group has offsets in.

    New offsets are kept between the start and the end of each log.
    """
    committed = committed_offsets(client, group)
    places = _named_partitions(client, topics) or sorted(committed)
    if not places:
        raise KorvetError(f"group {group!r} has no offsets; name what to reset with --topic")
    starts, ends = log_offsets(client, places, EARLIEST), log_offsets(client, places, LATEST)
    places = [place for place in places if place in starts and place in ends]
    wanted = _wanted(client, places, goal, starts, ends, committed)
    return [
        Reset(
            place=place,
            current=committed.get(place),
            new=min(max(wanted[place], starts[place]), ends[place]),
        )
        for place in places
    ]


def _wanted(
    client: Client,
    places: list[TopicPartition],
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
            return dict.fromkeys(places, goal.value)
        case "to_datetime":
            found = log_offsets(client, places, goal.value)
            return {place: found[place] if found.get(place, -1) >= 0 else ends[place] for place in places}
    missing = [str(place) for place in places if place not in committed]
    if missing:
        raise KorvetError(f"cannot shift {', '.join(missing)}: the group has committed no offset there")
    return {place: committed[place] + goal.value for place in places}


def _named_partitions(client: Client, topics: Iterable[str]) -> list[TopicPartition]:
    wanted = dict(_parse_topic(text) for text in topics)
    places = []
    for topic in describe_topics(client, list(wanted)) if wanted else []:
        there = {item.partition for item in topic.partitions}
        chosen = wanted[topic.name] or sorted(there)
        unknown = sorted(set(chosen) - there)
        if unknown:
            raise KorvetError(f"topic {topic.name!r} has no partition {unknown[0]}; it has 0 to {len(there) - 1}")
        places += [TopicPartition(topic.name, partition) for partition in sorted(set(chosen))]
    return places


def _parse_topic(text: str) -> tuple[str, list[int]]:
    name, separator, partitions = text.partition(":")
    try:
        return name, [int(item) for item in partitions.split(",")] if separator else []
    except ValueError:
        raise click.BadParameter(f"{text!r}: want TOPIC or TOPIC:0,1,2", param_hint="--topic") from None
