"""The catalog, topics' lives and retention against real servers, as two front-ends see them."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from uuid import uuid4

import anyio
import pytest
from kio.schema.errors import ErrorCode

from korvet.errors import StoreError, StoreUnavailable
from korvet.store import functions, retention
from korvet.store.catalog import Catalog, ConfigChange, Topic, parse_topic
from korvet.store.client import Purpose, Store, open_store
from korvet.store.configs import Source
from korvet.store.keys import Namespace
from korvet.store.log import Log
from korvet.store.maintenance import enforce_retention, maintain
from korvet.store.retention import Retention, enforce
from korvet.store.topics import colliding_topics, create_topic, delete_topic, finish_deletions, grow_topic, name_problem
from korvet.store.wakeup import Wakeups
from tests.support.redis import Server, running_server

pytestmark = pytest.mark.anyio

NAMESPACE = Namespace("catalog-test")
CLUSTER_ID = 22


@pytest.fixture
def server(redis_server: Server) -> Iterator[Server]:
    """The session's server, empty."""
    with redis_server.client() as client:
        client.flushall()
        client.config_set("maxmemory", 0)
    yield redis_server


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """What a front-end has of the store."""

    store: Store
    catalog: Catalog
    log: Log


@asynccontextmanager
async def front(url: str, static: dict[str, str] | None = None) -> AsyncIterator[Front]:
    """A front-end's catalog and log, read but not following."""
    async with open_store(url) as store:
        await functions.ensure(store)
        wakeups = Wakeups(store)
        catalog = Catalog(NAMESPACE, store, wakeups, static or {})
        await catalog.open()
        yield Front(store=store, catalog=catalog, log=Log(NAMESPACE, store, catalog, wakeups))


async def until(condition: Callable[[], bool], within_s: float = 10.0) -> None:
    with anyio.fail_after(within_s):
        while not condition():
            await anyio.sleep(0.005)


async def created(front: Front, name: str, partitions: int = 1, **configs: str) -> Topic:
    values = {key.replace("_", "."): value for key, value in configs.items()}
    code, topic = await create_topic(front.catalog, front.log, name, partitions, values)
    assert (code, topic is None) == (ErrorCode.none, False)
    assert topic is not None
    return topic


# ---------------------------------------------------------------------- the cache


async def test_the_cluster_id_is_minted_once_and_looks_like_kafkas(server: Server) -> None:
    async with front(server.url) as one, front(server.url) as other:
        assert one.catalog.cluster_id == other.catalog.cluster_id
        assert len(one.catalog.cluster_id) == CLUSTER_ID


async def test_a_created_topic_is_known_at_once_by_name_and_by_id(server: Server) -> None:
    async with front(server.url) as one:
        topic = await created(one, "t", 3, retention_ms="5")
        assert (topic.name, topic.partitions, dict(topic.configs)) == ("t", 3, {"retention.ms": "5"})
        assert one.catalog.topic("t") == one.catalog.topic_by_id(topic.id) == topic
        assert list(one.catalog.topics()) == [topic]


async def test_another_front_end_learns_of_a_change_by_the_channel(server: Server) -> None:
    async with front(server.url) as one, front(server.url) as other, anyio.create_task_group() as tasks:
        tasks.start_soon(other.catalog.follow)
        await created(one, "t")
        await until(lambda: other.catalog.topic("t") is not None)
        await one.catalog.configure_cluster(ConfigChange(set={"num.partitions": "7"}))
        await until(lambda: other.catalog.setting(None, "num.partitions") == "7")
        tasks.cancel_scope.cancel()


async def test_without_the_channel_a_refresh_tells(server: Server) -> None:
    async with front(server.url) as one, front(server.url) as other:
        await created(one, "t")
        assert other.catalog.topic("t") is None
        await other.catalog.refresh()
        assert other.catalog.topic("t") is not None


async def test_nothing_is_transferred_while_the_version_is_the_same(server: Server) -> None:
    async with front(server.url) as one:
        await created(one, "t")
        keys = NAMESPACE.catalog
        version = int(await one.store.call(Purpose.READ, keys.meta, "HGET", keys.meta, "version"))
        reply = await one.store.fcall(Purpose.COORDINATE, "korvet_catalog_read", keys, version)
        assert reply[3:] == [[], []]
        topic = one.catalog.topic("t")
        await one.catalog.refresh()
        assert one.catalog.topic("t") is topic


async def test_a_topic_that_did_not_change_stays_the_same_object(server: Server) -> None:
    async with front(server.url) as one:
        topic = await created(one, "t")
        await created(one, "other")
        assert one.catalog.topic("t") is not None
        before = one.catalog.topic("t")
        await created(one, "third")
        assert one.catalog.topic("t") is before
        assert before == topic


async def test_a_catalog_that_went_back_in_history_is_read_again(redis_server: Server) -> None:
    """The same version may come again with another content: after a failover, or a crash without the last second."""
    with running_server(redis_server.kind) as own:
        async with front(own.url) as one:
            await created(one, "lost")
            own.restart(crash=True)  # nothing was written to disk
            await until(lambda: not one.store.is_connected())
            await until(one.store.is_connected, 30.0)
            await functions.ensure(one.store)
            await one.catalog.refresh()
            assert list(one.catalog.topics()) == []
            await created(one, "new")
            assert [topic.name for topic in one.catalog.topics()] == ["new"]


async def test_an_unreachable_store_leaves_the_last_known_state(redis_server: Server) -> None:
    with running_server(redis_server.kind) as own:
        async with front(own.url) as one:
            await created(one, "t")
            own.kill()
            await until(lambda: not one.store.is_connected())
            with pytest.raises(StoreUnavailable):
                await one.catalog.refresh()
            assert one.catalog.topic("t") is not None


def test_a_corrupt_entry_is_named() -> None:
    with pytest.raises(StoreError, match="topic b't' is corrupt"):
        parse_topic(b"t", b'{"id": "x"}')


# ---------------------------------------------------------------------- names


def test_names_collide_when_only_dots_and_underscores_differ() -> None:
    topics = [Topic(name=name, id=uuid4(), partitions=1, configs={}) for name in ("a.b", "c", "x_y.z")]
    assert colliding_topics("a_b", topics) == ["a.b"]
    assert colliding_topics("x.y_z", topics) == ["x_y.z"]
    assert colliding_topics("a.b", topics) == []
    assert colliding_topics("c", topics) == []


def test_a_legal_name_has_no_problem() -> None:
    assert name_problem("A-z_0.9") is None
    assert name_problem("x" * 249) is None


# ---------------------------------------------------------------------- a topic's life


async def test_a_name_is_taken_until_its_topic_is_gone(server: Server) -> None:
    async with front(server.url) as one:
        first = await created(one, "t")
        assert await create_topic(one.catalog, one.log, "t", 1, {}) == (ErrorCode.topic_already_exists, None)
        assert await one.catalog.begin_delete(first) is ErrorCode.none
        assert one.catalog.topic("t") is None
        assert [topic.id for topic in one.catalog.deleting()] == [first.id]
        assert await create_topic(one.catalog, one.log, "t", 1, {}) == (ErrorCode.topic_already_exists, None)


async def test_a_deletion_that_nobody_finished_is_finished_by_anyone(server: Server) -> None:
    async with front(server.url) as dead, front(server.url) as other:
        topic = await created(dead, "t", 2)
        await dead.catalog.begin_delete(topic)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(maintain, NAMESPACE, other.catalog, other.log)
            keys = [key for p in range(2) for key in NAMESPACE.partition("t", p)]
            with server.client() as client:
                await until(lambda: client.exists(*keys) == 0 and not other.catalog.deleting())
                assert client.hexists(NAMESPACE.catalog.topics, "t") is False
            tasks.cancel_scope.cancel()
        again = await created(other, "t")
        assert again.id != topic.id


async def test_finishing_twice_is_no_error(server: Server) -> None:
    async with front(server.url) as one, front(server.url) as other:
        topic = await created(one, "t")
        await one.catalog.begin_delete(topic)
        await finish_deletions(one.catalog, one.log)
        assert await other.catalog.finish_delete(topic) is ErrorCode.none


async def test_deleting_what_another_deleted_is_unknown(server: Server) -> None:
    async with front(server.url) as one, front(server.url) as other:
        topic = await created(one, "t")
        assert await delete_topic(one.catalog, one.log, topic) is ErrorCode.none
        assert await delete_topic(other.catalog, other.log, topic) is ErrorCode.unknown_topic_or_partition
        with server.client() as client:
            assert [key for key in client.keys("*") if b"catalog-test:t:" in key] == []


async def test_a_topic_grows_and_never_shrinks(server: Server) -> None:
    async with front(server.url) as one, front(server.url) as other:
        topic = await created(one, "t", 2)
        await other.catalog.refresh()
        assert await grow_topic(one.catalog, one.log, topic, 4) is ErrorCode.none
        stale = other.catalog.topic("t")
        assert stale is not None and stale.partitions == 2
        assert await grow_topic(other.catalog, other.log, stale, 3) is ErrorCode.invalid_partitions
        with server.client() as client:
            assert client.exists(*(NAMESPACE.partition("t", p).meta for p in range(4))) == 4


async def test_a_topic_of_another_id_is_not_changed(server: Server) -> None:
    async with front(server.url) as one:
        await created(one, "t")
        former = Topic(name="t", id=uuid4(), partitions=1, configs={})
        assert await one.catalog.configure(former, ConfigChange(set={})) is ErrorCode.unknown_topic_or_partition
        assert await grow_topic(one.catalog, one.log, former, 5) is ErrorCode.unknown_topic_or_partition
        assert await delete_topic(one.catalog, one.log, former) is ErrorCode.unknown_topic_or_partition


# ---------------------------------------------------------------------- configs


async def test_the_nearest_value_counts(server: Server) -> None:
    async with front(server.url, {"message.max.bytes": "2000", "log.retention.ms": "9"}) as one:
        plain, own = await created(one, "plain"), await created(one, "own", max_message_bytes=" 4000 ")
        assert one.catalog.setting(plain, "max.message.bytes") == "2000"
        assert one.catalog.setting(own, "max.message.bytes") == "4000"
        assert one.catalog.setting(plain, "segment.ms") == "604800000"
        await one.catalog.configure_cluster(ConfigChange(set={"message.max.bytes": "3000"}))
        assert one.catalog.setting(plain, "max.message.bytes") == "3000"
        assert one.catalog.setting(own, "max.message.bytes") == "4000"
        assert [(value.value, value.source) for value in one.catalog.broker_values("message.max.bytes")] == [
            ("3000", Source.CLUSTER),
            ("2000", Source.STATIC),
            ("1048588", Source.DEFAULT),
        ]
        await one.catalog.configure_cluster(ConfigChange(set={}, delete=["message.max.bytes"]))
        assert one.catalog.setting(plain, "max.message.bytes") == "2000"


async def test_configs_are_set_deleted_and_replaced(server: Server) -> None:
    async with front(server.url) as one:
        topic = await created(one, "t", retention_ms="5", retention_bytes="6")
        await one.catalog.configure(topic, ConfigChange(set={"segment.ms": "7"}, delete=["retention.ms"]))
        changed = one.catalog.topic("t")
        assert changed is not None
        assert dict(changed.configs) == {"retention.bytes": "6", "segment.ms": "7"}
        await one.catalog.configure(topic, ConfigChange(set={"retention.ms": "8"}, replace=True))
        replaced = one.catalog.topic("t")
        assert replaced is not None
        assert dict(replaced.configs) == {"retention.ms": "8"}


# ---------------------------------------------------------------------- retention


async def appended(front: Front, topic: Topic, timestamps_ms: list[int], size_bytes: int = 100) -> None:
    """Batches of two records each, one for each timestamp, as the append function takes them."""
    keys = front.log.partition(topic, 0).keys
    for timestamp in timestamps_ms:
        reply = await front.store.fcall(
            Purpose.APPEND,
            "korvet_log_append",
            keys,
            topic.id.hex,
            front.store.run_id(keys.log),
            2,
            size_bytes,
            timestamp,
            1,
            -1,
            -1,
            -1,
            b"x" * size_bytes,
        )
        assert reply.split()[0] == b"0"


async def start_of(front: Front, topic: Topic) -> int:
    (meta,) = await front.log.metas([front.log.partition(topic, 0)])
    assert meta is not None
    return meta.start


async def test_batches_older_than_retention_ms_are_removed(server: Server) -> None:
    async with front(server.url) as one:
        topic = await created(one, "t")
        await appended(one, topic, [100, 300, 200, 400, 500])
        partition = one.log.partition(topic, 0)
        await enforce(one.log, partition, Retention(ms=600, bytes=-1), 700)
        assert await start_of(one, topic) == 0
        await enforce(one.log, partition, Retention(ms=600, bytes=-1), 901)
        # The batch of 200 is older, but one before it is not.
        assert await start_of(one, topic) == 6
        await enforce(one.log, partition, Retention(ms=600, bytes=-1), 5000)
        assert await start_of(one, topic) == 10


@pytest.mark.parametrize("keep_bytes, start", [(0, 20), (1, 18), (100, 18), (101, 16), (901, 0), (1000, 0), (5000, 0)])
async def test_at_least_retention_bytes_are_left(server: Server, keep_bytes: int, start: int) -> None:
    """Ten batches of 100 bytes and two records each."""
    async with front(server.url) as one:
        topic = await created(one, "t")
        await appended(one, topic, [1] * 10)
        await enforce(one.log, one.log.partition(topic, 0), Retention(ms=-1, bytes=keep_bytes), 1000)
        assert await start_of(one, topic) == start


async def test_retention_follows_the_configs(server: Server) -> None:
    async with front(server.url) as one:
        kept = await created(one, "kept", retention_ms="-1")
        policy = await created(one, "policy", cleanup_policy="")
        aged, sized = await created(one, "aged"), await created(one, "sized", retention_ms="-1", retention_bytes="100")
        for topic in (kept, policy, aged, sized):
            await appended(one, topic, [1000, 1000])
        await enforce_retention(NAMESPACE, one.catalog, one.log)
        assert [await start_of(one, topic) for topic in (kept, policy, aged, sized)] == [0, 0, 4, 2]


async def test_batches_without_a_timestamp_are_as_old_as_their_append(server: Server) -> None:
    """As Kafka, which takes the time of the segment's file for them (LogSegment.largestTimestamp)."""
    async with front(server.url) as one:
        topic = await created(one, "t")
        partition = one.log.partition(topic, 0)
        await appended(one, topic, [1000, -1, -1])
        now_ms = time.time_ns() // 1_000_000
        await enforce(one.log, partition, Retention(ms=600_000, bytes=-1), now_ms)
        assert await start_of(one, topic) == 2
        await enforce(one.log, partition, Retention(ms=600_000, bytes=-1), now_ms + 700_000)
        assert await start_of(one, topic) == 6


async def test_a_search_that_is_cut_short_removes_what_it_saw(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    async with front(server.url) as one:
        topic = await created(one, "t")
        partition = one.log.partition(topic, 0)
        # The batch that raised the running maximum is trimmed: what is behind it must be looked at one by one.
        await appended(one, topic, [10_000, *[100] * 250])
        await one.log.trim(partition, 2)
        monkeypatch.setattr(retention, "_MAX_CALLS", 2)
        await enforce(one.log, partition, Retention(ms=600, bytes=-1), 5000)
        assert 2 < await start_of(one, topic) < 502
        for _ in range(3):
            await enforce(one.log, partition, Retention(ms=600, bytes=-1), 5000)
        assert await start_of(one, topic) == 502


async def test_a_corrupt_partition_does_not_keep_others_from_being_swept(server: Server) -> None:
    async with front(server.url) as one:
        topics = [await created(one, name) for name in ("a", "b", "c")]
        for topic in topics:
            await appended(one, topic, [1000])
        with server.client() as client:
            meta = one.log.partition(topics[1], 0).keys.meta
            client.delete(meta)
            client.set(meta, "not a hash")
        await enforce_retention(NAMESPACE, one.catalog, one.log)
        assert [await start_of(one, topics[0]), await start_of(one, topics[2])] == [2, 2]


async def test_a_deletion_that_fails_does_not_keep_others_from_being_finished(server: Server) -> None:
    async with front(server.url) as one:
        topics = [await created(one, name) for name in ("a", "b", "c")]
        for topic in topics:
            await one.catalog.begin_delete(topic)
        with server.client() as client:
            meta = one.log.partition(topics[1], 0).keys.meta
            client.delete(meta)
            client.set(meta, "not a hash")
        await finish_deletions(one.catalog, one.log)
        await one.catalog.refresh()
        assert [topic.name for topic in one.catalog.deleting()] == ["b"]


async def test_the_cluster_id_outlives_its_loss(server: Server) -> None:
    async with front(server.url) as one, front(server.url) as other:
        cluster_id = one.catalog.cluster_id
        with server.client() as client:
            client.flushall()
            await one.catalog.refresh()
            await other.catalog.refresh()
            assert (one.catalog.cluster_id, other.catalog.cluster_id) == (cluster_id, cluster_id)
            assert client.hget(NAMESPACE.catalog.meta, "cluster_id") == cluster_id.encode()
