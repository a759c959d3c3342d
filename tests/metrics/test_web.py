"""The HTTP port by itself: it is bounded, whoever asks."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from korvet.metrics.clients import Pushed
from korvet.metrics.lags import Lags
from korvet.metrics.samples import Samples
from korvet.server.ground.sockets import bind, port_of
from korvet.server.processes import http_server

pytestmark = pytest.mark.anyio
WITHIN_S = 60.0
LONG_S = 600.0
SCRAPE = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"
LIVEZ = b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n"


class ServerStatus:
    """A process tree with so many figures."""

    def __init__(self, count: int) -> None:
        self._samples = Samples()
        for number in range(count):
            self._samples.set("korvet_client_events_total", 1, f"event {number} " + "x" * 200)
        self.made = 0
        self.lags = Lags()

    def samples(self) -> Samples:
        self.made += 1
        return self._samples

    def pushed(self) -> Pushed:
        return {}

    def death(self) -> str:
        return "worker 1 is gone"

    def unreadiness(self) -> str:
        return ""


@asynccontextmanager
async def serving(
    status: ServerStatus, hostnames: Sequence[str] = (), console: Path | None = None
) -> AsyncIterator[int]:
    """The port."""
    with bind("127.0.0.1", 0) as bound:
        port = port_of(bound)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(http_server.serve_port, status, bound, console, hostnames)
            yield port
            tasks.cancel_scope.cancel()


async def ask(port: int, data: bytes) -> bytes:
    """Everything that the port answers to some bytes, until it closes the connection."""
    with anyio.fail_after(WITHIN_S):
        reader, writer = await connect(port)
        writer.write(data)
        try:
            return await reader.read()
        except ConnectionError:
            return b""
        finally:
            writer.close()


async def connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    while True:
        try:
            return await asyncio.open_connection("127.0.0.1", port)
        except ConnectionRefusedError:
            # It does not listen yet.
            await anyio.sleep(0.01)


async def test_a_problem_is_answered_with_its_reason() -> None:
    async with serving(ServerStatus(1)) as port:
        answer = await ask(port, LIVEZ)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert answer.endswith(b"\r\n\r\nworker 1 is gone\n")


async def test_lags_of_a_namespace_that_is_not_read_here_are_not_there() -> None:
    status = ServerStatus(0)
    status.lags.note("default", {("g", "t"): 7}, 60.0)
    async with serving(status) as port:
        found = [
            await ask(port, b"GET /lags?namespace=%s&group=g HTTP/1.1\r\nHost: a\r\n\r\n" % name)
            for name in (b"default", b"other")
        ]
    assert found[0].endswith(b'{"times":[60.0],"topics":{"t":[7]}}')
    assert found[1].startswith(b"HTTP/1.1 404")


async def test_slow_scrapers_hold_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "PORT_BOUNDS", replace(http_server.PORT_BOUNDS, lasts_s=LONG_S))
    status = ServerStatus(40_000)
    async with serving(status) as port:
        slow = [await connect(port) for _ in range(8)]
        for _, writer in slow:
            # Only a part of the page fits into the buffers of the sockets.
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            writer.write(SCRAPE)
        answers = [await reader.readuntil(b"\r\n") for reader, _ in slow]
        assert sorted(answers) == [b"HTTP/1.1 200 OK\r\n"] * 4 + [b"HTTP/1.1 503 Service Unavailable\r\n"] * 4
        assert (await ask(port, LIVEZ)).startswith(b"HTTP/1.1 503 ")
        for _, writer in slow:
            writer.close()
        while not (await ask(port, SCRAPE)).startswith(b"HTTP/1.1 200 "):
            await anyio.sleep(0.05)


async def test_a_page_is_made_once_for_many() -> None:
    status = ServerStatus(20_000)
    async with serving(status) as port:
        pages: list[bytes] = []

        async def scrape() -> None:
            pages.append(await ask(port, SCRAPE))

        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(scrape)
        assert {page[:12] for page in pages} == {b"HTTP/1.1 200"}
        assert status.made < 4


@pytest.mark.parametrize("console", [None, Path("missing")])
async def test_silent_and_endless_requests_are_cut_off(monkeypatch: pytest.MonkeyPatch, console: Path | None) -> None:
    monkeypatch.setattr(http_server, "PORT_BOUNDS", replace(http_server.PORT_BOUNDS, arrives_s=0.2))
    async with serving(ServerStatus(1), console=console) as port:
        assert await ask(port, b"") == b""
        assert await ask(port, b"GET /livez HTTP/1.1\r\n") == b""
        assert not (await ask(port, b"GET /livez HTTP/1.1\r\nX: " + b"x" * 1_000_000)).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("console", [None, Path("missing")])
async def test_silent_connections_are_bounded_and_keep_no_health_check_out(
    monkeypatch: pytest.MonkeyPatch, console: Path | None
) -> None:
    monkeypatch.setattr(http_server, "PORT_BOUNDS", replace(http_server.PORT_BOUNDS, arrives_s=LONG_S))
    async with serving(ServerStatus(1), console=console) as port:
        held = [await connect(port) for _ in range(64)]
        assert (await ask(port, LIVEZ)).startswith(b"HTTP/1.1 503 ")
        held += [await connect(port) for _ in range(10)]
        # The oldest ones end.
        with anyio.fail_after(WITHIN_S):
            assert [await _rest(reader) for reader, _ in held[:10]] == [b""] * 10
        assert (await ask(port, LIVEZ)).startswith(b"HTTP/1.1 503 ")
        for _, writer in held:
            writer.close()


async def _rest(reader: asyncio.StreamReader) -> bytes:
    with suppress(ConnectionError):
        return await reader.read()
    return b""


async def test_a_connection_carries_one_request() -> None:
    async with serving(ServerStatus(1)) as port:
        answer = await ask(port, LIVEZ + LIVEZ)
        assert answer.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("console", [None, Path("missing")])
async def test_requests_after_one_that_is_answered_wait_at_their_client(console: Path | None) -> None:
    sent, most = 0, 32 << 20
    async with serving(ServerStatus(40_000), console=console) as port:
        reader, writer = await connect(port)
        with closing(writer.get_extra_info("socket").dup()) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            writer.write(SCRAPE * 2)
            await reader.readuntil(b"\r\n")
            while sent < most and writer.transport.get_write_buffer_size() == 0:
                writer.write(bytes(1 << 16))
                sent += 1 << 16
                with anyio.move_on_after(1.0):
                    await writer.drain()
        writer.close()
    assert sent < most


async def test_what_is_no_http_after_a_request_ends_its_answer_without_a_line() -> None:
    lines: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: lines.append(context))
    async with serving(ServerStatus(40_000)) as port:
        reader, writer = await connect(port)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
        await reader.readuntil(b"\r\n")
        writer.write(b"no length\r\n")
        await _rest(reader)
        writer.close()
    assert not lines


async def test_answer_ends_though_the_console_might_still_take_the_connection(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(http_server, "_TAKEN_WITHIN_S", 0.01)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        listening.listen()
        async with serving(ServerStatus(1), console=tmp_path / "socket") as port:
            assert b" 503 " in await ask(port, b"GET /topics HTTP/1.1\r\nHost: a\r\n\r\n")


@pytest.mark.parametrize("path", ["/metrics", "/lags?group=g", "/livez", "/readyz", "/elsewhere"])
async def test_a_foreign_sites_name_that_leads_here_is_refused(path: str) -> None:
    """Attack: DNS rebinding. A browser sends the site's name, as Host, from a page that may then read the answer."""
    async with serving(ServerStatus(1)) as port:
        for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "localhost.evil.example:1"):
            answer = await ask(port, f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            assert answer.startswith(b"HTTP/1.1 403") and b"metrics-hostnames" in answer


async def test_addresses_names_of_a_private_network_and_own_names_are_served() -> None:
    async with serving(ServerStatus(1), ["korvet.Example"]) as port:
        for host in (
            "127.0.0.1", f"[::1]:{port}", "10.1.2.3:9464", "localhost:80", "localhost.", "korvet", "korvet.ns.svc:9464",
            "korvet.ns.svc.cluster.local", "a.internal", "KORVET.example:9464", "korvet.example.:9464", "",
        ):  # fmt: skip
            assert (await ask(port, f"GET /readyz HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())).startswith(
                b"HTTP/1.1 200"
            )
        assert (await ask(port, b"GET /readyz HTTP/1.0\r\n\r\n")).startswith(b"HTTP/1.1 200")
