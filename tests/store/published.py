"""Snapshots of what a front-end's Redis knows, put into a tier."""

from __future__ import annotations

from typing import Any

from korvet.store.log import tier as calls
from korvet.store.log.state.partition import Partition
from korvet.store.topics import create_topic
from korvet.tier.manifest import Manifest
from korvet.tier.objects import Objects
from korvet.tier.segment import read_footer
from korvet.tier.series import Series
from korvet.tier.snapshot import Snapshot, TieredTopic, Topics, topics_folder
from tests.store.logs import NAMESPACE, Front, batch


async def publish(one: Front, objects: Objects, *partitions: Partition) -> None:
    """Snapshots of partitions, and of all topics."""
    for partition in partitions:
        listed = await calls.listed(one.log, partition, 0, 512)
        meta = await one.log.meta(partition)
        assert listed is not None
        assert meta is not None
        members = Manifest.of_listed(listed.segments).members
        topic = partition.topic
        facts: dict[str, Any] = {
            "cluster_id": one.catalog.cluster_id, "namespace": NAMESPACE.name, "topic": topic.name,
            "topic_id": partition.topic_id, "partition": partition.index, "token": listed.token.decode(),
            "leader_epoch": listed.epoch, "epochs": meta.epochs.decode(), "log_start": listed.start,
            "tier_end": listed.tier_end, "members": members,
        }  # fmt: skip
        snapshot = Snapshot(max_producer_id=7, chain=0, **facts)
        end = await objects.read(members[-1].path(snapshot.folder), members[-1].size_bytes, members[-1].object_bytes)
        snapshot = Snapshot(max_producer_id=7, chain=read_footer(bytes(end)).chain, **facts)
        series = Series(objects, snapshot.folder, Snapshot.decoded)
        found = await series.newest()
        assert await series.add(found[0] if found else 0, snapshot.encoded())
    await publish_topics(one, objects)


async def publish_topics(one: Front, objects: Objects) -> None:
    topics = Topics(
        cluster_id=one.catalog.cluster_id,
        namespace=NAMESPACE.name,
        version=one.catalog.version,
        topics=[TieredTopic(t.name, t.id.hex, t.partitions, t.configs) for t in one.catalog.topics()],
    )
    series = Series(objects, topics_folder(NAMESPACE.name), Topics.decoded)
    found = await series.newest()
    assert await series.add(found[0] if found else 0, topics.encoded())


async def tiered(one: Front, partitions: int = 1, name: str = "orders") -> list[Partition]:
    """The partitions of a topic with five batches of three records each."""
    configs = {"remote.storage.enable": "true", "retention.ms": "-1"}
    _, topic = await create_topic(one.catalog, one.log, name, partitions, configs)
    assert topic is not None
    found = [one.log.partition(topic, index) for index in range(partitions)]
    for partition in found:
        for _ in range(5):
            await one.append(partition, batch(3))
    return found
