"""The catalog against real servers, as two front-ends see it."""

from __future__ import annotations

from uuid import uuid4

import anyio
import pytest

from korvet.configs.types import Source
from korvet.errors import KorvetError, StoreError, StoreUnavailable
from korvet.redis.client import Purpose
from korvet.store import library
from korvet.store.catalog.settings import ConfigChange
from korvet.store.catalog.topic import parse_topic
from tests.store.logs import NAMESPACE, Front, created, front, until
from tests.support.redis import Server, running_server

pytestmark = pytest.mark.anyio

CLUSTER_ID = 22


async def test_cluster_id_is_minted_once_and_looks_like_kafkas(server: Server) -> None:
    async with front(server.url) as one, front(server.url) as other:
        assert one.catalog.cluster_id == other.catalog.cluster_id
        assert len(one.catalog.cluster_id) == CLUSTER_ID


async def test_created_topic_is_known_at_once_by_name_and_by_id(one: Front) -> None:
    topic = await created(one, "t", 3, retention_ms="5")
    assert (topic.name, topic.partitions, dict(topic.configs)) == ("t", 3, {"retention.ms": "5"})
    assert one.catalog.topic("t") == one.catalog.topic_by_id(topic.id) == topic
    assert list(one.catalog.topics()) == [topic]


async def test_other_front_end_learns_of_a_change_by_the_channel(server: Server) -> None:
    async with front(server.url) as one, front(server.url) as other, anyio.create_task_group() as tasks:
        tasks.start_soon(other.catalog.follow)
        await created(one, "t")
        await until(lambda: other.catalog.topic("t") is not None)
        await one.catalog.configure_cluster(ConfigChange(set={"num.partitions": "7"}))
        await until(lambda: other.catalog.setting(None, "num.partitions") == "7")
        tasks.cancel_scope.cancel()


async def test_refresh_finds_a_change_without_the_channel(server: Server) -> None:
    async with front(server.url) as one, front(server.url) as other:
        await created(one, "t")
        assert other.catalog.topic("t") is None
        await other.catalog.refresh()
        assert other.catalog.topic("t") is not None


async def test_refresh_transfers_nothing_while_the_version_is_the_same(one: Front) -> None:
    await created(one, "t")
    keys = NAMESPACE.catalog
    version = int(await one.store.call(Purpose.READ, keys.meta, "HGET", keys.meta, "version"))
    reply = await one.store.fcall(Purpose.COORDINATE, "korvet_catalog_read", keys, version)
    assert reply[3:] == [[], []]
    topic = one.catalog.topic("t")
    await one.catalog.refresh()
    assert one.catalog.topic("t") is topic


async def created_in_redis(front: Front, count: int) -> set[str]:
    """Topics that are in the catalog but whose partitions have no keys."""
    calls = [
        front.store.call_function(
            Purpose.COORDINATE, "korvet_topic_create", NAMESPACE.catalog,
            name=f"t{number}", id=uuid4().hex, partitions=1, configs="{}",
        )
        for number in range(count)
    ]  # fmt: skip
    for call in calls:
        await call
    return {f"t{number}" for number in range(count)}


async def test_catalog_reads_many_topics_in_pages(server: Server, one: Front) -> None:
    version = one.catalog.version
    names = await created_in_redis(one, 2500)
    with server.client() as client:
        client.config_resetstat()
        await one.catalog.refresh()
        assert client.info("commandstats")["cmdstat_fcall_ro"]["calls"] > 4
    assert {topic.name for topic in one.catalog.topics()} == names
    topic = await created(one, "of its own")
    assert one.catalog.topic_by_id(topic.id) == topic
    assert one.catalog.version == version + 2500 + 1


async def test_read_of_the_catalog_that_ends_late_undoes_nothing(one: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    await created_in_redis(one, 2500)
    page, may_go_on = one.catalog._page, anyio.Event()

    async def held_up(known_version: int, cursor: str | bytes = "0") -> object:
        reply = await page(known_version, cursor)
        await may_go_on.wait()
        return reply

    async with anyio.create_task_group() as tasks:
        monkeypatch.setattr(one.catalog, "_page", held_up)
        tasks.start_soon(one.catalog.refresh)
        await anyio.wait_all_tasks_blocked()
        monkeypatch.setattr(one.catalog, "_page", page)
        topic = await created(one, "later")
        may_go_on.set()
    assert one.catalog.topic("later") == topic
    await one.catalog.refresh()
    assert one.catalog.topic("later") == topic


async def test_catalog_is_read_anew_if_its_server_changes_between_pages(
    one: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = await created_in_redis(one, 2500)
    page = one.catalog._page

    async def of_another_server(known_version: int, cursor: str | bytes = "0") -> object:
        monkeypatch.setattr(one.catalog, "_page", page)
        reply = await page(known_version, cursor)
        return [*reply[:3], [b"gone", reply[3][1]], reply[4], b"0" * 40 + reply[5][40:]]

    monkeypatch.setattr(one.catalog, "_page", of_another_server)
    await one.catalog.refresh()
    assert {topic.name for topic in one.catalog.topics()} == names


async def test_unchanged_topic_stays_the_same_object(one: Front) -> None:
    topic = await created(one, "t")
    await created(one, "other")
    assert one.catalog.topic("t") is not None
    before = one.catalog.topic("t")
    await created(one, "third")
    assert one.catalog.topic("t") is before
    assert before == topic


async def test_catalog_is_read_again_after_history_went_back(redis_server: Server) -> None:
    """The same version may return with other content: after a failover, or a crash that lost the last second."""
    with running_server(redis_server.kind) as own:
        async with front(own.url) as one:
            await created(one, "lost")
            own.restart(crash=True)  # nothing was written to disk
            await until(lambda: not one.store.is_connected())
            await until(one.store.is_connected, 30.0)
            await library.ensure(one.store)
            await one.catalog.refresh()
            assert list(one.catalog.topics()) == []
            await created(one, "new")
            assert [topic.name for topic in one.catalog.topics()] == ["new"]


async def test_catalog_that_was_emptied_and_filled_as_far_is_read_again(server: Server, one: Front) -> None:
    await created(one, "lost")
    with server.client() as client:
        client.flushall()
    async with front(server.url) as other:
        await created(other, "new")
    await one.catalog.refresh()
    assert [topic.name for topic in one.catalog.topics()] == ["new"]


async def test_unreachable_store_leaves_the_last_known_state(redis_server: Server) -> None:
    with running_server(redis_server.kind) as own:
        async with front(own.url) as one:
            await created(one, "t")
            own.kill()
            await until(lambda: not one.store.is_connected())
            with pytest.raises(StoreUnavailable):
                await one.catalog.refresh()
            assert one.catalog.topic("t") is not None


def test_error_names_a_corrupt_entry() -> None:
    with pytest.raises(StoreError, match="topic b't' is corrupt"):
        parse_topic(b"t", b'{"id": "x"}')


async def test_most_specific_value_of_a_setting_applies(server: Server) -> None:
    async with front(server.url, static={"message.max.bytes": "2000", "log.retention.ms": "9"}) as one:
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


async def test_configs_are_set_deleted_and_replaced(one: Front) -> None:
    topic = await created(one, "t", retention_ms="5", retention_bytes="6")
    await one.catalog.configure(topic, ConfigChange(set={"segment.ms": "7"}, delete=["retention.ms"]))
    changed = one.catalog.topic("t")
    assert changed is not None
    assert dict(changed.configs) == {"retention.bytes": "6", "segment.ms": "7"}
    await one.catalog.configure(topic, ConfigChange(set={"retention.ms": "8"}, replace=True))
    replaced = one.catalog.topic("t")
    assert replaced is not None
    assert dict(replaced.configs) == {"retention.ms": "8"}


async def test_cluster_id_outlives_its_loss(server: Server) -> None:
    async with front(server.url) as one, front(server.url) as other:
        cluster_id = one.catalog.cluster_id
        with server.client() as client:
            client.flushall()
            await one.catalog.refresh()
            await other.catalog.refresh()
            assert (one.catalog.cluster_id, other.catalog.cluster_id) == (cluster_id, cluster_id)
            assert client.hget(NAMESPACE.catalog.meta, "cluster_id") == cluster_id.encode()


async def test_namespace_with_keys_named_by_an_older_korvet_is_refused(server: Server) -> None:
    former = f"korvet:{{{NAMESPACE.name}:catalog}}:meta"
    with server.client() as client:
        client.hset(former, "version", 7)
        with pytest.raises(KorvetError, match=r"log-test holds the data of korvet 0\.6 or older"):
            async with front(server.url):
                pass
        assert client.keys("korvet:*@catalog*") == [], "nothing was made beside it"
