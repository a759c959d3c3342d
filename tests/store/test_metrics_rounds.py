"""Figures of topics, groups and transactions, read from Redis in rounds."""

from __future__ import annotations

from uuid import UUID

import pytest

from korvet.metrics.rounds.pace import Bounded
from korvet.metrics.rounds.partitions import Seen
from korvet.metrics.rounds.round import OpenTransactions, Watched, sample
from korvet.metrics.samples import Samples, Value
from korvet.redis.client import Purpose
from korvet.store.catalog.topic import Topic
from korvet.store.groups.groups import Groups
from korvet.store.groups.types import CommitRequest, Offset
from korvet.store.log.state.partition import Meta
from korvet.store.outages import Outages
from korvet.store.topics import delete_topic
from korvet.store.transactions.transactions import Transactions
from tests.store.groups import open_groups, stable
from tests.store.logs import NAMESPACE, Front, batch

pytestmark = pytest.mark.anyio
PLENTY = 100_000


@pytest.fixture
async def groups(one: Front) -> Groups:
    return await open_groups(one, Outages(one.store))


def watched(one: Front, groups: Groups) -> Watched:
    return Watched(namespace=NAMESPACE, store=one.store, catalog=one.catalog, log=one.log, groups=groups)


def value(samples: Samples, name: str, *labels: str) -> Value | None:
    return samples.values.get(f"korvet_{name}", {}).get((NAMESPACE.name, *labels))


async def commit(groups: Groups, group_id: str, topic: Topic, index: int, offset: int, epoch: int = 0) -> None:
    committed = Offset(offset, epoch, topic.id, "")
    request = CommitRequest(group_id, "", None, -1, 9, [((topic.name, index), committed)])
    assert await groups.offsets.commit(request) == 0


async def test_a_round_exports_offsets_sizes_and_lags(one: Front, groups: Groups) -> None:
    topic = await one.topic(2)
    data = batch(3)
    for _ in range(4):
        await one.append(one.log.partition(topic, 1), data)
    await one.log.trim(one.log.partition(topic, 1), 6)
    await commit(groups, "g", topic, 0, 0)
    await commit(groups, "g", topic, 1, 7)
    seen = watched(one, groups)
    samples = await sample(seen, PLENTY)
    told = seen.lags.of_group(NAMESPACE.name, "g")
    assert told is not None
    assert told["topics"] == {topic.name: [5]}
    place = topic.name, "1"
    assert value(samples, "topics") == 1
    assert value(samples, "partitions") == 2
    assert value(samples, "partition_start_offset", *place) == 6
    assert value(samples, "partition_end_offset", *place) == 12
    assert value(samples, "partition_size_bytes", *place) == 2 * len(data)
    assert value(samples, "partition_appended_bytes_total", *place) == 4 * len(data)
    assert value(samples, "partition_leader_epochs", *place) == 1
    assert value(samples, "group_offset", "g", *place) == 7
    assert value(samples, "group_lag", "g", *place) == 5
    assert value(samples, "group_lag", "g", topic.name, "0") == 0
    assert value(samples, "metrics_unreadable") == 0


async def test_offsets_far_below_zero_hide_no_figures(one: Front, groups: Groups) -> None:
    """Attack: a group's lags are together larger than an int64."""
    topic = await one.topic(2)
    for index in range(2):
        await commit(groups, "far", topic, index, -(2**63))
    await commit(groups, "near", topic, 0, 0)
    seen = watched(one, groups)
    samples = await sample(seen, PLENTY)
    assert value(samples, "group_lag", "far", topic.name, "1") == 2**63
    assert value(samples, "group_lag", "near", topic.name, "0") == 0
    far, near = (seen.lags.of_group(NAMESPACE.name, group) for group in ("far", "near"))
    assert far is not None and far["topics"] == {topic.name: [2**63 - 1]}
    assert near is not None and near["topics"] == {topic.name: [0]}


async def test_groups_are_exported_with_their_states(one: Front, groups: Groups) -> None:
    group_id, _ = await stable(groups)
    topic = await one.topic()
    await commit(groups, "of-nobody", topic, 0, 0)
    samples = await sample(watched(one, groups), PLENTY)
    assert value(samples, "group_members", group_id, "classic", "Stable") == 1
    assert value(samples, "group_members", "of-nobody", "classic", "Empty") == 0
    assert value(samples, "groups", "classic", "Stable") == 1
    assert value(samples, "groups", "classic", "Empty") == 1


async def test_share_groups_are_exported_with_their_starts_and_lags(one: Front, groups: Groups) -> None:
    topic = await one.topic(2)
    for _ in range(4):
        await one.append(one.log.partition(topic, 1), batch(3))
    assert not isinstance(await groups.shares.move("g", [(topic, {0: 0, 1: 5})]), int)
    seen = watched(one, groups)
    await groups.consumers._catalog.refresh()
    samples = await sample(seen, PLENTY)
    assert value(samples, "groups", "share", "Empty") == 1
    assert [value(samples, "group_offset", "g", topic.name, index) for index in "01"] == [0, 5]
    assert [value(samples, "group_lag", "g", topic.name, index) for index in "01"] == [0, 7]
    told = seen.lags.of_group(NAMESPACE.name, "g")
    assert told is not None
    assert told["topics"] == {topic.name: [7]}


async def test_an_offset_of_a_deleted_topic_has_no_lag(one: Front, groups: Groups) -> None:
    topic = await one.topic()
    await commit(groups, "g", topic, 0, 0)
    await delete_topic(one.catalog, one.log, topic)
    samples = await sample(watched(one, groups), PLENTY)
    assert "korvet_group_lag" not in samples.values
    assert value(samples, "topics") == 0


async def test_what_cannot_be_read_keeps_nothing_else_from_export(one: Front, groups: Groups) -> None:
    broken, odd, whole = await one.topic(), await one.topic(), await one.topic()
    key = one.log.partition(broken, 0).keys.meta
    await one.store.call(Purpose.COORDINATE, key, "DEL", key)
    await one.store.call(Purpose.COORDINATE, key, "SET", key, "x", "PX", 60_000)
    odd_key = one.log.partition(odd, 0).keys.meta
    await one.store.call(Purpose.COORDINATE, odd_key, "HSET", odd_key, "totals", "nonsense")
    group_key = NAMESPACE.group("broken").group
    await groups.index.add("broken")
    await one.store.call(Purpose.COORDINATE, group_key, "SET", group_key, "x", "PX", 60_000)
    samples = await sample(watched(one, groups), PLENTY)
    assert value(samples, "partition_end_offset", whole.name, "0") == 0
    assert value(samples, "partition_end_offset", broken.name, "0") is None
    assert value(samples, "partition_end_offset", odd.name, "0") is None
    assert value(samples, "metrics_unreadable") == 4, "two partitions, the group's state and its offsets"


async def test_the_archive_lacks_what_it_did_not_commit_in_this_history(one: Front, groups: Groups) -> None:
    topic = await one.topic(2)
    for index in (0, 1):
        await one.append(one.log.partition(topic, index), batch(2))
    await commit(groups, "korvet.archive", topic, 0, 1)
    await commit(groups, "korvet.archive", topic, 1, 1, epoch=-1)
    samples = await sample(watched(one, groups), PLENTY)
    assert value(samples, "archive_lag", topic.name, "0") == 1
    assert value(samples, "archive_lag", topic.name, "1") == 2


async def test_transactional_ids_are_counted_by_state(one: Front, groups: Groups) -> None:
    transactions = Transactions(NAMESPACE, one.store, one.catalog, one.log, groups)
    for number in range(30):
        assert (await transactions.init(f"id-{number}", 60_000, -1, -1)).code == 0
    samples = await sample(watched(one, groups), PLENTY)
    assert value(samples, "transactional_ids", "Empty") == 30


async def test_series_beyond_the_bound_are_logged_and_not_exported(one: Front, groups: Groups) -> None:
    await one.topic(100)
    samples = await sample(watched(one, groups), 50)
    told = sum(len(values) for name, values in samples.values.items() if name.startswith("korvet_partition_"))
    dropped = samples.values["korvet_metrics_series_dropped"]
    assert told == 50
    assert value(samples, "partitions") == 100
    assert sum(float(count) for count in dropped.values() if not isinstance(count, list)) == 500 - told
    assert dropped[NAMESPACE.name, "korvet_partition_end_offset"] == 90


def test_long_names_count_for_several_series() -> None:
    samples = Bounded(10)
    for number in range(10):
        samples.set("korvet_group_lag", 1, "n", "g" * 400, "t", str(number))
    assert (samples.count, samples.dropped["korvet_group_lag"]) == (3, 7)


def test_an_open_transaction_is_exported_with_the_time_since_it_was_seen() -> None:
    opened, place = OpenTransactions(), ("t", 0)

    def told(first_open: int, now: float) -> object:
        samples = Samples()
        seen = Seen(UUID(int=1).hex, Meta(0, 10, 0, b"0:0", 5, -1, -1), first_open)
        opened.note(NAMESPACE.name, {place: seen}, now, samples)
        return value(samples, "partition_open_transaction_seconds", "t", "0")

    assert told(-1, 0) is None
    assert told(5, 100) == 0
    assert told(5, 160) == 60
    assert told(7, 170) == 0, "another one is the oldest now"
    assert told(-1, 180) is None
