"""Servers and front-ends that die under running librdkafka clients: no acknowledged record is lost or doubled."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.api.data import fetch, produce, produced, records, wanted
from tests.api.raw import created
from tests.api.rdkafka import Reader, Traffic, Writer
from tests.support.broker import KorvetServer, running_broker
from tests.support.redis import Server, running_server
from tests.support.waiting import until


def survive(broker: KorvetServer, happen: Callable[[], None], times: int = 2) -> None:
    """Do something several times under a producer and a consumer; both must see one unbroken log."""
    topic = created(broker.port)
    writer = Writer(broker.bootstrap, topic)
    with Reader(broker.bootstrap, topic) as reader:
        with Traffic(writer) as traffic:
            for _ in range(times):
                traffic.wait_for(100)
                happen()
            traffic.wait_for(100)
        writer.flush()
        assert traffic.sent > 100 * times
        assert writer.offsets == list(range(traffic.sent))
        reader.read_until(b"%d" % (traffic.sent - 1))
        assert reader.values == [b"%d" % number for number in range(traffic.sent)]
    (read,) = fetch(broker.port, topic, wanted(0))
    assert read["high_watermark"] == traffic.sent


def _restart(broker: KorvetServer, *, crash: bool = False) -> None:
    broker.restart(crash=crash)


@pytest.fixture
def own_broker() -> Iterator[KorvetServer]:
    with running_broker() as server:
        yield server


@pytest.fixture
def redis_behind() -> Iterator[Server]:
    with running_server("valkey", options={"appendonly": "yes", "appendfsync": "everysec"}) as server:
        yield server


def test_embedded_server_keeps_acknowledged_records_after_kill_9(own_broker: KorvetServer) -> None:
    survive(own_broker, own_broker.kill_embedded)


def test_external_server_keeps_acknowledged_records_after_kill_9(redis_behind: Server) -> None:
    with running_broker(redis_url=redis_behind.url) as broker:
        survive(broker, lambda: redis_behind.restart(crash=True))


@pytest.mark.parametrize("crash", [False, True], ids=["SIGTERM", "SIGKILL"])
def test_clients_go_on_after_a_restart_of_the_front_end(redis_behind: Server, crash: bool) -> None:
    with running_broker(redis_url=redis_behind.url) as broker:
        survive(broker, lambda: _restart(broker, crash=crash))


def test_records_and_offsets_outlive_a_restart_of_everything(own_broker: KorvetServer) -> None:
    survive(own_broker, lambda: _restart(own_broker), times=1)


def test_batch_waits_for_an_earlier_one_that_failed_unopened(redis_behind: Server) -> None:
    with running_broker(redis_url=redis_behind.url) as broker:
        topic = created(broker.port, korvet_storage="record")
        produced(broker.port, topic, records())
        first, second = (records(3, producer_id=77, producer_epoch=0, sequence=sequence) for sequence in (0, 3))
        redis_behind.kill()
        assert produce(broker.port, topic, first)["error_code"] != "NONE"
        redis_behind.start()
        until(lambda: fetch(broker.port, topic, wanted(0))[0]["error_code"] == "NONE")
        until(lambda: produce(broker.port, topic, records())["error_code"] == "NONE")
        codes = [produce(broker.port, topic, data)["error_code"] for data in (second, first, second)]
        assert codes == ["OUT_OF_ORDER_SEQUENCE_NUMBER", "NONE", "NONE"]
