"""The HTTP port's way to the console: places among addresses."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest
from starlette.types import Message

from korvet.metrics.relay import Relay

pytestmark = pytest.mark.anyio

FULL = 16


class Asking:
    """A request to the relay; ``status`` is None as long as there is no answer."""

    def __init__(self, address: str, *, has_body: bool = True) -> None:
        self.status: int | None = None
        self.has_ended = False
        self._address = address
        self._has_body = has_body

    async def through(self, relay: Relay) -> None:
        scope: Mapping[str, Any] = {
            "type": "http", "method": "POST", "path": "/login", "raw_path": b"/login", "query_string": b"",
            "headers": [(b"host", b"a")], "client": (self._address, 9),
        }  # fmt: skip
        await relay(dict(scope), self._receive, self._send)
        self.has_ended = True

    async def _receive(self) -> Message:
        if not self._has_body:
            await anyio.sleep_forever()
        return {"type": "http.request", "body": b"a=b"}

    async def _send(self, message: Message) -> None:
        self.status = message.get("status", self.status)


class Console:
    """Another process that reads requests, and answers when it is told to."""

    def __init__(self) -> None:
        self.asked = 0
        self.answers = anyio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"a=b")
        self.asked += 1
        await self.answers.wait()
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        writer.close()


async def test_forms_without_a_body_take_no_place(tmp_path: Path) -> None:
    console = Console()
    console.answers.set()
    relay = Relay(tmp_path / "socket", is_proxied=False)
    async with await asyncio.start_unix_server(console.serve, tmp_path / "socket"), anyio.create_task_group() as tasks:
        for _ in range(FULL):
            tasks.start_soon(Asking("192.0.2.1", has_body=False).through, relay)
        await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(60):
            await (asking := Asking("192.0.2.1")).through(relay)
        assert asking.status == 204
        tasks.cancel_scope.cancel()


async def test_address_with_all_places_gives_one_to_another_address(tmp_path: Path) -> None:
    console = Console()
    relay = Relay(tmp_path / "socket", is_proxied=False)
    async with await asyncio.start_unix_server(console.serve, tmp_path / "socket"), anyio.create_task_group() as tasks:
        greedy = [Asking("192.0.2.1") for _ in range(FULL)]
        for one in greedy:
            tasks.start_soon(one.through, relay)
        with anyio.fail_after(60):
            while console.asked < FULL:
                await anyio.sleep(0.01)
            await (refused := Asking("192.0.2.1")).through(relay)
            assert refused.status == 503
            other = Asking("192.0.2.2")
            tasks.start_soon(other.through, relay)
            while console.asked <= FULL:
                await anyio.sleep(0.01)
        assert [one.has_ended for one in greedy] == [True] + [False] * (FULL - 1)
        console.answers.set()
    assert [one.status for one in (*greedy, other)] == [None] + [204] * FULL
