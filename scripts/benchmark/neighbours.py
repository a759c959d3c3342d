"""Small requests beside heavy neighbours: heartbeats, and Produces and Fetches of one record, one after the other.

The neighbours are worker processes of their own, which produce or consume as fast as they can until they are killed.
"""

import asyncio
import json
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from typing import Any, Final

import uvloop

from scripts.benchmark import coordinator
from scripts.benchmark.growth_jobs import CREATE, DELETE, FETCH, PRODUCE, checked, fetch_of, produce_of
from scripts.benchmark.scale import Wire
from tests.oracle import messages
from tests.oracle.script import error_codes

SETTLE_S: Final = 0.5
PAUSE_S: Final = 0.001
ENDS_WITHIN_S: Final = 30.0
TOPIC_WITHIN_MS: Final = 30_000


@contextmanager
def _neighbour(job: Mapping[str, Any]) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "scripts.benchmark.worker", json.dumps(job)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


async def _asked(address: str, heartbeat: bytes, topic: str, seconds: float) -> dict[str, list[float]]:
    """Seconds of each request, by its API."""
    frames = {
        "heartbeat": (coordinator.VERSIONS["heartbeat"], heartbeat),
        "produce": (PRODUCE, messages.request_frame("produce", PRODUCE, produce_of(topic, [0]), 1)),
        "fetch": (FETCH, messages.request_frame("fetch", FETCH, fetch_of(topic, [(0, 0)], most_bytes=1), 1)),
    }
    taken: dict[str, list[float]] = {api: [] for api in frames}
    async with AsyncExitStack() as stack:
        wires = {api: await stack.enter_async_context(Wire(address)) for api in frames}
        ends = time.perf_counter() + seconds
        while time.perf_counter() < ends:
            for api, (version, frame) in frames.items():
                started = time.perf_counter()
                answer = await wires[api].send(frame)
                taken[api].append(time.perf_counter() - started)
                if errors := error_codes(messages.parse_answer(api, version, answer, 1)):
                    raise RuntimeError(f"{api} was answered {errors}")
                await asyncio.sleep(PAUSE_S)
    return taken


async def _make(address: str, names: Sequence[str]) -> None:
    async with Wire(address) as wire:
        topics = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in names]
        await checked(wire, "create_topics", CREATE, topics=topics, timeout=TOPIC_WITHIN_MS)


async def _remove(address: str, names: Sequence[str]) -> None:
    async with Wire(address) as wire:
        await checked(wire, "delete_topics", DELETE, topic_names=list(names), timeout=TOPIC_WITHIN_MS)


def neighbours(
    address: str, seconds: float, value_bytes: int, topic: str | None = None, producers: int = 0, consumers: int = 0
) -> dict[str, float]:
    """Milliseconds of small requests beside producers and consumers that do all they can.

    :param topic: the consumers read it; each reads all of it once.
    """
    names = [f"neighbours-{uuid.uuid4()}" for _ in range(1 + producers)]
    uvloop.run(_make(address, names))
    produce = {"job": "produce", "address": address, "value_bytes": value_bytes, "seconds": ENDS_WITHIN_S,
               "most": 10**9, "settings": {}}  # fmt: skip
    jobs = [{**produce, "topic": name} for name in names[1:]]
    if consumers:
        jobs.append({"job": "consume", "address": address, "topic": topic, "value_bytes": value_bytes,
                     "consumers": consumers})  # fmt: skip
    with coordinator.members(address, "heartbeat") as heartbeats, ExitStack() as stack:
        running = [stack.enter_context(_neighbour(job)) for job in jobs]
        time.sleep(SETTLE_S)
        taken = uvloop.run(_asked(address, heartbeats[0], names[0], seconds))
        if any(process.poll() is not None for process in running):
            raise RuntimeError("a neighbour ended before the measurement did")
    uvloop.run(_remove(address, names))
    return {"count": sum(map(len, taken.values())), **_percentiles(taken)}


def _percentiles(taken: Mapping[str, list[float]]) -> dict[str, float]:
    found = {}
    for api, seconds in taken.items():
        seconds.sort()
        found[f"{api}_p50_ms"] = seconds[len(seconds) // 2] * 1e3
        found[f"{api}_p99_ms"] = seconds[len(seconds) * 99 // 100] * 1e3
    return found
