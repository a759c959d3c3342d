"""Turns: a connection's requests arrive, start and get their answers in turns, so no connection delays others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from korvet.api import Answer
from korvet.api.shared.context import Context
from korvet.api.shared.loop_turns import LoopTurns, with_few_repeats
from korvet.server.conversation import answering
from korvet.wire.writer import Rows
from tests.server.script import BEGUN, PLAIN, STARTED, Script, named, serving, until
from tests.support.wire import raw_client

pytestmark = pytest.mark.anyio


async def test_many_small_requests_of_one_connection_are_taken_in_turns() -> None:
    script, seen = Script(), [0]
    async with serving(script) as running, raw_client(running.port) as client:
        client.send(named(STARTED, *["a"] * 3000))
        while len(script.started) < 3000:
            await asyncio.sleep(0)
            seen.append(len(script.started))
        assert max(after - before for before, after in pairwise(seen)) <= 128
        for _ in range(3000):
            await client.answer()


def busy() -> dict[str, Any]:
    """Hold the loop as long as a request with many partitions does."""
    ends = time.monotonic() + 0.003
    while time.monotonic() < ends:
        pass
    return {}


async def test_slow_starts_of_one_connection_do_not_delay_others() -> None:
    class Slow(Script):
        async def start(self, ctx: Context, request: Any) -> Answer:
            if ctx.client_id == "a":
                busy()
            return await super().start(ctx, request)

    script = Slow()
    script.gate("c")
    script.cannot_start = {"c"}
    async with serving(script) as running, raw_client(running.port) as many, raw_client(running.port) as other:

        async def others_turn_comes_early() -> None:
            await until(lambda: len(script.started) > 0)
            other.send(named(STARTED, "b"))
            assert (await other.answer())[0] == ord("b")
            assert script.started.index("b") < 30

        many.send(named(STARTED, *"a" * 100))
        await others_turn_comes_early()
        for _ in range(100):
            await many.answer()
        script.started.clear()
        many.send(named(STARTED, "c", *"a" * 100))
        await until(lambda: script.handled == ["c"])
        script.open("c")
        await others_turn_comes_early()
        for _ in range(101):
            await many.answer()


async def test_answers_of_one_connection_do_not_delay_others() -> None:
    script = Script()
    script.answers["a"] = busy
    async with serving(script) as running, raw_client(running.port) as many, raw_client(running.port) as other:
        many.send(named(PLAIN, *"a" * 100))
        await until(lambda: len(script.handled) > 0)
        other.send(named(PLAIN, "b"))
        assert (await other.answer())[0] == ord("b")
        assert script.handled.index("b") < 30
        for _ in range(100):
            await many.answer()


async def test_answers_that_waited_for_one_before_them_do_not_delay_others() -> None:
    script, written, seen = Script(), list[None](), list[int]()

    def slow_rows() -> Iterator[dict[str, str]]:
        busy()
        written.append(None)
        yield {"group_id": "", "protocol_type": ""}

    def others() -> dict[str, Any]:
        seen.append(len(written))
        return {}

    script.gate("a")
    script.answers.update(b=lambda: {"groups": Rows(1, slow_rows)}, c=others)
    async with serving(script) as running, raw_client(running.port) as many, raw_client(running.port) as other:
        many.send(named(STARTED, "a", *"b" * 100))
        await until(lambda: len(script.started) == 101)
        other.send(named(STARTED, "c"))
        script.open("a")
        assert (await other.answer())[0] == ord("c")
        for _ in range(101):
            await many.answer()
    assert seen[0] < 30


async def test_replies_of_one_read_answer_so_many_requests_of_a_connection() -> None:
    script, names = Script(), [f"a{number}" for number in range(300)]
    script.gate(*names)
    async with serving(script) as running, raw_client(running.port) as client:
        client.send(named(STARTED, *names))
        await until(lambda: len(script.started) == 300)
        (connection,) = running.server.open_connections
        before = connection.charged_bytes
        for name in names:
            script.open(name)
        assert connection.charged_bytes / before == pytest.approx((300 - answering.REQUESTS_A_TURN) / 300, abs=0.01)
        for _ in names:
            await client.answer()


async def test_held_back_requests_start_in_turns_and_in_order() -> None:
    script = Script()
    script.gate("a")
    script.cannot_start = {"a"}
    names = [f"b{number}" for number in range(500)]
    async with serving(script) as running, raw_client(running.port) as client:
        client.send(named(STARTED, "a", *names))
        await until(lambda: script.handled == ["a"])
        script.open("a")
        for _ in range(501):
            await client.answer()
    # A request that the task reaches before it could start is handled then, ahead of those behind it.
    assert script.started == [name for name in names if name not in script.handled]
    assert len(script.started) > 400


async def test_large_requests_are_decoded_one_in_each_round_of_the_loop() -> None:
    script = Script()
    async with serving(script) as running, raw_client(running.port) as client, raw_client(running.port) as other:
        client.send(named(BEGUN, "e", padding_bytes=40_000))
        await until(lambda: "e" in script.begun)
        script.begun["e"].set_result({"error_code": 0, "node_id": 1, "host": "", "port": 0})
        assert (await client.answer())[0] == ord("e")
        client.send(
            named(PLAIN, "a", padding_bytes=40_000) + named(PLAIN, "b") + named(PLAIN, "c", padding_bytes=40_000)
        )
        other.send(named(PLAIN, "d", padding_bytes=40_000))
        assert [(await client.answer())[0] for _ in range(3)] == [ord("a"), ord("b"), ord("c")]
        assert (await other.answer())[0] == ord("d")


async def test_turns_come_one_in_each_round_and_skip_cancelled_ones() -> None:
    turns, rounds = LoopTurns(), list[int]()
    count = 0

    async def waiting() -> None:
        await turns.turn()
        rounds.append(count)

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(waiting)
        with anyio.move_on_after(0):
            await turns.turn()
        while len(rounds) < 3:
            count += 1
            await anyio.lowlevel.checkpoint()
    assert len(set(rounds)) == 3
    assert with_few_repeats([1, 2, *[1] * 30, 3]) == [1, 2, *[1] * 10, 3]
    assert [one async for one in turns.paced(range(7), size=3)] == list(range(7))
    assert [list(some) async for some in turns.sliced(range(7), size=3)] == [[0, 1, 2], [3, 4, 5], [6]]


async def test_many_short_lists_within_a_list_are_encoded_in_turns() -> None:
    turns, rounds, done = LoopTurns(), [0], 0
    ended = anyio.Event()

    async def others() -> None:
        while not ended.is_set():
            rounds.append(done)
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(others)
        await anyio.lowlevel.checkpoint()
        async for inner in turns.paced([range(9)] * 9, size=10):
            async for _ in turns.paced(inner, size=10):
                done += 1
        ended.set()
    assert done == 81
    assert max(after - before for before, after in pairwise(rounds)) <= 10


async def test_request_that_begins_again_later_begins_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn's limit leaves two callbacks that begin what was held back; the second one finds a request that waits."""
    monkeypatch.setattr(answering, "REQUESTS_A_TURN", 1)
    monkeypatch.setattr(answering, "TURN_S", 60.0)
    begun: list[str] = []

    class Counting(Script):
        async def start(self, ctx: Context, request: Any) -> Answer:
            begun.append(ctx.client_id or "")
            return await super().start(ctx, request)

    script = Counting()
    script.gate("d")
    script.cannot_start = {"a", "e"}
    async with serving(script) as running, raw_client(running.port) as client:
        client.send(named(STARTED, *"abcdef"))
        await until(lambda: "e" in begun)
        script.open("d")
        assert [(await client.answer())[0] for _ in range(6)] == [ord(name) for name in "abcdef"]
    assert begun == [*"abcdef"]
