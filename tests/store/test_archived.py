"""Topics with korvet.retention=archived: only archived records go, even if Redis forgets writes meanwhile."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import anyio
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from korvet.redis.client import Purpose
from korvet.store.background import archive_follower
from korvet.store.background.archive_follower import ArchiveFollower
from korvet.store.background.compaction.due import Compaction, compaction_of
from korvet.store.background.compaction.run import compact
from korvet.store.background.retention import enforce_settings, time_ms
from korvet.store.catalog.settings import ConfigChange
from korvet.store.catalog.topic import Topic
from korvet.store.groups.archived import ARCHIVE_GROUP, archived_end
from korvet.store.groups.groups import Groups
from korvet.store.groups.types import CommitRequest, Offset
from korvet.store.log.state.epochs import parse_epochs
from korvet.store.log.state.partition import Meta, Partition
from korvet.store.outages import Outages
from korvet.store.topics import create_topic, delete_topic
from tests.api.raw import unique
from tests.store.keyed import Read, keyed, records
from tests.store.logs import NAMESPACE, Front, batch, until

pytestmark = pytest.mark.anyio
NOTHING_KEPT = {"korvet.retention": "archived", "retention.bytes": "0"}


def offset(at: int, epoch: int, topic: Topic | None = None) -> Offset:
    return Offset(at, epoch, topic.id if topic else uuid4(), "")


@pytest.mark.parametrize(
    ("epochs", "committed", "end"),
    [
        (b"0:0", offset(7, 0), 7),
        (b"0:0", offset(30, 0), 20),
        (b"0:0,4:8", offset(7, 0), 7),
        # Redis lost the records from 8 on that were archived, and other records have their offsets.
        (b"0:0,4:8", offset(15, 0), 8),
        (b"0:0,4:8", offset(15, 4), 15),
        (b"0:0,4:8,9:17", offset(19, 0), 8),
        (b"0:0,4:8,9:17", offset(19, 4), 17),
        # Redis lost the epoch itself, so the start of the epoch is unknown.
        (b"0:0,4:8,9:17", offset(19, 3), 2),
        (b"0:0,4:8,9:17", offset(19, 10), 2),
        (b"4:2", offset(15, 0), 2),
        # A commit without an epoch may belong to any history.
        (b"0:0", offset(15, -1), 2),
        (b"0:0", None, 2),
        (b"0:0", offset(1, 0), 2),
        (b"", offset(15, 0), 2),
    ],
)
def test_archived_end_is_the_offset_committed_in_this_history(
    epochs: bytes, committed: Offset | None, end: int
) -> None:
    meta = Meta(start=2, end=20, epoch=9, epochs=epochs, stable=20, last_aborted=-1, cleaned=-1)
    assert archived_end(meta, committed) == end


class Archive:
    """A front-end with groups, a topic of one partition, and the follower that acts on commits."""

    def __init__(self, one: Front, topic: Topic) -> None:
        self.front = one
        self.topic = topic
        self.groups = Groups(NAMESPACE, one.store, one.catalog, one.wakeups, Outages(one.store), one.log)
        self.follower = ArchiveFollower(NAMESPACE, one.catalog, one.log)
        self.groups.offsets.on_commit(ARCHIVE_GROUP, self.follower.committed)

    @property
    def partition(self) -> Partition:
        topic = self.front.catalog.topic_by_id(self.topic.id)
        assert topic is not None
        return self.front.log.partition(topic, 0)

    async def commit(self, *offsets: Offset) -> None:
        request = CommitRequest(
            group_id=ARCHIVE_GROUP, member_id="", instance_id=None, generation=-1, version=9,
            offsets=[((self.topic.name, 0), one) for one in offsets],
        )  # fmt: skip
        assert await self.groups.offsets.commit(request) == 0

    async def enforce(self) -> int:
        """Run retention as the sweep does for each partition; returns the log's start."""
        now_ms = await time_ms(NAMESPACE, self.front.log)
        await enforce_settings(NAMESPACE, self.front.catalog, self.front.log, self.topic, 0, now_ms)
        return (await self.meta()).start

    async def meta(self) -> Meta:
        meta = await self.front.log.meta(self.partition)
        assert meta is not None
        return meta

    async def configure(self, **configs: str) -> None:
        change = ConfigChange(set={name.replace("_", "."): value for name, value in configs.items()})
        assert await self.front.catalog.configure(self.topic, change) == 0

    async def append(self, *batches: bytes) -> None:
        for one in batches:
            assert (await self.front.append(self.partition, one))[0] == 0

    async def read(self) -> list[Read]:
        """All records in the log, read from Redis."""
        meta = await self.meta()
        self.front.log.cache.clear()
        self.front.log.forget()
        found = await self.front.read(self.partition, meta.start)
        assert found.code == 0
        return [record for record in records(found) if record[0] >= meta.start]


async def archive(one: Front, name: str = "", **configs: str) -> Archive:
    own = {**NOTHING_KEPT, **{name.replace("_", "."): value for name, value in configs.items()}}
    _, topic = await create_topic(one.catalog, one.log, name or unique(), 1, own)
    assert topic is not None
    return Archive(one, topic)


async def test_limits_remove_only_archived_records(one: Front) -> None:
    at = await archive(one)
    await at.append(batch(3), batch(3), batch(3))
    assert await at.enforce() == 0
    await at.commit(offset(3, 0, at.topic))
    assert await at.enforce() == 3
    # The committed offset is in the middle of a batch: the start moves there, and the batch stays.
    await at.commit(offset(5, 0, at.topic))
    assert await at.enforce() == 5
    assert [record[0] for record in await at.read()] == [5, 6, 7, 8]
    await at.commit(offset(2, 0, at.topic))
    assert await at.enforce() == 5
    await at.configure(retention_bytes="-1", retention_ms="-1")
    await at.commit(offset(9, 0, at.topic))
    assert await at.enforce() == 5
    await at.configure(korvet_retention="limits", retention_bytes="0")
    assert await at.enforce() == 9


async def test_commit_without_an_epoch_or_since_deleted_removes_nothing(one: Front) -> None:
    at = await archive(one)
    await at.append(batch(3), batch(3))
    await at.commit(offset(6, -1, at.topic))
    assert await at.enforce() == 0
    await at.commit(offset(6, 0, at.topic))
    assert await at.groups.administration.delete([ARCHIVE_GROUP]) == [0]
    assert await at.enforce() == 0
    await at.commit(offset(3, 0, at.topic))
    assert await at.groups.offsets.delete(ARCHIVE_GROUP, [((at.topic.name, 0), at.topic.id.hex)]) == (0, [0])
    assert await at.enforce() == 0


async def test_topic_that_is_made_anew_is_not_archived(one: Front) -> None:
    former = await archive(one)
    await former.append(batch(3))
    await former.commit(offset(3, 0, former.topic))
    assert await delete_topic(one.catalog, one.log, former.topic) == 0
    at = await archive(one, former.topic.name)
    await at.append(batch(3))
    assert await at.enforce() == 0
    await at.commit(offset(3, 0, at.topic))
    assert await at.enforce() == 3


async def test_front_end_that_takes_the_archives_commit_follows_it(
    one: Front, other: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The follower takes topics that ask for it, and each partition once, even if it was committed several times."""
    at, plain = await archive(one), await archive(one, korvet_retention="limits")
    await other.catalog.refresh()
    elsewhere = Archive(other, at.topic)
    await at.append(batch(3), batch(3))
    await elsewhere.commit(offset(3, 0, at.topic))
    await elsewhere.commit(offset(6, 0, at.topic))
    await Archive(one, plain.topic).commit(offset(0, 0, plain.topic))
    assert list(at.follower._pending) == []
    assert list(elsewhere.follower._pending) == [(at.topic.name, 0)]
    await elsewhere.follower.flush()
    assert (await at.meta()).start == 6
    monkeypatch.setattr(archive_follower, "MOST_PENDING", 1)
    elsewhere.follower.committed([(at.topic.name, 0), (at.topic.name, 1), ("not a topic", 0)])
    assert list(elsewhere.follower._pending) == [(at.topic.name, 1)]
    await elsewhere.follower.flush()
    assert elsewhere.follower._pending == {}


async def test_archives_commit_in_a_transaction_is_followed(one: Front) -> None:
    at = await archive(one)
    await at.append(batch(3))
    request = CommitRequest(
        group_id=ARCHIVE_GROUP, member_id="", instance_id=None, generation=-1, version=5,
        offsets=[((at.topic.name, 0), offset(3, 0, at.topic))],
    )  # fmt: skip
    assert await at.groups.held_offsets.hold(request, "archive", 77, 0, 1) == 0
    assert await at.enforce() == 0
    await at.groups.held_offsets.release(ARCHIVE_GROUP, 77, 1, is_commit=True)
    await at.follower.flush()
    assert (await at.meta()).start == 3


async def test_history_that_begins_before_the_trim_is_not_trimmed(one: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    at = await archive(one)
    await at.append(batch(3), batch(3))
    await at.commit(offset(6, 0, at.topic))
    call = one.store.fcall
    is_lost = False

    def fcall(purpose: Purpose, function: str, *args: Any) -> Any:
        nonlocal is_lost
        if function == "korvet_log_trim" and not is_lost:
            is_lost = True
            one.store.call(Purpose.APPEND, at.partition.keys.meta, "HSET", at.partition.keys.meta, "run_id", "former")
            call(purpose, "korvet_log_take_over", at.partition.keys, at.partition.topic_id, "another")
        return call(purpose, function, *args)

    monkeypatch.setattr(one.store, "fcall", fcall)
    assert await at.enforce() == 0
    assert is_lost
    assert await at.enforce() == 6


async def test_archived_topic_is_not_compacted_though_others_are_by_default(one: Front) -> None:
    at = await archive(one)
    now_ms = 1_700_000_000_000
    await at.append(*[keyed((b"key", b"%d" % number)) for number in range(5)])
    await one.catalog.configure_cluster(ConfigChange(set={"log.cleanup.policy": "compact"}))
    try:
        assert compaction_of(one.catalog, at.topic) is None
        await at.configure(korvet_retention="limits")
        topic = one.catalog.topic_by_id(at.topic.id)
        assert topic is not None
        assert compaction_of(one.catalog, topic) is not None
    finally:
        await one.catalog.configure_cluster(ConfigChange(set={}, replace=True))
    # A run that began before the setting was made does not finish.
    rules = Compaction(min_lag_ms=0, max_lag_ms=2**62, min_dirty_ratio=0, delete_retention_ms=1000)
    await at.configure(korvet_retention="archived")
    assert not await compact(one.log, at.partition, rules, now_ms)
    assert len(await at.read()) == 5
    await at.configure(korvet_retention="limits")
    assert await compact(one.log, at.partition, rules, now_ms)
    assert len(await at.read()) == 2


async def test_commit_of_the_archive_is_followed_soon(one: Front) -> None:
    at = await archive(one)
    await at.append(batch(3))
    start = 0

    async def look() -> None:
        nonlocal start
        while start == 0:
            start = (await at.meta()).start
            await anyio.sleep(0.01)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(at.follower.follow)
        tasks.start_soon(look)
        await at.commit(offset(3, 0, at.topic))
        await until(lambda: start > 0, 30)
        tasks.cancel_scope.cancel()
    assert start == 3


# ---------------------------------------------------------------------- a model

STEPS = st.lists(
    st.tuples(st.just("append"), st.integers(1, 4))
    | st.tuples(st.just("archive"), st.integers(0, 6))
    | st.tuples(st.just("report"), st.booleans())
    | st.tuples(st.just("lose"), st.integers(0, 3))
    | st.tuples(st.sampled_from(["remember", "enforce", "forget"]), st.none()),
    max_size=30,
)


class Scene:
    """A topic whose limits keep nothing, its archive, and a Redis that may forget acknowledged writes.

    The lake holds records by offset and value, of any history: an archive learns late that Redis lost one.
    """

    def __init__(self, at: Archive, dumps: dict[str, bytes]) -> None:
        self.at = at
        self.dumps = [dumps]
        self.lake: set[Read] = set()
        self.proven: Offset | None = None
        self.produced = 0

    async def append(self, count: int) -> None:
        for _ in range(count):
            await self.at.append(keyed((b"key", b"%d" % self.produced)))
            self.produced += 1

    async def archive(self, left_out: int) -> None:
        """Copy all but the last records. The proven offset comes next, with the epoch of the last copied record."""
        meta, read = await self.at.meta(), await self.at.read()
        taken = read[: len(read) - left_out]
        self.lake.update(taken)
        if taken:
            last = taken[-1][0]
            epoch = max(epoch for epoch, first in parse_epochs(meta.epochs) if first <= last)
            self.proven = offset(last + 1, epoch, self.at.topic)

    async def report(self, with_epoch: bool) -> None:
        if self.proven is not None:
            await self.at.commit(self.proven if with_epoch else self.proven._replace(leader_epoch=-1))

    async def forget(self, _: None) -> None:
        await self.at.groups.administration.delete([ARCHIVE_GROUP])

    async def remember(self, _: None) -> None:
        self.dumps.append(await dumped(self.at))

    async def lose(self, newer: int) -> None:
        """Restore the dump before the last ``newer`` ones, as the state of a server with another history."""
        store, meta, newest = self.at.front.store, self.at.partition.keys.meta, (await self.at.meta()).epoch
        for key, value in self.dumps[-1 - min(newer, len(self.dumps) - 1)].items():
            await store.call(Purpose.APPEND, key, "RESTORE", key, 0, value, "REPLACE")
        await store.call(Purpose.APPEND, meta, "HSET", meta, "run_id", "former", "epoch", newest)
        self.at.front.log.forget()

    async def enforce(self, _: None) -> None:
        before = await self.at.read()
        start = await self.at.enforce()
        assert {record for record in before if record[0] < start} <= self.lake


async def dumped(at: Archive) -> dict[str, bytes]:
    store = at.front.store
    return {key: await store.call(Purpose.APPEND, key, "DUMP", key) for key in at.partition.transaction_keys}


def steps_of(text: str) -> list[tuple[str, Any]]:
    steps = {
        "append": ("append", 4),
        "archive": ("archive", 0),
        "report": ("report", True),
        "blindly": ("report", False),
        "lose": ("lose", 0),
        "lose-more": ("lose", 1),
    }
    return [steps.get(step, (step, None)) for step in text.split()]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@example(steps_of("append remember append archive lose append report enforce"))
@example(steps_of("append remember append archive lose append blindly enforce"))
@example(steps_of("append archive report enforce remember append archive lose append report enforce"))
@example(steps_of("append remember append archive lose append remember lose append report enforce"))
@example(steps_of("append remember append remember lose-more append archive report lose enforce"))
@given(steps=STEPS)
async def test_retention_removes_only_records_in_the_lake(one: Front, steps: list[tuple[str, Any]]) -> None:
    at = await archive(one)
    scene = Scene(at, await dumped(at))
    for step, how in steps:
        await getattr(scene, step)(how)
    await scene.archive(0)
    if await at.read():
        await scene.report(True)
        assert await at.enforce() == (await at.meta()).end
