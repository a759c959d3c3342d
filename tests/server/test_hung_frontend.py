"""A front-end that hangs too briefly for its calls to be late. Its client leaves, and goes on at another one."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.api.consumers import Member, settled
from tests.api.data import connected
from tests.api.groups import PROTOCOLS, commit, committed, heartbeat, join, stable, sync
from tests.api.raw import created, unique
from tests.kafka.waiting import poll_until
from tests.support.broker import KorvetServer
from tests.support.redis import Server

Pair = tuple[KorvetServer, KorvetServer]


@pytest.fixture(scope="module")
def pair(valkey_server: Server) -> Iterator[Pair]:
    """Two front-ends of a namespace."""
    namespace = unique("hung")

    with ExitStack() as stack:

        def started() -> KorvetServer:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kv")))
            broker = {"group.initial.rebalance.delay.ms": "0"}
            front_end = KorvetServer(directory, redis_url=valkey_server.url, namespace=namespace, broker=broker)
            stack.callback(front_end.kill)
            return front_end.start()

        yield started(), started()


@contextmanager
def asked_and_left(front_end: KorvetServer, api: str, version: int, **fields: Any) -> Iterator[None]:
    """Hang a front-end for the time of the block, after a client has sent it a request and left."""
    with connected(front_end.port) as connection:
        connection.ask("api_versions", 0)
        os.kill(front_end.pid, signal.SIGSTOP)
        connection.send(api, version, **fields)
    try:
        yield
        # A front-end notices a pause of 20 ms.
        time.sleep(0.05)
    finally:
        os.kill(front_end.pid, signal.SIGCONT)


@contextmanager
def busy(front_end: KorvetServer, topic: str) -> Iterator[None]:
    """Commit without a pause until the end of the block, so that Redis's replies come all the time."""
    ends = threading.Event()
    began = threading.Event()

    def commit_all_the_time() -> None:
        with connected(front_end.port) as connection:
            fields = committing(unique("busy"), topic, 1)
            until = time.monotonic() + 0.3
            while not ends.is_set():
                connection.ask("offset_commit", 9, **fields)
                if time.monotonic() > until:
                    began.set()

    with ThreadPoolExecutor(1) as threads:
        done = threads.submit(commit_all_the_time)
        try:
            assert began.wait(30) or done.result()
            yield
        finally:
            ends.set()
            done.result(30)


def committing(group: str, topic: str, offset: int) -> dict[str, Any]:
    """An OffsetCommit of a client that is no member."""
    rows = [{"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}]
    topics = [{"name": topic, "partitions": rows}]
    return {"group_id": group, "member_id": "", "generation_id_or_member_epoch": -1, "topics": topics}


@pytest.mark.parametrize("is_busy", [False, True], ids=["idle", "busy"])
def test_late_commit_does_not_take_back_a_newer_one(pair: Pair, is_busy: bool) -> None:
    hangs, other = pair
    topic, group = created(other.port), unique("g")
    poll_until(lambda: commit(hangs.port, group, topic, 1) == ["NONE"], "the topic is known")
    with (
        busy(hangs, topic) if is_busy else nullcontext(),
        asked_and_left(hangs, "offset_commit", 9, **committing(group, topic, 2)),
    ):
        assert commit(other.port, group, topic, 2) == ["NONE"]
        assert commit(other.port, group, topic, 3) == ["NONE"]
    assert commit(hangs.port, unique("g"), topic, 1) == ["NONE"]  # It has done the earlier request by now.
    assert committed(other.port, group, topic, 0) == [3]


def test_late_heartbeat_gives_up_no_partition_taken_since(pair: Pair) -> None:
    hangs, other = pair
    topic, group = created(other.port, partitions=2), unique("g")
    poll_until(lambda: commit(hangs.port, unique("g"), topic, 1) == ["NONE"], "the topic is known")
    mine, its = (Member(other.port, group, subscribed_topic_names=[topic]) for _ in range(2))
    assert mine.join()["error_code"] == "NONE"
    owns_nothing: dict[str, Any] = {"subscribed_topic_names": None, "topic_partitions": [], "rebalance_timeout": -1}
    fields = {"group_id": group, "member_id": mine.id, "member_epoch": mine.epoch, **owns_nothing}
    with asked_and_left(hangs, "consumer_group_heartbeat", 1, **fields):
        assert mine.beat()["error_code"] == "NONE"
        assert its.join()["error_code"] == "NONE"
    assert commit(hangs.port, unique("g"), topic, 1) == ["NONE"]  # It has done the earlier request by now.
    its.beat()
    assert [len(parts) for parts in mine.owned.values()] == [2]
    assert its.owned == {}
    settled(mine, its)
    assert [len(parts) for parts in its.owned.values()] == [1]


def test_late_join_does_not_fence_the_static_member_that_joined_since(pair: Pair) -> None:
    hangs, other = pair
    group = unique("g")
    static: dict[str, Any] = {"group_instance_id": "i"}
    timeouts = {"session_timeout": 30_000, "rebalance_timeout": 60_000}
    fields = {"group_id": group, "member_id": "", "protocol_type": "consumer", "protocols": PROTOCOLS}
    with asked_and_left(hangs, "join_group", 9, **fields, **timeouts, **static):
        mine = join(other.port, group, **static)
        assert mine["error_code"] == "NONE"
        assert sync(other.port, group, mine["member_id"], 1, {mine["member_id"]: b"all"})["error_code"] == "NONE"
    stable(hangs.port, unique("g"))  # It has done the earlier request by now.
    assert heartbeat(other.port, group, mine["member_id"]) == "NONE"
