"""The first Fetch of a reader makes the Redis groups of its groups."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from korvet.redis.client import Purpose
from korvet.store.groups import redis_mirror_readers
from tests.store.groups import new_group, stable
from tests.store.logs import NAMESPACE
from tests.store.redis_groups import Side

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_reader")]

NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND = 68, 69


async def test_first_fetch_at_any_front_end_makes_the_redis_group(a: Side, b: Side) -> None:
    topic = await a.topic(2)
    group_id, _ = await stable(a.groups)
    await a.note(group_id, topic, 0)
    assert await b.fetched(topic, 4) and await b.fetched(topic, 4, 1)
    assert [await b.positions(topic, 0), await b.positions(topic, 1)] == [{group_id: 4}, {}]
    assert await a.fetched(topic, 9)
    await b.mirror.flush()
    assert await a.positions(topic) == {group_id: 4}


async def test_first_fetch_of_a_group_moves_its_redis_group_to_the_commit(a: Side) -> None:
    topic, group_id = await a.topic(), new_group()
    await a.commit_and_follow(group_id, topic, 3)
    key = NAMESPACE.partition(topic.name, 0).log
    await a.front.store.call(Purpose.COORDINATE, key, "XGROUP", "DESTROY", key, group_id)
    await a.note(group_id, topic, 0)
    assert await a.fetched(topic, 6)
    assert await a.positions(topic) == {group_id: 6}
    await a.mirror.flush()
    assert await a.positions(topic) == {group_id: 3}


async def test_reader_of_several_groups_makes_none_until_one_commits(a: Side) -> None:
    topic = await a.topic()
    for group_id in ("g", "h"):
        await a.note(group_id, topic, 0)
    assert await a.fetched(topic, 3)
    await a.mirror.flush()
    assert await a.positions(topic) == {}
    await a.commit_and_follow("h", topic, 3)
    assert await a.positions(topic) == {"h": 3}
    assert await a.delete("h") == [0]


async def test_first_fetch_for_a_deleted_group_makes_no_redis_group(a: Side) -> None:
    topic = await a.topic()
    await a.note(new_group(), topic, 0)
    assert await a.fetched(topic, 3)
    assert await a.positions(topic) == {}


async def test_fetch_of_a_leaving_client_leaves_no_redis_group_of_a_deleted_group(
    a: Side, b: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, group_id = await a.topic(), new_group()
    await a.commit_and_follow(group_id, topic, 3)
    await a.note(group_id, topic, 0)
    await b.front.catalog.refresh()
    call, leaving = b.groups.readers._calls.call, anyio.CancelScope()

    async def attach(*args: Any, **named: Any) -> Any:
        assert await a.delete(group_id) == [0]
        attached = call(*args, **named)
        leaving.cancel()
        return await attached

    def calling(function: str, *args: Any, **named: Any) -> Any:
        return (attach if function == "korvet_log_attach" else call)(function, *args, **named)

    with monkeypatch.context() as patch, leaving:
        patch.setattr(b.groups.readers._calls, "call", calling)
        await b.fetched(topic, 3)
    await b.mirror.flush()
    assert await a.positions(topic) == {}


async def test_fetch_beyond_the_end_makes_no_redis_group_and_the_next_one_does(a: Side) -> None:
    topic = await a.topic()
    group_id, _ = await stable(a.groups)
    await a.note(group_id, topic, 0)
    assert not await a.fetched(topic, 10)
    assert await a.positions(topic) == {}
    assert await a.fetched(topic, 9)
    assert await a.positions(topic) == {group_id: 9}


async def test_failure_of_redis_is_no_failure_of_a_fetch_or_a_sync(a: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    """The front-end pauses after the failure, and later tries again."""
    topic = await a.topic()
    group_id, _ = await stable(a.groups)
    key = NAMESPACE.reader("client", "host")
    await a.call(key, "SET", "mine")
    await a.note(group_id, topic, 0)
    assert not await a.fetched(topic, 3)
    await a.call(key, "DEL")
    await a.note(group_id, topic, 0)
    assert not await a.fetched(topic, 3)
    monkeypatch.setattr(a.groups.readers, "_rests_until", 0.0)
    assert await a.fetched(topic, 3)
    assert await a.positions(topic) == {group_id: 3}


async def test_notes_of_new_client_ids_have_a_bound_and_a_note_that_is_made_again_takes_none(
    a: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, readers = await a.topic(), a.groups.readers
    monkeypatch.setattr(redis_mirror_readers, "MOST_NOTED_BYTES", readers.noted_bytes + 20_000)
    clients = [f"{n:0500}" for n in range(40)]
    noted: list[str] = []
    for _ in range(2):
        for client in clients:
            await readers.note(client, "host", "g", [(topic.name, 0)])
        there = [one for one in clients if await a.call(NAMESPACE.reader(one, "host"), "EXISTS")]
        assert 10 < len(there) < 25 and (not noted or there == noted)
        noted = there
    await a.call(NAMESPACE.reader(clients[0], "host"), "UNLINK")
    await readers.note(clients[0], "host", "g", [(topic.name, 0)])
    assert await a.call(NAMESPACE.reader(clients[0], "host"), "EXISTS")
