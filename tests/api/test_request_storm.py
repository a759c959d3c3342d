"""Requests that clients repeat at once while Redis is away follow each other slowly.

The Java consumer repeated its Fetch 490 times a second, and aiokafka its Metadata request 890 times.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.api.data import Connection, connected, fetch_request, partitions_of, produced, records, wanted
from tests.api.raw import created, unique
from tests.support.broker import KorvetServer, running_broker
from tests.support.redis import Server, running_server

LONG_MS = 30_000
TIMES = 3
PAUSE_S = 0.1
"""What each request waits."""


def fetched(connection: Connection, topic: str) -> str:
    (read,) = partitions_of(connection.ask("fetch", 12, **fetch_request(topic, wanted(0), max_wait=LONG_MS)))
    return str(read["error_code"])


def described(connection: Connection, topic: str) -> str:
    topics = [{"name": topic, "topic_id": None}]
    (answer,) = connection.ask("metadata", 12, topics=topics, allow_auto_topic_creation=False)["topics"]
    return str({part["error_code"] for part in answer["partitions"]} or answer["error_code"])


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[KorvetServer, Server]]:
    """A broker and the server behind it, to be stopped at will; it keeps its data."""
    with ExitStack() as stack:
        server = stack.enter_context(running_server("valkey", options={"appendonly": "yes", "appendfsync": "always"}))
        yield stack.enter_context(running_broker(redis_url=server.url)), server


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize(("asked", "code"), [(fetched, "NOT_LEADER_OR_FOLLOWER"), (described, "LEADER_NOT_AVAILABLE")])
def test_requests_that_fail_without_redis_follow_each_other_slowly(
    pair: tuple[KorvetServer, Server], asked: Callable[[Any, str], str], code: str, is_known: bool
) -> None:
    broker, server = pair
    topic = created(broker.port) if is_known else unique()
    if is_known:
        produced(broker.port, topic, records())
    with broker.redis_outage():
        server.stop()
        with connected(broker.port) as connection:
            began = time.monotonic()
            codes = {asked(connection, topic) for _ in range(TIMES)}
            spent_s = time.monotonic() - began
        server.start()
    assert codes == {code} or codes == {str({code})}
    assert TIMES * PAUSE_S <= spent_s < LONG_MS / 1000
