"""Connections that do not log in: each has a deadline, and all have a bound that keeps no other address out."""

from __future__ import annotations

import asyncio

import anyio
import pytest
from structlog.testing import capture_logs

from korvet.server.bounds.connection_quotas import Bound, Bounds
from korvet.wire.proxy_header import V2_BEGIN
from tests.server.script import PLAIN, Script, named, serving, until
from tests.support.wire import raw_client

pytestmark = pytest.mark.anyio

NEVER_S = 600.0
LOCAL = V2_BEGIN + b"\x20\x00\x00\x00"


async def test_connection_that_does_not_log_in_in_time_is_closed() -> None:
    with capture_logs() as lines:
        async with serving(Script(), sasl=["PLAIN"], login_s=0.05) as running, raw_client(running.port) as client:
            with anyio.fail_after(60):
                assert await client.reader.read() == b""
    (line,) = (one for one in lines if "login" in one["event"])
    assert line["event"] == "connection closed: its login took too long"


async def test_login_has_its_deadline_while_its_request_waits() -> None:
    script = Script()
    script.gate("a")
    async with serving(script, sasl=["PLAIN"], login_s=0.2) as running, raw_client(running.port) as client:
        client.send(named(PLAIN, "a"))
        with anyio.fail_after(60):
            assert await client.reader.read() == b""
        await until(lambda: not running.server.open_connections)


async def test_connections_before_a_login_are_bounded_by_address() -> None:
    async with serving(Script(), sasl=["PLAIN"], login_s=NEVER_S) as running:
        running.server.configure(Bounds(process=Bound(most=20)))
        try:
            other = await asyncio.open_connection("127.0.0.1", running.port, local_addr=("127.0.0.2", 0))
        except OSError:
            pytest.skip("this machine has one address of the loopback")
        silent = [await asyncio.open_connection("127.0.0.1", running.port) for _ in range(30)]
        with anyio.fail_after(60):
            assert [await reader.read() for reader, _ in silent[:21]] == [b""] * 21
            await until(lambda: len(running.server.open_connections) == 10)
            other[1].write(named(PLAIN, "a"))
            assert await other[0].readexactly(4)
        for _, writer in (other, *silent):
            writer.close()


async def test_health_checks_of_balancers_are_bounded_as_connections_before_a_login() -> None:
    """Attack: anybody who reaches the listener may claim to be one, and keep silent."""
    async with serving(Script(), sasl=["PLAIN"], proxy_protocol=True) as running:
        running.server.configure(Bounds(process=Bound(most=20)))
        checks = [await asyncio.open_connection("127.0.0.1", running.port) for _ in range(30)]
        with anyio.fail_after(60):
            for _, writer in checks:
                writer.write(LOCAL)
            await until(lambda: len(running.server.open_connections) == 10)
        for _, writer in checks:
            writer.close()


async def test_connection_without_a_login_of_its_listener_has_no_deadline() -> None:
    async with serving(Script(), login_s=0.01) as running, raw_client(running.port) as client:
        await anyio.sleep(0.1)
        client.send(named(PLAIN, "a"))
        await client.answer()
