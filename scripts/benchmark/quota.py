"""A quota over four workers: eight librdkafka producers send all they can, and the bytes of each second are counted.

The producers are processes with the same client id. First they use up what an idle client may send at once, ten
seconds' worth; then 30 s are measured. What they sent is what the broker acknowledged.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, NamedTuple

import confluent_kafka

from scripts.benchmark.targets import korvet
from tests.api.quotas import limit

QUOTA: Final = 10_000_000
WORKERS: Final = 4
PRODUCERS: Final = 8
WARM_UP_S: Final = 20.0
MEASURED_S: Final = 30.0
CLIENT_ID: Final = "measured"
_RECORD_BYTES: Final = 10_000


class Held(NamedTuple):
    """Bytes a second over the measured time, and the longest throttle time in a producer's answers, in ms."""

    rate: float
    longest_throttle_ms: int

    def line(self) -> str:
        """The figures as text."""
        return (
            f"{PRODUCERS} producers, {WORKERS} workers, {QUOTA / 1e6:.1f} MB/s allowed: {self.rate / 1e6:.2f} MB/s "
            f"over {MEASURED_S:.0f} s ({100 * self.rate / QUOTA - 100:+.1f} %), "
            f"throttled for up to {self.longest_throttle_ms} ms at once"
        )


def run() -> Held:
    """Start korvet and the producers, and count for the measured time."""
    with tempfile.TemporaryDirectory(prefix="korvet-bench-") as name, korvet(Path(name), workers=WORKERS) as target:
        topics = [f"quota-{number}" for number in range(PRODUCERS)]
        for topic in topics:
            target.create_topic(topic, {})
        limit(int(target.address.rpartition(":")[2]), {"client_id": CLIENT_ID}, producer_byte_rate=QUOTA)
        began = time.time() + WARM_UP_S
        command = [sys.executable, "-m", "scripts.benchmark.quota", target.address, str(began)]
        running = [subprocess.Popen([*command, topic], stdout=subprocess.PIPE, text=True) for topic in topics]
        outputs = [one.communicate()[0].split() for one in running]
    return Held(sum(int(sent) for sent, _ in outputs) / MEASURED_S, max(int(throttle) for _, throttle in outputs))


def produce(address: str, began: float, topic: str) -> tuple[int, int]:
    """Send all that one producer can. The bytes that were acknowledged in the measured time, and the longest throttle
    time in ms."""
    sent = longest_ms = 0

    def delivered(error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        nonlocal sent
        assert error is None or time.time() >= began + MEASURED_S, error
        if error is None and began <= time.time() < began + MEASURED_S:
            sent += len(message)

    def throttled(event: confluent_kafka.ThrottleEvent) -> None:
        nonlocal longest_ms
        longest_ms = max(longest_ms, int(event.throttle_time * 1000))

    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": address,
            "client.id": CLIENT_ID,
            "throttle_cb": throttled,
            "log_level": 3,
            "queue.buffering.max.kbytes": 4096,
            "message.timeout.ms": 600_000,
        }
    )
    record = bytes(_RECORD_BYTES)
    while time.time() < began + MEASURED_S:
        try:
            producer.produce(topic, record, on_delivery=delivered)
            producer.poll(0)
        except BufferError:
            producer.poll(0.05)
    producer.purge()
    producer.poll(0)
    return sent, longest_ms


if __name__ == "__main__":
    sys.stdout.write(" ".join(map(str, produce(sys.argv[1], float(sys.argv[2]), sys.argv[3]))) + "\n")
