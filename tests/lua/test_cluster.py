"""The library on a cluster node: a function's keys and its channel all lie in one slot."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import redis

from tests.lua.group import Group
from tests.lua.log import TOPIC_ID, Log, listening
from tests.lua.records import Records
from tests.lua.tier import Tiered
from tests.lua.transaction_scene import Scene
from tests.support.redis import KINDS, ServerUnavailable, running_server, unavailable
from tests.wire.whole import Whole

SLOTS = 16384
READY_WITHIN_S = 20.0


@pytest.fixture(scope="module", params=KINDS)
def cluster_node(request: pytest.FixtureRequest, library: str) -> Iterator[redis.Redis]:
    """A client of a cluster of one node that holds all slots."""
    try:
        with (
            running_server(request.param, tcp=True, options={"cluster-enabled": "yes"}) as server,
            server.client() as client,
        ):
            client.execute_command("CLUSTER ADDSLOTSRANGE", 0, SLOTS - 1)
            deadline = time.monotonic() + READY_WITHIN_S
            while b"cluster_state:ok" not in _state(client) and time.monotonic() < deadline:
                time.sleep(0.01)
            client.function_load(library)
            yield client
    except ServerUnavailable as error:
        unavailable(error)


def _state(client: redis.Redis) -> bytes:
    return bytes(client.execute_command("CLUSTER", "INFO"))  # type: ignore[no-untyped-call]


def test_partition_lives_and_ends_on_a_cluster_node(cluster_node: redis.Redis) -> None:
    log = Log(cluster_node)
    assert log.create() == 0
    with listening(cluster_node, log.log) as next_message:
        assert log.append(3) == (0, 0, 0, 0)
        assert next_message() == b"0 3"
    assert log.place(5, producer=(1, 0, 0)) == (0, 3, 0, 0)
    assert log.place(5, producer=(1, 0, 0)) == (0, 3, 0, 0)
    assert log.at_time(0) == (0, 3, 0)
    assert log.trim(-1) == [0, 8, 0]
    assert log.place(1) == (0, 8, 8, 0)
    assert log.delete() == [0, 0]
    assert log.dump() == {}


def test_partition_with_segments_lives_and_ends_on_a_cluster_node(cluster_node: redis.Redis) -> None:
    cluster_node.flushall()
    log = Tiered(cluster_node)
    assert log.create() == 0
    for number in range(5):
        log.put(f"b{number}")
    text = log.seal(0, 30).text
    assert log.drop(20) == [0, 20, 0]
    assert log.trim(30) == [0, 30, 0]
    assert log.forget([text]) == [0, 1]
    assert log.listed()[3:6] == (30, 30, 30)
    assert log.delete() == [0, 0]
    assert log.dump() == {}


def test_partition_of_records_lives_and_ends_on_a_cluster_node(cluster_node: redis.Redis) -> None:
    cluster_node.flushall()
    log = Records(cluster_node)
    log.configure()
    assert log.add(Whole(b"k"), producer=(7, 0, 0), ordinal=1).base_offset == 0
    assert log.call("korvet_record_append", "key", "k") == 1
    cluster_node.xadd(log.inlet, {"key": "k"})
    cluster_node.xadd(log.inlet, {"nothing": "k"})
    assert log.drain() == [0, 1, 1, 0]
    assert len(log.records()) == 3
    assert log.call("korvet_log_delete", TOPIC_ID, keys=log.transactional) == [0, 0]
    assert log.dump() == {}


def test_transaction_lives_and_ends_on_a_cluster_node(cluster_node: redis.Redis) -> None:
    cluster_node.flushall()
    scene = Scene(cluster_node, lambda _: None)
    producer = scene.app.init().producer
    for outcome in ("commit", "abort"):
        scene.run(producer, 5)
        told = scene.app.end(producer, outcome)
        assert told.decision is not None
        scene.finish(told.decision)
        producer = told.producer
        scene.reset(2)
    assert scene.group.committed() == {"in:0": "5"}
    assert scene.app.due() == []
    for log in scene.logs.values():
        assert len(log.described()) == 1
        assert log.delete() == [0, 0]
    assert scene.group.remove() == 0


def test_catalog_works_on_a_cluster_node(cluster_node: redis.Redis) -> None:
    keys = ("{default:@catalog}:meta", "{default:@catalog}:topics", "{default:@catalog}:configs")
    assert cluster_node.fcall("korvet_catalog_init", 3, *keys, "cluster") == [0, b"cluster"]
    assert cluster_node.fcall("korvet_topic_create", 3, *keys, "t", "a" * 32, "1", "{}")[0] == 0
    assert cluster_node.fcall("korvet_topic_delete", 3, *keys, "t", "a" * 32, "begin") == [0]
    assert cluster_node.fcall("korvet_topic_delete", 3, *keys, "t", "a" * 32, "finish") == [0]


def test_group_lives_and_ends_on_a_cluster_node(cluster_node: redis.Redis) -> None:
    group = Group(cluster_node, lambda _: None)
    with listening(cluster_node, group.keys[0]) as next_message:
        first, second = group.stable(2)
        assert next_message() == b"CompletingRebalance 1"
    assert group.commit({"t:0": "5 -1 aa "}, second, 2) == 0
    assert group.join(first).is_parked
    assert group.wait_all((first, ""))[0].is_parked
    assert group.leave((first, ""), (second, "")) == [0, 0]
    assert group.forget({"t:0": "aa"}) == 1
    assert (group.describe().state, group.delete()) == ("Empty", 0)
    assert group.exists() == []


def test_redis_group_follows_its_group_on_a_cluster_node(cluster_node: redis.Redis) -> None:
    log, group = Log(cluster_node, "{default:attached:0}"), Group(cluster_node, lambda _: None, "attached")
    assert (log.create(), log.append(3).code, group.commit({"t:0": f"3 -1 {log.topic_id} "})) == (0, 0, 0)
    keys = (*group.keys, group.attached)
    attached = cluster_node.fcall("korvet_group_attach", 6, *keys, "mirror", "t:0", log.topic_id)
    assert attached == [0, 0, [b"3"]]
    assert log.call("korvet_log_attach", log.topic_id, "attached", 1, "keep") == [0]
    assert log.call("korvet_log_attach", log.topic_id, "attached", 3, "move") == [0]
    assert cluster_node.fcall_ro("korvet_group_attached", 6, *keys) == [0, [b"t:0", log.topic_id.encode()]]
    assert log.call("korvet_log_detach", log.topic_id, "attached") == [0]
    assert cluster_node.fcall("korvet_group_delete", 6, *keys, "", "any", "t:0", log.topic_id) == 0
    reader = "korvet:{default:@reader:client@host}:groups"
    assert cluster_node.fcall("korvet_reader_note", 1, reader, "attached", 60_000, "t:0") == 0
    assert cluster_node.fcall_ro("korvet_reader_find", 1, reader, "t:0") == [b"attached"]
    assert cluster_node.delete(reader) == 1
