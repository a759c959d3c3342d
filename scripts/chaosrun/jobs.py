"""The job of a process of clients, as JSON in its first argument."""

import json
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Protocol, Self

from scripts.chaosrun.journal import Journal

HEARTBEATS: Final = 12
"""A session's; Kafka's default is 15."""
# The Java client's default. librdkafka waits longer with each connection that it loses within ten seconds, up to ten
# seconds, however well the last one worked. By then its member's session is over.
RECONNECT_MAX_MS: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Members of a group, or producers without a group. `names` are their client ids, one client for each.

    If the protocol is `consumer`, `strategy` is the broker's assignor, and the broker gives the timeouts, too.
    `incarnation` counts the processes that had the names; `timeout_ms` is their transactions'. Share consumers take
    `records_at_once` at most, and work on each for `work_ms`.
    """

    bootstrap: str
    journal: str
    names: list[str]
    topics: list[str]
    partitions: int
    group: str = ""
    protocol: str = "classic"
    strategy: str = ""
    is_static: bool = False
    session_timeout_ms: int = 0
    records_per_s: float = 0.0
    incarnation: int = 0
    timeout_ms: int = 0
    records_at_once: int = 0
    work_ms: int = 0

    @property
    def heartbeat_ms(self) -> int:
        return self.session_timeout_ms // HEARTBEATS

    @property
    def journal_path(self) -> Path:
        return Path(self.journal)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of_this_process(cls) -> Self:
        return cls(**json.loads(sys.argv[1]))


def stopped() -> threading.Event:
    """An event that is set when stdin ends: the clients must leave, or the process that started them is gone."""
    event = threading.Event()

    def watch() -> None:
        sys.stdin.buffer.read()
        event.set()

    threading.Thread(target=watch, daemon=True).start()
    return event


class Client(Protocol):
    """A client that works until an event is set."""

    def run(self, stopped: threading.Event, /) -> None: ...


def run_clients(client: Callable[[Job, str, Journal], Client]) -> None:
    """Run a client for each name of this process's job, in a thread of its own, until stdin ends."""
    job, end = Job.of_this_process(), stopped()
    with Journal(job.journal_path) as journal:
        clients = [client(job, name, journal) for name in job.names]
        threads = [threading.Thread(target=one.run, args=(end,)) for one in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
