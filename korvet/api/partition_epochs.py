"""Partitions with their leader epochs, for the answers that describe topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kio.schema.errors import ErrorCode

from korvet.api.admin import read_failure
from korvet.api.context import Context
from korvet.errors import KorvetError
from korvet.store.catalog import Topic


async def leader_epochs(
    ctx: Context, spans: Iterable[tuple[Topic, range]]
) -> Mapping[tuple[str, int], int | ErrorCode]:
    """The current leader epoch of each partition, by topic name and partition, or the error to answer for it."""
    asked = [(topic, partition) for topic, partitions in spans for partition in partitions]
    log = ctx.frontend.log
    try:
        metas = await log.metas([log.partition(topic, partition) for topic, partition in asked])
    except KorvetError as error:
        code = read_failure(ctx, error, ErrorCode.leader_not_available)
        return {(topic.name, partition): code for topic, partition in asked}
    return {
        (topic.name, partition): ErrorCode.unknown_topic_or_partition if meta is None else meta.epoch
        for (topic, partition), meta in zip(asked, metas, strict=True)
    }


def described(ctx: Context, topic: Topic, partition: int, epoch: int | ErrorCode) -> dict[str, object]:
    """A partition as Metadata and DescribeTopicPartitions show it: one replica, at its leader."""
    leader_id = ctx.listener.nodes.leader(topic.name, partition).id
    nodes = (leader_id,)
    failed = isinstance(epoch, ErrorCode)
    return {
        "error_code": epoch if failed else ErrorCode.none,
        "partition_index": partition,
        "leader_id": -1 if failed else leader_id,
        "leader_epoch": -1 if failed else epoch,
        "replica_nodes": nodes,
        "isr_nodes": nodes,
        "eligible_leader_replicas": (),
        "last_known_elr": (),
        "offline_replicas": (),
    }
