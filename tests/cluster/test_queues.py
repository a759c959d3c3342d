"""Share partitions on a cluster: Redis workers and share consumers go on while the slot of their partition moves."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from redis.cluster import RedisCluster

from korvet.redis.topology import slot_of
from korvet.store.keys import Namespace, share_partition
from korvet.store.library import library_source
from tests.api.consumers import share_beat, topic_id
from tests.api.data import produce, records
from tests.api.raw import created, unique
from tests.api.test_share_fetch import ACCEPT, NONE, RECORD_LIMIT, Member, acknowledged, acquired, part, set_of_group
from tests.lua.log import RUN_ID, TOPIC_ID
from tests.support.broker import running_broker
from tests.support.topologies import running_cluster


def test_locks_and_counts_move_with_the_slot() -> None:
    keys = Namespace().inlet("jobs", 0)
    share = share_partition(Namespace().partition("jobs", 0), "mail")
    with running_cluster(size=2) as cluster:
        for node in cluster.nodes:
            cluster.ask(node, "FUNCTION", "LOAD", library_source())
        with RedisCluster(host="127.0.0.1", port=cluster.nodes[0].port) as opened:
            client: Any = opened
            client.fcall("korvet_log_create", 3, *keys[:3], TOPIC_ID, RUN_ID)
            client.fcall("korvet_record_configure", 5, *keys, TOPIC_ID, "1000 0 0 0")
            for value in "abcd":
                client.fcall("korvet_record_append", 3, *keys[:3], "value", value)
            _, first, second = client.fcall("korvet_queue_take", 4, *share, "mail", "w", 2, 600_000)
            assert (first[:2], second[:2]) == ([0, 1], [1, 1])
            assert client.fcall("korvet_queue_settle", 4, *share, "mail", "w", "retry", 0, 5, 0) == 1
            slot = client.keyslot(share.log)
            source = cluster.owner(slot)
            (target,) = (node for node in cluster.nodes if node is not source)
            cluster.move_slot(slot, source, target)
            _, *taken = client.fcall("korvet_queue_take", 4, *share, "mail", "v", 10, 600_000)
            assert [one[:2] for one in taken] == [[0, 2], [2, 1], [3, 1]]
            assert client.fcall("korvet_queue_settle", 4, *share, "mail", "w", "done", 0, 5, 1) == 1
            assert client.fcall("korvet_queue_settle", 4, *share, "mail", "v", "done", 0, 5, 0, 2, 3) == 3
            code, _, start, _, lag, *_ = client.fcall_ro("korvet_share_describe", 4, *share, TOPIC_ID, "mail", 0)
            assert (code, start, lag) == (0, 4, 0)


def test_share_consumer_keeps_its_locks_while_the_slot_of_its_partition_moves() -> None:
    with (
        running_cluster(size=2) as cluster,
        running_broker(redis_url=cluster.url) as broker,
        closing((member := Member(broker, unique("share"))).connection.socket),
    ):
        group, name = member.group, created(broker.port)
        set_of_group(broker, group, **{"share.auto.offset.reset": "earliest"})
        assert share_beat(broker.port, group, member.id, 0, name)["error_code"] == NONE
        topic = topic_id(broker.port, name)
        assert produce(broker.port, name, records(6))["error_code"] == NONE
        few = {"max_records": 3, "share_acquire_mode": RECORD_LIMIT}
        assert acquired(member.fetch(part(topic), **few)) == [(0, 2, 1)]
        slot = slot_of(Namespace().partition(name, 0).log)
        source = cluster.owner(slot)
        (target,) = (node for node in cluster.nodes if node is not source)
        with cluster.open_slot(slot, source, target):
            member.send(part(topic, (0, 0, ACCEPT)), **few)
            cluster.move_keys(slot, source, target)
            answer = member.connection.receive()
        assert (acknowledged(answer), acquired(answer)) == (0, [(3, 5, 1)])
        assert acknowledged(member.fetch(part(topic, (1, 5, ACCEPT)))) == 0
