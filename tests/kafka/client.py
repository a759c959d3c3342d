"""The one interface through which scenarios use every client."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Self

from tests.kafka.options import MemberOptions, Outcome, ProduceOptions
from tests.kafka.records import Record
from tests.kafka.waiting import TIMEOUT_S, wait_until


@dataclass(frozen=True, slots=True)
class At:
    """Start at the first record whose timestamp is at least this one."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Offsets:
    """Start at these offsets by partition; other partitions are not read."""

    by_partition: Mapping[int, int]


Start = Literal["earliest", "latest"] | At | Offsets
Position = int | Literal["beginning", "end"]
"""The position at which a member goes on reading a partition: an offset, or one of the partition's ends."""


class ClientError(Exception):
    """A client failed; `code` is Kafka's error code, or -1 if the error is the client's own."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{message} (code {code})")
        self.code = code


class Reader(ABC):
    """A consumer without a group that stands at its start position."""

    @abstractmethod
    def read(self, count: int, timeout_s: float = TIMEOUT_S) -> list[Record]:
        """At least `count` records: fewer only if the time is over, more if the client got more at once."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


@dataclass
class Observed:
    """A group member's reports: `assignment` is what it owns now, `assignments` counts the changes."""

    assignment: list[int] = field(default_factory=list)
    assignments: int = 0
    records: list[Record] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)


class Member(ABC):
    """A group member in a process of its own."""

    def __init__(self) -> None:
        self.seen = Observed()

    @property
    @abstractmethod
    def alive(self) -> bool: ...

    @abstractmethod
    def commit(self) -> None:
        """Commit the positions after the records reported so far."""

    @abstractmethod
    def leave(self) -> None:
        """Close the consumer in good order, and the process. Raises if it does not end in time."""

    @abstractmethod
    def kill(self) -> None:
        """End the process by SIGKILL, if it has not ended already."""

    def pause(self, partitions: Sequence[int]) -> None:
        """Read nothing more from partitions that the member owns; only clients that know both protocols do this."""
        raise NotImplementedError

    def resume(self, partitions: Sequence[int]) -> None:
        """Read paused partitions again."""
        raise NotImplementedError

    def seek(self, partition: int, position: Position) -> None:
        """Go on at another position of a partition. If it is an offset, `commit` commits it too."""
        raise NotImplementedError

    def await_records(self, count: int) -> list[Record]:
        """All records reported so far, once there are at least `count`."""
        wait_until(lambda: len(self.seen.records) >= count, lambda: f"{count} records, seen {self.seen}")
        return list(self.seen.records)


class Client(ABC):
    """One client library or tool, connected to the broker under test."""

    name: str

    @abstractmethod
    def produce(self, topic: str, records: list[Record], options: ProduceOptions | None = None) -> list[Outcome]:
        """Send the records through one producer and wait for their outcomes, in the order of the records."""

    @abstractmethod
    def open(self, topic: str, start: Start) -> Reader:
        """Open a consumer without a group; returns after its start position is fixed."""

    @abstractmethod
    def join(self, group: str, topic: str, options: MemberOptions | None = None) -> Member:
        """Start a group member in a process of its own, which reports the records that it gets."""

    @abstractmethod
    def committed(self, group: str, topic: str) -> dict[int, int]:
        """The committed offsets of the group by partition, only those that exist."""

    @abstractmethod
    def create_topic(self, topic: str, partitions: int, configs: Mapping[str, str] | None = None) -> None: ...

    @abstractmethod
    def delete_topic(self, topic: str) -> None: ...

    @abstractmethod
    def topics(self) -> list[str]: ...

    @abstractmethod
    def set_offsets(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Set the offsets of a group without members."""

    @abstractmethod
    def stop(self) -> None:
        """End the client's processes."""

    def consume(self, topic: str, start: Start, count: int) -> list[Record]:
        """Read at least `count` records from `start`, fewer only when the time is over; by partition and offset."""
        with self.open(topic, start) as reader:
            found = reader.read(count)
        return sorted(found, key=lambda record: (record.partition, record.offset))
