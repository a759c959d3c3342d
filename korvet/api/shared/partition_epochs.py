"""Partitions with their leader epochs, for the answers that describe topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from korvet.api.shared.admin import read_failure
from korvet.api.shared.context import Context
from korvet.errors import DamagedLog, KorvetError
from korvet.store.catalog.topic import Topic
from korvet.store.log.state.partition import Meta, Partition


class LeaderEpoch(NamedTuple):
    """A partition's leader epoch, -1 if there is no such partition, and the error to answer for the partition.

    If the partition cannot be read, it is the last known epoch, as Kafka answers for a partition without leader. A
    front-end that knows no epoch reports 0, which a client with a higher one ignores. librdkafka would adopt -1, later
    treat the old epoch as a new one, and validate its position. During a Fetch it mistakes the result for a truncation,
    and reads records a second time. On -1 Java's client forgets the epoch that it knows.

    Source: KRaftMetadataCache.partitionMetadata; rd_kafka_toppar_leader_update
    """

    epoch: int
    error: ErrorCode = ErrorCode.none


async def leader_epochs(ctx: Context, spans: Iterable[tuple[Topic, range]]) -> Mapping[tuple[str, int], LeaderEpoch]:
    """The leader epoch of each partition, by topic name and partition."""
    requested = [(topic, partition) for topic, partitions in spans for partition in partitions]
    log = ctx.frontend.log
    epochs: dict[tuple[str, int], LeaderEpoch] = {}
    async for some in ctx.sliced(requested):
        partitions = [log.partition(topic, index) for topic, index in some]
        for partition, meta in zip(partitions, await log.metas(partitions), strict=True):
            epochs[partition.topic.name, partition.index] = _epoch(ctx, partition, meta)
    return epochs


def _epoch(ctx: Context, partition: Partition, meta: Meta | KorvetError | None) -> LeaderEpoch:
    if isinstance(meta, DamagedLog):
        # Clients retry until an operator has repaired it.
        return LeaderEpoch(partition.last_epoch, ErrorCode.leader_not_available)
    if isinstance(meta, KorvetError):
        return LeaderEpoch(partition.last_epoch, read_failure(ctx, meta, ErrorCode.leader_not_available))
    return LeaderEpoch(-1, ErrorCode.unknown_topic_or_partition) if meta is None else LeaderEpoch(meta.epoch)
