"""What a request uses of its client's quotas."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from time import thread_time
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

from korvet.api import Answer, registry
from korvet.api.shared.context import Context
from korvet.quotas.entity import REQUEST, Entity
from korvet.quotas.meters import Meters
from korvet.quotas.rules import NO_CEILINGS, Rules
from korvet.redis.reply import Reply
from korvet.server.conversation import requests
from korvet.server.conversation.metering import Metering
from korvet.store.threads import FairThreads
from korvet.wire.codec import RequestHeader, decode_request
from korvet.wire.writer import Rows
from tests.server.script import BEGUN, PLAIN, Script, named, serving
from tests.support.memory import MEGABYTE, collector_stopped, traced_memory
from tests.support.quotas import WINDOWS
from tests.support.wire import raw_client

pytestmark = pytest.mark.anyio

BURNT_S = 0.05
PRODUCE = 0


def metering(principal: str) -> tuple[Metering, Meters]:
    """That of a Produce of a client; alice alone has a quota."""
    settings = {Entity(user="alice"): {REQUEST: 1.0}}
    meters = Meters(Rules(settings, WINDOWS, NO_CEILINGS), lambda: None)
    frontend = SimpleNamespace(store=SimpleNamespace(redis_s=0.0))
    context = SimpleNamespace(frontend=frontend, principal=principal, client_id="c", version=12)
    return Metering(meters, registry()[PRODUCE], cast(Context, context)), meters


def burn() -> None:
    until = thread_time() + BURNT_S
    while thread_time() < until:
        pass


async def test_cpu_time_of_a_thread_counts_also_if_its_client_leaves() -> None:
    threads = FairThreads(1, 1)
    for is_left, principal in ((False, "User:alice"), (True, "User:alice"), (False, "User:bob")):
        one, meters = metering(principal)

        async def handle(timed: Metering = one) -> None:
            await timed.timed(threads.run("a", burn, is_abandoned_on_cancel=True))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(handle)
            await anyio.wait_all_tasks_blocked()
            if is_left:
                tasks.cancel_scope.cancel()
        await threads.run("a", int)
        used = sum(amount for _, amount in meters.reports(10))
        assert (used >= BURNT_S) is (principal == "User:alice")


async def used_by(script: Script, sent: bytes) -> float:
    """The seconds that a request counts of the client "a", whose answer came."""
    meters = Meters(Rules({Entity(client_id="a"): {REQUEST: 1.0}}, WINDOWS, NO_CEILINGS), lambda: None)
    async with serving(script) as running, raw_client(running.port) as client:
        frontend = cast(Any, running.frontend)
        frontend.quotas.meters, frontend.store.redis_s = meters, 0.0
        client.send(sent)
        await client.answer()
    return sum(amount for _, amount in meters.reports(10))


async def test_time_of_writing_an_answer_counts() -> None:
    def slow_rows() -> Iterator[dict[str, int]]:
        burn()
        yield {"api_key": 0, "min_version": 0, "max_version": 0}

    script = Script()
    script.answers["a"] = lambda: {"api_keys": Rows(1, slow_rows)}
    assert await used_by(script, named(PLAIN, "a")) >= BURNT_S


async def test_time_of_reading_a_large_request_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def slowly(header: RequestHeader, frame: memoryview) -> Any:
        burn()
        return decode_request(header, frame)

    monkeypatch.setattr(requests, "decode_request", slowly)
    assert await used_by(Script(), named(PLAIN, "a", padding_bytes=40_000)) >= BURNT_S


async def test_time_of_steps_without_a_task_counts() -> None:
    class Burning(Script):
        async def begin(self, ctx: Context, request: Any) -> Answer:
            loop = asyncio.get_running_loop()
            reply = Reply(loop=loop)
            loop.call_soon(reply.set_result, {"error_code": 0, "node_id": 1, "host": "", "port": 0})
            burn()
            answer: Answer = await reply
            burn()
            return answer

    assert await used_by(Burning(), named(BEGUN, "a")) >= 2 * BURNT_S


async def test_metered_request_whose_client_leaves_is_freed_at_once() -> None:
    async def handle() -> Any:
        data = bytearray(MEGABYTE)
        await anyio.sleep_forever()
        return data

    one, _ = metering("User:alice")
    with collector_stopped(), traced_memory() as held_bytes:
        for _ in range(5):
            with anyio.move_on_after(0.001):
                await one.timed(handle())
        assert held_bytes() < 2 * MEGABYTE
