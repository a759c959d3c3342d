"""A server over loopback and without Redis, whose handlers follow a test's script."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

import anyio

from korvet.api import IN_TURN, PIPELINED, Answer, Api
from korvet.api.shared import needs
from korvet.api.shared.context import Context, Frontend, Listener
from korvet.api.shared.loop_turns import LoopTurns
from korvet.api.shared.nodes import FixedNodes, Node
from korvet.redis.doubt import Doubt
from korvet.redis.reply import Reply, in_task
from korvet.security.audit import Audit
from korvet.server.bounds.connection_quotas import Bounds
from korvet.server.ground.settings import limits_of
from korvet.server.ground.sockets import bind, port_of
from korvet.server.socket_server.endpoint import Endpoint
from korvet.server.socket_server.server import Server
from korvet.store.activity import Activity
from tests.support.wire import request

# Requests of few bytes. Answers to ListGroups v0 and FindCoordinator v0 have an error code; those to Metadata v1 of no
# topics have none.
STARTED, PLAIN, SILENT, BEGUN, REPEATED, BULKY = 16, 18, 3, 10, 12, 14
BODIES = {SILENT: b"\x00\x00\x00\x00", BEGUN: b"\x00\x00", BULKY: bytes(12)}
"""No topics, an empty key, and a SyncGroup v0 without assignments."""
_UNBOUNDED = Bounds()


class Script:
    """Handlers that note the client ids of their requests, and wait until the test lets them go."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.handled: list[str] = []
        self.requests: list[Any] = []
        """Those that were handled, as they were read."""
        self.ended: list[str] = []
        self.cannot_start: set[str] = set()
        self.gates: dict[str, anyio.Event] = {}
        self.answers: dict[str, Callable[[], Answer]] = {}
        self.replies: dict[str, list[Reply]] = {}
        """Those for which started requests wait, until their gate opens."""
        self.begun: dict[str, Reply] = {}
        self.cannot_begin: set[str] = set()
        self.principals: dict[str, str] = {}
        """The principal of each request's context, by client id."""
        self.doubted: dict[str, bool] = {}
        """Whether it was doubtful, when a request began, that its client is still there."""

    def gate(self, *names: str) -> None:
        self.gates.update((name, anyio.Event()) for name in names)

    def open(self, name: str) -> None:
        self.gates[name].set()
        for reply in self.replies.pop(name, []):
            reply.set_result(None)

    async def start(self, ctx: Context, request: Any) -> Answer:
        """Start like a Produce: its call is the test's gate."""
        name = ctx.client_id or ""
        if name in self.cannot_start:
            await in_task()
            return await self.handle(ctx, request)
        self.started.append(name)
        try:
            if name in self.gates and not self.gates[name].is_set():
                reply = Reply(loop=asyncio.get_running_loop())
                self.replies.setdefault(name, []).append(reply)
                await reply
            return self.answers.get(name, dict)()
        finally:
            self.ended.append(name)

    async def begin(self, ctx: Context, request: Any) -> Answer:
        """Begin like a heartbeat, with a call that the test answers."""
        name = ctx.client_id or ""
        self.doubted[name] = ctx.frontend.store.doubt.lasts > 0
        if name in self.cannot_begin:
            await in_task()
            return await self.handle(ctx, request)
        self.begun[name] = Reply(loop=asyncio.get_running_loop())
        try:
            answer: Answer = await self.begun[name]
            return answer
        finally:
            self.ended.append(name)

    async def handle(self, ctx: Context, request: Any) -> Answer:
        name = ctx.client_id or ""
        self.handled.append(name)
        self.requests.append(request)
        self.principals[name] = ctx.principal
        try:
            if name in self.gates:
                await self.gates[name].wait()
            return self.answers.get(name, dict)()
        finally:
            self.ended.append(name)

    def apis(self) -> dict[int, Api]:
        common: dict[str, Any] = {"lowest": 0, "highest": 1, "advertised_lowest": 0, "needs": needs.nothing}
        in_turn = {"handle": self.handle, "start": IN_TURN, **common}
        return {
            STARTED: Api(key=STARTED, name="started", handle=self.start, start=PIPELINED, **common),
            BEGUN: Api(key=BEGUN, name="begun", handle=self.begin, **common),
            PLAIN: Api(key=PLAIN, name="plain", **in_turn),
            BULKY: Api(key=BULKY, name="bulky", **in_turn),
            REPEATED: Api(key=REPEATED, name="repeated", is_repeated=True, **in_turn),
            SILENT: Api(key=SILENT, name="silent", **{**in_turn, "lowest": 1}),
        }


class NoWakeups:
    """The wake-ups of a front-end without Redis: no task waits for one."""

    def wake_all(self) -> None:
        """Wake nothing."""


class NoUsers:
    """The users of a namespace that has none."""

    def watch(self, _changed: Callable[[], None]) -> None:
        """Tell of no change."""

    def unwatch(self, _changed: Callable[[], None]) -> None:
        """Nothing to undo."""


class Running:
    """A server under test."""

    def __init__(self, server: Server, frontend: Frontend, listener: Listener, port: int, stop: anyio.Event) -> None:
        self.server = server
        self.frontend = frontend
        self.listener = listener
        self.port = port
        self.stop = stop


@asynccontextmanager
async def serving(
    script: Script,
    host: str = "127.0.0.1",
    *,
    proxy_protocol: bool = False,
    endpoint: Mapping[str, Any] = MappingProxyType({}),
    bounds: Bounds = _UNBOUNDED,
    sasl: Sequence[str] = (),
    **limits: Any,
) -> AsyncIterator[Running]:
    frontend = SimpleNamespace(
        draining=anyio.Event(),
        turns=LoopTurns(),
        wakeups=NoWakeups(),
        activity=Activity(),
        authorizer=None,
        audit=Audit("default"),
        quotas=SimpleNamespace(meters=None),
        store=SimpleNamespace(doubt=Doubt()),
        namespace=SimpleNamespace(name="test"),
        users=NoUsers(),
    )
    server = Server(replace(limits_of({}), **limits), bounds=bounds)
    server.apis = script.apis()
    stop = anyio.Event()
    bound = bind(host, 0)
    port = port_of(bound)
    nodes = FixedNodes([Node(1, "127.0.0.1", port)])
    listener = Listener(
        host="127.0.0.1",
        port=port,
        advertised_host="127.0.0.1",
        advertised_port=port,
        nodes=nodes,
        proxy_protocol=proxy_protocol,
        sasl=sasl,
    )
    async with anyio.create_task_group() as tasks:
        await tasks.start(
            server.serve,
            [Endpoint(bound=bound, listener=listener, frontend=cast(Frontend, frontend), **endpoint)],
            stop,
        )
        yield Running(server, cast(Frontend, frontend), listener, port, stop)
        stop.set()


async def until(condition: Callable[[], bool], within_s: float = 60.0) -> None:
    with anyio.fail_after(within_s):
        while not condition():
            await anyio.sleep(0.002)


def named(key: int, *names: str, padding_bytes: int = 0) -> bytes:
    """Requests of one API. Each correlation id is the code of its name's first letter; no handler reads the padding."""
    body = BODIES.get(key, b"") + bytes(padding_bytes)
    return b"".join(request(key, 1 if key == SILENT else 0, ord(n[0]), n, body) for n in names)


def padded(name: str) -> bytes:
    """A request with bytes behind its body."""
    return named(STARTED, name, padding_bytes=30_000)
