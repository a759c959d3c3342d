"""``korvet.apply.Claim`` on several servers: hash tags of a cluster, a slot that moves, replicas that lag."""

from __future__ import annotations

import redis
from redis.cluster import RedisCluster

from korvet.apply import Claim, Place
from korvet.store.library import library_source
from tests.support.topologies import running_cluster, running_replicas

TAGS = ["a", "b", "c", "d"]
KEYS = [f"{{{tag}}}:applied" for tag in TAGS]
ORDERS = 40


def read(client: redis.Redis | RedisCluster, end: int, replicas: int = 0) -> int | None:
    """Add each order to the sum of its tag, up to an offset."""
    claim = Claim(client, "billing", "topic-id", 0, KEYS)
    begin = claim.place
    for offset in range(end):
        if offset > begin.offset:
            tag = TAGS[offset % len(TAGS)]
            claim.add(Place(0, offset), {f"{{{tag}}}:applied": [("INCRBY", f"{{{tag}}}:sum", offset)]})
    return claim.settle(replicas=replicas, timeout_ms=2000)


def total(client: redis.Redis | RedisCluster) -> int:
    return sum(int(client.get(f"{{{tag}}}:sum") or 0) for tag in TAGS)


def test_records_are_applied_once_in_each_slot_of_a_cluster_while_one_moves() -> None:
    with running_cluster(size=2) as cluster:
        for node in cluster.nodes:
            cluster.ask(node, "FUNCTION", "LOAD", library_source())
        with RedisCluster(host="127.0.0.1", port=cluster.nodes[0].port) as client:
            assert read(client, ORDERS // 2) == ORDERS // 2
            slot = client.keyslot(KEYS[0])
            source = cluster.owner(slot)
            (target,) = (node for node in cluster.nodes if node is not source)
            cluster.move_slot(slot, source, target)
            assert read(client, ORDERS) == ORDERS
            assert total(client) == sum(range(ORDERS))


def test_offset_is_to_be_committed_once_the_replica_has_what_was_applied() -> None:
    with running_replicas("redis") as replicated, replicated.primary.client() as client:
        client.function_load(library_source().decode())
        assert read(client, 10, replicas=1) == 10
        with replicated.replicas[0].paused():
            assert read(client, 20) == 20
            # A connection of its own has written nothing.
            with replicated.primary.client() as other:
                assert read(other, 20, replicas=1) is None
        assert read(client, 20, replicas=1) == 20
        assert total(client) == sum(range(20))
