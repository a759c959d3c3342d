"""A front-end stands still (SIGSTOP) between two steps of a transaction, while its producer goes on at another one.

A gate before Redis holds the front-end at exactly one call. The calls that it makes later belong to a transaction that
has ended. They touch no later one, for producers of both versions of transactions.
"""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.api.data import batches_of, connected, fetch, wanted
from tests.api.raw import ask, created, unique
from tests.api.transactions import Producer, committed, described, producer
from tests.kafka.waiting import poll_until
from tests.support.broker import KorvetServer
from tests.support.gate import Command, Gate, calls, running_gate
from tests.support.redis import Server

FLOWS = pytest.mark.parametrize("flow", [1, 2])
PARTITIONS = 4
LATE_MS = 2600
"""The time of an outage after which a front-end's call is late and does nothing."""
DATA, MARKER = 0x10, 0x30


class Pair(NamedTuple):
    """A front-end behind a gate, and another one of its namespace."""

    server: Server
    gate: Gate
    sleeper: KorvetServer
    other: KorvetServer


@pytest.fixture(scope="module")
def pair(valkey_server: Server) -> Iterator[Pair]:
    namespace = unique("stopped")
    with ExitStack() as stack:
        directories = [Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kv"))) for _ in range(2)]
        gate = stack.enter_context(running_gate(valkey_server, directories[0]))
        front_ends = []
        for directory, url in zip(directories, (gate.url, valkey_server.url), strict=True):
            front_end = KorvetServer(directory, redis_url=url, namespace=namespace)
            stack.callback(front_end.kill)
            front_ends.append(front_end.start())
        yield Pair(valkey_server, gate, *front_ends)


class Scene:
    """A producer with an open transaction at the front-end that will stand still. It goes on at the other one."""

    def __init__(self, pair: Pair, flow: int) -> None:
        self.pair, self.flow = pair, flow
        self.topic, self.group = created(pair.other.port, partitions=PARTITIONS), unique("g")
        poll_until(lambda: "NONE" in self._leaders(), "the topic is known")
        self.mine = producer(pair.sleeper.port, flow)

    def _leaders(self) -> list[str]:
        answer = ask(self.pair.sleeper.port, "metadata", 5, topics=[{"name": self.topic}])
        return [topic["error_code"] for topic in answer["topics"]]

    def write(self, mine: Producer, offset: int) -> None:
        """A batch in each partition, and an offset of the group."""
        for partition in range(PARTITIONS):
            mine.sent(self.topic, partition)
        if self.flow == 1:
            assert mine.add_offsets(self.group) == "NONE"
        assert mine.commit_offsets(self.group, {(self.topic, 0): offset}) == ["NONE"]

    def elsewhere(self) -> Producer:
        """The same producer at the other front-end, with its state before the first one stood still."""
        mine = self.mine
        again = Producer(self.pair.other.port, mine.transactional_id, self.flow, mine.producer_id, mine.epoch)
        again.sequences.update(mine.sequences)
        return again

    @contextmanager
    def stopped(self, is_it: Callable[[Command], bool], work: Callable[[], object]) -> Iterator[None]:
        """Have the front-end stand still before a call that some work makes, and wake it after the block.

        The woken front-end finishes the work before the block is left: the work's answer has come.
        """
        doing = threading.Thread(target=work, daemon=True)
        self.pair.gate.shut_before(is_it)
        doing.start()
        with self._still():
            yield
        doing.join(30)
        assert not doing.is_alive()

    @contextmanager
    def _still(self) -> Iterator[None]:
        try:
            self.pair.gate.wait_until_reached()
            os.kill(self.pair.sleeper.pid, signal.SIGSTOP)
            yield
        finally:
            os.kill(self.pair.sleeper.pid, signal.SIGCONT)
            self.pair.gate.open()

    @contextmanager
    def left_alone(self, is_it: Callable[[Command], bool], api: str, version: int, **fields: Any) -> Iterator[None]:
        """Stop as `stopped` does, for a request whose client leaves and goes on elsewhere."""
        self.pair.gate.shut_before(is_it)
        with connected(self.pair.sleeper.port) as connection:
            connection.send(api, version, **fields)
            self.pair.gate.wait_until_reached()
            began_ms = self._now_ms()
        os.kill(self.pair.sleeper.pid, signal.SIGSTOP)
        try:
            yield
            poll_until(lambda: self._now_ms() - began_ms > LATE_MS, "the call is late")
        finally:
            os.kill(self.pair.sleeper.pid, signal.SIGCONT)
            # The front-end answers this without Redis, after it has noticed that its client left.
            ask(self.pair.sleeper.port, "api_versions", 0)
            self.pair.gate.open()
        assert described(self.pair.sleeper.port, self.mine.transactional_id)["error_code"] == "NONE"

    def _now_ms(self) -> int:
        with self.pair.server.client() as client:
            seconds, microseconds = client.time()
            return int(seconds) * 1000 + int(microseconds) // 1000

    def state(self) -> str:
        return str(described(self.pair.other.port, self.mine.transactional_id)["transaction_state"])

    def read(self) -> list[list[int]]:
        """The attributes of the batches that a reader of committed records gets from each partition."""
        found = []
        for partition in range(PARTITIONS):
            (part,) = fetch(self.pair.other.port, self.topic, wanted(0, partition), isolation_level=1)
            found.append([batch["attributes"] for batch in batches_of(part)])
        return found

    def aborted(self) -> list[int]:
        """The number of aborted transactions in a Fetch answer, for each partition."""
        parts = [wanted(0, partition) for partition in range(PARTITIONS)]
        return [
            len(part["aborted_transactions"])
            for part in fetch(self.pair.other.port, self.topic, *parts, isolation_level=1)
        ]

    def offset(self) -> int:
        ((offset, code),) = committed(self.pair.other.port, self.group, (self.topic, 0), stable=True)
        assert code in ("NONE", "UNSTABLE_OFFSET_COMMIT")
        return offset if code == "NONE" else -2


@pytest.mark.parametrize(
    "point",
    [
        ("korvet_log_mark", 1),
        ("korvet_log_mark", PARTITIONS // 2 + 1),
        ("korvet_group_txn_end", 1),
        ("korvet_txn_complete", 1),
    ],
    ids=["before the markers", "between markers", "before the offsets", "before completion"],
)
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
@FLOWS
def test_late_steps_of_a_decision_touch_no_later_transaction(
    pair: Pair, point: tuple[str, int], commit: bool, flow: int
) -> None:
    scene = Scene(pair, flow)
    scene.write(scene.mine, 5)
    again = scene.elsewhere()
    function, number = point
    with scene.stopped(calls(function, at=number), lambda: scene.mine.end(commit=commit)):
        assert scene.state() == ("PrepareCommit" if commit else "PrepareAbort")
        assert again.end(commit=commit) == "NONE"
        assert scene.read() == [[DATA, MARKER]] * PARTITIONS
        scene.write(again, 9)
    assert (scene.state(), scene.offset()) == ("Ongoing", -2)
    assert scene.read() == [[DATA, MARKER]] * PARTITIONS
    assert again.end(commit=not commit) == "NONE"
    assert scene.read() == [[DATA, MARKER] * 2] * PARTITIONS
    assert (scene.aborted(), scene.offset()) == ([1] * PARTITIONS, 5 if commit else 9)


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
@FLOWS
def test_late_decision_ends_no_later_transaction(pair: Pair, commit: bool, flow: int) -> None:
    scene = Scene(pair, flow)
    scene.write(scene.mine, 5)
    again, mine = scene.elsewhere(), scene.mine
    fields = {
        "transactional_id": mine.transactional_id, "producer_id": mine.producer_id, "producer_epoch": mine.epoch,
        "committed": commit,
    }  # fmt: skip
    with scene.left_alone(calls("korvet_txn_end"), "end_txn", 5 if flow == 2 else 4, **fields):
        assert scene.state() == "Ongoing"
        assert again.end(commit=not commit) == "NONE"
        scene.write(again, 9)
    assert (scene.state(), scene.offset()) == ("Ongoing", -2)
    assert again.end() == "NONE"
    assert scene.read() == [[DATA, MARKER] * 2] * PARTITIONS
    assert (scene.aborted(), scene.offset()) == ([1 if commit else 0] * PARTITIONS, 9)


def test_late_new_producer_fences_no_later_one(pair: Pair) -> None:
    scene = Scene(pair, 2)
    fields = {
        "transactional_id": scene.mine.transactional_id, "transaction_timeout": 60_000, "producer_id": -1,
        "producer_epoch": -1,
    }  # fmt: skip
    with scene.left_alone(calls("korvet_txn_init"), "init_producer_id", 5, **fields):
        again = producer(pair.other.port, 2, scene.mine.transactional_id)
        scene.write(again, 9)
    assert (again.end(), scene.offset()) == ("NONE", 9)


@FLOWS
def test_late_batch_verified_before_the_marker_joins_no_later_transaction(pair: Pair, flow: int) -> None:
    scene = Scene(pair, flow)
    again, mine = scene.elsewhere(), scene.mine
    if flow == 1:
        assert mine.add(scene.topic, 0) == ["NONE"]
    answers: list[str] = []
    verified = calls("korvet_log_append_transactional", where=lambda args: args[11] != b"")

    def send() -> None:
        answers.append(mine.send(scene.topic)["error_code"])

    with scene.stopped(verified, send):
        assert scene.state() == "Ongoing"
        assert again.end(commit=False) == "NONE"
        scene.write(again, 9)
    # In version 1 it has the epoch and sequence of a stored batch, so it is a duplicate.
    assert answers == (["INVALID_PRODUCER_EPOCH"] if flow == 2 else ["NONE"])
    assert again.end() == "NONE"
    assert scene.read() == [[MARKER, DATA, MARKER], *[[DATA, MARKER]] * (PARTITIONS - 1)]
    assert (scene.aborted(), scene.offset()) == ([0] * PARTITIONS, 9)


@FLOWS
def test_late_offsets_of_an_ended_transaction_join_no_later_one(pair: Pair, flow: int) -> None:
    scene = Scene(pair, flow)
    again, mine = scene.elsewhere(), scene.mine
    if flow == 1:
        assert mine.add_offsets(scene.group) == "NONE"
    answers: list[str] = []

    def commit() -> None:
        answers.extend(mine.commit_offsets(scene.group, {(scene.topic, 0): 1}))

    with scene.stopped(calls("korvet_group_txn_commit"), commit):
        assert again.end(commit=False) == "NONE"
        scene.write(again, 9)
    assert answers == (["INVALID_PRODUCER_EPOCH"] if flow == 2 else ["INVALID_TXN_STATE"])
    assert again.end() == "NONE"
    assert scene.offset() == 9
