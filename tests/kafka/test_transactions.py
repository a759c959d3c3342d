"""Transactional producers of every client that has them, with default settings, and readers of committed records."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator

import pytest

from tests.api.raw import created
from tests.kafka.builds import driver_command
from tests.kafka.client import ClientError
from tests.kafka.conftest import NewTopic
from tests.kafka.process import Administrator, Driver
from tests.kafka.waiting import poll_until
from tests.support.broker import KorvetServer

CLIENTS = ("confluent-kafka", "java", "aiokafka", "kafka-python")
TIMEOUT_MS = 60_000

Start = Callable[[str], Driver]


@pytest.fixture(scope="module")
def start(bootstrap: str) -> Iterator[Start]:
    """Start a new driver of the client with a name."""
    running: list[Driver] = []

    def started(name: str) -> Driver:
        running.append(Driver(driver_command(name, bootstrap)))
        return running[-1]

    yield started
    for driver in running:
        driver.stop()


@pytest.fixture(scope="module")
def drivers(start: Start) -> Callable[[str], tuple[Driver, Driver]]:
    """Two drivers of the client with a name, the same two each time."""
    known: dict[str, tuple[Driver, Driver]] = {}

    def of(name: str) -> tuple[Driver, Driver]:
        if name not in known:
            known[name] = start(name), start(name)
        return known[name]

    return of


@pytest.fixture
def transactional_id() -> str:
    return f"txn-{uuid.uuid4().hex[:12]}"


def transact(driver: Driver, topic: str, *values: str, outcome: str = "commit", group: str | None = None) -> None:
    driver.call("transact", topic=topic, values=list(values), outcome=outcome, group=group, offset=len(values))


def read(driver: Driver, topic: str, count: int, timeout_ms: int = 20_000) -> list[str]:
    found: list[str] = driver.call("read_committed", topic=topic, count=count, timeout_ms=timeout_ms)
    return found


@pytest.mark.parametrize("name", CLIENTS)
def test_all_clients_read_committed_and_no_aborted_records(
    name: str, drivers: Callable[[str], tuple[Driver, Driver]], topic: str, transactional_id: str
) -> None:
    one, _ = drivers(name)
    one.call("begin", transactional_id=transactional_id, timeout_ms=TIMEOUT_MS)
    expected = []
    for number, outcome in enumerate(("commit", "abort", "commit", "abort", "abort", "commit")):
        values = [f"{number}-{at}" for at in range(5)]
        transact(one, topic, *values, outcome=outcome)
        expected += values if outcome == "commit" else []
    one.call("end")
    for reader in CLIENTS:
        assert read(drivers(reader)[0], topic, len(expected)) == expected, reader


@pytest.mark.parametrize("name", CLIENTS)
def test_second_producer_fences_the_first(
    name: str, drivers: Callable[[str], tuple[Driver, Driver]], topic: str, transactional_id: str
) -> None:
    one, two = drivers(name)
    one.call("begin", transactional_id=transactional_id, timeout_ms=TIMEOUT_MS)
    transact(one, topic, "first")
    transact(one, topic, "lost", outcome="open")
    two.call("begin", transactional_id=transactional_id, timeout_ms=TIMEOUT_MS)
    with pytest.raises(ClientError):
        transact(one, topic, "late")
    transact(two, topic, "second")
    assert read(two, topic, 2) == ["first", "second"]
    two.call("end")


@pytest.mark.parametrize("name", CLIENTS)
def test_offsets_are_committed_with_the_records(
    name: str,
    drivers: Callable[[str], tuple[Driver, Driver]],
    administrator: Administrator,
    topic: str,
    group: str,
    transactional_id: str,
) -> None:
    one, _ = drivers(name)
    one.call("begin", transactional_id=transactional_id, timeout_ms=TIMEOUT_MS)
    transact(one, topic, "a", "b", group=group)
    assert administrator.committed(group, topic) == {0: 2}
    transact(one, topic, "c", "d", "e", outcome="abort", group=group)
    assert administrator.committed(group, topic) == {0: 2}
    transact(one, topic, "f", group=group)
    assert administrator.committed(group, topic) == {0: 1}
    one.call("end")
    assert read(one, topic, 3) == ["a", "b", "f"]


@pytest.mark.parametrize("name", CLIENTS)
def test_dead_producers_transaction_is_aborted_after_its_timeout(
    name: str, start: Start, new_topic: NewTopic, administrator: Administrator, transactional_id: str
) -> None:
    topic, dying, reader = new_topic(), start(name), start("confluent-kafka")
    dying.call("begin", transactional_id=transactional_id, timeout_ms=5000)
    transact(dying, topic, "lost", outcome="open")
    dying.kill()
    other = start("confluent-kafka")
    other.call("begin", transactional_id=f"{transactional_id}-2", timeout_ms=TIMEOUT_MS)
    transact(other, topic, "kept")
    assert read(reader, topic, 1, 45_000) == ["kept"]


@pytest.mark.parametrize("name", CLIENTS)
def test_many_transactions_run_one_after_another(
    name: str, drivers: Callable[[str], tuple[Driver, Driver]], topic: str, transactional_id: str
) -> None:
    one, two = drivers(name)
    one.call("begin", transactional_id=transactional_id, timeout_ms=TIMEOUT_MS)
    outcomes = list(itertools.islice(itertools.cycle(("commit", "commit", "abort")), 30))
    for number, outcome in enumerate(outcomes):
        transact(one, topic, *(f"{number}-{at}" for at in range(20)), outcome=outcome)
    expected = [f"{number}-{at}" for number, one in enumerate(outcomes) if one == "commit" for at in range(20)]
    assert read(two, topic, len(expected)) == expected
    one.call("end")
    poll_until(lambda: len(read(two, topic, len(expected) + 1, 3000)) == len(expected), "no more records")


@pytest.mark.parametrize("name", ["confluent-kafka", "java"])
def test_producer_goes_on_after_its_transactional_id_moves_to_another_server(
    name: str, broker: KorvetServer, transactional_id: str
) -> None:
    """The producer gets a new producer id at the end of a transaction, or the next producer gets one at its begin."""
    topic, driver = created(broker.port), Driver(driver_command(name, broker.bootstrap))
    try:
        driver.call("begin", transactional_id=transactional_id, timeout_ms=TIMEOUT_MS)
        ids = set()
        with broker.redis() as redis:
            for number in range(4):
                transact(driver, topic, str(number))
                (key,) = redis.keys(f"korvet:*:id:{transactional_id}")
                ids.add(redis.hget(key, "producer_id"))
                redis.hset(key, "replid", "f" * 40)
        driver.call("end")
        driver.call("begin", transactional_id=transactional_id, timeout_ms=TIMEOUT_MS)
        transact(driver, topic, "4")
        assert read(driver, topic, 5) == [str(number) for number in range(5)]
    finally:
        driver.stop()
    assert len(ids) == (4 if name == "java" else 1)
