"""Topics over the wire: list, create, delete, grow and configure them."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from kio.schema.create_partitions.v3 import CreatePartitionsRequest, CreatePartitionsResponse
from kio.schema.create_partitions.v3.request import CreatePartitionsTopic
from kio.schema.create_topics.v7 import CreateTopicsRequest, CreateTopicsResponse
from kio.schema.create_topics.v7.request import CreatableTopic, CreatableTopicConfig
from kio.schema.delete_topics.v6 import DeleteTopicsRequest, DeleteTopicsResponse
from kio.schema.delete_topics.v6.request import DeleteTopicState
from kio.schema.describe_configs.v4 import DescribeConfigsRequest, DescribeConfigsResponse
from kio.schema.describe_configs.v4.request import DescribeConfigsResource
from kio.schema.errors import ErrorCode
from kio.schema.incremental_alter_configs.v1 import IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse
from kio.schema.incremental_alter_configs.v1.request import AlterableConfig, AlterConfigsResource
from kio.schema.metadata.v12.response import MetadataResponseTopic
from kio.schema.types import TopicName
from kio.static.primitive import i8, i16, i32, i32Timedelta

from korvet.cli.kafka.client import Client, retried
from korvet.cli.kafka.errors import BrokerError, check
from korvet.cli.kafka.offsets import TopicPartition
from korvet.errors import KorvetError

TOPIC_RESOURCE = i8(2)
SET, DELETE = i8(0), i8(1)
TIMEOUT = i32Timedelta.parse(datetime.timedelta(seconds=30))
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


def describe_topics(client: Client, names: Sequence[str]) -> list[Topic]:
    """The named topics, in the given order.

    :raises BrokerError: if one does not exist.
    """

    def attempt() -> list[Topic]:
        found = client.topics(names)
        for name in names:
            check(found[name].error_code, f"topic {name!r}")
        return [_topic(found[name]) for name in names]

    return retried(attempt)


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


def _topic(found: MetadataResponseTopic) -> Topic:
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
            for item in sorted(found.partitions, key=lambda item: item.partition_index)
        ),
    )


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
    topic = CreatableTopic(
        name=TopicName(name),
        num_partitions=i32(partitions),
        replication_factor=i16(replication_factor),
        assignments=(),
        configs=tuple(CreatableTopicConfig(name=key, value=value) for key, value in configs.items()),
    )

    def attempt() -> int:
        response = client.ask_controller(CreateTopicsRequest(topics=(topic,), timeout=TIMEOUT), CreateTopicsResponse)
        result = response.topics[0]
        check(result.error_code, f"topic {name!r}", result.error_message)
        return result.num_partitions

    return retried(attempt)


def delete_topic(client: Client, name: str) -> None:
    """Delete a topic and everything in it.

    :raises BrokerError: with UNKNOWN_TOPIC_OR_PARTITION, …
    """
    state = DeleteTopicState(name=TopicName(name), topic_id=None)

    def attempt() -> None:
        response = client.ask_controller(DeleteTopicsRequest(topics=(state,), timeout=TIMEOUT), DeleteTopicsResponse)
        check(response.responses[0].error_code, f"topic {name!r}", response.responses[0].error_message)

    retried(attempt)


def grow_topic(client: Client, name: str, partitions: int) -> None:
    """Raise a topic's number of partitions.

    :raises BrokerError: with INVALID_PARTITIONS if it has as many already.
    """
    request = CreatePartitionsRequest(
        topics=(CreatePartitionsTopic(name=TopicName(name), count=i32(partitions), assignments=None),),
        timeout=TIMEOUT,
        validate_only=False,
    )

    def attempt() -> None:
        result = client.ask_controller(request, CreatePartitionsResponse).results[0]
        check(result.error_code, f"topic {name!r}", result.error_message)

    retried(attempt)


def describe_settings(client: Client, names: Iterable[str]) -> dict[str, list[Setting]]:
    """Every setting of the named topics, by topic.

    :raises BrokerError: if one does not exist.
    """
    request = DescribeConfigsRequest(
        resources=tuple(
            DescribeConfigsResource(resource_type=TOPIC_RESOURCE, resource_name=name, configuration_keys=None)
            for name in names
        ),
        include_synonyms=False,
    )
    settings = {}
    for result in client.ask(request, DescribeConfigsResponse).results:
        check(result.error_code, f"topic {result.resource_name!r}", result.error_message)
        settings[result.resource_name] = [
            Setting(name=item.name, value=item.value, source=CONFIG_SOURCES.get(item.config_source, "unknown"))
            for item in sorted(result.configs, key=lambda item: item.name)
        ]
    return settings


def configure_topic(client: Client, name: str, values: Mapping[str, str], reset: Iterable[str]) -> None:
    """Set some of a topic's settings, and reset others to their defaults.

    :raises BrokerError: with UNKNOWN_TOPIC_OR_PARTITION, INVALID_CONFIG, …
    """
    changes = [AlterableConfig(name=key, config_operation=SET, value=value) for key, value in values.items()]
    changes += [AlterableConfig(name=key, config_operation=DELETE, value=None) for key in reset]
    resource = AlterConfigsResource(resource_type=TOPIC_RESOURCE, resource_name=name, configs=tuple(changes))
    request = IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False)

    def attempt() -> None:
        result = client.ask_controller(request, IncrementalAlterConfigsResponse).responses[0]
        check(result.error_code, f"topic {name!r}", result.error_message)

    retried(attempt)
