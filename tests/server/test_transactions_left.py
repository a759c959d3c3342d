"""A front-end dies while it ends a transaction, and another one finishes it.

The tests follow the front-end by MONITOR, and kill its process at the first call of a function. A gate before Redis
holds a front-end that must not get further than that call.
`test_transactions_stopped` is about a front-end that stands still and goes on later.
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
from tests.support.gate import calls, running_gate
from tests.support.redis import Server

PARTITIONS = 8
Start = Callable[..., KorvetServer]
STEPS = ("korvet_txn_end", "korvet_log_mark", "korvet_group_txn_end", "korvet_txn_complete")


@pytest.fixture(scope="module")
def start(valkey_server: Server) -> Iterator[Start]:
    """A function that starts front-ends of one namespace."""
    namespace = unique("left")
    with ExitStack() as stack:

        def start(url: str = valkey_server.url) -> KorvetServer:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kv")))
            server = KorvetServer(directory, redis_url=url, namespace=namespace)
            stack.callback(server.kill)
            return server.start()

        yield start


@pytest.fixture(scope="module")
def other(start: Start) -> KorvetServer:
    """The front-end that survives."""
    return start()


@pytest.fixture
def dying(start: Start) -> Iterator[KorvetServer]:
    """The front-end that the test kills."""
    server = start()
    yield server
    server.kill()


def killed_at(server: Server, function: str, victim: KorvetServer, work: Any) -> None:
    """Do work in a thread, and kill a front-end at the first call of a function."""
    doing = threading.Thread(target=_try, args=(work,), daemon=True)
    with server.client() as client, client.monitor() as monitor:
        doing.start()
        for command in monitor.listen():
            if function in command["command"]:
                os.kill(victim.pid, signal.SIGKILL)
                break


def _try(work: Callable[[], object]) -> None:
    with suppress(OSError, ConnectionError):
        work()


def read(port: int, topic: str, partition: int) -> list[tuple[int, int]]:
    """The base offset and attributes of each batch that a reader of committed records gets."""
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
def test_another_front_end_finishes_a_killed_ones_decision(
    valkey_server: Server, dying: KorvetServer, other: KorvetServer, step: str, commit: bool
) -> None:
    topic, group = created(dying.port, partitions=PARTITIONS), unique("g")
    mine = producer(dying.port)
    opened(dying.port, topic, group, mine)
    again = Producer(other.port, mine.transactional_id, 2, mine.producer_id, mine.epoch)
    # The second call decides a commit, after the front-end has asked all members.
    is_decision = commit and step == "korvet_txn_end"
    killed_at(valkey_server, f"{PARTITIONS + 1} held" if is_decision else step, dying, lambda: mine.end(commit=commit))
    expected = "CompleteCommit" if commit else "CompleteAbort"
    poll_until(lambda: described(other.port, again.transactional_id)["transaction_state"] == expected, expected)
    assert again.end(commit=commit) == "NONE"
    assert [read(other.port, topic, partition) for partition in range(PARTITIONS)] == (
        [[(0, 0x10), (1, 0x30)]] * PARTITIONS
    )
    assert committed(other.port, group, (topic, 0), stable=True) == [(1 if commit else -1, "NONE")]
    opened(other.port, topic, group, again)
    assert again.end() == "NONE"


def test_another_front_end_commits_if_one_dies_asking_the_members(
    valkey_server: Server, start: Start, other: KorvetServer
) -> None:
    with tempfile.TemporaryDirectory(prefix="kv") as directory, running_gate(valkey_server, Path(directory)) as gate:
        dying = start(gate.url)
        topic, group = created(dying.port, partitions=PARTITIONS), unique("g")
        mine = producer(dying.port)
        opened(dying.port, topic, group, mine)
        again = Producer(other.port, mine.transactional_id, 2, mine.producer_id, mine.epoch)
        gate.shut_before(calls("korvet_log_check"))
        ending = threading.Thread(target=_try, args=(mine.end,), daemon=True)
        ending.start()
        gate.wait_until_reached()
        dying.kill()
        ending.join()
    assert described(other.port, mine.transactional_id)["transaction_state"] == "Ongoing"
    assert again.end() == "NONE"
    assert committed(other.port, group, (topic, 0), stable=True) == [(1, "NONE")]


def test_producer_goes_on_at_another_front_end(dying: KorvetServer, other: KorvetServer) -> None:
    topic, group = created(dying.port, partitions=PARTITIONS), unique("g")
    mine = producer(dying.port)
    opened(dying.port, topic, group, mine)
    dying.kill()
    mine.port = other.port
    assert mine.sent(topic, 3) == 1
    assert mine.end() == "NONE"
    assert read(other.port, topic, 3) == [(0, 0x10), (1, 0x10), (2, 0x30)]
