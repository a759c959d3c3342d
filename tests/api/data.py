"""Produce, Fetch and their kin as raw requests, over connections that stay open."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tests.api.raw import ANSWER_WITHIN_S, _receive, ask
from tests.oracle.batches import Batch, describe, encode
from tests.oracle.messages import parse_answer, request_frame


class Connection:
    """One connection; requests may be pipelined with `send` and `receive`."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_WITHIN_S)
        self._sent = 0
        self._received = 0
        self._asked: dict[int, tuple[str, int]] = {}

    def send(self, api: str, version: int, /, **values: Any) -> None:
        """Send a request and do not wait."""
        self._sent += 1
        self._asked[self._sent] = api, version
        self.socket.sendall(request_frame(api, version, values, self._sent))

    def skip(self) -> None:
        """Expect no answer to the next request."""
        self._received += 1

    def receive(self) -> Any:
        """The answer to the oldest request without one."""
        self._received += 1
        (size,) = struct.unpack(">i", _receive(self.socket, 4))
        return parse_answer(*self._asked[self._received], _receive(self.socket, size), self._received)

    def ask(self, api: str, version: int, /, **values: Any) -> Any:
        """A request and its answer."""
        self.send(api, version, **values)
        return self.receive()


@contextmanager
def connected(port: int) -> Iterator[Connection]:
    """A connection for the time of the block."""
    connection = Connection(port)
    try:
        yield connection
    finally:
        connection.socket.close()


def now_ms() -> int:
    """Milliseconds since 1970."""
    return int(time.time() * 1000)


def records(count: int = 3, size: int = 10, **values: Any) -> bytes:
    """A batch; its timestamps are about now unless given."""
    return encode(Batch(count=count, value=b"v" * size, **{"timestamp": now_ms(), **values}))


def produce_request(topic: Any, data: bytes | None, *, partition: int = 0, acks: int = -1, **values: Any) -> Any:
    """Fields of a Produce request for one partition; the topic by name, or by id if it is not text."""
    named = {"name": topic} if isinstance(topic, str) else {"topic_id": topic}
    part = {"index": partition, "records": data}
    return {"acks": acks, "timeout": 5000, "topic_data": [{**named, "partition_data": [part]}], **values}


def produce(port: int, topic: Any, data: bytes | None, version: int = 12, **values: Any) -> Any:
    """The answer for the one partition."""
    with connected(port) as connection:
        answer = connection.ask("produce", version, **produce_request(topic, data, **values))
    return answer["responses"][0]["partition_responses"][0]


def produced(port: int, topic: str, *batches: bytes, partition: int = 0) -> None:
    """Append batches, and assert that they are stored."""
    with connected(port) as connection:
        for data in batches:
            answer = connection.ask("produce", 12, **produce_request(topic, data, partition=partition))
            assert answer["responses"][0]["partition_responses"][0]["error_code"] == "NONE", answer


def wanted(offset: int, partition: int = 0, *, max_bytes: int = 1 << 20, epoch: int = -1, last: int = -1) -> Any:
    """Fields of one partition of a Fetch request."""
    return {
        "partition": partition,
        "current_leader_epoch": epoch,
        "fetch_offset": offset,
        "last_fetched_epoch": last,
        "log_start_offset": -1,
        "partition_max_bytes": max_bytes,
    }


def fetch_request(
    topic: Any,
    *parts: Any,
    max_wait: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 25,
    isolation_level: int = 0,
    session: tuple[int, int] = (0, -1),
) -> Any:
    """Fields of a Fetch request of one topic, by name, or by id if it is not text."""
    named = {"topic": topic} if isinstance(topic, str) else {"topic_id": topic}
    return {
        "max_wait": max_wait,
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "isolation_level": isolation_level,
        "session_id": session[0],
        "session_epoch": session[1],
        "topics": [{**named, "partitions": list(parts)}],
        "forgotten_topics_data": [],
    }


def fetch(port: int, topic: Any, *parts: Any, version: int = 12, **values: Any) -> list[Any]:
    """The answers for the partitions."""
    with connected(port) as connection:
        return partitions_of(connection.ask("fetch", version, **fetch_request(topic, *parts, **values)))


def partitions_of(answer: Any) -> list[Any]:
    """The partitions of a Fetch answer for one topic."""
    return list(answer["responses"][0]["partitions"])


def batches_of(part: Any) -> Sequence[Any]:
    """The batches in a partition's answer, all of them whole and with a right checksum."""
    batches: Sequence[Any] = describe(part["records"]) or ()
    assert all(batch.get("crc") == "right" for batch in batches), batches
    return batches


def offsets(part: Any) -> list[int]:
    """Base offsets of the batches in a partition's answer."""
    return [batch["base_offset"] for batch in batches_of(part)]


def epoch_of(port: int, topic: str) -> int:
    """The leader epoch of partition 0, as Metadata tells it."""
    asked = {"topics": [{"name": topic, "topic_id": None}], "allow_auto_topic_creation": False}
    (found,) = ask(port, "metadata", 12, **asked)["topics"]
    (partition,) = found["partitions"]
    return int(partition["leader_epoch"]) if partition["error_code"] == "NONE" else -1


def epoch_end(port: int, topic: str, epoch: int) -> tuple[int, int]:
    """The last leader epoch up to one, and its end, as OffsetForLeaderEpoch tells them of partition 0."""
    part = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": epoch}
    topics = [{"topic": topic, "partitions": [part]}]
    answer = ask(port, "offset_for_leader_epoch", 4, replica_id=-1, topics=topics)
    (found,) = answer["topics"][0]["partitions"]
    return found["leader_epoch"], found["end_offset"]
