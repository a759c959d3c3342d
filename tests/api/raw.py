"""One raw request to a broker and its answer as plain values, at any version."""

import socket
import struct
from typing import Any
from uuid import uuid4

from tests.oracle.messages import parse_answer, request_frame

ANSWER_WITHIN_S = 30.0
_CORRELATION_ID = 7


def ask(port: int, api: str, version: int, /, **values: Any) -> Any:
    """Send a request on a connection of its own; error codes in the answer are Kafka's names in capitals."""
    frame = request_frame(api, version, values, _CORRELATION_ID)
    return parse_answer(api, version, exchange(port, frame), _CORRELATION_ID)


def exchange(port: int, frame: bytes) -> bytes:
    """Send a frame, size first, on a connection of its own; the answer's frame without its size."""
    with socket.create_connection(("127.0.0.1", port), timeout=ANSWER_WITHIN_S) as connection:
        connection.sendall(frame)
        (size,) = struct.unpack(">i", _receive(connection, 4))
        return _receive(connection, size)


def _receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise ConnectionError(f"closed after {len(data)} of {size} bytes")
        data += piece
    return data


def unique(prefix: str = "t") -> str:
    """A name that no other test uses."""
    return f"{prefix}-{uuid4().hex[:12]}"


def create_topics(port: int, *topics: dict[str, Any], version: int = 7, validate_only: bool = False) -> list[Any]:
    """Results of CreateTopics, by default for one partition each."""
    asked = [{"num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": [], **one} for one in topics]
    answer = ask(port, "create_topics", version, topics=asked, timeout=10_000, validate_only=validate_only)
    return list(answer["topics"])


def created(port: int, name: str | None = None, partitions: int = 1, **configs: str) -> str:
    """A new topic's name; the configs' names with underscores for dots."""
    name = name or unique()
    pairs = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
    (result,) = create_topics(port, {"name": name, "num_partitions": partitions, "configs": pairs})
    assert result["error_code"] == "NONE", result
    return name


def errors(results: list[Any]) -> list[tuple[str, str, str | None]]:
    """Name, code and message of each result."""
    return [(one["name"], one["error_code"], one.get("error_message")) for one in results]
