"""What the clients kafka-python and aiokafka have alike: records, settings and errors."""

from typing import Any

from tests.kafka.drivers.serve import emit_record
from tests.kafka.records import Record


class Reader:
    """A driver with at most one reader, from `open`, one producer of transactions and one member, from `join`."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.reader: Any = None
        self.transactor: Any = None
        self.member: Any = None
        self.owned: list[int] = []
        self.positions: dict[Any, int] = {}
        self.records_left: int | None = None

    def report(self, partition: Any, message: Any) -> None:
        """Emit a record that the member got, unless there are enough of them."""
        if self.records_left == 0:
            return
        if self.records_left is not None:
            self.records_left -= 1
        self.positions[partition] = message.offset + 1
        emit_record(received(message))


def member_settings(options: dict[str, Any]) -> dict[str, Any]:
    names = {
        "reset": "auto_offset_reset",
        "session_timeout_ms": "session_timeout_ms",
        "auto_commit": "enable_auto_commit",
    }
    return {names[name]: value for name, value in options.items() if name in names and value is not None}


def to_send(data: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a producer's `send`, beside the topic."""
    record = Record.from_json(data)
    return {
        "value": record.value,
        "key": record.key,
        "headers": list(record.headers),
        "partition": record.partition,
        "timestamp_ms": record.timestamp_ms,
    }


def sent_at(sent: Any) -> dict[str, Any]:
    return {"partition": sent.partition, "offset": sent.offset if sent.offset >= 0 else None}


def received(message: Any) -> Record:
    return Record(
        key=message.key,
        value=message.value,
        headers=tuple(message.headers),
        timestamp_ms=message.timestamp,
        partition=message.partition,
        offset=message.offset,
    )


def error_code(error: Exception) -> int:
    return getattr(error, "errno", -1)
