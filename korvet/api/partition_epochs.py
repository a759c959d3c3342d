"""Leader epochs of partitions, for the answers that describe topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kio.schema.errors import ErrorCode

from korvet.api.admin import read_failure
from korvet.api.context import Context
from korvet.errors import KorvetError
from korvet.store.catalog import Topic
from korvet.store.client import Purpose

Spans = Iterable[tuple[Topic, range]]


async def leader_epochs(ctx: Context, spans: Spans) -> Mapping[tuple[str, int], int | ErrorCode]:
    """The current leader epoch of each partition, by topic name and partition, read in one pipelined turn.

    Where Redis does not say, the error to answer for the partition is in its place. A partition whose keys are not made
    yet begins with epoch 0.
    """
    frontend = ctx.frontend
    reads = [
        (topic, partition, frontend.store.call(Purpose.READ, keys.meta, "HMGET", keys.meta, "topic_id", "epoch"))
        for topic, partitions in spans
        for partition in partitions
        for keys in (frontend.namespace.partition(topic.name, partition),)
    ]
    epochs: dict[tuple[str, int], int | ErrorCode] = {}
    for topic, partition, read in reads:
        try:
            topic_id, epoch = await read
        except KorvetError as error:
            epochs[topic.name, partition] = read_failure(ctx, error, ErrorCode.leader_not_available)
        else:
            made = topic_id == topic.id.hex.encode() and epoch is not None
            epochs[topic.name, partition] = int(epoch) if made else 0
    return epochs


def described(ctx: Context, partition: int, epoch: int | ErrorCode) -> dict[str, object]:
    """A partition as Metadata and DescribeTopicPartitions show it: one replica, at the front-end that answers."""
    nodes = (ctx.frontend.node_id,)
    failed = isinstance(epoch, ErrorCode)
    return {
        "error_code": epoch if failed else ErrorCode.none,
        "partition_index": partition,
        "leader_id": -1 if failed else ctx.frontend.node_id,
        "leader_epoch": -1 if failed else epoch,
        "replica_nodes": nodes,
        "isr_nodes": nodes,
        "eligible_leader_replicas": (),
        "last_known_elr": (),
        "offline_replicas": (),
    }
