"""A load generator: `python -m scripts.benchmark.worker JOB`, a process per measurement, its result as JSON on stdout.

It runs apart from the process that measures and starts the brokers, so that neither steals the other's time. A job is
{"job": name, "address": host:port, …}; the functions in JOBS and ELSEWHERE document their keys and results.
"""

import json
import os
import pkgutil
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from scripts.benchmark import rdkafka
from scripts.benchmark.play import play

POOL: Final = 1000
POOL_BYTES: Final = 50_000_000
SETTLE_S: Final = 0.5
RECEIVED_WITHIN_MS: Final = 10_000


def settings_of(address: str, **more: str) -> dict[str, str]:
    """librdkafka's settings for a broker."""
    return {"bootstrap.servers": address, **{name.replace("_", "."): value for name, value in more.items()}}


def _values(value_bytes: int, number: int, *, is_text: bool) -> list[bytes]:
    """Different values: random bytes, or text that codecs shrink as they shrink most JSON."""
    if not is_text:
        return [os.urandom(value_bytes) for _ in range(number)]
    fields = (f'{{"order":{at},"customer":"{os.urandom(6).hex()}","state":"shipped"}},' for at in range(number))
    return [(field * (value_bytes // len(field) + 1))[:value_bytes].encode() for field in fields]


def _produce_until(producer: rdkafka.Producer, values: list[bytes], deadline: float, most: int) -> int:
    chunk = rdkafka.messages(values)
    sent = 0
    while sent < most and time.perf_counter() < deadline:
        sent += producer.send(chunk)
    producer.flush()
    return sent


def produce(
    address: str, topic: str, value_bytes: int, seconds: float, most: int, settings: dict[str, str],
    is_text: bool = False, partitions: int = 1,
) -> dict[str, float]:  # fmt: skip
    """Append records for some seconds, at most `most`; time counts until the last one is acknowledged.

    The log must be longer by as many records as were sent. librdkafka sends from `values` until its queue is flushed.
    """
    pool = max(1, min(POOL, most, POOL_BYTES // value_bytes))
    values = _values(value_bytes, pool, is_text=is_text)
    producer = rdkafka.Producer(topic, settings_of(address, **settings), partitions)
    before = producer.end()
    started = time.perf_counter()
    sent = _produce_until(producer, values, started + seconds, most)
    elapsed = time.perf_counter() - started
    appended = producer.end() - before
    producer.close()
    if appended != sent:
        raise RuntimeError(f"{sent} records were sent and {appended} appended")
    return _rates(sent, sent / elapsed, value_bytes)


def _rates(records: int, records_per_s: float, value_bytes: int) -> dict[str, float]:
    return {"count": records, "records_per_s": records_per_s, "mb_per_s": records_per_s * value_bytes / 1e6}


def _read_all(address: str, topic: str, settings: dict[str, str]) -> tuple[int, int, float, float]:
    """The number of records, and of records after the first ones; when those came, and when the last record did."""
    consumer = rdkafka.Consumer(topic, settings_of(address, **settings), 0, counted=True)
    total = consumer.watermarks()[1]
    first = read = consumer.count(RECEIVED_WITHIN_MS)
    started = time.perf_counter()
    while read < total:
        got = consumer.count(RECEIVED_WITHIN_MS)
        if got == 0:
            raise RuntimeError(f"{read} of {total} records arrived")
        read += got
    ended = time.perf_counter()
    consumer.close()
    return read, read - first, started, ended


def consume(
    address: str, topic: str, value_bytes: int, consumers: int = 1, settings: dict[str, str] | None = None
) -> dict[str, float]:
    """Each consumer reads the whole log once, all at the same time; time counts from the first records that arrived."""
    with ThreadPoolExecutor(consumers) as threads:
        found = list(threads.map(lambda _: _read_all(address, topic, settings or {}), range(consumers)))
    read, timed, starts, ends = zip(*found, strict=True)
    return _rates(sum(read), sum(timed) / (max(ends) - min(starts)), value_bytes)


def send_paced(producer: rdkafka.Producer, rate: int, seconds: float, stopped: threading.Event) -> None:
    """Send records of 100 bytes that begin with their time, at `rate` a second."""
    started = time.monotonic_ns()
    for number in range(int(rate * seconds)):
        due = started + number * 1_000_000_000 // rate
        if (ahead := due - time.monotonic_ns()) > 0:
            time.sleep(ahead / 1e9)
        if stopped.is_set():
            return
        value = time.monotonic_ns().to_bytes(8) + bytes(92)
        producer.send(rdkafka.messages([value]), rdkafka.COPY)


def latency(address: str, topic: str, seconds: float, rate: int) -> dict[str, float]:
    """Milliseconds from just before the produce call to the record's arrival in a consumer, at `rate` records/s."""
    producer = rdkafka.Producer(topic, settings_of(address, linger_ms="0"))
    consumer = rdkafka.Consumer(topic, settings_of(address), producer.watermarks()[1], counted=False)
    producer.send(rdkafka.messages([bytes(100)]), rdkafka.COPY)
    if consumer.one(RECEIVED_WITHIN_MS) is None:
        raise RuntimeError("nothing arrived")
    stopped = threading.Event()
    sender = threading.Thread(target=send_paced, args=(producer, rate, seconds + SETTLE_S, stopped))
    sender.start()
    try:
        taken = []
        for _ in range(int(rate * (seconds + SETTLE_S))):
            value = consumer.one(RECEIVED_WITHIN_MS)
            if value is None:
                raise RuntimeError("a record did not arrive")
            taken.append(time.monotonic_ns() - int.from_bytes(value[:8]))
    finally:
        stopped.set()
        sender.join()
    producer.flush()
    producer.close()
    consumer.close()
    return percentiles(taken, rate)


def percentiles(taken: list[int], rate: int) -> dict[str, float]:
    """The milliseconds of records from their nanoseconds, without those of the time in which all settles."""
    settled = sorted(taken[int(rate * SETTLE_S) :])
    return {
        "count": len(taken),
        "p50_ms": settled[len(settled) // 2] / 1e6,
        "p99_ms": settled[len(settled) * 99 // 100] / 1e6,
    }


JOBS: Final[dict[str, Any]] = {"produce": produce, "consume": consume, "latency": latency, "play": play}
ELSEWHERE: Final = {
    "coordinate": "coordinator:coordinate", "joining": "scale:joining", "group_costs": "scale:group_costs",
    "settling": "consumers:settling", "consumer_costs": "consumers:costs", "partitions": "growth_jobs:partitions",
    "connections": "growth_jobs:connections", "first_reads": "growth_jobs:first_reads",
    "neighbours": "neighbours:neighbours", "shares": "shares:shares", "share_latency": "shares:latency",
    "share_waiters": "shares:waiters",
}  # fmt: skip
"""Jobs with modules that need Kafka's schemas. Importing these takes longer than a short measurement."""


def main() -> None:
    """Do the job of the first argument. The result has the processor time that it took."""
    job = json.loads(sys.argv[1])
    name = job.pop("job")
    do = JOBS[name] if name in JOBS else pkgutil.resolve_name(f"scripts.benchmark.{ELSEWHERE[name]}")
    before = os.times()
    result = do(**job)
    after = os.times()
    spent = {"user_s": after.user - before.user, "kernel_s": after.system - before.system}
    sys.stdout.write(json.dumps({"result": result, "spent": spent}) + "\n")


if __name__ == "__main__":
    main()
