"""The cluster's answers for the pages about topics, groups and Redis."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from korvet.cli.kafka.client import Client
from korvet.cli.kafka.errors import check
from korvet.cli.kafka.framing import request
from korvet.cli.kafka.groups import SHARE_TYPE, Group
from korvet.cli.kafka.offsets import TopicPartition, log_bytes, log_limits, log_positions, standings
from korvet.cli.kafka.topics import Topic, describe_topics
from korvet.unknown import total, total_known

RATED_S: Final = 60
"""The time before now over which a rate is the mean."""
MOST_RATED: Final = 500
"""The most partitions of a page that have a rate: for each the broker opens a batch."""
_DAMAGED: Final = (ErrorCode.corrupt_message, ErrorCode.unknown_server_error)


class Node(NamedTuple):
    """A node as DescribeCluster shows it."""

    id: int
    address: str
    is_controller: bool


class Cluster(NamedTuple):
    """The cluster's id and its nodes."""

    id: str
    nodes: Sequence[Node]


class TopicRow(NamedTuple):
    """A topic in the list: its numbers are sums over its partitions, None if one partition's is unknown."""

    name: str
    partitions: int
    offsets: int | None
    per_second: float | None
    size_bytes: int | None


class PartitionRow(NamedTuple):
    """A partition; ``offsets`` counts the offsets between its start and its end. An unknown value is None."""

    partition: int
    leader: int
    start: int | None
    end: int | None
    size_bytes: int | None

    @property
    def offsets(self) -> int | None:
        return None if self.start is None or self.end is None else self.end - self.start


class LagRow(NamedTuple):
    """A partition of a group; None for what is not committed, or not there."""

    partition: TopicPartition
    committed: int | None
    end: int | None
    lag: int | None
    owner: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPage:
    """A topic with its partitions."""

    topic: Topic
    partitions: Sequence[PartitionRow]


def describe_cluster(client: Client) -> Cluster:
    """The cluster's id and nodes.

    :raises BrokerError: if no broker answers.
    """
    answer = client.ask(request("describe_cluster", 0))
    check(answer.error_code, "cluster", answer.error_message)
    nodes = [
        Node(int(broker.broker_id), f"{broker.host}:{broker.port}", broker.broker_id == answer.controller_id)
        for broker in sorted(answer.brokers, key=lambda broker: broker.broker_id)
    ]
    return Cluster(answer.cluster_id, nodes)


def topic_rows(client: Client, topics: Sequence[Topic]) -> list[TopicRow]:
    """The rows of a page of topics."""
    partitions = [TopicPartition(topic.name, one.partition) for topic in topics for one in topic.partitions]
    starts, ends = log_limits(client, partitions)
    sizes = log_bytes(client, partitions)
    rates = offsets_per_second(client, {one: ends[one] for one in partitions[:MOST_RATED] if one in ends})
    rows = []
    for topic in topics:
        own = [TopicPartition(topic.name, one.partition) for one in topic.partitions]
        offsets = total(ends[one] - starts[one] if one in ends and one in starts else None for one in own)
        rate = sum(rates[one] for one in own) if rates.keys() >= set(own) else None
        rows.append(TopicRow(topic.name, len(own), offsets, rate, total(sizes.get(one) for one in own)))
    return rows


def offsets_per_second(client: Client, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, float]:
    """The rate of each partition's offsets up to its end, by the timestamps of its records.

    A partition with an entry on the way that cannot be read has none.
    """
    found = log_positions(client, ends, int((time.time() - RATED_S) * 1000), _DAMAGED)
    # Without such a record its offset is -1; a record that came after the end was read lies after that end.
    since = {one: ends[one] if position.offset < 0 else position.offset for one, position in found.items()}
    return {partition: max(0, ends[partition] - offset) / RATED_S for partition, offset in since.items()}


def topic_page(client: Client, name: str) -> TopicPage:
    """A topic.

    :raises BrokerError: if it does not exist.
    """
    (topic,) = describe_topics(client, [name])
    partitions = [TopicPartition(name, one.partition) for one in topic.partitions]
    starts, ends = log_limits(client, partitions)
    sizes = log_bytes(client, partitions)
    rows = [
        PartitionRow(one.partition, one.leader, starts.get(at), ends.get(at), sizes.get(at))
        for one, at in zip(topic.partitions, partitions, strict=True)
    ]
    return TopicPage(topic=topic, partitions=rows)


def lag_rows(client: Client, group: Group) -> list[LagRow]:
    """The partitions that a group committed or reads. The members of a share group share them."""
    is_share = group.type == SHARE_TYPE
    assigned = {partition: member.id for member in group.members for partition in member.assignment}
    owners = {} if is_share else assigned
    found = standings(client, group.group, assigned, is_share=is_share)
    return [LagRow(one, at.offset, at.end, at.lag, owners.get(one, "")) for one, at in found.items()]


def total_lag(rows: Sequence[LagRow]) -> int | None:
    """The sum of the group's known lags; None if no partition's is known."""
    return total_known(row.lag for row in rows)
