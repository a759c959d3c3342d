"""The way of one record, step by step: from a producer's write to the acknowledgement, and to a waiting consumer.

A producer and a consumer, both raw connections, and a korvet that notes when bytes pass its sockets
(`scripts.benchmark.stamped`). The clocks of all processes are the machine's monotonic clock.
"""

import json
import socket
import tempfile
import threading
import time
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import redis

from scripts.benchmark.growth_jobs import FETCH, PRODUCE, fetch_of, produce_of
from scripts.benchmark.play import answer, ask, connected
from scripts.benchmark.stamped import ANSWERED, ARRIVED, ASKED, REPLIED
from scripts.benchmark.targets import korvet
from tests.oracle import messages
from tests.oracle.script import error_codes

RECORDS: Final = 3_000
WARM_UP: Final = 200
PAUSE_S: Final = 0.001
WAIT_MS: Final = 5_000
TOPIC: Final = "way"


class Step(NamedTuple):
    """A step of the way, and its microseconds at the median and the 99th percentile."""

    name: str
    p50_us: float
    p99_us: float

    def line(self) -> str:
        """The step as text."""
        return f"{self.name:40} {self.p50_us:8.0f} µs at the median {self.p99_us:8.0f} at the 99th percentile"


class Sent(NamedTuple):
    """When a record was sent, acknowledged and received, in nanoseconds of the monotonic clock."""

    sent: int
    acknowledged: int
    received: int


def _fetch(offset: int) -> bytes:
    fields = {**fetch_of(TOPIC, [(0, offset)]), "max_wait": WAIT_MS, "min_bytes": 1}
    return messages.request_frame("fetch", FETCH, fields, 1)


def _receive(wire: socket.socket, records: int, received: list[int], parked: threading.Event) -> None:
    for offset in range(records):
        wire.sendall(_fetch(offset))
        parked.set()
        answer(wire)
        received.append(time.monotonic_ns())


def _send_all(producer: socket.socket, consumer: socket.socket, records: int) -> list[Sent]:
    frame = messages.request_frame("produce", PRODUCE, produce_of(TOPIC, [0]), 1)
    received: list[int] = []
    parked = threading.Event()
    thread = threading.Thread(target=_receive, args=(consumer, records, received, parked))
    thread.start()
    times = []
    for number in range(records):
        if not parked.wait(WAIT_MS / 1000):
            raise RuntimeError("a record did not arrive")
        parked.clear()
        time.sleep(PAUSE_S)
        sent = time.monotonic_ns()
        acknowledged = ask(producer, frame)
        times.append((sent, time.monotonic_ns()))
        if errors := error_codes(messages.parse_answer("produce", PRODUCE, acknowledged, 1)):
            raise RuntimeError(f"record {number} was answered {errors}")
    thread.join()
    return [Sent(*both, at) for both, at in zip(times, received, strict=True)]


def _next(notes: Sequence[Sequence[Any]], after: int) -> int | None:
    """The time of the first note at or after a time."""
    at = bisect_left(notes, after, key=lambda note: note[0])
    return notes[at][0] if at < len(notes) else None


def _steps(
    sent: Sequence[Sent], notes: Sequence[Sequence[Any]], producer: int, consumer: int, call_us: float
) -> list[Step]:
    """The steps of all records. ``call_us`` is the append's time in Redis, which no note has."""
    by = {
        (step, port): [note for note in notes if note[1] == step and note[2] == port]
        for step, port in [(ARRIVED, producer), (ASKED, 0), (REPLIED, 0), (ANSWERED, producer), (ANSWERED, consumer)]
    }
    found: dict[str, list[int]] = {}
    for record in sent:
        arrived = _next(by[ARRIVED, producer], record.sent)
        asked = None if arrived is None else _next(by[ASKED, 0], arrived)
        replied = None if asked is None else _next(by[REPLIED, 0], asked)
        answered = None if replied is None else _next(by[ANSWERED, producer], replied)
        delivered = None if replied is None else _next(by[ANSWERED, consumer], replied)
        if None in (arrived, asked, replied, answered, delivered):
            continue
        assert arrived and asked and replied and answered and delivered
        for name, took in {
            "producer to front-end": arrived - record.sent,
            "front-end: frame to call": asked - arrived,
            "call, Redis, reply": replied - asked,
            "front-end: reply to acknowledgement": answered - replied,
            "front-end to producer": record.acknowledged - answered,
            "front-end: reply to consumer's answer": delivered - replied,
            "front-end to consumer": record.received - delivered,
            "acknowledged, in all": record.acknowledged - record.sent,
            "in the consumer's hand, in all": record.received - record.sent,
        }.items():
            found.setdefault(name, []).append(took)
    steps = [Step(name, _us(took, 0.5), _us(took, 0.99)) for name, took in found.items()]
    return [*steps, Step("of Redis's part: the append itself", call_us, call_us)]


def _us(took: Sequence[int], part: float) -> float:
    ordered = sorted(took)
    return ordered[int(len(ordered) * part)] / 1000


def _append_us(redis_url: str) -> float:
    with redis.Redis.from_url(redis_url) as client:
        return float(client.info("commandstats")["cmdstat_fcall"]["usec_per_call"])


def run(records: int = RECORDS) -> list[Step]:
    """Start a korvet, send records one after the other, and return the steps of their ways."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        notes = Path(name) / "notes.json"
        program = ("-m", "scripts.benchmark.stamped", str(notes))
        with korvet(Path(name), program=program) as target:
            target.create_topic(TOPIC)
            with connected(target.address) as producer, connected(target.address) as consumer:
                ports = producer.getsockname()[1], consumer.getsockname()[1]
                assert target.redis_url is not None
                with redis.Redis.from_url(target.redis_url) as client:
                    client.config_resetstat()
                sent = _send_all(producer, consumer, records + WARM_UP)[WARM_UP:]
            call_us = _append_us(target.redis_url)
        return _steps(sent, json.loads(notes.read_text()), *ports, call_us)
