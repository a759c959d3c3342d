"""``korvet topics``: create, list, describe, delete, configure topics, like kafka-topics.sh and kafka-configs.sh."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from korvet.cli.ground.options import as_json, changes_options, cluster_options, confirmed, settings_option
from korvet.cli.ground.output import show_json, show_settings, show_table
from korvet.cli.records.consume import consume
from korvet.cli.records.produce import produce
from korvet.cli.records.redrive import redrive
from korvet.cli.records.trim import trim

if TYPE_CHECKING:
    from collections.abc import Mapping

    from korvet.cli.ground.cluster import Cluster
    from korvet.cli.kafka.client import Client
    from korvet.cli.kafka.offsets import Committed, TopicPartition
    from korvet.cli.kafka.topics import Partition, Setting, Topic

_TIERED = ("remote.storage.enable", "true")
TOPICS_AT_ONCE = 200
"""The number of topics in one request."""


@click.group()
def topics() -> None:
    """Create, list, describe, delete and configure topics, write, read, trim and redrive their records."""


for command in (produce, consume, trim, redrive):
    topics.add_command(command)


@topics.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@click.option("-p", "--partitions", type=click.IntRange(1), help="The number of partitions.  [default: the broker's]")
@click.option("--replication-factor", type=click.IntRange(1), help="Replicas of each partition, for other brokers.")
@settings_option("--config", "configs", "A setting of the topic, e.g. retention.ms=3600000. May be given again.")
@click.option("--if-not-exists", is_flag=True, help="Accept a topic that exists.")
@cluster_options
def create(
    names: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    configs: dict[str, str],
    if_not_exists: bool,
    cluster: Cluster,
) -> None:
    """Create topics.

    \b
    Example:  korvet topics create orders clicks --partitions 3 --config retention.ms=86400000
    """
    from kio.schema.errors import ErrorCode

    from korvet.cli.kafka.errors import BrokerError
    from korvet.cli.kafka.topics import BROKER_DEFAULT, create_topic

    with cluster.client() as client:
        for name in names:
            try:
                made = create_topic(
                    client,
                    name,
                    partitions=partitions or BROKER_DEFAULT,
                    replication_factor=replication_factor or BROKER_DEFAULT,
                    configs=configs,
                )
            except BrokerError as error:
                if not (if_not_exists and error.code is ErrorCode.topic_already_exists):
                    raise
                click.echo(f"topic {name} exists")
            else:
                click.echo(f"created topic {name} with {made} partition{'s' if made != 1 else ''}")


@topics.command("list")
@as_json
@cluster_options
def list_(as_json: bool, cluster: Cluster) -> None:
    """List every topic.

    \b
    Example:  korvet topics list --json
    """
    from korvet.cli.kafka.topics import list_topics

    with cluster.client() as client:
        found = list_topics(client)
    if as_json:
        show_json(
            [
                {"name": topic.name, "id": _id(topic), "partitions": len(topic.partitions), "internal": topic.internal}
                for topic in found
            ]
        )
    else:
        show_table(["TOPIC", "PARTITIONS", "ID"], [(topic.name, len(topic.partitions), _id(topic)) for topic in found])


@topics.command()
@click.argument("names", nargs=-1, metavar="[NAME…]")
@as_json
@cluster_options
def describe(names: tuple[str, ...], as_json: bool, cluster: Cluster) -> None:
    """Show partitions, offsets, sizes and settings of the named topics, or of all.

    BYTES are those of the record batches; OLDEST is the time of the first record that is kept. If a topic is archived,
    ARCHIVED is the offset below which retention takes it for archived, and LEFT the number of offsets above. If it has
    remote storage, LOCAL is the first offset that is not only there, TIERED the offset after the last one there, and
    BYTES are those of the other storage.

    \b
    Example:  korvet topics describe orders --json
    """
    from korvet.cli.kafka.archived import archived_positions
    from korvet.cli.kafka.topics import describe_topics, list_topics

    described: list[dict[str, Any]] = []
    with cluster.client() as client:
        found = describe_topics(client, list(dict.fromkeys(names))) if names else list_topics(client)
        archived = archived_positions(client) if found else {}
        for at in range(0, len(found), TOPICS_AT_ONCE):
            described += _descriptions(client, found[at : at + TOPICS_AT_ONCE], archived)
    if as_json:
        show_json(described)
        return
    for index, topic in enumerate(described):
        if index:
            click.echo()
        _show_description(topic)


def _descriptions(
    client: Client, topics: list[Topic], archived: Mapping[TopicPartition, Committed]
) -> list[dict[str, Any]]:
    from korvet.cli.kafka.archived import archived_ends
    from korvet.cli.kafka.offsets import TopicPartition, log_bytes, log_limits, oldest_times, tier_limits
    from korvet.cli.kafka.topics import describe_settings

    partitions = [TopicPartition(topic.name, item.partition) for topic in topics for item in topic.partitions]
    settings = describe_settings(client, [topic.name for topic in topics])
    starts, ends = log_limits(client, partitions)
    tiered = {name for name, own in settings.items() if any((one.name, one.value) == _TIERED for one in own)}
    facts = _Facts(
        starts=starts,
        ends=ends,
        sizes=log_bytes(client, partitions),
        oldest=oldest_times(client, partitions),
        tiers=tier_limits(client, [one for one in partitions if one.topic in tiered]),
        archived=archived_ends(client, {each: archived[each] for each in partitions if each in archived}),
    )
    return [_description(topic, settings[topic.name], facts) for topic in topics]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """Facts of partitions: offsets, bytes, and the time of the first record in ms since 1970."""

    starts: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]
    sizes: Mapping[TopicPartition, int]
    oldest: Mapping[TopicPartition, int]
    tiers: Mapping[TopicPartition, tuple[int, int]]
    """The local start, and the offset after the last tiered one."""
    archived: Mapping[TopicPartition, int]


def _description(topic: Topic, settings: list[Setting], facts: _Facts) -> dict[str, Any]:
    return {
        "name": topic.name,
        "id": _id(topic),
        "internal": topic.internal,
        "configs": {item.name: item.value for item in settings if item.source == "topic"},
        "partitions": [_described_partition(topic.name, item, facts) for item in topic.partitions],
    }


def _described_partition(topic: str, item: Partition, facts: _Facts) -> dict[str, Any]:
    from korvet.cli.kafka.offsets import TopicPartition

    partition = TopicPartition(topic, item.partition)
    local_start, tier_end = facts.tiers.get(partition, (None, None))
    archived, start, end = (of.get(partition) for of in (facts.archived, facts.starts, facts.ends))
    return {
        "partition": item.partition,
        "leader": item.leader,
        "leader_epoch": item.leader_epoch,
        "replicas": list(item.replicas),
        "in_sync": list(item.in_sync),
        "start_offset": start,
        "end_offset": end,
        "bytes": facts.sizes.get(partition),
        "oldest_timestamp": facts.oldest.get(partition),
        "local_start_offset": local_start,
        "tier_end_offset": tier_end,
        "archived_offset": archived,
        "not_archived": _not_archived(archived, start, end),
    }


def _not_archived(archived: int | None, start: int | None, end: int | None) -> int | None:
    if archived is None or start is None or end is None:
        return None
    return max(0, end - max(archived, start))


def _show_description(topic: dict[str, Any]) -> None:
    configs = ", ".join(f"{name}={value}" for name, value in topic["configs"].items()) or "all at their defaults"
    click.echo(f"Topic {topic['name']}   id {topic['id']}   settings: {configs}")
    partitions = topic["partitions"]
    is_archived, is_tiered = (
        any(item[name] is not None for item in partitions) for name in ("archived_offset", "local_start_offset")
    )
    show_table(
        ["PARTITION", "LEADER", "EPOCH", "START"]
        + (["LOCAL", "TIERED"] if is_tiered else [])
        + ["END", "BYTES", "OLDEST"]
        + (["ARCHIVED", "LEFT"] if is_archived else []),
        [
            (
                item["partition"],
                item["leader"],
                item["leader_epoch"],
                item["start_offset"],
                *((item["local_start_offset"], item["tier_end_offset"]) if is_tiered else ()),
                item["end_offset"],
                item["bytes"],
                _time(item["oldest_timestamp"]),
                *((item["archived_offset"], item["not_archived"]) if is_archived else ()),
            )
            for item in partitions
        ],
    )


def _time(timestamp: int | None) -> str | None:
    from datetime import UTC, datetime, timedelta

    if timestamp is None:
        return None
    try:
        # A producer may have written any number.
        return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=timestamp)).isoformat(timespec="milliseconds")
    except OverflowError:
        return str(timestamp)


@topics.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME…")
@click.option("--if-exists", is_flag=True, help="Accept a topic that does not exist.")
@confirmed
@cluster_options
def delete(names: tuple[str, ...], if_exists: bool, execute: bool, cluster: Cluster) -> None:
    """Delete topics and all their records; without --execute only show them.

    \b
    Example:  korvet topics delete orders clicks --if-exists --execute
    """
    from kio.schema.errors import ErrorCode

    from korvet.cli.kafka.errors import BrokerError
    from korvet.cli.kafka.topics import delete_topic, describe_topics

    there: list[Topic] = []
    with cluster.client() as client:
        for name in dict.fromkeys(names):
            try:
                if execute:
                    delete_topic(client, name)
                    click.echo(f"deleted topic {name}")
                else:
                    there += describe_topics(client, [name])
            except BrokerError as error:
                if not (if_exists and error.code is ErrorCode.unknown_topic_or_partition):
                    raise
                click.echo(f"topic {name} does not exist")
        if not execute:
            _show_contents(client, there)


def _show_contents(client: Client, topics: list[Topic]) -> None:
    """A table of what the topics hold."""
    from korvet.cli.kafka.offsets import TopicPartition, log_bytes, log_limits
    from korvet.unknown import total

    owned = {topic.name: [TopicPartition(topic.name, one.partition) for one in topic.partitions] for topic in topics}
    partitions = [partition for own in owned.values() for partition in own]
    starts, ends = log_limits(client, partitions)
    sizes = log_bytes(client, partitions)
    show_table(
        ["TOPIC", "PARTITIONS", "OFFSETS", "BYTES"],
        [
            (
                name,
                len(own),
                total(ends[one] - starts[one] if one in ends and one in starts else None for one in own),
                total(sizes.get(one) for one in own),
            )
            for name, own in owned.items()
        ],
    )


@topics.command()
@click.argument("name")
@changes_options
@click.option("-p", "--partitions", type=click.IntRange(1), help="Raise the number of partitions to this.")
@as_json
@cluster_options
def configure(
    name: str,
    values: dict[str, str],
    unset: tuple[str, ...],
    partitions: int | None,
    as_json: bool,
    cluster: Cluster,
) -> None:
    """Change a topic's settings or its number of partitions; without changes, show the settings in effect.

    \b
    Example:  korvet topics configure orders --set retention.bytes=100000000 --unset retention.ms --partitions 6
    """
    from korvet.cli.kafka.topics import TOPIC, change_settings, describe_settings, grow_topic

    with cluster.client() as client:
        if values or unset:
            change_settings(client, TOPIC, name, values, unset)
        if partitions is not None:
            grow_topic(client, name, partitions)
        settings = describe_settings(client, [name])[name]
    if (values or unset or partitions is not None) and not as_json:
        click.echo(f"configured topic {name}")
    else:
        show_settings(settings, as_json=as_json)


def _id(topic: Topic) -> str | None:
    """Kafka's form of the id, as its tools and clients show it."""
    return None if topic.id is None else base64.urlsafe_b64encode(topic.id.bytes).decode().rstrip("=")
