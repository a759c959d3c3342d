"""Journals of clients, as JSON lines: each process of clients appends to its own, and the checks read them all.

Times are µs since 1970, so that Java's and Python's compare. A line is one write: a killed process leaves whole lines,
except perhaps the last.
"""

import json
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self, get_args

Partition = tuple[str, int]  # topic, index


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """A member got its partitions in this generation: `added` are the new ones, `owned` are all."""

    at_us: int
    client: str
    group: str
    member_id: str
    generation: int
    added: list[Partition]
    owned: list[Partition]


@dataclass(frozen=True, slots=True, kw_only=True)
class Revoked:
    """A member gave up these partitions; `lost` if it was too late to commit."""

    at_us: int
    client: str
    group: str
    partitions: list[Partition]
    lost: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumed:
    """A record reached a member; the generation is its last one."""

    at_us: int
    client: str
    group: str
    member_id: str
    generation: int
    partition: Partition
    offset: int
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """Offsets with an acknowledged commit."""

    at_us: int
    client: str
    group: str
    offsets: list[tuple[Partition, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    """A record with an acknowledged append, at this offset.

    None if librdkafka knows only by the answer to a later batch that the record is stored.
    """

    at_us: int
    client: str
    partition: Partition
    offset: int | None
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A record of a queue reached a share consumer or a Redis worker, in this delivery of it."""

    at_us: int
    client: str
    group: str
    partition: Partition
    offset: int
    value: str
    deliveries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """A record was settled: accept, release or reject. With an `error` Redis may have done it or not."""

    at_us: int
    client: str
    group: str
    value: str
    kind: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Troubled:
    """An error that the client's library reported; `fatal` if the client does not go on after it."""

    at_us: int
    client: str
    text: str
    fatal: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """A line that a client's library logs when it may join its group again by itself."""

    at_us: int
    client: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Transacted:
    """A transaction with an acknowledged end. Without this event the end is not known."""

    at_us: int
    client: str
    transaction: str
    is_commit: bool


Event = Assigned | Revoked | Consumed | Committed | Acknowledged | Logged | Transacted | Taken | Settled | Troubled
_KINDS: Final = {kind.__name__.lower(): kind for kind in get_args(Event)}


def now_us() -> int:
    return time.time_ns() // 1000


def _partition(value: Any) -> Partition:
    topic, index = value
    return str(topic), int(index)


def parse(line: str | bytes) -> Event:
    """The event of a line. Raises KeyError, TypeError or ValueError if it is none."""
    fields = json.loads(line)
    kind = _KINDS[fields.pop("event")]
    for name in ("added", "owned", "partitions"):
        if name in fields:
            fields[name] = [_partition(value) for value in fields[name]]
    if "partition" in fields:
        fields["partition"] = _partition(fields["partition"])
    if "offsets" in fields:
        fields["offsets"] = [(_partition(partition), int(offset)) for partition, offset in fields["offsets"]]
    event: Event = kind(**fields)
    return event


class Journal:
    """A file that events are appended to, from any thread."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._lock = threading.Lock()

    def add(self, event: Event) -> None:
        line = json.dumps({"event": type(event).__name__.lower(), **asdict(event)}) + "\n"
        with self._lock:
            os.write(self._file, line.encode())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)


class Journals:
    """All journals of a directory, read on as they grow."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read: dict[Path, int] = {}
        self.events: list[Event] = []

    def read(self) -> list[Event]:
        """Read the new events, and return only these; `events` has all."""
        found = [event for path in sorted(self._directory.glob("*.jsonl")) for event in self._more(path)]
        self.events += found
        return found

    def _more(self, path: Path) -> Iterator[Event]:
        with open(path, "rb") as file:
            file.seek(self._read.get(path, 0))
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._read[path] = self._read.get(path, 0) + len(line)
                yield parse(line)
