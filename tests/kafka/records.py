"""Records as every driver exchanges them, and the sample records of the scenarios."""

import base64
import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

Header = tuple[str, bytes | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record. A record to produce may have None as `partition` and `timestamp_ms`: then the client chooses."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[Header, ...] = ()
    timestamp_ms: int | None = None
    partition: int | None = None
    offset: int | None = None

    def content(self) -> "Record":
        """The parts that its producer wrote: no timestamp, partition or offset."""
        return replace(self, timestamp_ms=None, partition=None, offset=None)

    def to_json(self) -> dict[str, Any]:
        return {
            "key": _encode(self.key),
            "value": _encode(self.value),
            "headers": [[name, _encode(value)] for name, value in self.headers],
            "timestamp": self.timestamp_ms,
            "partition": self.partition,
            "offset": self.offset,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Record":
        return cls(
            key=_decode(data["key"]),
            value=_decode(data["value"]),
            headers=tuple((name, _decode(value)) for name, value in data["headers"]),
            timestamp_ms=data["timestamp"],
            partition=data["partition"],
            offset=data["offset"],
        )


def _encode(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _decode(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def contents(records: Iterable[Record]) -> list[Record]:
    """The parts that the producers wrote, in the order of the records."""
    return [record.content() for record in records]


def values(records: Iterable[Record]) -> list[bytes | None]:
    return [record.value for record in records]


def numbered(count: int, *, partition: int | None = 0, prefix: str = "value") -> list[Record]:
    """`count` small distinct records for one partition."""
    return [Record(value=f"{prefix}-{n}".encode(), partition=partition) for n in range(count)]


def compressible(count: int, *, prefix: str) -> list[Record]:
    """`count` records of about 400 bytes that every codec can shrink, with keys and headers."""
    return [
        Record(
            key=f"{prefix}-{n}".encode(),
            value=f"{prefix}-{n} ".encode() + b"a line that comes again and again; " * 10,
            headers=(("writer", prefix.encode()),),
            partition=0,
        )
        for n in range(count)
    ]


def incompressible(count: int, size_bytes: int, *, seed: int) -> list[Record]:
    """`count` records of `size_bytes` random bytes, always the same for one seed."""
    source = random.Random(seed)
    return [Record(value=source.randbytes(size_bytes), partition=0) for _ in range(count)]
