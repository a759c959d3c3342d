"""The metrics of a front-end process, read each second from the objects that count, and written to its supervisor.

A line of a worker's stdout is ``figures`` and a JSON object: ``samples``, ``problem`` (why it cannot serve; empty if it
can) and ``turns`` (the namespaces that it has the turn to sweep). While the supervisor does not read, no line is
written.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from operator import add
from typing import TYPE_CHECKING, Any, Final

import anyio
from kio.schema.errors import ErrorCode

import korvet
from korvet.api.shared.context import Frontend
from korvet.metrics.buckets import LAG_BOUNDS_S
from korvet.metrics.samples import Samples
from korvet.rate_limited_log import RateLimitedLog
from korvet.redis.client import Store
from korvet.redis.resp import Waits
from korvet.redis.server import COMMANDS, Purpose
from korvet.server.bounds.connections import Connections
from korvet.server.conversation.requests import CHARGE_BYTES
from korvet.server.ground.machine import resident_bytes
from korvet.server.tenants.process import Process
from korvet.server.tenants.telemetry_receiver import MOST_UNREAD_BYTES
from korvet.store.library import library_version
from korvet.store.memory import UNLIMITED

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

    from korvet.tier.tier import Tier

PREFIX: Final = b"figures "
_TICKS: Final = 4
_TICK_S: Final = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """A serving front-end process: its number, what its namespaces share, and its connections.

    ``turns`` returns the open namespaces, and whether it has their turns to sweep; ``frontends`` returns their
    front-ends.
    """

    number: int
    process: Process
    connections: Connections
    turns: Callable[[], Mapping[str, bool]]
    frontends: Callable[[], Sequence[Frontend]]


class LoopLag:
    """The lateness of timers in this process's loop."""

    def __init__(self) -> None:
        self.buckets = [0] * (len(LAG_BOUNDS_S) + 1)
        self.seconds = 0.0

    async def sleep(self, seconds: float) -> None:
        """Sleep, and record the delay of the wake-up."""
        due = anyio.current_time() + seconds
        await anyio.sleep(seconds)
        late_s = max(0.0, anyio.current_time() - due)
        self.buckets[bisect_left(LAG_BOUNDS_S, late_s)] += 1
        self.seconds += late_s


async def write_figures(serving: Serving, out: asyncio.WriteTransport) -> None:
    """Write the process's metrics each second, until cancelled."""
    lag, lines = LoopLag(), RateLimitedLog()
    while True:
        # If the supervisor has not read the last lines, pushes of clients among them, skip this one.
        if out.get_write_buffer_size() < MOST_UNREAD_BYTES:
            try:
                out.write(_line(serving, lag))
            except Exception as error:
                # An error in a metric must not end a front-end. The supervisor notices the silence.
                lines.write("error", "metrics cannot be written", exc_info=error)
        for _ in range(_TICKS):
            await lag.sleep(_TICK_S)


def _line(serving: Serving, lag: LoopLag) -> bytes:
    message = {
        "samples": read_samples(serving, lag).to_json(),
        "problem": problem_of(serving.process.store),
        "turns": [name for name, has_turn in serving.turns().items() if has_turn],
    }
    return PREFIX + json.dumps(message).encode() + b"\n"


async def stdout_writer() -> asyncio.WriteTransport:
    """This process's stdout, for lines that never block the loop."""
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, os.fdopen(os.dup(sys.stdout.fileno()), "wb", 0))
    return transport


def problem_of(store: Store) -> str:
    """Why clients' requests cannot use Redis; empty if they can."""
    if not store.is_connected():
        return f"Redis ({store.missing}): {store.problem}" if store.missing else f"Redis: {store.problem}"
    problems = (link.lines.problem for link in store.primaries)
    return next((problem for problem in problems if problem), "")


def read_samples(serving: Serving, lag: LoopLag) -> Samples:
    """All metrics of the process."""
    samples = Samples()
    for name, labels, value in _figures(serving, lag):
        samples.set(f"korvet_{name}", value, *labels)
    for metric in _process_collector().collect():
        for sample in metric.samples:
            samples.set(sample.name, sample.value, str(serving.number))
    return samples


@cache
def _process_collector() -> Collector:
    """The process metrics that every Prometheus client reports, on systems with /proc."""
    from prometheus_client import ProcessCollector

    return ProcessCollector(registry=None)


_Figure = tuple[str, tuple[str, ...], Any]


def _figures(serving: Serving, lag: LoopLag) -> Iterator[_Figure]:
    yield from _of_requests(serving.connections)
    yield from _of_connections(serving.connections)
    yield from _of_redis(serving.process)
    yield from _of_store(serving.process)
    if serving.process.tier is not None:
        yield from _of_tier(serving.process.tier)
    for frontend in serving.frontends():
        yield "clients", (frontend.namespace.name,), frontend.activity.clients
    for namespace, has_turn in serving.turns().items():
        yield "sweep_turn", (namespace,), int(has_turn)
    yield from _of_process(serving.number, lag)


def _of_requests(connections: Connections) -> Iterator[_Figure]:
    by_api: dict[str, list[float]] = {}
    received: Counter[str] = Counter()
    sent: Counter[str] = Counter()
    if connections.requests is not None:
        for one in connections.requests.all():
            api, count = kafka_name(one.api), sum(one.buckets)
            yield "requests_total", (api, str(one.version)), count
            figures = [*one.buckets, one.seconds]
            by_api[api] = [a + b for a, b in zip(by_api.get(api, [0.0] * len(figures)), figures, strict=True)]
            received[api] += one.charged - count * CHARGE_BYTES
            sent[api] += one.sent
        for name, codes in connections.requests.errors().items():
            for code, count in list(codes.items()):
                yield "request_errors_total", (kafka_name(name), _error_name(code)), count
    for api, histogram in by_api.items():
        yield "request_duration_seconds", (api,), histogram
        yield "request_bytes_total", (api,), received[api]
        yield "response_bytes_total", (api,), sent[api]
    yield "queued_request_bytes", (), connections.charged_bytes + connections.large_frames.taken_bytes
    yield "queued_response_bytes", (), connections.answers.taken_bytes


def kafka_name(api: str) -> str:
    """An API's name as Kafka writes it: ``ListGroups`` for ``list_groups``."""
    return "".join(part.capitalize() for part in api.split("_"))


def _error_name(code: int) -> str:
    try:
        return ErrorCode(code).name.upper()
    except ValueError:
        return str(code)


def _of_connections(connections: Connections) -> Iterator[_Figure]:
    for kind, count in connections.kinds.items():
        yield "connections", kind, count
    yield "connections_limit", (), connections.connection_quotas.most
    for listener, count in connections.came_at.items():
        yield "connections_accepted_total", (listener,), count
    yield "throttles_total", (), connections.throttles
    yield "throttle_seconds_total", (), connections.throttled_s
    for login, count in connections.logins.items():
        yield "logins_total", login, count
    for event, count in connections.lines.counts.items():
        yield "client_events_total", (event,), count


def _of_redis(process: Process) -> Iterator[_Figure]:
    store = process.store
    waits = {purpose: Waits() for purpose in (*COMMANDS, Purpose.CONFIRM)}
    for server in store.servers:
        name = server.links[Purpose.COORDINATE].lines.server
        for purpose, wait in waits.items():
            if (own := server.links[purpose].waits) is not None:
                wait.buckets = [*map(add, wait.buckets, own.buckets)]
                wait.seconds += own.seconds
        for one in (*COMMANDS, Purpose.SUBSCRIBE):
            yield "redis_links", (name, one.name.lower()), 1
            yield "redis_links_up", (name, one.name.lower()), int(server.links[one].is_up)
        yield "redis_links_lost_total", (name,), server.links[0].lines.losses
        yield "redis_takes_writes", (name,), int(server.is_up() and not server.links[0].lines.problem)
    for purpose, wait in waits.items():
        yield "redis_wait_seconds", (purpose.name.lower(),), [*wait.buckets, wait.seconds]
    yield "redis_outages_total", (), process.outages.count
    yield "redis_outage_seconds_total", (), process.outages.lasted_ms / 1000
    yield "redis_histories_total", (), store.histories
    for link, memory in process.shared.reserve.by_server.items():
        yield "redis_used_bytes", (link.lines.server,), memory.used_bytes
        if memory.total_bytes != UNLIMITED:
            yield "redis_maxmemory_bytes", (link.lines.server,), memory.total_bytes
            yield "redis_left_for_producers_bytes", (link.lines.server,), memory.for_producers


def _of_store(process: Process) -> Iterator[_Figure]:
    shared = process.shared
    yield "reads_total", ("memory",), shared.reads.memory
    yield "reads_total", ("entries",), shared.reads.entries
    yield "reads_total", ("redis",), shared.reads.redis
    if process.tier is not None:
        yield "reads_total", ("tier",), shared.reads.tier
    yield "read_cache_bytes", ("ahead",), shared.cache.ahead_bytes
    yield "read_cache_bytes", ("kept",), shared.cache.size_bytes - shared.cache.ahead_bytes
    yield "placed_batch_hits_total", (), shared.cache.hits
    yield "placed_batch_misses_total", (), shared.cache.misses
    for name, steps in process.sweeps.items():
        yield "sweeps_total", (name,), steps.taken
        yield "sweep_failures_total", (name,), steps.failed
        yield "sweep_seconds_total", (name,), steps.seconds


def _of_tier(tier: Tier) -> Iterator[_Figure]:
    yield "tier_written_bytes_total", (), tier.written_bytes
    yield "tier_written_segments_total", (), tier.written_segments
    yield "tier_write_failures_total", (), tier.write_failures
    yield "tier_waiting_bytes", (), sum(tier.waiting_bytes.values())
    yield "tier_deleted_objects_total", (), tier.deleted_objects
    yield "tier_read_bytes_total", (), tier.cold.read_bytes
    yield "tier_read_failures_total", (), tier.cold.failures
    yield "tier_request_seconds", (), [*tier.gets.waits.buckets, tier.gets.waits.seconds]
    yield "tier_request_failures_total", (), tier.gets.all_failures
    yield "tier_blocks_total", ("memory",), tier.blocks.hits
    yield "tier_blocks_total", ("store",), tier.blocks.misses
    if tier.blocks.disk is not None:
        yield "tier_blocks_total", ("disk",), tier.blocks.disk.hits
    yield "tier_cache_bytes", (), tier.blocks.size_bytes


def _of_process(number: int, lag: LoopLag) -> Iterator[_Figure]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    yield "build_info", (korvet.__version__, library_version()), 1
    yield "worker_cpu_seconds_total", (str(number),), used.ru_utime + used.ru_stime
    yield "worker_resident_bytes", (str(number),), resident_bytes()
    yield "loop_lag_seconds", (), [*lag.buckets, lag.seconds]
