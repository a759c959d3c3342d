"""Logs of records under compaction, retention and loss: the rules for batches of one record hold for them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any

import pytest

from korvet.errors import SlotMoving
from korvet.redis.client import Argument, Purpose
from korvet.store.background.compaction.due import Compaction
from korvet.store.background.compaction.run import compact
from korvet.store.background.record_inlets import RecordInlets
from korvet.store.background.retention import Retention, enforce
from korvet.store.catalog.settings import ConfigChange
from korvet.store.log.appending.markers import Ending
from korvet.store.log.memory.budget import SLICE_BYTES
from korvet.store.log.state.partition import Partition
from korvet.store.topics import create_topic
from korvet.wire.record_entries import arguments, split
from tests.store.logs import NAMESPACE, Front
from tests.store.test_log_transactions import Coordinator
from tests.wire.whole import Placed, Whole, built, read

pytestmark = pytest.mark.anyio
NOW_MS = 1_700_000_000_000
ALWAYS = Compaction(min_lag_ms=0, max_lag_ms=2**62, min_dirty_ratio=0, delete_retention_ms=1000)
HEADERS = (("h", None), ("h", b"x"))


async def partition_of(front: Front, name: str, **configs: str) -> Partition:
    settings = {key.replace("_", "."): value for key, value in configs.items()}
    _, topic = await create_topic(front.catalog, front.log, name, 1, settings)
    assert topic is not None
    return front.log.partition(topic, 0)


async def append(front: Front, partition: Partition, *records: Whole, is_record: bool, **values: Any) -> None:
    batch, data = built(*records, **values)
    entries = arguments(batch, split(batch, data, is_json=False)) if is_record else None
    member = Coordinator(7) if batch.is_transactional else None
    assert (await front.log.append(partition, batch, data, member, entries)).code == 0


async def all_records(front: Front, partition: Partition) -> list[Placed]:
    """The records that a consumer gets from Redis."""
    front.log.cache.clear()
    front.log.forget()
    found = await front.read(partition, 0)
    return [one for one in read(b"".join(found.records)) if not one.attributes & 0x20]


async def described(front: Front, partition: Partition) -> tuple[int, int]:
    """The counts of batches and bytes."""
    reply = await front.store.fcall(Purpose.READ, "korvet_log_describe", (partition.keys.log, partition.keys.meta))
    return reply[reply.index(b"batches") + 1], reply[reply.index(b"bytes") + 1]


async def kinds(front: Front, partition: Partition) -> str:
    """The third field of every entry."""
    name = partition.keys.log
    entries = await front.store.call(Purpose.READ, name, "XRANGE", name, "-", "+")
    return "".join(fields[2].decode() for _, fields in entries)


async def test_compaction_leaves_the_same_records_as_in_a_topic_of_batches(one: Front) -> None:
    logs = [await partition_of(one, name) for name in ("of-batches", "of-records")]
    for is_record, partition in enumerate(logs):
        send = [
            Whole(b"a", b"1", HEADERS, NOW_MS), Whole(b"b", b"1", (), NOW_MS + 1), Whole(b"c", None, (), NOW_MS + 2),
            Whole(b"a", b"2", HEADERS, NOW_MS + 3), Whole(b"d", b"", (), NOW_MS + 4), Whole(b"b", b"2" * 9000),
        ]  # fmt: skip
        for record in send:
            await append(one, partition, record, is_record=bool(is_record))
        for sequence, key in enumerate((b"e", b"d")):
            await append(
                one, partition, Whole(key), is_record=bool(is_record), producer=(5, 0, sequence), attributes=0x10
            )
        assert await one.log.mark(partition, Ending(7, 5, 0, is_commit=False)) == 0
        await append(
            one, partition, Whole(b"last"), Whole(b"last"), is_record=bool(is_record), producer=(6, 0, 2**31 - 1)
        )
    batches, records = logs
    before = await all_records(one, batches)
    assert await all_records(one, records) == before
    for at_ms, left in ((NOW_MS, "cadblast"), (NOW_MS + 999, "cadblast"), (NOW_MS + 1001, "adblast")):
        for partition in logs:
            await append(one, partition, Whole(b"last"), is_record=partition is records)
            assert await compact(one.log, partition, ALWAYS, at_ms)
        found = await all_records(one, batches)
        kept = [one.record.key or b"" for one in found]
        assert b"".join(dict.fromkeys(kept)).decode() == left
        assert [one for one in await all_records(one, records) if one.record.key != b"last"] == [
            one for one in found if one.record.key != b"last"
        ]
        count, size = await described(one, records)
        assert (count, size) == await _counted(one, records)
    assert set(await kinds(one, records)) == {"r", "b"}
    assert (await kinds(one, records)).startswith("rrr")


async def _counted(front: Front, partition: Partition) -> tuple[int, int]:
    name = partition.keys.log
    entries = await front.store.call(Purpose.READ, name, "XRANGE", name, "-", "+")
    return len(entries), sum(int(fields[1].split()[1]) for _, fields in entries)


async def test_retention_by_size_counts_the_bytes_of_records(one: Front) -> None:
    partition = await partition_of(one, "kept")
    sent = [Whole(b"%d" % offset, b"v" * 100, timestamp=NOW_MS + offset) for offset in range(300)]
    await append(one, partition, *sent, is_record=True)
    size = len(built(sent[-1])[1])
    await enforce(one.log, partition, Retention(ms=-1, bytes=50 * size), NOW_MS)
    assert [found.record for found in await all_records_from(one, partition)] == sent[-50:]
    await enforce(one.log, partition, Retention(ms=10, bytes=-1), NOW_MS + 300)
    assert [found.record for found in await all_records_from(one, partition)] == sent[-10:]


async def all_records_from(front: Front, partition: Partition) -> list[Placed]:
    """The records that are left from the log start on."""
    front.log.cache.clear()
    front.log.forget()
    meta = await front.log.meta(partition)
    assert meta is not None
    return read(b"".join((await front.read(partition, meta.start)).records))


async def test_rules_follow_the_catalog_after_any_interruption(one: Front, other: Front) -> None:
    mine, theirs = (RecordInlets(NAMESPACE, front.catalog, front.log) for front in (one, other))
    partition = await partition_of(one, "ruled", korvet_storage="record", cleanup_policy="compact")
    meta = partition.keys.meta

    async def rules() -> bytes | None:
        found: bytes | None = await one.store.call(Purpose.READ, meta, "HGET", meta, "records")
        return found

    assert await rules() == b"1048588 0 1 0"
    await mine.keep_rules()
    await theirs.keep_rules()
    change = ConfigChange(set={"max.message.bytes": "5000"}, delete=["cleanup.policy"])
    await other.catalog.configure(partition.topic, change)
    await theirs.keep_rules()
    assert await rules() == b"5000 0 0 0"
    # A front-end that lags behind wrote former rules; another front-end checks all rules now and then.
    await one.store.call(Purpose.APPEND, meta, "HSET", meta, "records", "1048588 0 1 0")
    await one.catalog.refresh()
    await mine.keep_rules()
    assert await rules() == b"5000 0 0 0"
    await other.catalog.configure(partition.topic, ConfigChange(set={}, replace=True))
    await RecordInlets(NAMESPACE, other.catalog, other.log).keep_rules()
    assert await rules() is None


async def test_inlet_of_another_type_holds_up_no_other(one: Front) -> None:
    broken = await partition_of(one, "broken", korvet_storage="record")
    sound = await partition_of(one, "sound", korvet_storage="record")
    inlets = RecordInlets(NAMESPACE, one.catalog, one.log)
    await inlets.keep_rules()
    wrong, right = (NAMESPACE.inlet(partition.topic.name, 0).inlet for partition in (broken, sound))
    await one.store.call(Purpose.APPEND, wrong, "SET", wrong, "")
    for _ in range(230):
        await one.store.call(Purpose.APPEND, right, "XADD", right, "*", "value", "x")
    await inlets.move()
    assert len(await all_records(one, sound)) == 230
    await one.store.call(Purpose.APPEND, right, "DEL", *sound.transaction_keys)
    await one.store.call(Purpose.APPEND, right, "XADD", right, "*", "value", "after")
    await inlets.move()
    await inlets.move()
    assert [found.record.value for found in await all_records(one, sound)] == [b"after"]


async def test_inlet_that_has_to_wait_holds_up_no_other(one: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = await partition_of(one, "a-waiting", korvet_storage="record")
    sound = await partition_of(one, "b-sound", korvet_storage="record")
    keys = [NAMESPACE.inlet(partition.topic.name, 0) for partition in (waiting, sound)]
    for own in keys:
        await one.store.call(Purpose.APPEND, own.inlet, "XADD", own.inlet, "*", "value", "x")
    fcall = one.store.fcall

    def moving(purpose: Purpose, function: str, called: Sequence[str], *args: Any) -> Awaitable[Any]:
        if called[0] != keys[0].log:
            return fcall(purpose, function, called, *args)
        refused: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        refused.set_exception(SlotMoving("its slot is on its way"))
        return refused

    inlets, fresh = (RecordInlets(NAMESPACE, one.catalog, one.log) for _ in range(2))
    await inlets.keep_rules()
    for partition in (waiting, sound):
        await one.store.call(Purpose.APPEND, partition.keys.meta, "HDEL", partition.keys.meta, "records")
    monkeypatch.setattr(one.store, "fcall", moving)
    with pytest.raises(SlotMoving):
        await fresh.keep_rules()
    with pytest.raises(SlotMoving):
        await inlets.move()
    assert len(await all_records(one, sound)) == 1
    monkeypatch.undo()
    await fresh.keep_rules()
    await inlets.move()
    assert len(await all_records(one, waiting)) == 1


@pytest.mark.parametrize("is_known", [True, False], ids=["known-as-records", "seen-to-be-records"])
async def test_long_records_after_short_ones_are_read_a_slice_at_a_time(
    one: Front, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    partition = await partition_of(one, f"long-{is_known}", korvet_storage="record" if is_known else "batch")
    short, long = [Whole(value=b"short")] * 300, [Whole(value=b"x" * 200_000)] * 40
    await append(one, partition, *short, is_record=True)
    for record in long:
        await append(one, partition, record, is_record=True)
    one.log.cache.clear()
    one.log.forget()
    asked: list[asyncio.Future[Any]] = []

    def call(purpose: Purpose, key: str, *command: Argument) -> asyncio.Future[Any]:
        reply = ask(purpose, key, *command)
        if command[0] == "XRANGE":
            asked.append(reply)
        return reply

    ask = one.store.call
    monkeypatch.setattr(one.store, "call", call)
    values: list[bytes | None] = []
    first = await one.read(partition, 0, max_bytes=10_000)
    values += [placed.record.value for placed in read(b"".join(first.records))]
    while len(values) < len(short) + len(long):
        found = await one.read(partition, len(values))
        assert found.code == 0 and found.records
        values += [placed.record.value for placed in read(b"".join(found.records))]
    assert values == [record.value for record in (*short, *long)]
    longest = max(sum(len(field) for _, fields in reply.result() for field in fields) for reply in asked)
    assert longest <= SLICE_BYTES + len(long[0].value or b"")
