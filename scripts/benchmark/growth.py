"""Costs as work grows: partitions, connections, workers, shards, batches, sizes of records and codecs.

Each function starts a korvet of its own, measures one kind of growth, and returns one table. The load comes from worker
processes (`scripts.benchmark.worker`); what they ask is in `scripts.benchmark.growth_jobs`.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from scripts.benchmark.processes import OTHER_ROLE, pids_by_role, processor_times, resident_mb, spent
from scripts.benchmark.rounds import work
from scripts.benchmark.shards import cost_us, done_by, largest_part
from scripts.benchmark.targets import Target, korvet
from tests.support.topologies import running_cluster

PARTITIONS: Final = (1, 10, 100, 1_000, 10_000)
CONNECTIONS: Final = (10, 100, 1_000, 5_000)
WORKERS: Final = (1, 2, 4)
SHARDS: Final = (1, 2, 4)
PRODUCERS: Final = 6
BATCHES: Final = 1_000_000
SIZES: Final = (10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000)
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
SECONDS: Final = 2.0
REPEATS: Final = 3
MOST_BYTES: Final = 600_000_000
# A short queue, so that a slow broker does not take minutes to empty it.
_ONE_A_REQUEST: Final = {"linger_ms": "0", "batch_num_messages": "1", "queue_buffering_max_messages": "5000"}
_SINGLE: Final = {"value_bytes": 100, "settings": _ONE_A_REQUEST}
_BATCHED: Final = {"value_bytes": 1000, "settings": {}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """A table: its title, its headings and its rows, the first cell of each being the size of the work."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        """The table as Markdown."""
        lines = [f"### {self.title}", "", _row(self.headings), _row(["---"] * len(self.headings))]
        return "\n".join([*lines, *map(_row, self.rows), ""])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


@contextmanager
def _korvet(workers: int = 1, redis_url: str | None = None) -> Iterator[Target]:
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory,
        korvet(Path(directory), workers=workers, redis_url=redis_url) as target,
    ):
        yield target


def _median(job: Mapping[str, Any], target: Target, repeats: int = REPEATS) -> dict[str, float]:
    """The medians of a job's results."""
    found = [work(job, target)[0] for _ in range(repeats)]
    return {key: statistics.median(each[key] for each in found) for key in found[0]}


def partitions() -> Growth:
    """Metadata, Produce and Fetch of a topic with more and more partitions."""
    rows = []
    with _korvet() as target:
        for count in PARTITIONS:
            took = work({"job": "partitions", "count": count}, target)[0]
            rows.append((
                f"{count:,}", f"{took['create_ms']:,.0f}", f"{took['metadata_ms']:.2f}", f"{took['produce_us']:.0f}",
                f"{took['fetch_ms']:.2f}", f"{took['fetch_end_ms']:.2f}",
            ))  # fmt: skip
    return Growth(
        title="Partitions of a topic",
        headings=(
            "partitions",
            "creation, ms",
            "Metadata, ms",
            "Produce of up to 100 partitions, µs a batch",
            "Fetch of all, a batch each, ms",
            "Fetch of all at their ends, ms",
        ),
        rows=tuple(rows),
    )


def connections() -> Growth:
    """The memory of idle connections, heartbeats beside them, and heartbeats over all of them."""
    rows = []
    for count in CONNECTIONS:
        with _korvet() as target:
            frontends = pids_by_role(target.pids)["front-end"]
            took = work({"job": "connections", "count": count, "seconds": SECONDS, "pids": frontends}, target)[0]
        rows.append((
            f"{count:,}", f"{took['idle_kib']:.1f}", f"{took['busy_kib']:.1f}", f"{took['beside_ms']:.3f}",
            f"{took['requests_per_s']:,.0f}",
        ))  # fmt: skip
    return Growth(
        title="Connections",
        headings=(
            "connections",
            "memory of an idle one, KiB",
            "of a busy one, KiB",
            "a heartbeat beside the idle ones, ms",
            "heartbeats over all of them, a second",
        ),
        rows=tuple(rows),
    )


def workers() -> Growth:
    """Heartbeats and single records with more and more workers."""
    rows = []
    for count in WORKERS:
        with _korvet(workers=count) as target:
            beats = _median({"job": "coordinate", "api": "heartbeat", "seconds": SECONDS}, target)
            single, batched = _together(target, 4, _SINGLE), _together(target, 4, _BATCHED)
            memory = resident_mb(pids_by_role(target.pids)["front-end"])
        rows.append((
            f"{count}", f"{beats['requests_per_s']:,.0f}", f"{single:,.0f}", f"{batched / 1000:,.0f}",
            f"{memory:,.0f}",
        ))  # fmt: skip
    return Growth(
        title="Workers",
        headings=(
            "workers",
            "heartbeats a second",
            "single records of 4 producers, a second",
            "batched, 1 kB, 4 producers, MB/s",
            "memory of all workers, MB",
        ),
        rows=tuple(rows),
    )


def shards() -> Growth:
    """Producers, each of a topic of its own, over clusters of more and more servers, and what these servers spend."""
    rows = []
    for count in SHARDS:
        with running_cluster("valkey", count) as cluster, _korvet(redis_url=cluster.url) as target:
            before, times = done_by(cluster.nodes), processor_times(target.pids)
            single = _together(target, PRODUCERS, _SINGLE)
            done = [after.since(one) for one, after in zip(before, done_by(cluster.nodes), strict=True)]
            front_end_s = spent(times, processor_times(target.pids))[OTHER_ROLE].total_s
            batched = _together(target, PRODUCERS, _BATCHED)
        cost, part = cost_us(done), largest_part(done)
        front_end = 1e6 * front_end_s / max(1, sum(one.calls for one in done))
        rows.append((
            f"{count}", f"{single:,.0f}", f"{batched / 1000:,.0f}", f"{front_end:.0f}", f"{cost:.1f}",
            f"{100 * part:.0f}", f"{1e6 / max(1e-9, cost * part):,.0f}",
        ))  # fmt: skip
    return Growth(
        title="Redis shards (Cluster), one worker",
        headings=(
            "shards",
            f"single records of {PRODUCERS} producers, a second",
            f"batched, 1 kB, {PRODUCERS} producers, MB/s",
            "front-end, µs a record",
            "Redis, µs a record, all servers",
            "the busiest server's part, %",
            "single records a second that fill it",
        ),
        rows=tuple(rows),
    )


def _together(target: Target, producers: int, job: Mapping[str, Any]) -> float:
    """Records a second that some producers append at once, each to a topic of its own; the median of several runs."""

    def one(topic: str) -> float:
        most = MOST_BYTES // (producers * int(job["value_bytes"]))
        produce = {"job": "produce", "topic": topic, "seconds": SECONDS, "most": most}
        return work({**produce, **job}, target)[0]["records_per_s"]

    found = []
    for repeat in range(REPEATS):
        topics = [f"together-{repeat}-{number}" for number in range(producers)]
        for topic in topics:
            target.create_topic(topic)
        with ThreadPoolExecutor(producers) as threads:
            found.append(sum(threads.map(one, topics)))
        for topic in topics:
            target.delete_topic(topic)
    return statistics.median(found)


def batches() -> Growth:
    """The first read of a partition with a million batches: at its start, in its middle, at its end, and by time."""
    with _korvet() as target:
        target.create_topic("batches")
        began_ms = int(time.time() * 1000)
        work({"job": "produce", "topic": "batches", "value_bytes": 100, "seconds": 500, "most": BATCHES,
              "settings": _ONE_A_REQUEST}, target)  # fmt: skip
        ended_ms = int(time.time() * 1000)
        rows = []
        for name, share in (("start", 0.0), ("middle", 0.5), ("end", 0.999)):
            time_ms = int(began_ms + share * (ended_ms - began_ms))
            took = work({"job": "first_reads", "topic": "batches", "offset": int(share * BATCHES),
                         "time_ms": time_ms}, target)[0]  # fmt: skip
            rows.append((name, f"{took['fetch_ms']:.2f}", f"{took['again_ms']:.2f}", f"{took['by_time_ms']:.2f}"))
    return Growth(
        title=f"A partition of {BATCHES:,} batches",
        headings=("at its", "first Fetch, ms", "the same again, ms", "ListOffsets by time, ms"),
        rows=tuple(rows),
    )


def sizes() -> Growth:
    """Records of 10 B to 10 MB, one producer and one consumer."""
    rows = []
    with _korvet() as target:
        for size in SIZES:
            produced, consumed = _through(target, f"size-{size}", size, {"message_max_bytes": "20000000"})
            rows.append((f"{size:,}", f"{produced:,.0f}", f"{produced * size / 1e6:,.0f}",
                         f"{consumed:,.0f}", f"{consumed * size / 1e6:,.0f}"))  # fmt: skip
    return Growth(
        title="Sizes of records",
        headings=("bytes", "produced a second", "MB/s", "consumed a second", "MB/s"),
        rows=tuple(rows),
    )


def codecs() -> Growth:
    """Text of 1 kB a record in each codec, one producer and one consumer, and the processor time of korvet's side."""
    rows = []
    with _korvet() as target:
        for codec in CODECS:
            before = processor_times(target.pids)
            produced, consumed = _through(target, f"codec-{codec}", 1000, {"compression_codec": codec}, text=True)
            times = spent(before, processor_times(target.pids))
            rows.append((
                codec, f"{produced / 1000:,.0f}", f"{consumed / 1000:,.0f}",
                f"{times['front-end'].total_s:.1f}", f"{times['Redis'].total_s:.1f}",
            ))  # fmt: skip
    return Growth(
        title="Codecs (the clients compress)",
        headings=("codec", "produced, MB/s", "consumed, MB/s", "front-end, s of processor", "Redis, s of processor"),
        rows=tuple(rows),
    )


def _through(
    target: Target, topic: str, value_bytes: int, settings: Mapping[str, str], *, text: bool = False
) -> tuple[float, float]:
    """Records a second that one producer appends, and that one consumer reads."""
    target.create_topic(topic, {"max.message.bytes": "20000000"})
    most = max(MOST_BYTES // value_bytes // 2, 1)
    produce = {"job": "produce", "topic": topic, "value_bytes": value_bytes, "seconds": SECONDS, "most": most,
               "settings": settings, "is_text": text}  # fmt: skip
    produced = work(produce, target)[0]["records_per_s"]
    consume = {"job": "consume", "topic": topic, "value_bytes": value_bytes,
               "settings": {"fetch_message_max_bytes": str(max(1 << 20, 2 * value_bytes))}}  # fmt: skip
    consumed = _median(consume, target)["records_per_s"]
    target.delete_topic(topic)
    return produced, consumed


TABLES: Final[Mapping[str, Callable[[], Growth]]] = {
    "partitions": partitions, "connections": connections, "workers": workers, "shards": shards, "batches": batches,
    "sizes": sizes, "codecs": codecs,
}  # fmt: skip
