"""The metrics that clients push (KIP-714): to any worker of a broker, and told at its HTTP port."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from uuid import UUID

import confluent_kafka
import pytest

from korvet.api.shared.telemetry import shown
from korvet.wire.batch import GZIP, LZ4, SNAPPY, ZSTD
from korvet.wire.compress import compressed
from tests.api.raw import ask, unique
from tests.api.telemetry import Client, subscribed, subscription
from tests.metrics.otlp import attributes, gauge, point, pushed
from tests.metrics.otlp import total as summed
from tests.support.broker import KorvetServer, running_broker
from tests.support.scraping import Figures, scrape_until, total

WITHIN_S = 60.0
MEGABYTE = 1 << 20
SENT = "kafka_client_producer_record_send_total"


@pytest.fixture(scope="module")
def server() -> Iterator[KorvetServer]:
    with running_broker(workers=2, has_metrics=True) as broker:
        yield broker


def of(figures: Figures, name: str, id: UUID) -> float:
    return total(figures, name, client_instance_id=shown(id), namespace="default")


def _has_n(id: UUID, number: int, figures: Figures) -> bool:
    return of(figures, "kafka_client_n", id) == number


def test_pushed_metrics_are_exported_with_labels_of_the_client(server: KorvetServer) -> None:
    with subscribed(server, metrics="org.apache.kafka.", interval_ms="200000") as (client, told):
        assert (told["push_interval"], told["telemetry_max_bytes"]) == (200_000, MEGABYTE)
        metrics = summed("org.apache.kafka.producer.record.send.total", point(7, attributes(topic="a")))
        assert client.push(told, pushed(metrics, resource=attributes(group_id="g", no_such="x"))) == "NONE"
        figures = scrape_until(server.metrics_port, lambda found: of(found, SENT, client.id) == 7, "it is told")
    id = shown(client.id)
    labels = {"namespace": "default", "client_instance_id": id, "client_id": "oracle", "topic": "a"}
    assert figures[SENT, frozenset(labels.items())] == 7
    (info,) = [dict(own) for name, own in figures if name == "korvet_client_info" and ("client_instance_id", id) in own]
    assert (info["group_id"], info["principal"], info["client_source_address"]) == ("g", "User:ANONYMOUS", "127.0.0.1")
    assert info["client_software_name"] == "unknown"


def test_a_push_may_come_to_any_worker(server: KorvetServer) -> None:
    """A client's connection has moved: its subscription id is the same everywhere, and its newest push counts."""
    with subscribed(server, metrics="a.", interval_ms="200000") as (client, told):
        for number in range(1, 4):
            moved = Client(server, client.id)
            assert moved.subscribed("a.")["subscription_id"] == told["subscription_id"]
            assert moved.push(told, pushed(summed("n", point(number)))) == "NONE"
            moved.close()
            scrape_until(server.metrics_port, partial(_has_n, client.id, number), "the newest is told")


def test_pushes_may_be_compressed_and_are_bounded_when_they_are_not(server: KorvetServer) -> None:
    with subscribed(server, metrics="b.", interval_ms="100") as (client, told):
        for codec in (0, GZIP, SNAPPY, LZ4, ZSTD):
            bomb = compressed(codec, bytes(MEGABYTE + 1))
            assert client.push_in_time(told, bomb, codec) == "TELEMETRY_TOO_LARGE"
            assert client.push_in_time(told, compressed(codec, pushed(gauge("g", point(codec)))), codec) == "NONE"
        scrape_until(server.metrics_port, lambda found: of(found, "kafka_client_g", client.id) == ZSTD, "it is told")


def test_what_is_no_otlp_is_refused(server: KorvetServer) -> None:
    with subscribed(server, metrics="c.", interval_ms="200000") as (client, told):
        assert client.push(told, b"\xff") == "INVALID_RECORD"
    with subscribed(server, metrics="c.", interval_ms="200000") as (client, told):
        assert client.push(told, b"no zstd", ZSTD) == "INVALID_RECORD"


def test_hostile_names_cost_nobody_the_page(server: KorvetServer) -> None:
    with subscribed(server, metrics="d.", interval_ms="200000") as (client, told):
        hostile = 'a"} 1\nkorvet_workers 9\n\\'
        metrics = gauge(hostile, point(5, attributes(**{hostile: hostile, "client_id": "another"})))
        assert client.push(told, pushed(metrics)) == "NONE"
        name = "kafka_client_a___1_korvet_workers_9__"
        figures = scrape_until(server.metrics_port, lambda found: of(found, name, client.id) == 5, "it is told")
    assert total(figures, name, client_id="oracle") == 5
    assert total(figures, "korvet_workers") == 2


def test_client_passes_for_nobody_else(server: KorvetServer) -> None:
    claims = dict.fromkeys(("principal", "client_id", "client_instance_id", "client_source_address"), "another")
    with subscribed(server, metrics="i.", interval_ms="200000") as (client, told):
        assert client.push(told, pushed(gauge("claim", point(5)), resource=attributes(**claims))) == "NONE"
        figures = scrape_until(server.metrics_port, lambda found: total(found, "kafka_client_claim") == 5, "it is told")
    assert of(figures, "kafka_client_claim", client.id) == 5
    assert total(figures, "korvet_client_info", client_instance_id=shown(client.id), principal="User:ANONYMOUS") == 1
    told_of = {
        value for name, own in figures if name in ("korvet_client_info", "kafka_client_claim") for _, value in own
    }
    assert "another" not in told_of


def test_new_instance_ids_do_not_lift_the_push_interval(server: KorvetServer) -> None:
    """Attack: a connection that takes a new id for each push, each of which is decompressed."""
    with subscribed(server, metrics="i.", interval_ms="3600000") as (client, told):
        assert client.push(told, pushed(gauge("n", point(1)))) == "NONE"
        for is_last in (False, True) * 10:
            answer = client.ask("get_telemetry_subscriptions", client_instance_id=None)
            client.id = answer["client_instance_id"]
            refused = client.push(answer, pushed(gauge("n", point(1))), terminating=is_last)
            assert refused == "THROTTLING_QUOTA_EXCEEDED"


def test_subscriptions_match_clients_by_all_their_patterns(server: KorvetServer) -> None:
    client = Client(server)
    software = {"client_software_name": "some-software", "client_software_version": "1.2.3"}
    client.ask("api_versions", 4, **software)
    with (
        subscription(server, metrics="e.", match="client_software_name=some-.*,client_software_version=1\\..*"),
        subscription(server, metrics="f.", match="client_software_name=some-.*,client_software_version=2\\..*"),
        subscription(server, metrics="g.", match="client_software_name=some", interval_ms="100"),
        subscription(server, metrics="h.", match="client_id=no-such-client"),
    ):
        assert client.subscribed("e.")["push_interval"] == 300_000
    client.close()


def test_brokers_offer_telemetry_only_with_a_port_for_it(server: KorvetServer) -> None:
    """As Kafka does, which tells of it only with a receiver of metrics."""
    keys = {one["api_key"] for one in ask(server.port, "api_versions", 3, client_software_name="a",
                                          client_software_version="1")["api_keys"]}  # fmt: skip
    assert keys >= {71, 72}


def test_librdkafka_pushes_its_metrics(server: KorvetServer) -> None:
    client_id = unique("rdkafka")
    with subscription(server, metrics="*", interval_ms="100", match=f"client_id={client_id}"):
        producer = confluent_kafka.Producer({"bootstrap.servers": server.bootstrap, "client.id": client_id})
        producer.produce(unique("topic"), b"value")
        assert producer.flush(WITHIN_S) == 0
        figures = scrape_until(
            server.metrics_port,
            lambda found: total(found, "kafka_client_producer_connection_creation_total", client_id=client_id) > 0,
            "it pushes",
        )
    (info,) = [dict(own) for name, own in figures if name == "korvet_client_info" and ("client_id", client_id) in own]
    assert info["client_software_name"] == "confluent-kafka-python"
