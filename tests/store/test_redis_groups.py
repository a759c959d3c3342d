"""Redis groups follow Kafka groups, by several front-ends, and end with them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, NamedTuple

import anyio
import pytest

from korvet.errors import StoreError
from korvet.store import redis_group_units, redis_groups
from korvet.store.catalog import Topic
from korvet.store.client import Purpose
from korvet.store.group_types import CommitRequest, Offset
from korvet.store.groups import Groups
from korvet.store.log import Want
from korvet.store.outages import Outages
from korvet.store.redis_groups import RedisGroups
from korvet.store.topics import create_topic, delete_topic
from tests.store.groups import new_group, open_groups, stable
from tests.store.logs import NAMESPACE, Front, batch, front, until
from tests.support.redis import KINDS, Kind, Server, ServerUnavailable, running_server, unavailable

pytestmark = pytest.mark.anyio

NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND = 68, 69
ODD_IDS = ["g r o u p", "{a}:b", "группа", "x" * 200]


class Side(NamedTuple):
    """A front-end with its groups."""

    front: Front
    groups: Groups

    @property
    def redis_groups(self) -> RedisGroups:
        return self.groups.redis_groups

    async def call(self, key: str, command: str, *args: str | int) -> Any:
        return await self.front.store.call(Purpose.COORDINATE, key, command, key, *args)

    async def topic(self, partitions: int = 1) -> Topic:
        """A new topic with three batches of three records in each partition."""
        topic = await self.front.topic(partitions)
        for index in range(partitions):
            for _ in range(3):
                assert (await self.front.append(self.front.log.partition(topic, index), batch()))[0] == 0
        return topic

    async def commit(self, group_id: str, topic: Topic, *offsets: int) -> None:
        """Commit offsets of partitions 0, 1, … as a consumer without a group's protocol."""
        places = [((topic.name, index), Offset(offset, -1, topic.id, "")) for index, offset in enumerate(offsets)]
        request = CommitRequest(
            group_id=group_id, member_id="", instance_id=None, generation=-1, version=8, offsets=places
        )
        assert await self.groups.commit(request) == 0

    async def commit_and_follow(self, group_id: str, topic: Topic, *offsets: int) -> None:
        await self.commit(group_id, topic, *offsets)
        await self.redis_groups.flush()

    async def positions(self, topic: Topic, partition: int = 0) -> dict[str, int]:
        """Where the Redis groups on a partition stand."""
        key = NAMESPACE.partition(topic.name, partition).log
        flat = await self.front.store.call(Purpose.COORDINATE, key, "XINFO", "GROUPS", key)
        rows = [dict(zip(one[::2], one[1::2], strict=True)) if isinstance(one, list) else one for one in flat]
        return {row[b"name"].decode(): int(row[b"last-delivered-id"].partition(b"-")[0]) for row in rows}

    async def move_by_hand(self, topic: Topic, group_id: str, offset: int) -> None:
        key = NAMESPACE.partition(topic.name, 0).log
        await self.front.store.call(Purpose.COORDINATE, key, "XGROUP", "SETID", key, group_id, f"{offset}-0")

    async def make_by_hand(self, topic: Topic, partition: int, name: str) -> None:
        key = NAMESPACE.partition(topic.name, partition).log
        await self.front.store.call(Purpose.COORDINATE, key, "XGROUP", "CREATE", key, name, "0")

    async def fetched(self, topic: Topic, offset: int, partition: int = 0) -> bool:
        """A first Fetch by the client at the host; whether it need not be seen to again."""
        want = Want(self.front.log.partition(topic, partition), offset, 1)
        return await self.redis_groups.attach("client", "host", [want]) == [want.partition]

    async def note(self, group_id: str, topic: Topic, *partitions: int) -> None:
        await self.redis_groups.note_reader("client", "host", group_id, [(topic.name, index) for index in partitions])

    async def delete(self, *group_ids: str) -> list[Any]:
        return list(await self.groups.delete(group_ids))

    async def left(self, group_id: str) -> list[str]:
        """The group's keys that are there."""
        keys = NAMESPACE.attached_group(group_id)
        return [name for name, key in zip(keys._fields, keys, strict=True) if await self.call(key, "EXISTS")]


@pytest.fixture
async def a(one: Front) -> Side:
    return Side(one, await open_groups(one, Outages(one.store)))


@pytest.fixture
async def b(a: Side, other: Front) -> Side:
    return Side(other, await open_groups(other, Outages(other.store)))


@pytest.fixture(autouse=True)
async def no_reader(one: Front) -> None:
    """The client at the host reads nothing yet."""
    key = NAMESPACE.reader("client", "host")
    await one.store.call(Purpose.COORDINATE, key, "DEL", key)


# ---------------------------------------------------------------------- commits


@pytest.mark.parametrize("group_id", [*ODD_IDS, ""])
async def test_redis_groups_follow_commits_and_are_gone_with_the_group(a: Side, group_id: str) -> None:
    topic = await a.topic(2)
    await a.commit_and_follow(group_id, topic, 4, 9)
    assert [await a.positions(topic, 0), await a.positions(topic, 1)] == [{group_id: 4}, {group_id: 9}]
    await a.commit_and_follow(group_id, topic, 0, 6)
    assert [await a.positions(topic, 0), await a.positions(topic, 1)] == [{group_id: 0}, {group_id: 6}]
    assert await a.delete(group_id) == [0]
    assert [await a.positions(topic, 0), await a.positions(topic, 1)] == [{}, {}]
    assert await a.left(group_id) == []
    assert await a.delete(group_id) == [GROUP_ID_NOT_FOUND]


async def test_several_front_ends_agree_on_the_committed_offset(a: Side, b: Side) -> None:
    """Also where one commits what it committed before, and the other was there in between."""
    topic, group_id = await a.topic(), new_group()
    for side, offset in ((a, 3), (b, 6), (a, 3), (b, 9), (b, 6), (a, 3), (a, 6), (b, 6)):
        await side.commit_and_follow(group_id, topic, offset)
        assert await b.positions(topic) == {group_id: offset}


async def test_front_end_that_follows_late_moves_to_what_was_committed_last(a: Side, b: Side) -> None:
    topic, group_id = await a.topic(), new_group()
    await a.commit(group_id, topic, 3)
    await b.commit(group_id, topic, 6)
    await b.redis_groups.flush()
    await a.redis_groups.flush()
    assert await a.positions(topic) == {group_id: 6}


async def test_front_ends_that_follow_at_once_agree(a: Side, b: Side) -> None:
    topic, group_id = await a.topic(), new_group()
    for offset in range(1, 10):
        await a.commit(group_id, topic, offset - 1)
        await b.commit(group_id, topic, offset)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(a.redis_groups.flush)
            tasks.start_soon(b.redis_groups.flush)
        # What could not be settled between the two is looked at again, as the next second would.
        await a.redis_groups.flush()
        await b.redis_groups.flush()
        assert await a.positions(topic) == {group_id: offset}


async def test_position_that_stays_is_not_moved_to_again(a: Side, b: Side) -> None:
    """Clients that commit on a timer would otherwise cost a call for each partition."""
    topic, group_id = await a.topic(), new_group()
    await a.commit_and_follow(group_id, topic, 3)
    await a.move_by_hand(topic, group_id, 1)
    await a.commit_and_follow(group_id, topic, 3)
    assert await a.positions(topic) == {group_id: 1}
    await b.commit_and_follow(group_id, topic, 3)
    assert await a.positions(topic) == {group_id: 3}


async def test_commits_are_followed_by_the_task_and_what_is_left_at_the_end(a: Side) -> None:
    topic, group_id = await a.topic(), new_group()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(a.redis_groups.follow)
        for offset in (3, 6):
            await a.commit(group_id, topic, offset)
            with anyio.fail_after(10):
                while await a.positions(topic) != {group_id: offset}:
                    await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
    await a.commit(group_id, topic, 9)
    await a.redis_groups.drain()
    assert await a.positions(topic) == {group_id: 9}


async def test_group_that_was_deleted_before_it_is_followed_leaves_nothing(a: Side, b: Side) -> None:
    topic, group_id = await a.topic(), new_group()
    await a.commit(group_id, topic, 3)
    assert await b.delete(group_id) == [0]
    # As if the front-end had made it while the other deleted the group.
    await a.make_by_hand(topic, 0, group_id)
    await a.redis_groups.flush()
    assert await a.positions(topic) == {}
    assert await a.left(group_id) == []


async def test_group_that_is_made_again_while_its_former_self_is_detached_is_followed(
    a: Side, b: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, group_id = await a.topic(), new_group()
    await a.commit(group_id, topic, 3)
    assert await b.delete(group_id) == [0]
    detach_gone = a.redis_groups._detach_gone

    async def committing(units: Any) -> None:
        if units:
            await b.commit_and_follow(group_id, topic, 6)
        await detach_gone(units)

    monkeypatch.setattr(a.redis_groups, "_detach_gone", committing)
    await a.redis_groups.flush()
    await a.redis_groups.flush()
    assert await a.positions(topic) == {group_id: 6}


async def test_oldest_is_dropped_where_too_much_waits(a: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_groups, "MOST_PENDING", 2)
    topic, group_id = await a.topic(3), new_group()
    await a.commit_and_follow(group_id, topic, 3, 3, 3)
    assert [await a.positions(topic, index) for index in range(3)] == [{}, {group_id: 3}, {group_id: 3}]
    await a.commit_and_follow(group_id, topic, 6)
    assert await a.positions(topic, 0) == {group_id: 6}


async def test_more_places_than_are_followed_at_once(a: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (redis_groups, redis_group_units):
        monkeypatch.setattr(module, "AT_ONCE", 3)
    topic, groups = await a.topic(5), [new_group() for _ in range(4)]
    for offset in (3, 6):
        for group_id in groups:
            await a.commit(group_id, topic, *[offset] * 5)
        await a.redis_groups.flush()
        for index in range(5):
            assert await a.positions(topic, index) == dict.fromkeys(groups, offset)
    assert await a.delete(*groups) == [0] * 4
    assert [await a.positions(topic, index) for index in range(5)] == [{}] * 5


async def test_topic_made_again_under_a_group(a: Side) -> None:
    topic, group_id = await a.topic(), new_group()
    await a.commit_and_follow(group_id, topic, 3)
    assert await delete_topic(a.front.catalog, a.front.log, topic) == 0
    await a.redis_groups.flush()
    _, again = await create_topic(a.front.catalog, a.front.log, topic.name, 1, {})
    assert again is not None and again.id != topic.id
    await a.make_by_hand(again, 0, group_id)
    # The group was attached to the former topic only.
    assert await a.delete(group_id) == [0]
    assert await a.positions(again) == {group_id: 0}
    await a.commit_and_follow(group_id, again, 2)
    assert await a.positions(again) == {group_id: 2}
    assert await a.delete(group_id) == [0]
    assert await a.positions(again) == {}


async def test_who_follows_late_for_a_former_topic_leaves_the_present_one_attached(a: Side, b: Side) -> None:
    """So that what is made there goes with the group."""
    topic, group_id = await a.topic(), new_group()
    await a.commit(group_id, topic, 3)
    assert await delete_topic(a.front.catalog, a.front.log, topic) == 0
    _, again = await create_topic(a.front.catalog, a.front.log, topic.name, 1, {})
    assert again is not None and again.id != topic.id
    await b.commit_and_follow(group_id, again, 0)
    await a.redis_groups.flush()
    assert await b.delete(group_id) == [0]
    assert await b.positions(again) == {}


@pytest.fixture(params=KINDS)
async def durable(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Server, Side]]:
    """A server that keeps everything over a crash, and a front-end."""
    kind: Kind = request.param
    options: Mapping[str, str] = {"appendonly": "yes", "appendfsync": "always"}
    try:
        with running_server(kind, options=options) as server:
            async with front(server.url) as opened:
                yield server, Side(opened, await open_groups(opened, Outages(opened.store)))
    except ServerUnavailable as error:
        unavailable(error)


async def test_commit_is_followed_when_redis_is_there_again(durable: tuple[Server, Side]) -> None:
    server, side = durable
    topic, group_id = await side.topic(), new_group()
    await side.commit(group_id, topic, 3)
    server.kill()
    await until(lambda: not side.front.store.is_connected())
    await side.redis_groups.flush()
    assert not await side.fetched(topic, 3)
    server.start()
    await until(side.front.store.is_connected)
    await side.redis_groups.flush()
    assert await side.positions(topic) == {group_id: 3}


# ---------------------------------------------------------------------- the first Fetch


async def test_first_fetch_makes_the_group_from_whichever_front_end(a: Side, b: Side) -> None:
    topic = await a.topic(2)
    group_id, _ = await stable(a.groups)
    await a.note(group_id, topic, 0)
    assert await b.fetched(topic, 4) and await b.fetched(topic, 4, 1)
    assert [await b.positions(topic, 0), await b.positions(topic, 1)] == [{group_id: 4}, {}]
    assert await a.fetched(topic, 9)
    await b.redis_groups.flush()
    assert await a.positions(topic) == {group_id: 4}


async def test_first_fetch_of_a_group_that_committed_has_it_follow_the_commit(a: Side) -> None:
    topic, group_id = await a.topic(), new_group()
    await a.commit_and_follow(group_id, topic, 3)
    key = NAMESPACE.partition(topic.name, 0).log
    await a.front.store.call(Purpose.COORDINATE, key, "XGROUP", "DESTROY", key, group_id)
    await a.note(group_id, topic, 0)
    assert await a.fetched(topic, 6)
    assert await a.positions(topic) == {group_id: 6}
    await a.redis_groups.flush()
    assert await a.positions(topic) == {group_id: 3}


async def test_reader_of_several_groups_makes_none_until_one_commits(a: Side) -> None:
    topic = await a.topic()
    for group_id in ("g", "h"):
        await a.note(group_id, topic, 0)
    assert await a.fetched(topic, 3)
    await a.redis_groups.flush()
    assert await a.positions(topic) == {}
    await a.commit_and_follow("h", topic, 3)
    assert await a.positions(topic) == {"h": 3}
    assert await a.delete("h") == [0]


async def test_first_fetch_for_a_group_that_is_gone_makes_nothing(a: Side) -> None:
    topic = await a.topic()
    await a.note(new_group(), topic, 0)
    assert await a.fetched(topic, 3)
    assert await a.positions(topic) == {}


async def test_fetch_whose_client_leaves_makes_nothing_that_stays_for_a_group_that_goes(
    a: Side, b: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, group_id = await a.topic(), new_group()
    await a.commit_and_follow(group_id, topic, 3)
    await a.note(group_id, topic, 0)
    await b.front.catalog.refresh()
    call, leaving = b.redis_groups._call, anyio.CancelScope()

    async def attach(*args: Any) -> Any:
        assert await a.delete(group_id) == [0]
        attached = call(*args)
        leaving.cancel()
        return await attached

    def calling(function: str, *args: Any) -> Any:
        return attach(function, *args) if function == "korvet_log_attach" else call(function, *args)

    with monkeypatch.context() as patch, leaving:
        patch.setattr(b.redis_groups, "_call", calling)
        await b.fetched(topic, 3)
    await b.redis_groups.flush()
    assert await a.positions(topic) == {}


async def test_fetch_that_is_told_to_read_elsewhere_is_seen_to_again(a: Side) -> None:
    topic = await a.topic()
    group_id, _ = await stable(a.groups)
    await a.note(group_id, topic, 0)
    assert not await a.fetched(topic, 10)
    assert await a.positions(topic) == {}
    assert await a.fetched(topic, 9)
    assert await a.positions(topic) == {group_id: 9}


async def test_failure_of_redis_is_no_failure_of_a_fetch_or_a_sync(a: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    """It rests a while after it, and is tried again later."""
    topic = await a.topic()
    group_id, _ = await stable(a.groups)
    key = NAMESPACE.reader("client", "host")
    await a.call(key, "SET", "mine")
    await a.note(group_id, topic, 0)
    assert not await a.fetched(topic, 3)
    await a.call(key, "DEL")
    await a.note(group_id, topic, 0)
    assert not await a.fetched(topic, 3)
    monkeypatch.setattr(a.redis_groups, "_rests_until", 0.0)
    assert await a.fetched(topic, 3)
    assert await a.positions(topic) == {group_id: 3}


# ---------------------------------------------------------------------- the end of groups


async def test_only_what_the_group_read_is_destroyed(a: Side) -> None:
    topic, group_id = await a.topic(3), new_group()
    await a.make_by_hand(topic, 0, "users-own")
    await a.make_by_hand(topic, 2, group_id)
    await a.commit_and_follow(group_id, topic, 3, 6)
    assert await a.delete(group_id) == [0]
    left = [await a.positions(topic, index) for index in range(3)]
    assert left == [{"users-own": 0}, {}, {group_id: 0}]


async def test_groups_are_deleted_together_each_with_its_own_outcome(a: Side, b: Side) -> None:
    topic = await a.topic()
    groups = [new_group() for _ in range(50)]
    for group_id in groups:
        await a.commit(group_id, topic, 3)
    await a.redis_groups.flush()
    living, _ = await stable(a.groups)
    broken = new_group()
    await a.commit_and_follow(broken, topic, 3)
    attached = NAMESPACE.attached_group(broken).attached
    await a.call(attached, "DEL")
    await a.call(attached, "SET", "mine")
    outcomes = await b.delete("unknown", *groups, living, broken)
    assert outcomes[:-1] == [GROUP_ID_NOT_FOUND, *[0] * 50, NON_EMPTY_GROUP]
    assert isinstance(outcomes[-1], StoreError) and "WRONGTYPE" in str(outcomes[-1])
    assert await a.positions(topic) == {broken: 3}
    await a.call(attached, "DEL")
    await a.commit_and_follow(broken, topic, 6)
    assert await a.delete(broken) == [0]
    assert await a.positions(topic) == {}


async def test_deletion_that_broke_off_anywhere_is_done_again(a: Side, b: Side) -> None:
    """The steps are: ask what is attached, detach each, delete the group, take it out of the index."""
    topic = await a.topic(2)
    for steps in range(4):
        group_id = new_group()
        keys = NAMESPACE.attached_group(group_id)
        await a.commit_and_follow(group_id, topic, 3, 3)
        for index in range(min(steps, 2)):
            partition = NAMESPACE.partition(topic.name, index)
            detached = a.front.store.fcall(Purpose.COORDINATE, "korvet_log_detach", partition, topic.id.hex, group_id)
            assert await detached == [0]
        if steps == 3:
            places = [part for index in range(2) for part in (f"{topic.name}:{index}", topic.id.hex)]
            deleted = a.front.store.fcall(Purpose.COORDINATE, "korvet_group_delete", keys, "", "any", *places)
            assert await deleted == 0
        assert await b.delete(group_id) == [GROUP_ID_NOT_FOUND if steps == 3 else 0]
        assert [await a.positions(topic, 0), await a.positions(topic, 1)] == [{}, {}]
        assert await a.left(group_id) == []
        assert [listed.group_id for listed in await a.groups.list()] == []


async def test_group_that_lives_on_gets_its_redis_groups_back(a: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a member joins between the steps of a deletion."""
    topic, group_id = await a.topic(), new_group()
    await a.commit_and_follow(group_id, topic, 3)
    detach_all = a.redis_groups._detach_all

    async def joining(attached: Any) -> Any:
        failures = await detach_all(attached)
        await a.call(NAMESPACE.group(group_id).group, "HSET", "state", "Stable", "generation", 1)
        return failures

    monkeypatch.setattr(a.redis_groups, "_detach_all", joining)
    assert await a.delete(group_id) == [NON_EMPTY_GROUP]
    assert await a.positions(topic) == {}
    await a.redis_groups.flush()
    assert await a.positions(topic) == {group_id: 3}


async def test_group_that_is_attached_further_during_its_deletion_goes_all_the_same(
    a: Side, b: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, group_id = await a.topic(2), new_group()
    await a.commit_and_follow(group_id, topic, 3)
    detach_all = a.redis_groups._detach_all
    turns = iter([True])

    async def committing(attached: Any) -> Any:
        failures = await detach_all(attached)
        if next(turns, False):
            await b.commit_and_follow(group_id, topic, 3, 6)
        return failures

    monkeypatch.setattr(a.redis_groups, "_detach_all", committing)
    assert await a.delete(group_id) == [0]
    assert [await a.positions(topic, 0), await a.positions(topic, 1)] == [{}, {}]
    assert await a.left(group_id) == []


async def test_group_that_is_made_again_during_its_deletion_is_listed_though_who_deletes_leaves(
    a: Side, b: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, group_id = await a.topic(), new_group()
    await a.commit_and_follow(group_id, topic, 3)
    await b.front.catalog.refresh()
    call, leaving = a.front.store.call, anyio.CancelScope()

    async def committing(purpose: Purpose, key: str, *command: Any) -> Any:
        if command[0] == "SREM":
            await b.commit(group_id, topic, 3)
        reply = await call(purpose, key, *command)
        leaving.cancel()
        return reply

    with monkeypatch.context() as patch, leaving:
        patch.setattr(a.front.store, "call", committing)
        await a.delete(group_id)
    assert [listed.group_id for listed in await b.groups.list()] == [group_id]


async def test_what_expired_is_detached_before_its_remains_go(a: Side, b: Side) -> None:
    topic, group_id = await a.topic(), new_group()
    await a.commit_and_follow(group_id, topic, 3)
    await a.call(NAMESPACE.group(group_id).group, "HSET", "expires_at", 1)
    await b.groups.tend(group_id)
    assert await a.positions(topic) == {}
    assert await a.left(group_id) == []
    index = NAMESPACE.group_index_of(group_id)
    assert await a.call(index, "SISMEMBER", group_id) == 0


async def test_deleted_topic_is_no_hindrance(a: Side) -> None:
    topic, group_id = await a.topic(), new_group()
    await a.commit_and_follow(group_id, topic, 3)
    assert await delete_topic(a.front.catalog, a.front.log, topic) == 0
    assert await a.delete(group_id) == [0]
    assert await a.left(group_id) == []
