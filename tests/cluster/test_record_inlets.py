"""Topics of records on a cluster: Redis users and Kafka clients add records while slots move, and each comes once."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import redis

from korvet.redis.topology import slot_of
from korvet.store.keys import Namespace
from tests.api.data import fetch, now_ms, produce, wanted
from tests.api.raw import created
from tests.support.broker import running_broker
from tests.support.topologies import running_cluster
from tests.wire.whole import Whole, built, read

PARTITIONS = 4
ROUNDS = 3
EACH = 30
WITHIN_S = 40.0


def soon(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.02)


def test_records_leave_inlets_while_slots_move() -> None:
    with running_cluster() as cluster, running_broker(redis_url=cluster.url) as server:
        topic = created(server.port, korvet_storage="record", partitions=PARTITIONS)
        keys = [Namespace().inlet(topic, index) for index in range(PARTITIONS)]
        client = redis.RedisCluster(host="127.0.0.1", port=cluster.nodes[0].port)
        for turn in range(ROUNDS):
            for index, one in enumerate(keys):
                slot = slot_of(one.log)
                source = cluster.owner(slot)
                target = cluster.nodes[(cluster.nodes.index(source) + 1) % len(cluster.nodes)]
                with cluster.open_slot(slot, source, target):
                    for number in range(EACH):
                        client.xadd(one.inlet, {"key": f"{turn * EACH + number}"})
                    cluster.move_keys(slot, source, target)
                data = built(Whole(b"kafka", timestamp=now_ms()))[1]
                soon(partial(_is_taken, server.port, topic, index, data))
        for index, one in enumerate(keys):
            # A batch whose answer was lost is there twice, so the log's length alone does not tell that all have come.
            soon(partial(_is_empty, client, one.inlet))
            assert client.xlen(one.log) >= ROUNDS * (EACH + 1)
            (part,) = fetch(server.port, topic, wanted(0, index))
            found = [record.record.key for record in read(part["records"])]
            assert found.count(b"kafka") >= ROUNDS
            own = [key for key in found if key != b"kafka"]
            assert own == [b"%d" % number for number in range(ROUNDS * EACH)]
            assert client.xlen(one.inlet) == client.xlen(one.refused) == 0
        client.close()
        assert "Traceback" not in server.log


def _is_empty(client: redis.RedisCluster, inlet: str) -> bool:
    return bool(client.xlen(inlet) == 0)


def _is_taken(port: int, topic: str, partition: int, data: bytes) -> bool:
    return bool(produce(port, topic, data, partition=partition)["error_code"] == "NONE")
