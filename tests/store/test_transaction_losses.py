"""Losses in one partition, group or shard alone, as when a cluster's node loses its last writes."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from korvet.errors import StoreUnavailable
from korvet.redis.client import Purpose
from korvet.store.background.transaction_sweep import sweep
from korvet.store.log.appending.markers import Ending
from korvet.store.topics import delete_topic
from korvet.store.transactions.transactions import Transactions
from tests.store.logs import NAMESPACE
from tests.store.test_transaction_sweep import Scene, scene

__all__ = ["scene"]

pytestmark = pytest.mark.anyio

ABORTABLE = 120
FORMER = "f" * 40
"""The replication id of a lost server."""


async def write(scene: Scene, key: str, *command: str | int) -> None:
    verb, *rest = command
    await scene.front.store.call(Purpose.COORDINATE, key, str(verb), key, *rest)


async def lose_partition(scene: Scene, name: str) -> None:
    """As if the partition's server lost all writes behind its first entry."""
    await write(scene, NAMESPACE.transaction_log(scene.topic.name, 1).meta, "HSET", "epochs", "0:0,99:1")


async def move_partition(scene: Scene, name: str) -> None:
    """As if the partition moved to another server after it joined the transaction, without a write since."""
    member = f"p:{scene.topic.name}:1"
    await write(scene, NAMESPACE.transaction(name).id, "HSET", member, f"{scene.topic.id.hex} {FORMER}")


async def move_group(scene: Scene, name: str) -> None:
    """As if the group moved to another server after it joined the transaction."""
    await write(scene, NAMESPACE.transaction(name).id, "HSET", f"g:{scene.group_id}", f" {FORMER}")


async def move_shard(scene: Scene, name: str) -> None:
    """As if the transactional id's shard moved to another server."""
    await write(scene, NAMESPACE.transaction(name).id, "HSET", "history", FORMER)


async def test_repeated_commit_of_version_1_is_known_after_its_server_is_lost(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, producer_id, epoch = await scene.opened()
    call, crashes = Transactions._call, [move_shard]

    async def crash_behind_the_decision(self: Transactions, function: str, *args: Any, **named: Any) -> Any:
        reply = await call(self, function, *args, **named)
        if function == "korvet_txn_end" and reply[0] == 0 and crashes:
            await crashes.pop()(scene, name)
            raise StoreUnavailable("the connection to Redis was lost", outcome_unknown=True)
        return reply

    monkeypatch.setattr(Transactions, "_call", crash_behind_the_decision)
    told = await scene.transactions.end(name, producer_id, epoch, is_commit=True, version=1)
    assert told == (0, producer_id, epoch)
    assert await scene.state(name) == "CompleteCommit"


@pytest.mark.parametrize("lose", [lose_partition, move_partition, move_group, move_shard])
@pytest.mark.parametrize("version", [1, 2])
async def test_loss_in_one_unit_aborts_the_transaction_in_all(
    scene: Scene, lose: Callable[[Scene, str], Awaitable[None]], version: int
) -> None:
    name, producer_id, epoch = await scene.opened()
    await lose(scene, name)
    told = await scene.transactions.end(name, producer_id, epoch, is_commit=True, version=version)
    assert told == (ABORTABLE, -1, -1)
    assert await scene.state(name) == "CompleteAbort"
    assert [await scene.stable(index) for index in range(3)] == [2] * 3
    assert await scene.groups.offsets.fetch(scene.group_id, None) == {}
    told = await scene.transactions.end(name, producer_id, epoch, is_commit=False, version=version)
    assert told.code == 0


@pytest.mark.parametrize("lose", [move_partition, move_group])
async def test_group_with_the_name_of_a_partition_hides_no_loss(
    scene: Scene, lose: Callable[[Scene, str], Awaitable[None]]
) -> None:
    scene.group_id = f"{scene.topic.name}:1"
    name, producer_id, epoch = await scene.opened()
    await lose(scene, name)
    told = await scene.transactions.end(name, producer_id, epoch, is_commit=True, version=2)
    assert told.code == ABORTABLE


async def test_transaction_with_an_unreadable_partition_is_not_committed(scene: Scene) -> None:
    name, producer_id, epoch = await scene.opened()
    spoilt = NAMESPACE.transaction_log(scene.topic.name, 1).open
    await scene.delete(spoilt)
    await scene.spoil(spoilt)
    with capture_logs() as lines:
        told = await scene.transactions.end(name, producer_id, epoch, is_commit=True, version=2)
    assert told.code == ABORTABLE
    assert [line["member"] for line in lines if line["log_level"] == "error"] == [f"{scene.topic.name}:1"]
    await scene.delete(spoilt)
    await scene.make_due()
    await sweep(scene.transactions)
    assert await scene.state(name) == "CompleteAbort"


async def test_transaction_of_a_topic_that_was_deleted_meanwhile_is_committed(scene: Scene) -> None:
    name, producer_id, epoch = await scene.opened()
    await delete_topic(scene.front.catalog, scene.front.log, scene.topic)
    assert (await scene.transactions.end(name, producer_id, epoch, is_commit=True, version=2)).code == 0
    committed = await scene.groups.offsets.fetch(scene.group_id, None)
    assert [offset.offset for offset in committed.values()] == [5]


async def held(scene: Scene) -> int:
    """The number of open transactions in the group's hash."""
    key = NAMESPACE.group(scene.group_id).group
    return int(await scene.front.store.call(Purpose.COORDINATE, key, "HGET", key, "transactions") or 0)


@pytest.mark.parametrize("outcome", ["unknown", "another", "committed"])
async def test_offsets_held_by_a_lost_transaction_become_stable_again(scene: Scene, outcome: str) -> None:
    name = (await scene.opened())[0]
    shard = NAMESPACE.transaction(name)
    if outcome == "unknown":
        await scene.delete(shard.id)
    elif outcome == "another":
        await write(scene, shard.id, "HINCRBY", "ordinal", 1)
    else:
        await write(scene, shard.id, "HSET", "state", "CompleteCommit")
    partition = (scene.topic.name, 0)
    assert (await scene.groups.offsets.fetch_stable(scene.group_id, [partition]))[1] == {partition}
    await scene.transactions.close_hanging()
    committed, unstable = await scene.groups.offsets.fetch_stable(scene.group_id, [partition])
    assert unstable == frozenset()
    assert [offset.offset for offset in committed.values()] == ([5] if outcome == "committed" else [])
    assert await held(scene) == 0


async def test_offsets_of_an_open_transaction_stay_held(scene: Scene) -> None:
    name, producer_id, epoch = await scene.opened()
    await scene.transactions.close_hanging()
    assert await held(scene) == 1
    assert (await scene.transactions.end(name, producer_id, epoch, is_commit=True, version=2)).code == 0
    assert [one.offset for one in (await scene.groups.offsets.fetch(scene.group_id, None)).values()] == [5]


async def test_markers_carry_the_servers_time_despite_a_wrong_front_end_clock(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms = time.time_ns() // 1_000_000
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    name, producer_id, epoch = await scene.opened()
    assert (await scene.transactions.end(name, producer_id, epoch, is_commit=True, version=2)).code == 0
    partition = scene.front.log.partition(scene.topic, 0)
    await scene.front.log.mark(partition, Ending(1 << 60, producer_id, epoch + 1, is_commit=False))
    stream = await scene.front.store.call(Purpose.READ, partition.keys.log, "XRANGE", partition.keys.log, "-", "+")
    times = [int(dict(zip(fields[::2], fields[1::2], strict=True))[b"i"].split()[2]) for _, fields in stream][1:]
    assert len(times) == 2
    assert all(now_ms - 60_000 < each < now_ms + 60_000 for each in times)
