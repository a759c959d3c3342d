"""What clients saw, as JSON lines: each process of clients appends to a journal of its own, the checks read them all.

Times are µs since 1970, so that Java's and Python's compare. A line is one write: a process that is killed leaves whole
lines, but for the last one at most.
"""

import json
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

Place = tuple[str, int]  # topic, partition


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """A member was told what it owns: `added` is new, `owned` is all of it, in this generation."""

    at_us: int
    client: str
    group: str
    member_id: str
    generation: int
    added: list[Place]
    owned: list[Place]


@dataclass(frozen=True, slots=True, kw_only=True)
class Revoked:
    """A member gave these places up; `lost` where it was too late to commit."""

    at_us: int
    client: str
    group: str
    places: list[Place]
    lost: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumed:
    """A record came, to a member that last was told this generation."""

    at_us: int
    client: str
    group: str
    member_id: str
    generation: int
    place: Place
    offset: int
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """Offsets whose commit the broker acknowledged."""

    at_us: int
    client: str
    group: str
    offsets: list[tuple[Place, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    """A record whose append the broker acknowledged, at this offset."""

    at_us: int
    client: str
    place: Place
    offset: int
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Troubled:
    """An error that the client's library told of; `fatal` where it does not go on after it."""

    at_us: int
    client: str
    text: str
    fatal: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """What a client's library logs when it may join its group again of its own accord."""

    at_us: int
    client: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Transacted:
    """A transaction whose end the broker acknowledged. Of one that nothing is written down of the end is not known."""

    at_us: int
    client: str
    transaction: str
    is_commit: bool


Event = Assigned | Revoked | Consumed | Committed | Acknowledged | Logged | Transacted | Troubled
_KINDS: Final = {
    kind.__name__.lower(): kind
    for kind in (Assigned, Revoked, Consumed, Committed, Acknowledged, Logged, Transacted, Troubled)
}


def now_us() -> int:
    return time.time_ns() // 1000


def _place(value: Any) -> Place:
    topic, partition = value
    return str(topic), int(partition)


def parse(line: str | bytes) -> Event:
    """The event of a line. Raises KeyError, TypeError or ValueError for what is none."""
    fields = json.loads(line)
    kind = _KINDS[fields.pop("event")]
    for name in ("added", "owned", "places"):
        if name in fields:
            fields[name] = [_place(value) for value in fields[name]]
    if "place" in fields:
        fields["place"] = _place(fields["place"])
    if "offsets" in fields:
        fields["offsets"] = [(_place(place), int(offset)) for place, offset in fields["offsets"]]
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
        """Take in what was added since, and return only that; `events` has everything."""
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
