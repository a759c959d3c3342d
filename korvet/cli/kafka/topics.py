"""Topics over the wire: list, create, delete, grow and configure them. The settings of brokers."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

from kio.schema.errors import ErrorCode

from korvet.cli.kafka.client import Client, retried
from korvet.cli.kafka.errors import BrokerError, check
from korvet.cli.kafka.framing import request
from korvet.cli.kafka.offsets import TopicPartition
from korvet.errors import KorvetError

TOPIC, BROKER, GROUP = 2, 4, 32
"""Kinds of resources that have settings, by DescribeConfigs' numbers."""
_KINDS: Final = {TOPIC: "topic", GROUP: "group"}
TIMEOUT_MS: Final = 30_000
_SET, _DELETE = 0, 1
BROKER_DEFAULT = -1

CONFIG_SOURCES = {
    1: "topic",
    2: "broker",
    3: "cluster",
    4: "static",
    5: "default",
    6: "logger",
    7: "client",
    8: "group",
}
"""``ConfigSource`` of DescribeConfigs: the source of a value. 5 is Kafka's own default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A partition's leader and replicas, by node id."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic as Metadata shows it."""

    name: str
    id: uuid.UUID | None
    internal: bool
    partitions: tuple[Partition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One of a topic's settings: the value in effect, and its source."""

    name: str
    value: str | None
    source: str


def list_topics(client: Client) -> list[Topic]:
    """Every topic, by name."""
    return [_topic(found) for _, found in sorted(client.topics().items())]


@retried
def describe_topics(client: Client, names: Sequence[str]) -> list[Topic]:
    """The named topics, in the given order.

    :raises BrokerError: if one does not exist.
    """
    found = client.topics(names)
    for name in names:
        check(found[name].error_code, f"topic {name!r}")
    return [_topic(found[name]) for name in names]


def chosen_partitions(client: Client, name: str, partitions: Iterable[int]) -> list[TopicPartition]:
    """The named partitions of a topic, or all of them.

    :raises KorvetError: if the topic or a partition does not exist; it names the nearest topic.
    """
    try:
        (topic,) = describe_topics(client, [name])
    except BrokerError as error:
        if error.code is not ErrorCode.unknown_topic_or_partition:
            raise
        near = get_close_matches(name, client.topics(), 1)
        hint = f"did you mean {near[0]!r}?" if near else f"create it with: korvet topics create {name}"
        raise KorvetError(f"topic {name!r} does not exist; {hint}") from None
    there = {item.partition for item in topic.partitions}
    chosen = set(partitions) or there
    unknown = sorted(chosen - there)
    if unknown:
        raise KorvetError(f"topic {name!r} has no partition {unknown[0]}; it has 0 to {len(there) - 1}")
    return [TopicPartition(name, partition) for partition in sorted(chosen)]


def _topic(found: Any) -> Topic:
    return Topic(
        name=str(found.name),
        id=found.topic_id,
        internal=found.is_internal,
        partitions=tuple(
            Partition(
                partition=item.partition_index,
                leader=item.leader_id,
                leader_epoch=item.leader_epoch,
                replicas=tuple(item.replica_nodes),
                in_sync=tuple(item.isr_nodes),
            )
            for item in sorted(found.partitions, key=lambda item: int(item.partition_index))
        ),
    )


@retried
def _changed(client: Client, api: str, version: int, results: str, name: str, kind: int = TOPIC, **fields: Any) -> Any:
    """The controller's result of a change of one topic or group, made again while that may help.

    :raises BrokerError: with the result's code.
    """
    (result,) = getattr(client.ask_controller(request(api, version, timeout=TIMEOUT_MS, **fields)), results)
    check(result.error_code, f"{_KINDS[kind]} {name!r}", result.error_message)
    return result


def create_topic(
    client: Client,
    name: str,
    *,
    partitions: int = BROKER_DEFAULT,
    replication_factor: int = BROKER_DEFAULT,
    configs: Mapping[str, str],
) -> int:
    """Create a topic; returns its number of partitions.

    :raises BrokerError: with TOPIC_ALREADY_EXISTS, INVALID_CONFIG, …
    """
    topic = {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": replication_factor,
        "configs": [{"name": key, "value": value} for key, value in configs.items()],
    }
    return int(_changed(client, "create_topics", 7, "topics", name, topics=[topic]).num_partitions)


def delete_topic(client: Client, name: str) -> None:
    """Delete a topic and everything in it.

    :raises BrokerError: with UNKNOWN_TOPIC_OR_PARTITION, …
    """
    _changed(client, "delete_topics", 6, "responses", name, topics=[{"name": name, "topic_id": None}])


def grow_topic(client: Client, name: str, partitions: int) -> None:
    """Raise a topic's number of partitions.

    :raises BrokerError: with INVALID_PARTITIONS if it has as many already.
    """
    topic = {"name": name, "count": partitions, "assignments": None}
    _changed(client, "create_partitions", 3, "results", name, topics=[topic])


def describe_settings(client: Client, names: Iterable[str], kind: int = TOPIC) -> dict[str, list[Setting]]:
    """Every setting of the named topics, or groups, by name.

    :raises BrokerError: if a topic does not exist.
    """
    found = {}
    for result in described_configs(client, [{"resource_type": kind, "resource_name": name} for name in names]):
        check(result.error_code, f"{_KINDS[kind]} {result.resource_name!r}", result.error_message)
        found[result.resource_name] = _settings(result)
    return found


def broker_settings(client: Client, node: int) -> list[Setting]:
    """A broker's own list of its settings, by name. Secret ones have no value.

    :raises KorvetError: if there is no such broker.
    :raises BrokerError: with CLUSTER_AUTHORIZATION_FAILED, …
    """
    if node not in client.brokers():
        raise KorvetError(f"no broker {node}")
    (found,) = described_configs(client, [{"resource_type": BROKER, "resource_name": str(node)}], node)
    check(found.error_code, f"broker {node}", found.error_message)
    return _settings(found)


def described_configs(client: Client, resources: Sequence[Mapping[str, Any]], node: int | None = None) -> Any:
    """The results of DescribeConfigs, of all settings unless a resource has ``configuration_keys``."""
    wanted = [{"configuration_keys": None, **resource} for resource in resources]
    return client.ask(request("describe_configs", 4, resources=wanted), node).results


def _settings(result: Any) -> list[Setting]:
    return [
        Setting(name=item.name, value=item.value, source=CONFIG_SOURCES.get(item.config_source, "unknown"))
        for item in sorted(result.configs, key=lambda item: str(item.name))
    ]


def change_settings(client: Client, kind: int, name: str, values: Mapping[str, str], reset: Iterable[str]) -> None:
    """Set some settings of a topic or a group, and reset others to their defaults.

    :raises BrokerError: with UNKNOWN_TOPIC_OR_PARTITION, INVALID_CONFIG, …
    """
    changes = [{"name": key, "config_operation": _SET, "value": value} for key, value in values.items()]
    changes += [{"name": key, "config_operation": _DELETE, "value": None} for key in reset]
    resource = {"resource_type": kind, "resource_name": name, "configs": changes}
    _changed(client, "incremental_alter_configs", 1, "responses", name, kind, resources=[resource])
