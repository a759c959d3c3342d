"""A front-end dies in the midst of ending a transaction; another one brings it to its end.

Where it stands is seen by MONITOR: at the first call of a function, the process is killed. One that stands still and
goes on later: `test_transactions_stopped`.
"""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.api.data import batches_of, fetch, wanted
from tests.api.raw import created, unique
from tests.api.transactions import Producer, committed, described, producer
from tests.kafka.waiting import poll_until
from tests.support.broker import KorvetServer
from tests.support.redis import Server

PARTITIONS = 8
STEPS = ("korvet_txn_end", "korvet_log_mark", "korvet_group_txn_end", "korvet_txn_complete")


@pytest.fixture(scope="module")
def start(valkey_server: Server) -> Iterator[Callable[[], KorvetServer]]:
    """Starts front-ends of one namespace."""
    namespace = unique("left")
    with ExitStack() as stack:

        def start() -> KorvetServer:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kv")))
            server = KorvetServer(directory, redis_url=valkey_server.url, namespace=namespace)
            stack.callback(server.kill)
            return server.start()

        yield start


@pytest.fixture(scope="module")
def other(start: Callable[[], KorvetServer]) -> KorvetServer:
    """The front-end that lives."""
    return start()


@pytest.fixture
def dying(start: Callable[[], KorvetServer]) -> Iterator[KorvetServer]:
    """One that is killed by the test."""
    server = start()
    yield server
    server.kill()


def killed_at(server: Server, function: str, victim: KorvetServer, work: Any) -> None:
    """Do work in a thread, and kill a front-end when the function is called first."""
    doing = threading.Thread(target=_try, args=(work,), daemon=True)
    with server.client() as client, client.monitor() as monitor:
        doing.start()
        for command in monitor.listen():
            if f" {function} " in f" {command['command']} ":
                os.kill(victim.pid, signal.SIGKILL)
                break


def _try(work: Callable[[], object]) -> None:
    with suppress(OSError, ConnectionError):
        work()


def read(port: int, topic: str, partition: int) -> list[tuple[int, int]]:
    """Base offset and attributes of what a committed reader finds."""
    (part,) = fetch(port, topic, wanted(0, partition), isolation_level=1)
    return [(batch["base_offset"], batch["attributes"]) for batch in batches_of(part)]


def opened(port: int, topic: str, group: str, mine: Producer) -> None:
    """Write to each partition and commit an offset, all in one transaction."""
    mine.port = port
    for partition in range(PARTITIONS):
        mine.sent(topic, partition)
    assert mine.commit_offsets(group, {(topic, 0): 1}) == ["NONE"]


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
@pytest.mark.parametrize("step", STEPS)
def test_what_a_killed_front_end_left_is_finished_by_another(
    valkey_server: Server, dying: KorvetServer, other: KorvetServer, step: str, commit: bool
) -> None:
    topic, group = created(dying.port, partitions=PARTITIONS), unique("g")
    mine = producer(dying.port)
    opened(dying.port, topic, group, mine)
    again = Producer(other.port, mine.transactional_id, 2, mine.producer_id, mine.epoch)
    killed_at(valkey_server, step, dying, lambda: mine.end(commit=commit))
    expected = "CompleteCommit" if commit else "CompleteAbort"
    poll_until(lambda: described(other.port, again.transactional_id)["transaction_state"] == expected, expected)
    assert again.end(commit=commit) == "NONE"
    assert [read(other.port, topic, partition) for partition in range(PARTITIONS)] == (
        [[(0, 0x10), (1, 0x30)]] * PARTITIONS
    )
    assert committed(other.port, group, (topic, 0), stable=True) == [(1 if commit else -1, "NONE")]
    opened(other.port, topic, group, again)
    assert again.end() == "NONE"


def test_a_producer_goes_on_at_another_front_end(dying: KorvetServer, other: KorvetServer) -> None:
    topic, group = created(dying.port, partitions=PARTITIONS), unique("g")
    mine = producer(dying.port)
    opened(dying.port, topic, group, mine)
    dying.kill()
    mine.port = other.port
    assert mine.sent(topic, 3) == 1
    assert mine.end() == "NONE"
    assert read(other.port, topic, 3) == [(0, 0x10), (1, 0x10), (2, 0x30)]
