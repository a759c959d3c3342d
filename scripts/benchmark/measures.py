"""The measures: each is a job for the worker, and lines for the parts of its result that are shown."""

from dataclasses import dataclass, field
from typing import Any, Final

from scripts.benchmark.scale import COUNTS, SIZES

LIBRDKAFKA: Final = "librdkafka"
RAW: Final = "raw, 50 connections"
EACH: Final = "raw, a connection each"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of the table: a key of the job's result, its title, and True if less is better."""

    key: str
    label: str
    unit: str
    less_is_better: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A job. --only names its `group`; `preload` records are appended once, before the rounds; value_bytes each.

    `partitions` counts the partitions of the topic that each round makes. `preloaded` names a topic for measures that
    have the same records; they are in batches of `batch_records` at most.
    """

    name: str
    group: str
    generator: str
    job: dict[str, Any]
    lines: tuple[Line, ...]
    preload: int = 0
    needs_topic: bool = True
    needs_redis: bool = False
    value_bytes: int = field(default=100)
    partitions: int = 1
    preloaded: str = ""
    batch_records: int = 10_000

    @property
    def topic(self) -> str:
        """The topic with the records that are appended once."""
        return self.preloaded or self.name


MOST_BYTES: Final = 1_500_000_000  # of one measurement: korvet's log lies in memory


def _rates(what: str) -> tuple[Line, ...]:
    return (
        Line(key="records_per_s", label=what, unit="records/s"),
        Line(key="mb_per_s", label=what, unit="MB/s"),
    )


def _produce(name: str, label: str, value_bytes: int, seconds: float, partitions: int = 1, **settings: str) -> Measure:
    job = {
        "job": "produce", "value_bytes": value_bytes, "seconds": seconds, "most": MOST_BYTES // value_bytes,
        "settings": settings, "partitions": partitions,
    }  # fmt: skip
    lines = _rates(label) if name != "produce-single" else _rates(label)[:1]
    return Measure(
        name=name, group="produce", generator=LIBRDKAFKA, job=job, lines=lines, value_bytes=value_bytes,
        partitions=partitions,
    )  # fmt: skip


def _consume(name: str, label: str, value_bytes: int, records: int, consumers: int = 1) -> Measure:
    job = {"job": "consume", "value_bytes": value_bytes, "consumers": consumers}
    return Measure(
        name=name, group="consume", generator=LIBRDKAFKA, job=job, lines=_rates(label), preload=records,
        value_bytes=value_bytes,
    )  # fmt: skip


def _latency(rate: int, seconds: float) -> Measure:
    return Measure(
        name=f"latency-{rate}", group="latency", generator=LIBRDKAFKA,
        job={"job": "latency", "seconds": seconds, "rate": rate},
        lines=tuple(
            _less(f"{percentile}_ms", f"end to end at {rate:,} records/s, {percentile}", "ms")
            for percentile in ("p50", "p99")
        ),
    )  # fmt: skip


def _shares(consumers: int, acknowledgement: str, records: int, most: int, seconds: float) -> Measure:
    label = f"{consumers} share consumer{'s' if consumers > 1 else ''}, {records} a poll, {acknowledgement}"
    return Measure(
        name=f"shares-{consumers}-{acknowledgement}-{records}", group="shares", generator=EACH,
        job={"job": "shares", "consumers": consumers, "records": records, "acknowledgement": acknowledgement,
             "seconds": seconds},
        lines=(Line(key="records_per_s", label=label, unit="records/s"),), preload=int(most * seconds),
        preloaded=f"shares-{records}", batch_records=records,
    )  # fmt: skip


def _share_latency(consumers: int, seconds: float) -> Measure:
    return Measure(
        name=f"share-latency-{consumers}", group="shares", generator=EACH,
        job={"job": "share_latency", "seconds": seconds, "rate": 1000, "consumers": consumers},
        lines=tuple(
            _less(f"{percentile}_ms", f"1,000 records/s to {consumers} waiting, {percentile}", "ms")
            for percentile in ("p50", "p99")
        ),
    )  # fmt: skip


def _coordinate(api: str, label: str, seconds: float) -> Measure:
    return Measure(
        name=api, group="groups", generator=RAW, job={"job": "coordinate", "api": api, "seconds": seconds},
        lines=(Line(key="requests_per_s", label=label, unit="requests/s"),), needs_topic=False,
    )  # fmt: skip


def _less(key: str, label: str, unit: str) -> Line:
    return Line(key=key, label=label, unit=unit, less_is_better=True)


SHARE_WAITERS: Final = Measure(
    name="share-waiters", group="shares", generator="Redis's MONITOR",
    job={"job": "share_waiters", "consumers": 100, "seconds": 2.0},
    lines=(
        _less("idle_calls_per_s", "100 share consumers wait", "calls/s"),
        _less("calls_per_append", "100 share consumers wait, a record is appended", "calls"),
    ),
    needs_redis=True,
)  # fmt: skip
JOINING: Final = Measure(
    name="joining", group="scale", generator=EACH, job={"job": "joining", "sizes": SIZES},
    lines=tuple(
        line for size in SIZES
        for line in (
            _less(f"join_{size}_s", f"a group of {size:,} members settles", "s"),
            _less(f"one_more_{size}_s", f"one more joins {size:,}, who all join again at once", "s"),
        )
    ),
    needs_topic=False,
)  # fmt: skip
GROUP_COSTS: Final = Measure(
    name="group-costs", group="scale", generator="Redis's own counters",
    job={"job": "group_costs", "sizes": SIZES, "counts": COUNTS},
    lines=(
        *(_less(f"group_{count}_bytes", f"idle group with one offset, of {count:,}", "B") for count in COUNTS),
        _less("offset_bytes", "one more committed offset", "B"),
        *(_less(f"member_{size}_bytes", f"member of a group of {size:,}", "B") for size in SIZES),
        *(_less(f"heartbeat_{count}_us", f"a heartbeat beside {count:,} idle groups", "us") for count in (0, *COUNTS)),
        *(_less(f"heartbeat_of_{size}_us", f"a heartbeat in a group of {size:,}", "us") for size in SIZES),
    ),
    needs_topic=False, needs_redis=True,
)  # fmt: skip
CONSUMER_SIZES: Final = (2, 100, 1000)
SETTLING: Final = Measure(
    name="settling", group="consumers", generator=EACH,
    job={"job": "settling", "sizes": CONSUMER_SIZES},
    lines=tuple(
        line for size in CONSUMER_SIZES
        for line in (
            _less(f"settle_{size}_s", f"a group settles after members 2 to {size:,} came", "s"),
            _less(f"heartbeat_of_{size}_ms", f"a settled member's heartbeat in a group of {size:,}", "ms"),
        )
    ),
    needs_topic=False,
)  # fmt: skip
CONSUMER_COSTS: Final = Measure(
    name="consumer-costs", group="consumers", generator="Redis's own counters",
    job={"job": "consumer_costs", "sizes": CONSUMER_SIZES},
    lines=tuple(
        _less(f"heartbeat_of_{size}_us", f"a settled member's heartbeat in a group of {size:,}", "us")
        for size in CONSUMER_SIZES
    ),
    needs_topic=False, needs_redis=True,
)  # fmt: skip


def _neighbours(name: str, label: str, seconds: float, preload: int = 0, **load: int) -> Measure:
    job = {"job": "neighbours", "value_bytes": 1000, "seconds": seconds, **load}
    lines = tuple(
        _less(f"{api}_{percentile}_ms", f"{api} {label}, {percentile}", "ms")
        for api in ("heartbeat", "produce", "fetch") for percentile in ("p50", "p99")
    )  # fmt: skip
    return Measure(
        name=name, group="neighbours", generator="raw, one by one", job=job, lines=lines, needs_topic=False,
        preload=preload, value_bytes=1000,
    )  # fmt: skip


def measures(seconds: float) -> tuple[Measure, ...]:
    """Every measure, each taking about `seconds`; the number of consumed records grows with them."""
    return (
        _produce("produce-single", "produce, 100 B, one record a request", 100, seconds,
                 linger_ms="0", batch_num_messages="1"),
        _produce("produce-100", "produce, 100 B, batched", 100, seconds),
        # Each record goes to a partition at random, so a request has batches of nearly all.
        _produce("produce-partitions", "produce, 100 B, batched, to 100 partitions", 100, seconds, partitions=100,
                 sticky_partitioning_linger_ms="0"),
        _produce("produce-1000", "produce, 1 kB, batched", 1000, seconds),
        _consume("consume-100", "consume, 100 B", 100, int(1_500_000 * seconds)),
        _consume("consume-1000", "consume, 1 kB", 1000, int(400_000 * seconds)),
        _consume("consume-8", "8 consumers of one partition, 1 kB", 1000, int(100_000 * seconds), consumers=8),
        _latency(1000, seconds),
        _latency(10_000, seconds),
        _coordinate("heartbeat", "heartbeats", seconds),
        _coordinate("offset_commit", "commits", seconds),
        *(
            _shares(consumers, acknowledgement, records, most, seconds)
            for records, most in ((1, 20_000), (500, 500_000))
            for consumers in (1, 10, 100) for acknowledgement in ("implicit", "explicit")
        ),
        _share_latency(1, seconds),
        _share_latency(100, seconds),
        SHARE_WAITERS,
        _neighbours("alone", "alone", seconds),
        _neighbours("beside-movers", "while others move all they can in and out", seconds,
                    preload=400_000, producers=1, consumers=50),
        _neighbours("beside-readers", "while 100 readers catch up", seconds, preload=400_000, consumers=100),
        JOINING,
        GROUP_COSTS,
        SETTLING,
        CONSUMER_COSTS,
    )  # fmt: skip


PROCESS: Final = Measure(
    name="process",
    group="process",
    generator="-",
    job={},
    lines=(
        Line(key="cold_start_s", label="cold start", unit="s", less_is_better=True),
        Line(key="idle_mb", label="resident memory, just started", unit="MB", less_is_better=True),
        Line(key="used_mb", label="resident memory, after the run, topics deleted", unit="MB", less_is_better=True),
    ),
)
PIPELINE_SIZES: Final = (200, 1000)
PIPELINE_WAYS: Final = ("korvet", "stock")
PIPELINE_LINES: Final = {
    "read": "read",
    "archive": "archive, warm",
    "cold": "archive, cold",
    "replay": "replay",
    "ordered": "replay, stock in order",
    "sink": "stream to a topic (exactlyOnce=partition)",
}
PIPELINE_STEPS: Final = (*PIPELINE_LINES, "typed", "start")


def _pipeline(name: str, *lines: Line, value_bytes: int = 0) -> Measure:
    return Measure(name=name, group="pipeline", generator="Spark", job={}, lines=lines, value_bytes=value_bytes)


PIPELINE: Final = tuple(
    _pipeline(
        f"pipeline-{size}",
        *(Line(key=key, label=f"{label}, {size:,} B", unit="rows/s") for key, label in PIPELINE_LINES.items()),
        value_bytes=size,
    )
    for size in PIPELINE_SIZES
)
TYPED_WAYS: Final = ("typed", "raw")
TYPED: Final = _pipeline(
    "pipeline-typed",
    Line(key="types", label="archive of JSON, schema of types and required", unit="rows/s"),
    Line(key="patterns", label="archive of JSON, schema of patterns and formats", unit="rows/s"),
    value_bytes=150,
)
START: Final = _pipeline(
    "pipeline-start",
    _less("python_s", "archive of an empty topic: Python and its packages", "s"),
    _less("session_s", "archive of an empty topic: Java and Spark", "s"),
    _less("archive_s", "archive of an empty topic: the archive", "s"),
    _less("end_s", "archive of an empty topic: the end of Spark", "s"),
    _less("all_s", "archive of an empty topic: all of it", "s"),
)
DEFAULT_GROUPS: Final = ("produce", "consume", "latency", "groups", "shares", "scale", "consumers", "process")
GROUPS: Final = (*DEFAULT_GROUPS, "neighbours", "pipeline")
