"""One connection over loopback: its order, its errors and its end. The tests' own handlers answer, without Redis."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import anyio
import pytest
from kio.schema.errors import ErrorCode
from structlog.testing import capture_logs

from korvet.api import Answer, Api
from korvet.api.shared.context import Context
from korvet.errors import MalformedRequest, StoreUnavailable
from korvet.server.conversation import connection
from korvet.server.conversation.connection import Connection
from tests.server.script import BEGUN, PLAIN, REPEATED, SILENT, STARTED, Script, named, serving, until
from tests.support.wire import frame, raw_client, request

pytestmark = pytest.mark.anyio


async def test_answers_leave_in_the_order_of_the_requests() -> None:
    script = Script()
    script.gate("a", "b", "c")
    async with serving(script) as running, raw_client(running.port) as client:
        client.send(named(STARTED, "a", "b", "c"))
        await until(lambda: script.started == ["a", "b", "c"])
        for name in "cba":
            script.open(name)
        assert [(await client.answer())[0] for _ in range(3)] == [ord("a"), ord("b"), ord("c")]


async def test_only_requests_with_start_begin_after_a_parked_request() -> None:
    script = Script()
    script.gate("a")
    async with serving(script) as running, raw_client(running.port) as client:
        client.send(named(PLAIN, "a") + named(PLAIN, "b") + named(STARTED, "c"))
        await until(lambda: script.started == ["c"] and script.handled != [])
        assert script.handled == ["a"]
        script.open("a")
        assert [(await client.answer())[0] for _ in range(3)] == [ord("a"), ord("b"), ord("c")]
        assert script.handled == ["a", "b"]


async def test_request_that_cannot_start_holds_back_later_ones() -> None:
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


async def test_held_back_requests_start_together_before_their_answers() -> None:
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


async def test_second_request_that_cannot_start_holds_back_again() -> None:
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


NO_ERROR = {"error_code": 0, "node_id": 1, "host": "", "port": 0}


async def test_begun_request_holds_back_later_requests_until_its_reply() -> None:
    script = Script()
    async with serving(script) as running, raw_client(running.port) as client:
        client.send(named(BEGUN, "a") + named(PLAIN, "b") + named(BEGUN, "c"))
        await until(lambda: "a" in script.begun)
        await anyio.sleep(0.01)
        assert script.handled == []
        script.begun["a"].set_result(NO_ERROR)
        assert [(await client.answer())[0] for _ in range(2)] == [ord("a"), ord("b")]
        for name in "cd":
            await until(lambda name=name: name in script.begun)  # type: ignore[misc]
            script.begun[name].set_result(NO_ERROR)
            assert (await client.answer())[0] == ord(name)
            client.send(named(BEGUN, "d"))


async def test_begun_request_that_needs_a_task_goes_on_in_that_of_its_connection() -> None:
    script = Script()
    script.cannot_begin = {"a"}
    script.gate("a")
    script.answers.update(a=lambda: NO_ERROR)
    async with serving(script) as running, raw_client(running.port) as client:
        client.send(named(BEGUN, "a"))
        await until(lambda: script.handled == ["a"])
        script.open("a")
        assert (await client.answer())[0] == ord("a")


@pytest.mark.parametrize("error", [None, StoreUnavailable("lost")], ids=["a result", "an exception"])
async def test_begun_request_that_waits_for_something_else_than_redis_gets_it_in_the_task(error: Any) -> None:
    waiting: list[asyncio.Future[None]] = []
    tasks: list[asyncio.Task[Any] | None] = []

    class Waiting(Script):
        async def begin(self, ctx: Context, request: Any) -> Answer:
            tasks.append(asyncio.current_task())
            waiting.append(asyncio.get_running_loop().create_future())
            try:
                await waiting[0]
            except StoreUnavailable as lost:
                assert lost is error
            tasks.append(asyncio.current_task())
            return NO_ERROR

    async with serving(Waiting()) as running, raw_client(running.port) as client:
        client.send(named(BEGUN, "a"))
        await until(lambda: bool(waiting))
        waiting[0].set_exception(error) if error else waiting[0].set_result(None)
        assert (await client.answer())[0] == ord("a")
    assert tasks[0] is None and tasks[1] is not None


async def test_next_request_of_a_client_that_does_not_read_begins_once_it_reads() -> None:
    """Its answer would be memory."""
    script = Script()
    async with serving(script) as running, raw_client(running.port) as client:
        await until(lambda: len(running.server.open_connections) == 1)
        connection = cast(Connection, next(iter(running.server.open_connections)))
        connection.pause_writing()
        client.send(named(BEGUN, "a"))
        await until(lambda: len(connection.answering.requests) == 1)
        assert not script.begun
        connection.resume_writing()
        await until(lambda: "a" in script.begun)
        script.begun["a"].set_result(NO_ERROR)
        assert (await client.answer())[0] == ord("a")


async def test_begun_request_is_answered_while_the_connection_drains() -> None:
    script = Script()
    with capture_logs() as logs:
        async with serving(script) as running, raw_client(running.port) as client:
            client.send(named(BEGUN, "a"))
            await until(lambda: "a" in script.begun)
            running.stop.set()
            await anyio.sleep(0.01)
            script.begun["a"].set_result(NO_ERROR)
            assert (await client.answer())[0] == ord("a")
            assert await client.is_closed_by_server()
    # It is not cut off at the end of the drain.
    assert logs == []


async def test_failure_of_a_begun_request_is_answered_and_logged_once() -> None:
    script = Script()
    with capture_logs() as logs:
        async with serving(script) as running, raw_client(running.port) as client:
            client.send(named(BEGUN, "a"))
            await until(lambda: "a" in script.begun)
            script.begun["a"].set_exception(ValueError("a defect"))
            assert (await client.answer())[0] == ord("a")
            client.send(named(PLAIN, "b"))
            assert (await client.answer())[0] == ord("b")
    assert [entry["log_level"] for entry in logs if "exc_info" in entry] == ["error"]


async def test_handler_that_waits_after_its_client_left_is_reported_and_keeps_no_memory() -> None:
    class Wrong(Script):
        async def begin(self, ctx: Context, request: Any) -> Answer:
            try:
                return await super().begin(ctx, request)
            finally:
                await asyncio.sleep(0)

    script = Wrong()
    with capture_logs() as logs:
        async with serving(script) as running:
            async with raw_client(running.port) as client:
                client.send(named(BEGUN, "a") + named(PLAIN, "b"))
                await until(lambda: "a" in script.begun)
            await until(lambda: not running.server.open_connections and running.server.charged_bytes == 0)
    assert ["ignored GeneratorExit" in str(entry["exc_info"]) for entry in logs] == [True]


async def test_request_of_a_client_that_left_ends_before_its_reply() -> None:
    script = Script()
    with capture_logs() as logs:
        async with serving(script) as running:
            async with raw_client(running.port) as client:
                client.send(named(BEGUN, "a"))
                await until(lambda: "a" in script.begun)
            await until(lambda: script.ended == ["a"])
            script.begun["a"].set_result(NO_ERROR)
    assert logs == []


@pytest.mark.parametrize("kind", [PLAIN, STARTED])
async def test_connection_whose_future_was_cancelled_ends_alone(kind: int) -> None:
    def cancelled() -> Answer:
        raise asyncio.CancelledError

    script = Script()
    script.answers.update(a=cancelled, b=lambda: NO_ERROR)
    with capture_logs() as logs:
        async with serving(script) as running:
            async with raw_client(running.port) as client, raw_client(running.port) as other:
                client.send(named(kind, "a"))
                if kind == PLAIN:
                    assert await client.is_closed_by_server()
                else:
                    assert (await client.answer())[0] == ord("a")
                other.send(named(kind, "b"))
                assert (await other.answer())[0] == ord("b")
            async with raw_client(running.port) as later:
                later.send(named(kind, "b"))
                assert (await later.answer())[0] == ord("b")
    assert [entry["log_level"] for entry in logs if "exc_info" in entry] == ["error"]


async def test_server_that_ends_unexpectedly_says_so() -> None:
    """A process that stayed without its listener would serve nobody."""
    with pytest.raises(ExceptionGroup) as raised:
        async with serving(Script()) as running:
            assert running.server._tasks is not None
            running.server._tasks.cancel_scope.cancel()
            await anyio.sleep(60)
    assert raised.group_contains(RuntimeError, match="the server of connections ended, and nobody stopped it")


async def test_request_after_a_pause_begins_in_doubt() -> None:
    """Its client may have left meanwhile, which the connection learns only after it has read the request."""
    script = Script()
    script.cannot_begin = {"a", "b"}
    script.answers.update(a=lambda: NO_ERROR, b=lambda: NO_ERROR)
    async with serving(script) as running, raw_client(running.port) as client:
        client.send(named(BEGUN, "a"))
        await client.answer()
        running.server.charged_bytes += 1 << 40
        client.send(named(PLAIN, "p"))
        await client.answer()
        client.send(named(BEGUN, "b"))
        await anyio.sleep(0.01)
        assert "b" not in script.doubted
        running.server.charged_bytes -= 1 << 40
        running.server.let_read()
        await client.answer()
        assert script.doubted == {"a": False, "b": True}
        await until(lambda: not running.frontend.store.doubt.lasts)


async def test_request_without_an_answer_leaves_no_gap() -> None:
    script = Script()
    script.answers["a"] = lambda: None
    async with serving(script) as running, raw_client(running.port) as client:
        client.send(named(STARTED, "a", "b"))
        assert (await client.answer())[0] == ord("b")


def failing(error: Exception) -> Callable[[], Answer]:
    def answer() -> Answer:
        raise error

    return answer


@pytest.mark.parametrize("key", [STARTED, PLAIN])
async def test_unexpected_exception_is_answered_and_logged_once(key: int) -> None:
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


async def test_exception_closes_the_connection_if_the_answer_has_no_error_code() -> None:
    script = Script()
    script.answers["a"] = failing(ZeroDivisionError("oops"))
    async with serving(script) as running, raw_client(running.port) as client:
        client.send(named(SILENT, "a"))
        with pytest.raises(EOFError):
            await client.answer()


async def test_malformed_request_of_a_handler_closes_the_connection() -> None:
    script = Script()
    script.answers["a"] = failing(MalformedRequest("acks=0 went wrong"))
    with capture_logs() as lines:
        async with serving(script) as running, raw_client(running.port) as client:
            client.send(named(STARTED, "a", "b"))
            assert await client.is_closed_by_server()
    assert [line["reason"] for line in lines] == ["acks=0 went wrong"]


class Produces(Script):
    """Its Produces send something again."""

    def apis(self) -> dict[int, Api]:
        produce = replace(super().apis()[STARTED], key=0, name="produce", lowest=3, highest=3)
        return {**super().apis(), 0: produce}

    async def start(self, ctx: Context, request: Any) -> Answer:
        await super().start(ctx, request)
        return await self.handle(ctx, request)


def produced(name: str, *, acks: int) -> bytes:
    return request(0, 3, 0, name, struct.pack(">hhii", -1, acks, 0, 0))


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of a client that left have time also on a machine that stands still for some seconds."""
    monkeypatch.setattr(connection, "_LINGER_S", 60.0)


async def test_client_that_leaves_gets_its_records_appended_if_it_waits_for_no_answer(patient: None) -> None:
    """A batch that was sent may have to be sent again."""
    script = Produces()
    script.gate("a", "b")
    async with serving(script) as running:
        async with raw_client(running.port) as one, raw_client(running.port) as other:
            one.send(produced("a", acks=0))
            other.send(produced("b", acks=1))
            await until(lambda: sorted(script.started) == ["a", "b"])
        await until(lambda: not running.server.open_connections)
        script.open("a")
        script.open("b")
        await until(lambda: script.handled == ["a"])
    assert sorted(script.ended) == ["a", "a", "b"]


async def test_client_that_leaves_cancels_what_a_later_request_waits_for() -> None:
    waited: list[asyncio.Future[None]] = []

    class Waiting(Script):
        async def start(self, ctx: Context, request: Any) -> Answer:
            if ctx.client_id == "b":
                waited.append(asyncio.get_running_loop().create_future())
                await waited[0]
            return await super().start(ctx, request)

    script = Waiting()
    script.gate("a")
    async with serving(script) as running:
        async with raw_client(running.port) as client:
            client.send(named(STARTED, "a", "b"))
            await until(lambda: bool(waited))
        await until(lambda: waited[0].cancelled())
    assert script.ended == ["a"]


async def test_drain_waits_for_records_of_a_client_that_left(patient: None) -> None:
    script = Produces()
    script.gate("a")
    async with serving(script) as running:
        async with raw_client(running.port) as client:
            client.send(produced("a", acks=0))
            await until(lambda: script.started == ["a"])
        await until(lambda: not running.server.open_connections)
        running.stop.set()
        await until(running.frontend.draining.is_set)
        await anyio.sleep(0.01)
        script.open("a")
    assert script.handled == ["a"]


async def test_client_that_leaves_cancels_its_waiting_requests() -> None:
    script = Script()
    script.gate("a", "b")
    async with serving(script) as running:
        async with raw_client(running.port) as client:
            client.send(named(PLAIN, "a") + named(STARTED, "b"))
            await until(lambda: script.handled == ["a"] and script.started == ["b"])
        await until(lambda: script.ended == ["a", "b"])
        await until(lambda: not running.server.open_connections)
        assert running.server.charged_bytes == 0


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff",
        b"\x7f\xff\xff\xff",
        frame(b""),
        frame(b"\x00\x10\x00"),
        frame(b"\x00\x10\x00\x00\x00\x00\x00\x01\x7f\xff"),
        frame(b"\x00\x10\x00\x00\x00\x00\x00\x01\x00\x01\xff"),
    ],
    ids=["negative", "oversize", "empty", "short", "client-id", "utf-8"],
)
async def test_bytes_that_are_no_request_close_the_connection_with_one_line(data: bytes) -> None:
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


def software(name: str, version: str) -> bytes:
    """An ApiVersions request of version 3, which names the client's software."""
    names = b"".join(bytes((len(text) + 1,)) + text.encode() for text in (name, version))
    return request(PLAIN, 3, 1, "app", b"\0" + names + b"\0")


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (request(999, 0, 1, "app"), {"event": "client asks for an API that is not served; closing", "api_key": 999}),
        (
            request(SILENT, 7, 1, "app"),
            {"event": "client too new; closing", "api": "silent", "version": 7, "served": "1 to 1"},
        ),
        (
            request(SILENT, 0, 1, "app"),
            {"event": "client too old; closing", "api": "silent", "version": 0, "served": "1 to 1"},
        ),
        (
            request(STARTED, 2, 1, "app"),
            {"event": "client too new", "api": "started", "version": 2, "served": "0 to 1"},
        ),
    ],
    ids=["api", "new", "old", "answered"],
)
async def test_log_names_the_client_of_an_unserved_version(data: bytes, told: dict[str, Any]) -> None:
    with capture_logs() as lines:
        async with serving(Script()) as running:
            for first, known in (
                (b"", "not named"),
                (request(PLAIN, 99, 1, "app"), "not named"),
                (software("librdkafka", "0.9.1"), "librdkafka 0.9.1"),
            ):
                async with raw_client(running.port) as client:
                    if first:
                        client.send(first)
                        await client.answer()
                    client.send(data)
                    if told["event"].endswith("closing"):
                        assert await client.is_closed_by_server()
                    else:
                        await client.answer()
                (line,) = lines
                lines.clear()
                assert told.items() <= line.items()
                assert (line["software"], line["client_id"], line["client"]) == (known, "app", "127.0.0.1")


async def test_log_lines_that_clients_provoke_are_bounded() -> None:
    with capture_logs() as lines:
        async with serving(Script()) as running:
            for _ in range(20):
                async with raw_client(running.port) as client:
                    client.send(b"\xff\xff\xff\xff")
                    assert await client.is_closed_by_server()
    assert len(lines) == 5


async def test_unsupported_version_is_answered_if_the_answer_has_an_error_code() -> None:
    async with serving(Script()) as running, raw_client(running.port) as client:
        client.send(request(STARTED, 2, 1) + named(STARTED, "b"))
        correlation_id, body = await client.answer()
        # ListGroups v2 begins with throttle_time_ms.
        assert correlation_id == 1
        assert int.from_bytes(body[4:6], "big") == ErrorCode.unsupported_version
        assert (await client.answer())[0] == ord("b")


async def test_unsupported_api_versions_gets_an_answer_in_version_0() -> None:
    async with serving(Script()) as running, raw_client(running.port) as client:
        client.send(request(PLAIN, 1000, 7, "x", b"\x00whatever this version has"))
        assert await client.answer() == (7, b"\x00\x23" + b"\x00\x00\x00\x01" + b"\x00\x12\x00\x00\x00\x05")


async def test_ipv4_client_of_an_ipv6_listener_is_shown_as_ipv4() -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    async with serving(Script(), host="::") as running, raw_client(running.port):
        await until(lambda: len(running.server.open_connections) == 1)
        assert [connection.client for connection in running.server.open_connections] == ["127.0.0.1"]


async def test_malformed_large_request_closes_connection_after_earlier_answers() -> None:
    script = Script()
    with capture_logs() as lines:
        async with serving(script) as running, raw_client(running.port) as client:
            client.send(named(PLAIN, "a") + request(SILENT, 1, 7, "b", b"\x7f\xff\xff\xff" + bytes(40_000)))
            assert (await client.answer())[0] == ord("a")
            assert await client.is_closed_by_server()
    assert [line["event"] for line in lines] == ["malformed request; closing"]


async def test_idle_connection_is_closed_unless_a_request_is_in_flight() -> None:
    script = Script()
    script.gate("a")
    async with (
        serving(script, max_idle_ms=1000) as running,
        raw_client(running.port) as idle,
        raw_client(running.port) as served,
    ):
        served.send(named(PLAIN, "a"))
        assert await idle.is_closed_by_server()
        assert script.handled == ["a"]
        script.open("a")
        assert (await served.answer())[0] == ord("a")
        assert await served.is_closed_by_server()


@pytest.mark.parametrize("sasl", [(), ("PLAIN",)])
async def test_memory_of_a_connection_that_ended_waits_for_no_collection_of_cycles(sasl: Sequence[str]) -> None:
    async with serving(Script(), sasl=sasl) as running:
        gc.disable()
        try:
            async with raw_client(running.port) as client:
                client.send(named(PLAIN, "a"))
                await client.answer()
                ended = [weakref.ref(one) for one in running.server.open_connections]
            await until(lambda: [one() for one in ended] == [None])
        finally:
            gc.enable()


async def test_drain_answers_requests_in_flight_and_takes_no_more() -> None:
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


def _beat(member: str, generation: int = 1, *, version: int = 0, client_id: str = "a") -> bytes:
    body = b"\x00\x01g" + struct.pack(">ih", generation, len(member)) + member.encode()
    return request(REPEATED, version, 1, client_id, body)


async def test_request_that_comes_again_is_read_once_and_no_other_is_taken_for_it() -> None:
    script = Script()
    long = "m" * 600
    beats = [
        _beat("m"), _beat("m"), _beat("n"), _beat("m", 2), _beat("m", 2, version=1), _beat("m", 2, client_id="b"),
        _beat(long), _beat(long), _beat("m"),
    ]  # fmt: skip
    async with serving(script) as running, raw_client(running.port) as client:
        for beat in beats:
            client.send(beat)
            await client.answer()
    told = [(one.__version__, one.generation_id, one.member_id) for one in script.requests]
    assert told == [
        (0, 1, "m"), (0, 1, "m"), (0, 1, "n"), (0, 2, "m"), (1, 2, "m"), (0, 2, "m"), (0, 1, long), (0, 1, long),
        (0, 1, "m"),
    ]  # fmt: skip
    assert script.handled == ["a", "a", "a", "a", "a", "b", "a", "a", "a"]
    first, second, *_, one_long, other_long, _ = script.requests
    assert second is first
    assert other_long is not one_long
