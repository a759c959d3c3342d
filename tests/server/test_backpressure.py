"""Backpressure: a front-end pauses or cuts off connections when they or the process hold too many bytes."""

from __future__ import annotations

import anyio
import pytest
from structlog.testing import capture_logs

from korvet.api import Answer
from korvet.server.conversation.connection import Connection
from tests.server.script import BULKY, PLAIN, STARTED, Script, named, padded, serving, until
from tests.support.wire import raw_client

pytestmark = pytest.mark.anyio


async def test_slow_reader_stops_its_own_task_and_loses_nothing() -> None:
    script, body = Script(), bytes(1 << 20)
    script.answers.update({f"a{number}": lambda: {"assignment": body} for number in range(200)})
    async with serving(script) as running, raw_client(running.port) as slow, raw_client(running.port) as other:
        slow.send(named(BULKY, *(f"a{number}" for number in range(200))))
        other.send(named(PLAIN, "b"))
        await other.answer()
        before = -1
        while before != (handled := sum(name != "b" for name in script.handled)):
            before = handled
            for _ in range(20):
                other.send(named(PLAIN, "b"))
                await other.answer()
        assert 0 < before < 100
        for _ in range(200):
            assert len((await slow.answer())[1]) == 6 + len(body)


async def test_next_answer_waits_until_the_one_before_has_left() -> None:
    # An unsent byte keeps its whole answer in memory, and no bound would count that.
    script, body, unsent = Script(), bytes(50_000), set[int]()

    async with serving(script) as running, raw_client(running.port) as client:

        def answer() -> Answer:
            (connection,) = running.server.open_connections
            assert isinstance(connection, Connection) and connection.transport is not None
            unsent.add(connection.transport.get_write_buffer_size())
            return {"assignment": body}

        script.answers["a"] = answer
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]
        client.send(named(BULKY, *"a" * 400))
        await until(lambda: any(connection.unsent_bytes for connection in running.server.open_connections))
        assert running.server.answers.taken_bytes > 0
        client.reader._transport.resume_reading()  # type: ignore[attr-defined]
        for _ in range(400):
            await client.answer()
        assert running.server.answers.taken_bytes == 0
    assert len(unsent) == 1


async def test_reply_of_redis_answers_no_client_that_does_not_read() -> None:
    script = Script()
    script.gate("b")
    script.answers["a"] = lambda: {"assignment": bytes(50_000_000)}
    async with serving(script) as running, raw_client(running.port) as client:
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]
        client.send(named(BULKY, "a") + named(STARTED, "b"))
        (connection,) = running.server.open_connections
        await until(lambda: connection.unsent_bytes > 0)
        before = connection.charged_bytes
        script.open("b")
        assert connection.charged_bytes == before > 0
        client.reader._transport.resume_reading()  # type: ignore[attr-defined]
        assert [(await client.answer())[0] for _ in range(2)] == [ord("a"), ord("b")]


async def test_reading_pauses_while_too_much_of_a_connection_is_in_flight() -> None:
    script = Script()
    script.gate("a")
    async with serving(script, connection_bytes=50_000) as running, raw_client(running.port) as client:
        client.send(named(PLAIN, "a") + padded("b") * 600)
        await until(lambda: not all(connection.is_reading for connection in running.server.open_connections))
        assert running.server.charged_bytes < 400_000
        assert len(script.started) < 10
        script.open("a")
        for _ in range(601):
            await client.answer()
        assert running.server.charged_bytes == 0
        assert all(
            connection.is_reading and connection.charged_bytes == 0 for connection in running.server.open_connections
        )


async def test_producer_that_pipelines_all_it_can_leaves_room_for_a_small_one() -> None:
    script = Script()
    script.gate("a")
    async with (
        serving(script, produce_bytes=200_000, produce_share_bytes=50_000) as running,
        raw_client(running.port) as greedy,
        raw_client(running.port) as small,
    ):
        greedy.send(padded("a") * 100)
        await until(lambda: any(not connection.is_reading for connection in running.server.open_connections))
        assert len(script.started) < 100
        for _ in range(20):
            small.send(padded("b"))
            await small.answer()
        (paused,) = [connection for connection in running.server.open_connections if not connection.is_reading]
        script.open("a")
        for _ in range(100):
            await greedy.answer()
        assert paused.is_reading
        assert running.server.charged_bytes == running.server.produced_bytes == 0


async def test_connections_pause_while_the_process_has_too_much_in_flight() -> None:
    script = Script()
    script.gate("a")
    async with (
        serving(script, process_bytes=50_000) as running,
        raw_client(running.port) as first,
        raw_client(running.port) as second,
    ):
        first.send(named(PLAIN, "a") + padded("b") * 100)
        await until(lambda: running.server.is_overloaded)
        second.send(padded("c") * 100)
        await until(lambda: not any(connection.is_reading for connection in running.server.open_connections))
        script.open("a")
        for client, count in ((first, 101), (second, 100)):
            for _ in range(count):
                await client.answer()
        assert running.server.charged_bytes == 0
        assert all(
            connection.is_reading and connection.charged_bytes == 0 for connection in running.server.open_connections
        )


async def test_client_that_does_not_read_is_cut_off_at_the_bound_of_answers() -> None:
    script, body = Script(), bytes(30 << 20)
    script.answers["a"] = lambda: {"assignment": body}
    with capture_logs() as lines:
        async with (
            serving(script, answer_bytes=40 << 20, stall_s=0.3) as running,
            raw_client(running.port) as one,
            raw_client(running.port) as other,
        ):
            for client in (one, other):
                client.reader._transport.pause_reading()  # type: ignore[attr-defined]
                client.send(named(BULKY, "a"))
            await until(lambda: len(running.server.open_connections) == 1)
            (left,) = running.server.open_connections
            assert left.unsent_bytes > 20 << 20
            await anyio.sleep(0.7)
            assert running.server.open_connections == {left}
    assert [line["reason"] for line in lines] == ["it does not read its answers, and others wait for the memory"]


@pytest.mark.parametrize("is_reading", [True, False])
async def test_requests_after_one_that_waits_do_not_stop_other_connections(is_reading: bool) -> None:
    script, body = Script(), bytes(20 << 20)
    if is_reading:
        script.gate("a")
    script.answers["a"] = lambda: {"assignment": body}
    with capture_logs() as lines:
        async with (
            serving(script, process_bytes=100_000, stall_s=0.3) as running,
            raw_client(running.port) as waiting,
            raw_client(running.port) as other,
        ):
            waiting.reader._transport.pause_reading()  # type: ignore[attr-defined]
            waiting.send(named(BULKY, "a") + padded("b") * 10)
            await until(lambda: running.server.is_overloaded)
            for _ in range(3):
                other.send(padded("c"))
                assert (await other.answer())[0] == ord("c")
            assert len(running.server.open_connections) == 1
            assert running.server.charged_bytes == 0
    assert [line["reason"] for line in lines] == ["its requests queue up after one that waits, and others are not read"]


async def test_client_that_waits_for_redis_is_not_cut_off() -> None:
    script = Script()
    script.gate("a")
    async with serving(script, process_bytes=100_000, stall_s=0.1) as running, raw_client(running.port) as client:
        client.send(padded("a") + padded("b") * 10)
        await until(lambda: running.server.is_overloaded)
        await anyio.sleep(0.4)
        script.open("a")
        for _ in range(11):
            await client.answer()
