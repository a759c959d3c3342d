"""Producers of numbered records: half of them in transactions, some of them aborted and repeated."""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import KafkaError, KafkaException, Message, Producer

PLAIN: Final = "plain"
TRANSACTED: Final = "transacted"
TOPICS: Final = (PLAIN, TRANSACTED)
PARTITIONS: Final = 4
_TRANSACTION: Final = 1000
_ABORTED_EVERY: Final = 7
_WITHIN_S: Final = 300.0
FILLER: Final = "korvet " * 20
SPREAD: Final = 7919
SETTINGS: Final[dict[str, Any]] = {
    "enable.idempotence": True,
    # The answer to a later batch in flight would acknowledge an earlier one without its offset.
    "max.in.flight": 1,
    "linger.ms": 20,
    "message.timeout.ms": 300_000,
    "reconnect.backoff.max.ms": 1000,
    "queue.buffering.max.messages": 200_000,
    "log_level": 0,
}


def value(number: int) -> bytes:
    """A record's value: its number, and text made of it."""
    return f"{number}:{FILLER}{number * SPREAD}".encode()


class Acknowledged:
    """The records' partitions and offsets, as the broker acknowledged them."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, int, int, int]] = []
        self.failures: list[str] = []

    def note(self, number: int) -> Any:
        """A callback for one record."""

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self.failures.append(error.str())
            else:
                self.rows.append((message.topic() or "", message.partition() or 0, message.offset() or 0, number))

        return delivered

    def write(self, path: Path) -> None:
        """Write a Parquet file with topic, partition, offset and number."""
        names = ("topic", "partition", "offset", "number")
        columns = list(zip(*self.rows, strict=True)) or [(), (), (), ()]
        kinds = (pa.string(), pa.int32(), pa.int64(), pa.int64())
        table = pa.table({name: pa.array(c, k) for name, c, k in zip(names, columns, kinds, strict=True)})
        pq.write_table(table, path)


def _send(producer: Producer, topic: str, number: int, on_delivery: Any, *, is_meant: bool = True) -> None:
    key = f"{'key' if is_meant else 'aborted'} {number}".encode()
    headers: list[tuple[str, str | bytes | None]] = [("number", b"%d" % number)]
    while True:
        try:
            producer.produce(
                topic, value(number), key, partition=number % PARTITIONS, headers=headers, on_delivery=on_delivery
            )
            break
        except BufferError:
            producer.poll(0.1)
    producer.poll(0)


def produce_plain(bootstrap: str, numbers: Sequence[int], per_s: float) -> Acknowledged:
    """Send by an idempotent producer, without transactions."""
    found, began = Acknowledged(), time.monotonic()
    producer = Producer({**SETTINGS, "bootstrap.servers": bootstrap})
    for count, number in enumerate(numbers):
        _send(producer, PLAIN, number, found.note(number))
        if count % 500 == 0:
            time.sleep(max(0.0, began + count / per_s - time.monotonic()))
    if producer.flush(_WITHIN_S):
        found.failures.append("records were not acknowledged")
    return found


def produce_transacted(bootstrap: str, numbers: Sequence[int], per_s: float) -> Acknowledged:
    """Send in transactions; abort every seventh first."""
    found, began = Acknowledged(), time.monotonic()
    settings = {
        **SETTINGS,
        "bootstrap.servers": bootstrap,
        "transactional.id": "chaos",
        "transaction.timeout.ms": 300_000,
    }
    producer = Producer(settings)
    _again(lambda: producer.init_transactions(_WITHIN_S))
    for start in range(0, len(numbers), _TRANSACTION):
        part = numbers[start : start + _TRANSACTION]
        if (start // _TRANSACTION) % _ABORTED_EVERY == 0:
            _try(producer, part, is_meant=False)
        while (sent := _try(producer, part, is_meant=True)) is None:
            pass
        found.rows += sent.rows
        time.sleep(max(0.0, began + (start + len(part)) / per_s - time.monotonic()))
    return found


def _try(producer: Producer, numbers: Sequence[int], *, is_meant: bool) -> Acknowledged | None:
    """Write one transaction; None if it is aborted."""
    found = Acknowledged()
    _again(producer.begin_transaction)
    try:
        for number in numbers:
            _send(producer, TRANSACTED, number, found.note(number), is_meant=is_meant)
        producer.flush(_WITHIN_S)
        if is_meant:
            _again(lambda: producer.commit_transaction(_WITHIN_S))
            return found
    except KafkaException as error:
        if error.args[0].fatal():
            raise
    _again(lambda: producer.abort_transaction(_WITHIN_S))
    return None


def _again(call: Any) -> None:
    deadline = time.monotonic() + _WITHIN_S
    while True:
        try:
            call()
            return
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def main() -> None:
    job = json.loads(sys.argv[1])
    make = {PLAIN: produce_plain, TRANSACTED: produce_transacted}[job["topic"]]
    found = make(job["bootstrap"], range(*job["numbers"]), job["per_s"])
    if found.failures:
        raise SystemExit(f"{len(found.failures)} records failed: {found.failures[0]}")
    found.write(Path(job["acknowledged"]))


if __name__ == "__main__":
    main()
