"""One connection's order, bounds and ends, over loopback, with handlers of the tests' own and no Redis."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest
from kio.schema.errors import ErrorCode
from structlog.testing import capture_logs

from korvet.api import Answer, Api
from korvet.api.context import Context, Frontend, Listener
from korvet.api.nodes import FixedNodes, Node
from korvet.errors import MalformedRequest
from korvet.server.large_frames import LargeFrames
from korvet.server.server import Door, Server
from korvet.server.settings import Limits
from korvet.server.sockets import bind, port_of
from tests.support.wire import frame, raw_client, request

pytestmark = pytest.mark.anyio

# Requests without a body, whose answers can say an error (ListGroups v0) or cannot (Metadata v1, of no topics).
STARTED, PLAIN, SILENT = 16, 18, 3
NO_TOPICS = b"\x00\x00\x00\x00"


class Script:
    """Handlers that note what is asked of them (by client id) and wait until the test lets them go."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.handled: list[str] = []
        self.ended: list[str] = []
        self.cannot_start: set[str] = set()
        self.gates: dict[str, anyio.Event] = {}
        self.answers: dict[str, Callable[[], Answer]] = {}

    def gate(self, *names: str) -> None:
        self.gates.update((name, anyio.Event()) for name in names)

    def open(self, name: str) -> None:
        self.gates[name].set()

    def start(self, ctx: Context, _request: Any) -> Awaitable[Answer] | None:
        name = ctx.client_id or ""
        if name in self.cannot_start:
            return None
        self.started.append(name)
        return self._answer(name)

    async def handle(self, ctx: Context, _request: Any) -> Answer:
        name = ctx.client_id or ""
        self.handled.append(name)
        return await self._answer(name)

    async def _answer(self, name: str) -> Answer:
        try:
            if name in self.gates:
                await self.gates[name].wait()
            return self.answers.get(name, dict)()
        finally:
            self.ended.append(name)

    def apis(self) -> dict[int, Api]:
        common = {"lowest": 0, "highest": 1, "advertised_lowest": 0, "handle": self.handle}
        return {
            STARTED: Api(key=STARTED, name="started", start=self.start, **common),  # type: ignore[arg-type]
            PLAIN: Api(key=PLAIN, name="plain", start=None, **common),  # type: ignore[arg-type]
            SILENT: Api(key=SILENT, name="silent", start=None, **common),  # type: ignore[arg-type]
        }


class Running:
    """A server under test."""

    def __init__(self, server: Server, frontend: Frontend, port: int, stop: anyio.Event) -> None:
        self.server = server
        self.frontend = frontend
        self.port = port
        self.stop = stop


@asynccontextmanager
async def serving(script: Script, host: str = "127.0.0.1", **limits: Any) -> AsyncIterator[Running]:
    frontend = SimpleNamespace(draining=anyio.Event(), wakeups=SimpleNamespace(wake_all=lambda: None))
    server = Server(Limits(**limits))
    server.apis = script.apis()
    stop = anyio.Event()
    bound = bind(host, 0)
    port = port_of(bound)
    nodes = FixedNodes([Node(1, "127.0.0.1", port)])
    listener = Listener(host="127.0.0.1", port=port, advertised_host="127.0.0.1", advertised_port=port, nodes=nodes)
    async with anyio.create_task_group() as tasks:
        await tasks.start(server.serve, [Door(bound, listener, cast(Frontend, frontend))], stop)
        yield Running(server, cast(Frontend, frontend), port, stop)
        stop.set()


async def until(condition: Callable[[], bool], within_s: float = 10.0) -> None:
    with anyio.fail_after(within_s):
        while not condition():
            await anyio.sleep(0.002)


def named(key: int, *names: str) -> bytes:
    """Requests of one API; their correlation id is the number of the letter."""
    return b"".join(request(key, 1 if key == SILENT else 0, ord(n[0]), n, NO_TOPICS * (key == SILENT)) for n in names)


async def test_answers_leave_in_the_order_of_the_requests() -> None:
    script = Script()
    script.gate("a", "b", "c")
    async with serving(script) as running, raw_client(running.port) as client:
        client.send(named(STARTED, "a", "b", "c"))
        await until(lambda: script.started == ["a", "b", "c"])
        for name in "cba":
            script.open(name)
        assert [(await client.answer())[0] for _ in range(3)] == [ord("a"), ord("b"), ord("c")]


async def test_what_can_start_starts_behind_a_parked_request_and_nothing_else_does() -> None:
    script = Script()
    script.gate("a")
    async with serving(script) as running, raw_client(running.port) as client:
        client.send(named(PLAIN, "a") + named(PLAIN, "b") + named(STARTED, "c"))
        await until(lambda: script.started == ["c"])
        assert script.handled == ["a"]
        script.open("a")
        assert [(await client.answer())[0] for _ in range(3)] == [ord("a"), ord("b"), ord("c")]
        assert script.handled == ["a", "b"]


async def test_what_cannot_start_holds_back_what_could() -> None:
    script = Script()
    script.gate("b")
    script.cannot_start = {"b"}
    async with serving(script) as running, raw_client(running.port) as client:
        client.send(named(STARTED, "a", "b", "c", "d") + named(PLAIN, "e") + named(STARTED, "f"))
        await until(lambda: script.handled == ["b"])
        assert script.started == ["a"]
        script.open("b")
        assert [(await client.answer())[0] for _ in range(6)] == [ord(name) for name in "abcdef"]
        assert script.started == ["a", "c", "d", "f"]


async def test_held_back_requests_start_together_before_they_are_answered() -> None:
    script = Script()
    script.gate("a", "b")
    script.cannot_start = {"a"}
    async with serving(script) as running, raw_client(running.port) as client:
        client.send(named(STARTED, "a", "b", "c"))
        await until(lambda: script.handled == ["a"])
        script.open("a")
        await until(lambda: script.started == ["b", "c"])
        client.send(named(STARTED, "d"))
        await until(lambda: script.started == ["b", "c", "d"])
        script.open("b")
        assert [(await client.answer())[0] for _ in range(4)] == [ord(name) for name in "abcd"]


async def test_second_one_that_cannot_start_holds_back_again() -> None:
    script = Script()
    script.gate("a", "c")
    script.cannot_start = {"a", "c"}
    async with serving(script) as running, raw_client(running.port) as client:
        client.send(named(STARTED, "a", "b", "c", "d"))
        await until(lambda: script.handled == ["a"])
        script.open("a")
        await until(lambda: script.handled == ["a", "c"])
        client.send(named(STARTED, "e"))
        with anyio.move_on_after(0.05):
            await until(lambda: "e" in script.started)
        assert script.started == ["b"]
        script.open("c")
        assert [(await client.answer())[0] for _ in range(5)] == [ord(name) for name in "abcde"]


async def test_plain_requests_are_handled_one_after_the_other() -> None:
    script = Script()
    script.gate("a", "b")
    async with serving(script) as running, raw_client(running.port) as client:
        client.send(named(PLAIN, "a", "b"))
        await until(lambda: script.handled == ["a"])
        script.open("a")
        await client.answer()
        await until(lambda: script.handled == ["a", "b"])
        script.open("b")
        await client.answer()


async def test_request_without_an_answer_leaves_no_gap() -> None:
    script = Script()
    script.answers["a"] = lambda: None
    async with serving(script) as running, raw_client(running.port) as client:
        client.send(named(STARTED, "a", "b"))
        assert (await client.answer())[0] == ord("b")


async def test_body_packed_by_hand_is_framed() -> None:
    script = Script()
    script.answers["a"] = lambda: [b"\x00\x07", memoryview(b"rest")]
    async with serving(script) as running, raw_client(running.port) as client:
        client.send(named(STARTED, "a"))
        assert await client.answer() == (ord("a"), b"\x00\x07rest")


def failing(error: Exception) -> Callable[[], Answer]:
    def answer() -> Answer:
        raise error

    return answer


@pytest.mark.parametrize("key", [STARTED, PLAIN])
async def test_unexpected_exception_is_answered_and_logged_once_and_the_connection_lives(key: int) -> None:
    script = Script()
    script.answers["a"] = failing(ZeroDivisionError("oops"))
    with capture_logs() as lines:
        async with serving(script) as running, raw_client(running.port) as client:
            client.send(named(key, "a", "b"))
            correlation_id, body = await client.answer()
            assert correlation_id == ord("a")
            assert int.from_bytes(body[:2], "big", signed=True) == ErrorCode.unknown_server_error
            assert (await client.answer())[0] == ord("b")
    assert [line["log_level"] for line in lines if "exc_info" in line] == ["error"]


async def test_exception_where_the_answer_cannot_say_it_closes_the_connection() -> None:
    script = Script()
    script.answers["a"] = failing(ZeroDivisionError("oops"))
    async with serving(script) as running, raw_client(running.port) as client:
        client.send(named(SILENT, "a"))
        with pytest.raises(EOFError):
            await client.answer()


async def test_handler_may_close_by_calling_the_request_malformed() -> None:
    script = Script()
    script.answers["a"] = failing(MalformedRequest("acks=0 went wrong"))
    with capture_logs() as lines:
        async with serving(script) as running, raw_client(running.port) as client:
            client.send(named(STARTED, "a", "b"))
            assert await client.is_closed_by_server()
    assert [line["reason"] for line in lines] == ["acks=0 went wrong"]


async def test_client_that_leaves_cancels_what_waits_for_it() -> None:
    script = Script()
    script.gate("a", "b")
    async with serving(script) as running:
        async with raw_client(running.port) as client:
            client.send(named(PLAIN, "a") + named(STARTED, "b"))
            await until(lambda: script.handled == ["a"] and script.started == ["b"])
        await until(lambda: script.ended == ["a"])
        await until(lambda: not running.server.connections)
        assert running.server.charged_bytes == 0


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff",
        b"\x7f\xff\xff\xff",
        frame(b""),
        frame(b"\x00\x10\x00"),
        request(999, 0, 1),
        request(SILENT, 7, 1),
        frame(b"\x00\x10\x00\x00\x00\x00\x00\x01\x7f\xff"),
        frame(b"\x00\x10\x00\x00\x00\x00\x00\x01\x00\x01\xff"),
    ],
    ids=["negative", "oversize", "empty", "short", "unknown-key", "unknown-version", "client-id", "utf-8"],
)
async def test_what_is_no_request_closes_the_connection_with_one_line(data: bytes) -> None:
    script = Script()
    script.gate("a")
    with capture_logs() as lines:
        async with serving(script) as running:
            async with raw_client(running.port) as client:
                client.send(named(PLAIN, "a") + data)
                assert await client.is_closed_by_server()
            async with raw_client(running.port) as client:
                client.send(named(STARTED, "b"))
                assert (await client.answer())[0] == ord("b")
    assert [line["event"] for line in lines] == ["malformed request; closing"]


async def test_lines_that_clients_provoke_are_limited() -> None:
    with capture_logs() as lines:
        async with serving(Script()) as running:
            for _ in range(20):
                async with raw_client(running.port) as client:
                    client.send(b"\xff\xff\xff\xff")
                    assert await client.is_closed_by_server()
    assert len(lines) == 5


async def test_unsupported_version_is_answered_where_the_answer_can_say_it() -> None:
    async with serving(Script()) as running, raw_client(running.port) as client:
        client.send(request(STARTED, 2, 1) + named(STARTED, "b"))
        correlation_id, body = await client.answer()
        # ListGroups v2 begins with throttle_time_ms.
        assert correlation_id == 1
        assert int.from_bytes(body[4:6], "big") == ErrorCode.unsupported_version
        assert (await client.answer())[0] == ord("b")


async def test_unsupported_version_of_api_versions_is_answered_in_version_0_with_its_own_range() -> None:
    async with serving(Script()) as running, raw_client(running.port) as client:
        client.send(request(PLAIN, 1000, 7, "x", b"\x00whatever this version has"))
        assert await client.answer() == (7, b"\x00\x23" + b"\x00\x00\x00\x01" + b"\x00\x12\x00\x00\x00\x04")


async def test_slow_reader_stops_its_own_task_and_loses_nothing() -> None:
    script, body = Script(), bytes(1 << 20)
    script.answers.update({f"a{number}": lambda: [body] for number in range(200)})
    async with serving(script) as running, raw_client(running.port) as slow, raw_client(running.port) as other:
        slow.send(named(PLAIN, *(f"a{number}" for number in range(200))))
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
            assert len((await slow.answer())[1]) == len(body)


async def test_reading_pauses_while_too_much_of_a_connection_is_in_flight() -> None:
    script = Script()
    script.gate("a")
    async with serving(script, connection_bytes=50_000) as running, raw_client(running.port) as client:
        client.send(named(PLAIN, "a") + named(STARTED, *["b" * 30_000] * 600))
        await until(lambda: not all(connection.is_reading for connection in running.server.connections))
        assert running.server.charged_bytes < 400_000
        assert len(script.started) < 10
        script.open("a")
        for _ in range(601):
            await client.answer()
        assert running.server.charged_bytes == 0
        assert all(connection.is_reading for connection in running.server.connections)


async def test_connections_pause_while_the_process_has_too_much_in_flight_and_all_go_on() -> None:
    script = Script()
    script.gate("a")
    async with (
        serving(script, process_bytes=50_000) as running,
        raw_client(running.port) as first,
        raw_client(running.port) as second,
    ):
        first.send(named(PLAIN, "a") + named(STARTED, *["b" * 30_000] * 100))
        await until(lambda: running.server.is_overloaded)
        second.send(named(STARTED, *["c" * 30_000] * 100))
        await until(lambda: not any(connection.is_reading for connection in running.server.connections))
        script.open("a")
        for client, count in ((first, 101), (second, 100)):
            for _ in range(count):
                await client.answer()
        assert running.server.charged_bytes == 0
        assert all(connection.is_reading for connection in running.server.connections)


async def test_ipv4_client_of_a_listener_for_all_addresses_is_shown_as_one() -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    async with serving(Script(), host="::") as running, raw_client(running.port):
        await until(lambda: len(running.server.connections) == 1)
        assert [connection.client for connection in running.server.connections] == ["127.0.0.1"]


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
        await until(lambda: [one.is_reading for one in running.server.connections].count(False) == 2)
        for client in (first, second):
            client.send(large("a")[LARGE:])
        for client in (first, second, third, fourth):
            assert (await client.answer())[0] == 1
        assert all(connection.is_reading for connection in running.server.connections)


async def test_one_frame_larger_than_the_bound_is_taken_at_a_time() -> None:
    async with serving(Script(), large_frames_bytes=1) as running, raw_client(running.port) as client:
        client.send(large("a") * 3)
        assert [(await client.answer())[0] for _ in range(6)] == [ord("a"), 1] * 3


async def test_turn_of_a_client_that_left_is_the_next_ones() -> None:
    async with serving(Script(), large_frames_bytes=1, stall_s=60) as running, raw_client(running.port) as next_one:
        async with raw_client(running.port) as client:
            client.send(large("a")[:LARGE])
            assert (await client.answer())[0] == ord("a")
            next_one.send(large("b"))
            assert (await next_one.answer())[0] == ord("b")
            await until(lambda: not all(one.is_reading for one in running.server.connections))
        assert (await next_one.answer())[0] == 1


class Receiver:
    """A connection inside a frame of 100 MiB."""

    missing_bytes = 100 << 20
    is_reading = True

    def read_on(self) -> None:
        """Its turn has come."""


def test_largest_frames_are_not_received_for_hours_while_others_wait() -> None:
    turns, slow, other = LargeFrames(1), Receiver(), Receiver()
    assert [turns.enter(one, one.missing_bytes) for one in (slow, other)] == [True, False]
    assert turns.find_stalled() == []
    slow.missing_bytes -= 2 << 20
    assert turns.find_stalled() == []
    slow.missing_bytes -= 100 << 10
    assert turns.find_stalled() == [slow]


async def test_client_that_stalls_inside_a_large_frame_keeps_nobody_out() -> None:
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


async def test_client_that_stalls_inside_a_large_frame_and_is_in_nobodys_way_is_let_be() -> None:
    async with serving(Script(), stall_s=0.02) as running, raw_client(running.port) as client:
        client.send(large("a")[:LARGE])
        assert (await client.answer())[0] == ord("a")
        await anyio.sleep(0.2)
        client.send(large("a")[LARGE:])
        assert (await client.answer())[0] == 1


async def test_clients_that_do_not_read_are_cut_off_when_too_much_is_unread_in_all() -> None:
    script, body = Script(), bytes(30 << 20)
    script.answers["a"] = lambda: [body]
    with capture_logs() as lines:
        async with (
            serving(script, unsent_bytes=40 << 20, stall_s=0.3) as running,
            raw_client(running.port) as one,
            raw_client(running.port) as other,
        ):
            for client in (one, other):
                client.reader._transport.pause_reading()  # type: ignore[attr-defined]
                client.send(named(PLAIN, "a"))
            await until(lambda: len(running.server.connections) == 1)
            (left,) = running.server.connections
            assert left.unsent_bytes > 20 << 20
            await anyio.sleep(0.7)
            assert running.server.connections == {left}
    assert [line["reason"] for line in lines] == ["it does not read its answers, and too much is unread in all"]


async def test_idle_connection_is_closed_and_one_that_is_served_is_not() -> None:
    script = Script()
    script.gate("a")
    async with (
        serving(script, max_idle_ms=100) as running,
        raw_client(running.port) as idle,
        raw_client(running.port) as served,
    ):
        served.send(named(PLAIN, "a"))
        assert await idle.is_closed_by_server()
        assert script.handled == ["a"]
        script.open("a")
        assert (await served.answer())[0] == ord("a")
        assert await served.is_closed_by_server()


async def test_drain_answers_what_is_in_flight_and_takes_nothing_more() -> None:
    script = Script()
    script.gate("a", "b")
    async with serving(script) as running, raw_client(running.port) as client, raw_client(running.port) as idle:
        client.send(named(PLAIN, "a") + named(STARTED, "b"))
        await until(lambda: script.handled == ["a"] and script.started == ["b"])
        running.stop.set()
        assert await idle.is_closed_by_server()
        assert running.frontend.draining.is_set()
        client.send(named(STARTED, "c"))
        with pytest.raises(ConnectionRefusedError):
            async with raw_client(running.port):
                pass
        script.open("a")
        script.open("b")
        assert [(await client.answer())[0] for _ in range(2)] == [ord("a"), ord("b")]
        assert await client.is_closed_by_server()
        assert script.started == ["b"]


async def test_drain_ends_though_a_handler_does_not() -> None:
    script = Script()
    script.gate("a")
    async with serving(script, drain_s=0.1) as running, raw_client(running.port) as client:
        client.send(named(PLAIN, "a"))
        await until(lambda: script.handled == ["a"])
        running.stop.set()
        assert await client.is_closed_by_server()
        await until(lambda: script.ended == ["a"])
