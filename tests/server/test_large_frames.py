"""Unfinished large frames take turns, and a frame that stands still blocks no other."""

from __future__ import annotations

from contextlib import AsyncExitStack

import anyio
import pytest
from structlog.testing import capture_logs

from korvet.server.bounds.large_frames import LargeFrames
from korvet.server.socket_server import server
from tests.server.script import PLAIN, Script, named, serving, until
from tests.support.wire import raw_client, request

pytestmark = pytest.mark.anyio

LARGE = 900_000


def large(name: str) -> bytes:
    return named(PLAIN, name) + request(PLAIN, 0, 1, name, bytes(LARGE))


async def test_unfinished_large_frames_take_turns() -> None:
    async with (
        serving(Script(), large_frames_bytes=2 * LARGE, stall_s=60) as running,
        raw_client(running.port) as first,
        raw_client(running.port) as second,
        raw_client(running.port) as third,
        raw_client(running.port) as fourth,
    ):
        for client in (first, second):
            client.send(large("a")[:LARGE])
            assert (await client.answer())[0] == ord("a")
        for client in (third, fourth):
            client.send(large("b"))
            assert (await client.answer())[0] == ord("b")
        await until(lambda: [one.is_reading for one in running.server.open_connections].count(False) == 2)
        for client in (first, second):
            client.send(large("a")[LARGE:])
        for client in (first, second, third, fourth):
            assert (await client.answer())[0] == 1
        assert all(connection.is_reading for connection in running.server.open_connections)


async def test_one_frame_larger_than_the_bound_is_taken_at_a_time() -> None:
    async with serving(Script(), large_frames_bytes=1) as running, raw_client(running.port) as client:
        client.send(large("a") * 3)
        assert [(await client.answer())[0] for _ in range(6)] == [ord("a"), 1] * 3


async def test_turn_of_a_client_that_left_goes_to_the_next() -> None:
    async with serving(Script(), large_frames_bytes=1, stall_s=60) as running, raw_client(running.port) as next_one:
        async with raw_client(running.port) as client:
            client.send(large("a")[:LARGE])
            assert (await client.answer())[0] == ord("a")
            next_one.send(large("b"))
            assert (await next_one.answer())[0] == ord("b")
            await until(lambda: not all(one.is_reading for one in running.server.open_connections))
        assert (await next_one.answer())[0] == 1


class Receiver:
    """A connection inside a frame, of 100 MiB if the test says nothing else."""

    is_reading = True

    def __init__(self, missing_bytes: int = 100 << 20) -> None:
        self.missing_bytes = missing_bytes

    def read_on(self) -> None:
        """Nothing is paused here."""

    def begin_large_frame(self) -> None:
        began.append(self)


began = list[Receiver]()


def entered(turns: LargeFrames, *connections: Receiver) -> list[Receiver]:
    """The connections whose turn comes when these begin their frames, in this order."""
    began.clear()
    for one in connections:
        turns.enter(one, one.missing_bytes)
    return list(began)


def test_slow_frame_of_the_largest_size_is_cut_off_while_another_waits() -> None:
    turns, slow, other = LargeFrames(1), Receiver(), Receiver()
    assert entered(turns, slow, other) == [slow]
    assert turns.find_stalled() == []
    slow.missing_bytes -= 2 << 20
    assert turns.find_stalled() == []
    slow.missing_bytes -= 100 << 10
    assert turns.find_stalled() == [slow]


def test_frames_that_stand_still_make_room_and_moving_frames_stay() -> None:
    turns = LargeFrames(3 * (100 << 20))
    first, second, moving, waiting = (Receiver() for _ in range(4))
    assert entered(turns, first, second, moving) == [first, second, moving]
    assert turns.find_still(0.0, 1.0) == []
    assert turns.find_still(10.0, 1.0) == []
    assert entered(turns, waiting) == []
    moving.missing_bytes -= 8 << 10
    assert turns.find_still(20.0, 1.0) == [first]
    turns.leave(first)
    assert began == [waiting]


def test_oldest_and_newest_frames_alternate() -> None:
    turns, crowd = LargeFrames(1), [Receiver() for _ in range(8)]
    assert entered(turns, *crowd) == crowd[:1]
    for _ in range(7):
        turns.leave(began[-1])
    assert [crowd.index(one) for one in began] == [0, 7, 1, 6, 2, 5, 3, 4]


def test_newcomer_that_gets_a_turn_lets_an_older_frame_begin_too() -> None:
    turns = LargeFrames(10)
    one, large, next_one, small, huge, newcomer = (Receiver(size) for size in (1, 8, 7, 1, 9, 1))
    assert entered(turns, one, large, next_one, small, huge) == [one, large]
    turns.leave(one)
    turns.leave(large)
    assert began == [one, large, next_one]
    assert entered(turns, newcomer) == [newcomer, small]


async def test_client_with_a_large_frame_waits_for_no_crowd_that_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    async with AsyncExitStack() as stack:
        # The server cuts off no frame before the test says so.
        running = await stack.enter_async_context(serving(Script(), large_frames_bytes=4 * LARGE, stall_s=3600))

        def waiting() -> int:
            return [one.is_reading for one in running.server.open_connections].count(False)

        for _ in range(30):
            half = await stack.enter_async_context(raw_client(running.port))
            half.send(request(PLAIN, 0, 1, "half", bytes(LARGE))[: LARGE // 2])
        await until(lambda: waiting() == 30 - 4)
        client = await stack.enter_async_context(raw_client(running.port))
        client.send(large("a"))
        assert (await client.answer())[0] == ord("a")
        await until(lambda: waiting() == 31 - 4)
        with monkeypatch.context() as until_the_first_are_cut_off:
            until_the_first_are_cut_off.setattr(server, "_STILL_PART", 0.25 / 3600)
            await until(lambda: len(running.server.open_connections) < 31)
        assert (await client.answer())[0] == 1
        assert len(running.server.open_connections) > 20


async def test_client_that_stalls_inside_a_large_frame_is_cut_off_if_one_waits() -> None:
    script = Script()
    with capture_logs() as lines:
        async with (
            serving(script, large_frames_bytes=1, stall_s=0.3) as running,
            raw_client(running.port) as stalled,
            raw_client(running.port) as other,
        ):
            stalled.send(large("a")[:LARGE])
            assert (await stalled.answer())[0] == ord("a")
            other.send(large("b"))
            assert [(await other.answer())[0] for _ in range(2)] == [ord("b"), 1]
            assert await stalled.is_closed_by_server()
    assert [line["reason"] for line in lines] == ["it sends a large request too slowly, and others wait"]


async def test_client_that_stalls_inside_a_large_frame_stays_if_none_waits() -> None:
    async with serving(Script(), stall_s=0.02) as running, raw_client(running.port) as client:
        client.send(large("a")[:LARGE])
        assert (await client.answer())[0] == ord("a")
        await anyio.sleep(0.2)
        client.send(large("a")[LARGE:])
        assert (await client.answer())[0] == 1
