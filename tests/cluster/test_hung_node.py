"""A hung node of a cluster holds up only the partitions on that node."""

from __future__ import annotations

from collections.abc import Iterator

import anyio
import pytest

from korvet.redis.topology import slot_of
from korvet.store.log.state.partition import Partition
from tests.store.logs import Front, batch, front, offsets, until
from tests.support.redis import Kind, Server
from tests.support.topologies import Cluster, running_cluster

pytestmark = pytest.mark.anyio

INLINE_BYTES = 7_000
COUNT = 80
"""The number of batches, which lie in their entries; together they make a large read."""
PAUSED_MS = 15_000


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    kind: Kind = request.param
    with running_cluster(kind, 2) as running:
        yield running


async def partition_on(one: Front, cluster: Cluster, node: Server) -> Partition:
    while True:
        partition = await one.partition()
        if cluster.owner(slot_of(partition.keys.log)) is node:
            return partition


@pytest.mark.parametrize("cluster", ["valkey"], indirect=True)
async def test_large_reads_of_other_nodes_do_not_wait_for_a_hung_node(cluster: Cluster) -> None:
    async with front(cluster.url) as one:
        hung, other = [await partition_on(one, cluster, node) for node in cluster.nodes]
        for partition in (hung, other):
            for _ in range(COUNT):
                assert (await one.append(partition, batch(1, INLINE_BYTES)))[0] == 0
            await one.read(partition, 0)
            one.log.cache.clear()
        # The process keeps running, so that the cluster does not give the node up.
        cluster.ask(cluster.nodes[0], "CLIENT", "PAUSE", PAUSED_MS, "ALL")
        async with anyio.create_task_group() as readers:
            for _ in range(3):
                readers.start_soon(one.read, hung, 0)
            await until(lambda: one.log.fair_queues.under_way_bytes > 0)
            assert offsets(await one.read(other, 0)) == list(range(COUNT))
            assert one.log.source.queue(hung).under_way_bytes > 0
            readers.cancel_scope.cancel()
