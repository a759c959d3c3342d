"""Topics on real servers: their names, creation, growth and deletion."""

from __future__ import annotations

from uuid import uuid4

import anyio
import pytest
from kio.schema.errors import ErrorCode

from korvet.errors import StoreError
from korvet.store.activity import Activity
from korvet.store.background.maintenance import maintain
from korvet.store.catalog.settings import ConfigChange
from korvet.store.catalog.topic import Topic, unified_names
from korvet.store.topics import colliding_topics, create_topic, delete_topic, finish_deletions, grow_topic, name_problem
from tests.store.logs import NAMESPACE, Front, created, front, until
from tests.store.turns import Always
from tests.support.redis import Server

pytestmark = pytest.mark.anyio


def test_names_collide_when_only_dots_and_underscores_differ() -> None:
    topics = unified_names(("a.b", "c", "x_y.z"))
    assert colliding_topics("a_b", topics) == ["a.b"]
    assert colliding_topics("x.y_z", topics) == ["x_y.z"]
    assert colliding_topics("a.b", topics) == []
    assert colliding_topics("c", topics) == []


def test_legal_name_has_no_problem() -> None:
    assert name_problem("A-z_0.9") is None
    assert name_problem("x" * 249) is None


async def test_name_is_taken_until_its_topic_is_gone(one: Front) -> None:
    first = await created(one, "t")
    assert await create_topic(one.catalog, one.log, "t", 1, {}) == (ErrorCode.topic_already_exists, None)
    assert await one.catalog.begin_delete(first) is ErrorCode.none
    assert one.catalog.topic("t") is None
    assert [topic.id for topic in one.catalog.deleting()] == [first.id]
    assert await create_topic(one.catalog, one.log, "t", 1, {}) == (ErrorCode.topic_already_exists, None)


async def test_any_front_end_finishes_a_deletion_that_another_left(server: Server) -> None:
    async with front(server.url) as dead, front(server.url) as other:
        topic = await created(dead, "t", 2)
        await dead.catalog.begin_delete(topic)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(maintain, NAMESPACE, other.catalog, other.log, Always(), Activity())
            keys = [key for p in range(2) for key in NAMESPACE.partition("t", p)]
            with server.client() as client:
                await until(lambda: client.exists(*keys) == 0 and not other.catalog.deleting())
                assert client.hexists(NAMESPACE.catalog.topics, "t") is False
            tasks.cancel_scope.cancel()
        again = await created(other, "t")
        assert again.id != topic.id


async def test_deletion_that_is_finished_twice_is_no_error(server: Server) -> None:
    async with front(server.url) as one, front(server.url) as other:
        topic = await created(one, "t")
        await one.catalog.begin_delete(topic)
        await finish_deletions(one.catalog, one.log)
        assert await other.catalog.finish_delete(topic) is ErrorCode.none


async def test_deletion_of_a_topic_that_another_deleted_is_unknown(server: Server) -> None:
    async with front(server.url) as one, front(server.url) as other:
        topic = await created(one, "t")
        assert await delete_topic(one.catalog, one.log, topic) is ErrorCode.none
        assert await delete_topic(other.catalog, other.log, topic) is ErrorCode.unknown_topic_or_partition
        with server.client() as client:
            assert [key for key in client.keys("*") if b"log-test:t:" in key] == []


async def test_topic_grows_and_never_shrinks(server: Server) -> None:
    async with front(server.url) as one, front(server.url) as other:
        topic = await created(one, "t", 2)
        await other.catalog.refresh()
        assert await grow_topic(one.catalog, one.log, topic, 4) is ErrorCode.none
        stale = other.catalog.topic("t")
        assert stale is not None and stale.partitions == 2
        assert await grow_topic(other.catalog, other.log, stale, 3) is ErrorCode.invalid_partitions
        with server.client() as client:
            assert client.exists(*(NAMESPACE.partition("t", p).meta for p in range(4))) == 4


async def test_topic_of_another_id_is_not_changed(one: Front) -> None:
    await created(one, "t")
    former = Topic(name="t", id=uuid4(), partitions=1, configs={})
    assert await one.catalog.configure(former, ConfigChange(set={})) is ErrorCode.unknown_topic_or_partition
    assert await grow_topic(one.catalog, one.log, former, 5) is ErrorCode.unknown_topic_or_partition
    assert await delete_topic(one.catalog, one.log, former) is ErrorCode.unknown_topic_or_partition


async def test_failed_deletion_holds_up_no_other(one: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    topics = [await created(one, name) for name in ("a", "b", "c")]
    for topic in topics:
        await one.catalog.begin_delete(topic)
    delete = one.log.delete_partitions

    async def delete_others(topic: Topic) -> None:
        if topic.name == "b":
            raise StoreError("it cannot be removed")
        await delete(topic)

    monkeypatch.setattr(one.log, "delete_partitions", delete_others)
    await finish_deletions(one.catalog, one.log)
    await one.catalog.refresh()
    assert [topic.name for topic in one.catalog.deleting()] == ["b"]


@pytest.mark.parametrize("name", ["group", "txn", "reader", "catalog"])
async def test_rights_to_a_topic_named_like_a_unit_open_only_its_own_keys(server: Server, name: str) -> None:
    assert name_problem(name) is None
    own, others = NAMESPACE.partition(name, 0), [*NAMESPACE.group("0"), *NAMESPACE.catalog]
    others += [*NAMESPACE.transaction("0"), NAMESPACE.reader("0", "0"), NAMESPACE.frontends]
    with server.client() as client:
        client.acl_setuser(
            "one", enabled=True, nopass=True, categories=["+@all"], keys=[f"korvet:{{{NAMESPACE.name}:{name}:*"]
        )
        assert all(client.acl_dryrun("one", "GET", key) == b"OK" for key in own)
        assert [key for key in others if client.acl_dryrun("one", "GET", key) == b"OK"] == []
