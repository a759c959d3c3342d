"""Redis groups of Redis users keep their positions, consumers and pending entries when their log is compacted."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import anyio
import anyio.to_thread
import pytest
import redis

from korvet.redis.client import Purpose
from korvet.store.background.compaction.due import Compaction
from korvet.store.background.compaction.headroom import NoRoom
from korvet.store.background.compaction.run import compact
from korvet.store.log.state.partition import Partition
from tests.store.keyed import keyed
from tests.store.logs import Front, header
from tests.store.test_compaction_races import left_over
from tests.support.redis import Server

pytestmark = pytest.mark.anyio
NOW_MS = 1_700_000_000_000
ALWAYS = Compaction(min_lag_ms=0, max_lag_ms=2**62, min_dirty_ratio=0, delete_retention_ms=1000)
MUCH = 2500
"""The number of pending entries, which is more than one call copies."""


async def command(front: Front, *words: str | int) -> Any:
    return await front.store.call(Purpose.APPEND, "k", *words)


async def filled(front: Front, count: int) -> Partition:
    """A log with one key three times, then with distinct keys."""
    partition = await front.partition()
    sent = [keyed((b"%d" % max(0, number - 2), b"v")) for number in range(count)]
    for appending in [front.log.append(partition, header(data), data) for data in sent]:
        await appending
    return partition


async def pending(front: Front, key: str, group: str) -> list[tuple[bytes, bytes, int]]:
    """Id, consumer and deliveries of each pending entry."""
    found: Sequence[Any] = await command(front, "XPENDING", key, group, "-", "+", 10_000)
    return [(entry, consumer, deliveries) for entry, consumer, _, deliveries in found]


async def consumers(front: Front, key: str, group: str) -> set[bytes]:
    return {flat[1] for flat in await command(front, "XINFO", "CONSUMERS", key, group)}


async def test_compaction_keeps_consumers_and_pending_entries_that_still_exist(one: Front) -> None:
    partition = await filled(one, 12)
    key = partition.keys.log
    await command(one, "XGROUP", "CREATE", key, "own", "0")
    await command(one, "XGROUP", "CREATECONSUMER", key, "own", "idle")
    await command(one, "XREADGROUP", "GROUP", "own", "ann", "COUNT", 4, "STREAMS", key, ">")
    await command(one, "XREADGROUP", "GROUP", "own", "bob", "COUNT", 4, "STREAMS", key, ">")
    await command(one, "XREADGROUP", "GROUP", "own", "bob", "STREAMS", key, "0")
    await command(one, "XACK", key, "own", "4-0")
    assert await compact(one.log, partition, ALWAYS, NOW_MS)
    assert await command(one, "XRANGE", key, "1-0", "2-0") == []
    assert await pending(one, key, "own") == [(b"3-0", b"ann", 1), *((b"%d-0" % at, b"bob", 2) for at in range(5, 9))]
    assert await consumers(one, key, "own") == {b"idle", b"ann", b"bob"}
    ((_, following),) = await command(one, "XREADGROUP", "GROUP", "own", "ann", "COUNT", 1, "STREAMS", key, ">")
    assert following[0][0] == b"9-0"
    assert await left_over(one, partition) == []


async def test_idle_time_of_pending_entries_goes_on(one: Front) -> None:
    partition = await filled(one, 12)
    key = partition.keys.log
    await command(one, "XGROUP", "CREATE", key, "own", "4-0")
    await command(one, "XREADGROUP", "GROUP", "own", "ann", "COUNT", 1, "STREAMS", key, ">")
    await command(one, "XCLAIM", key, "own", "ann", 0, "5-0", "IDLE", 3_600_000, "JUSTID")
    assert await compact(one.log, partition, ALWAYS, NOW_MS)
    ((_, _, idle_ms, _),) = await command(one, "XPENDING", key, "own", "-", "+", 10)
    assert idle_ms >= 3_600_000


async def crowd(front: Front, key: str, group: str) -> None:
    """Make the whole log pending in a new group."""
    await command(front, "XGROUP", "CREATE", key, group, "0")
    await command(front, "XREADGROUP", "GROUP", group, "ann", "STREAMS", key, ">")


async def test_more_pending_entries_than_one_call_copies_take_several_calls(
    one: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = await filled(one, MUCH)
    key = partition.keys.log
    await crowd(one, key, "much")
    await crowd(one, key, "more")
    await command(one, "XACK", key, "more", "5-0")
    before = [await pending(one, key, group) for group in ("much", "more")]
    calls, swaps = one.store.fcall, 0

    def counted(purpose: Purpose, function: str, *args: Any) -> Any:
        nonlocal swaps
        swaps += function == "korvet_log_compaction_swap"
        return calls(purpose, function, *args)

    monkeypatch.setattr(one.store, "fcall", counted)
    assert await compact(one.log, partition, ALWAYS, NOW_MS)
    assert swaps > 5
    kept = [[one for one in entries if one[0] not in (b"1-0", b"2-0")] for entries in before]
    assert [await pending(one, key, group) for group in ("much", "more")] == kept
    assert await left_over(one, partition) == []


async def test_group_that_moves_while_groups_are_copied_is_copied_again(
    one: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = await filled(one, 1200)
    key = partition.keys.log
    for group in ("much", "moves"):
        await crowd(one, key, group)
    await command(one, "XGROUP", "CREATE", key, "goes", "7-0")
    call, swaps = one.store.fcall, 0

    async def moved(purpose: Purpose, function: str, keys: Any, *args: Any) -> Any:
        nonlocal swaps
        reply = await call(purpose, function, keys, *args)
        if function == "korvet_log_compaction_swap" and reply[1] == b"more":
            swaps += 1
            if swaps == 2:
                await command(one, "XACK", key, "much", "9-0")
                await command(one, "XREADGROUP", "GROUP", "moves", "bob", "COUNT", 1, "STREAMS", key, ">")
                await command(one, "XGROUP", "DESTROY", key, "goes")
                await command(one, "XGROUP", "CREATE", key, "comes", "11-0")
        return reply

    monkeypatch.setattr(one.store, "fcall", lambda *args: asyncio.ensure_future(moved(*args)))
    assert await compact(one.log, partition, ALWAYS, NOW_MS)
    assert swaps >= 2
    assert b"9-0" not in {entry for entry, _, _ in await pending(one, key, "much")}
    groups = {flat[1]: flat[7] for flat in await command(one, "XINFO", "GROUPS", key)}
    assert groups == {b"much": b"1200-0", b"moves": b"1200-0", b"comes": b"11-0"}


async def test_log_with_too_many_groups_is_not_compacted(one: Front) -> None:
    partition = await filled(one, 12)
    key = partition.keys.log
    for number in range(1001):
        await command(one, "XGROUP", "CREATE", key, f"g{number}", "0")
    with pytest.raises(NoRoom, match="Redis groups"):
        await compact(one.log, partition, ALWAYS, NOW_MS)
    await command(one, "XGROUP", "DESTROY", key, "g0")
    assert await compact(one.log, partition, ALWAYS, NOW_MS)
    assert len(await command(one, "XINFO", "GROUPS", key)) == 1000


async def test_blocked_reader_of_a_compacted_log_is_answered_and_may_read_again(
    redis_server: Server, one: Front
) -> None:
    partition = await filled(one, 12)
    key = partition.keys.log
    await command(one, "XGROUP", "CREATE", key, "own", "12-0")
    answers: list[Any] = []

    def ask() -> None:
        with redis.Redis.from_url(redis_server.url, socket_timeout=30) as client:
            for _ in range(2):
                try:
                    answers.append(client.xreadgroup("own", "ann", {key: ">"}, block=20_000))
                    return
                except redis.ResponseError as error:
                    answers.append(str(error))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(anyio.to_thread.run_sync, ask)
        with anyio.fail_after(10):
            while b"blocked_clients:1" not in await command(one, "INFO", "clients"):
                await anyio.sleep(0.01)
        assert await compact(one.log, partition, ALWAYS, NOW_MS)
        await one.append(partition, keyed((b"x", b"")))
    ((_, entries),) = answers[-1]
    assert entries[0][0] == b"13-0"
