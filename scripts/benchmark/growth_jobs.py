"""The load generator's requests for `scripts.benchmark.growth`, over raw connections."""

import asyncio
import resource
import statistics
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

import uvloop

from korvet.cli.kafka.records import Unsent, write_batch
from scripts.benchmark import coordinator
from scripts.benchmark.processes import resident_mb
from scripts.benchmark.scale import Wire
from tests.oracle import messages
from tests.oracle.script import error_codes

CREATE, DELETE, METADATA, PRODUCE, FETCH, LIST_OFFSETS, API_VERSIONS = 6, 5, 9, 9, 12, 7, 3  # versions
AT_ONCE: Final = 100
MOST_PARTITIONS: Final = 5000
"""Of a Fetch: korvet takes 10,000 elements in one request."""
TIMES: Final = 20
SETTLE_S: Final = 1.0
CREATE_WITHIN_MS: Final = 120_000
MOST_BYTES: Final = 100 << 20


async def checked(wire: Wire, api: str, version: int, **values: Any) -> Any:
    """An answer without errors."""
    answer = await wire.ask(api, version, **values)
    if errors := error_codes(answer):
        raise RuntimeError(f"{api} was answered {errors}")
    return answer


async def _median_s(wire: Wire, *frames: bytes, times: int = TIMES) -> float:
    """The median of the seconds that requests take, one after the other."""
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        for frame in frames:
            await wire.send(frame)
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def _frame(api: str, version: int, **values: Any) -> bytes:
    return messages.request_frame(api, version, values, 1)


def _fetches(topic: str, offsets: Sequence[int]) -> list[bytes]:
    """Fetches of partitions 0, 1, … from these offsets, which wait for nothing."""
    positions = list(enumerate(offsets))
    chunks = [positions[at : at + MOST_PARTITIONS] for at in range(0, len(positions), MOST_PARTITIONS)]
    return [_frame("fetch", FETCH, **fetch_of(topic, chunk)) for chunk in chunks]


def fetch_of(topic: str, positions: Sequence[tuple[int, int]], most_bytes: int = MOST_BYTES) -> dict[str, Any]:
    """A Fetch of these partitions from these offsets."""
    rows = [
        {"partition": at, "fetch_offset": offset, "partition_max_bytes": 1 << 20, "current_leader_epoch": -1}
        for at, offset in positions
    ]
    return {
        "replica_id": -1, "max_wait": 0, "min_bytes": 0, "max_bytes": most_bytes, "session_epoch": -1,
        "topics": [{"topic": topic, "partitions": rows}],
    }  # fmt: skip


def produce_of(topic: str, partitions: Sequence[int]) -> dict[str, Any]:
    """A Produce of one record of 100 bytes to each of these partitions."""
    batch = write_batch([Unsent(None, bytes(100), [], int(time.time() * 1000))], 0)
    rows = [{"index": at, "records": batch} for at in partitions]
    return {"acks": -1, "timeout": 30_000, "topic_data": [{"name": topic, "partition_data": rows}]}


async def _partitions(address: str, count: int) -> dict[str, float]:
    topic = f"partitions-{count}"
    async with Wire(address) as wire:
        started = time.perf_counter()
        new = {"name": topic, "num_partitions": count, "replication_factor": 1}
        await checked(wire, "create_topics", CREATE, topics=[new], timeout=CREATE_WITHIN_MS)
        create_s = time.perf_counter() - started
        metadata_s = await _median_s(wire, _frame("metadata", METADATA, topics=[{"name": topic}]))
        chunks = [range(at, min(at + AT_ONCE, count)) for at in range(0, count, AT_ONCE)]
        frames = [_frame("produce", PRODUCE, **produce_of(topic, chunk)) for chunk in chunks]
        await checked(wire, "produce", PRODUCE, **produce_of(topic, chunks[0]))
        started, rounds = time.perf_counter(), max(1, 100 // len(frames))
        for _ in range(rounds):
            for frame in frames:
                await wire.send(frame)
        produce_s = (time.perf_counter() - started) / (rounds * count)
        await checked(wire, "fetch", FETCH, **fetch_of(topic, [(0, 0)]))
        ends = [rounds + 1 if at < AT_ONCE else rounds for at in range(count)]
        fetch_s = await _median_s(wire, *_fetches(topic, [end - 1 for end in ends]))
        fetch_end_s = await _median_s(wire, *_fetches(topic, ends))
        await checked(wire, "delete_topics", DELETE, topic_names=[topic], timeout=CREATE_WITHIN_MS)
    return {
        "create_ms": create_s * 1e3, "metadata_ms": metadata_s * 1e3, "produce_us": produce_s * 1e6,
        "fetch_ms": fetch_s * 1e3, "fetch_end_ms": fetch_end_s * 1e3,
    }  # fmt: skip


def partitions(address: str, count: int) -> dict[str, float]:
    """Milliseconds for the requests of a topic with ``count`` partitions; microseconds for one batch of a Produce."""
    return uvloop.run(_partitions(address, count))


async def _connections(address: str, count: int, seconds: float, pids: Sequence[int]) -> dict[str, float]:
    hello = _frame("api_versions", API_VERSIONS, client_software_name="growth", client_software_version="1")
    with coordinator.members(address, "heartbeat") as frames:
        async with AsyncExitStack() as stack:
            asker = await stack.enter_async_context(Wire(address))
            await _median_s(asker, frames[0])
            before_mb = resident_mb(pids)
            wires = [await stack.enter_async_context(Wire(address)) for _ in range(count)]
            for wire in wires:
                await wire.send(hello)
            await asyncio.sleep(SETTLE_S)
            idle_mb = resident_mb(pids) - before_mb
            beside_s = await _median_s(asker, frames[0], times=500)
        await asyncio.sleep(SETTLE_S)
        spread = [frames[at % len(frames)] for at in range(count)]
        answers, elapsed = await coordinator.ask(address, "heartbeat", spread, seconds)
        busy_mb = resident_mb(pids) - before_mb
    return {
        "idle_kib": idle_mb * 1e6 / 1024 / count, "busy_kib": busy_mb * 1e6 / 1024 / count,
        "beside_ms": beside_s * 1e3, "requests_per_s": answers / elapsed,
    }  # fmt: skip


def connections(address: str, count: int, seconds: float, pids: Sequence[int]) -> dict[str, float]:
    """KiB of the front-end's resident memory for a connection, and heartbeats beside and over the connections."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return uvloop.run(_connections(address, count, seconds, pids))


async def _first_reads(address: str, topic: str, offset: int, time_ms: int) -> dict[str, float]:
    fetch = _frame("fetch", FETCH, **fetch_of(topic, [(0, offset)]))
    by_time = {"replica_id": -1, "isolation_level": 0, "topics": [
        {"name": topic, "partitions": [{"partition_index": 0, "timestamp": time_ms, "current_leader_epoch": -1}]}
    ]}  # fmt: skip
    async with Wire(address) as wire:
        await checked(wire, "metadata", METADATA, topics=[{"name": topic}])
        first_s = await _median_s(wire, fetch, times=1)
        again_s = await _median_s(wire, fetch)
        by_time_s = await _median_s(wire, _frame("list_offsets", LIST_OFFSETS, **by_time), times=5)
    return {"fetch_ms": first_s * 1e3, "again_ms": again_s * 1e3, "by_time_ms": by_time_s * 1e3}


def first_reads(address: str, topic: str, offset: int, time_ms: int) -> dict[str, float]:
    """Milliseconds of a Fetch that nobody made before, of the same again, and of ListOffsets by time."""
    return uvloop.run(_first_reads(address, topic, offset, time_ms))
